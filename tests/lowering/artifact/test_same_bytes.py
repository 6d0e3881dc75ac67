"""Two compiles of one graph give the same bytes, in which the environment and the folders of no process stand."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard
from processes import run_python
from remote_servers import redis_server

from fxpool.codecache.store import catalogue
from fxpool.codecache.store.entry import Entry, encode_entry
from fxpool.codecache.store.store import LocalStore

SECRETS = {
    "TORCHINDUCTOR_REDIS_URL": "redis://user:planted-1@127.0.0.1:1/0",
    "TRITON_OF_THE_PROGRAM": "planted-2",
    "AWS_SECRET_ACCESS_KEY": "planted-3",
    "CCACHE_REMOTE_STORAGE": "redis://user:planted-4@host",
    "TORCH_OF_THE_PROGRAM": "planted-5 'in quotes'",
    "INDUCTOR_OF_THE_PROGRAM": "planted-6\non two lines",
}
PASSWORD = "planted-7"
PROGRAM = """
import torch, fxpool
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
    def forward(self, x):
        return torch.nn.functional.dropout(self.second(self.norm(self.first(x)).relu()), 0.1)
torch.manual_seed(0)
torch.compile(Net(), backend="fxpool")(torch.randn(4, 16)).sum().backward()
shapes = torch.compile(lambda x: x.softmax(-1).cumsum(0) * 2, backend="fxpool", dynamic=True)
shapes(torch.randn(5, 7))
OPTIONS = %r
if OPTIONS:
    torch.compile(lambda x: x.sin() @ x.t() + 1, backend="fxpool", options=OPTIONS)(torch.randn(6, 6))
fxpool.wait()
assert not fxpool.stats()["compiles"]["in_process"] and fxpool.stats()["remote"]["writes"], fxpool.stats()
import glob, os, shutil
(log,) = glob.glob(os.environ["FXPOOL_RUNTIME_DIR"] + "/pool-*/server.log")
shutil.copy(log, os.environ["FXPOOL_RUNTIME_DIR"])
fxpool.close()
"""
ALL = pytest.param({"cpp_wrapper": True}, id="built from one source each")


@pytest.fixture
def remote() -> Iterator[str]:
    """The address of a Redis, with its password."""
    with tempfile.TemporaryDirectory() as directory, redis_server(Path(directory), "--requirepass", PASSWORD) as url:
        yield url.replace("unix://", f"unix://:{PASSWORD}@")


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fxpt-", dir="/tmp") as directory:
        yield Path(directory)


def values_of(remote: str) -> list[bytes]:
    """Take all names and values out of the remote."""
    import redis

    server = redis.Redis.from_url(remote)
    try:
        names: list[bytes] = list(server.scan_iter())
        found = [server.get(name) for name in names if server.type(name) == b"string"]
        assert len(found) >= 6 and server.flushall()
        return [*names, *found]
    finally:
        server.close()


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("options", [pytest.param({}, id="kernels"), ALL])
def test_two_compiles_give_the_same_bytes_without_anything_of_the_process(
    tmp_path: Path, short: Path, options: dict[str, bool], remote: str
) -> None:
    names, entries = [], []
    key = tmp_path / "key"
    run_python(["-m", "fxpool", "cache", "key", str(key)])
    digits = key.read_text().strip()
    keys = (digits.encode(), bytes.fromhex(digits))
    for number in (1, 22):
        # In a short path, because sockets have to fit in 108 bytes; pytest-xdist's are longer.
        place = short / f"of-process-{number}"
        for part in ("temporary", "runtime"):
            (place / part).mkdir(parents=True, mode=0o700)
        environment = {
            **SECRETS,
            "FXPOOL_CACHE_DIR": str(place / "cache"),
            "FXPOOL_RUNTIME_DIR": str(place / "runtime"),
            "FXPOOL_REMOTE_CACHE": remote,
            "FXPOOL_REMOTE_KEY_FILE": str(key),
            "FXPOOL_TRACE": str(place / "trace.json"),
            "FXPOOL_IDLE_TIMEOUT": "1",
            "TMPDIR": str(place / "temporary"),
            "TORCHINDUCTOR_CACHE_DIR": str(place / "torch"),
            "PYTHONHASHSEED": str(number),
        }
        run_python(["-c", PROGRAM % options], **environment)
        run_python(["-m", "fxpool", "cache", "export", str(place / "bundle")], **environment)
        run_python(["-m", "fxpool", "stop"], **environment)
        written = [
            path
            for path in place.rglob("*")
            if path.is_file()
            and "toolchain" not in path.parts
            and path.parts[len(place.parts)] not in ("torch", "temporary")
        ]
        for path in written:
            content = _readable(path.read_bytes())
            found = [secret for secret in (b"planted-", b"of-process-", *keys) if secret in content]
            if path.parts[len(place.parts)] not in ("cache", "bundle"):
                found = [one for one in found if one != b"of-process-"]  # paths are what logs and traces are for
            assert not found, path.relative_to(place)
        assert b"server" in (place / "runtime" / "server.log").read_bytes()
        for value in values_of(remote):
            assert not [secret for secret in (b"planted-", b"of-process-", *keys) if secret in _readable(value)]
        store = LocalStore(str(place / "cache"))
        names.append(sorted(blob.name for blob in catalogue.blobs(store.root)))
        entries.append(sorted((one.key, one.name, _timeless(one.entry)) for one in store.scan()))
    assert len(names[0]) >= 4 and names[0] == names[1]
    assert len(entries[0]) >= 2 and entries[0] == entries[1]


def _timeless(entry: Entry | None) -> bytes:
    """An entry's bytes without the times of its compile."""
    assert entry is not None
    metadata = msgspec.structs.replace(entry.metadata, created=0.0, compile_seconds=0.0)
    return encode_entry(msgspec.structs.replace(entry, metadata=metadata))


def _readable(data: bytes) -> bytes:
    """Bytes, followed by what they hold compressed."""
    parts, start = [data], 0
    while (start := data.find(zstandard.FRAME_HEADER, start)) >= 0:
        try:
            parts.append(zstandard.ZstdDecompressor().decompressobj().decompress(data[start:]))
        except zstandard.ZstdError:
            pass
        start += 1
    return b"".join(parts)
