"""Frames travel with the entries that they refer to: in bundles, remote caches and torch's cache artifacts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frame_runs import arguments, run
from processes import run_python, run_with_errors
from remote_servers import redis_server

from fxpool.codecache.bundle.authentication import new_key

WAIT = "import fxpool\nfxpool.wait(60)"


@pytest.fixture
def other(known_host: Path, tmp_path: Path) -> str:
    """The cache directory of another machine: no entries, tool chain known."""
    directory = tmp_path / "other"
    directory.mkdir(mode=0o700)
    (directory / "toolchain").symlink_to(known_host / "c" / "toolchain")
    return str(directory)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    return _new_key(tmp_path / "key")


def _new_key(path: Path) -> str:
    path.write_text(new_key())
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("r")) as url:
        yield url


def _served(count: int, **others: int) -> dict[str, object]:
    """Return the report of a process that traced and lowered nothing."""
    frames = {"served": count, **others}
    return {"frames": frames, "captured": 0, "lowered": 0, "misses": 0, "fallbacks": {}, "eager_calls": {}}


def _without(report: dict[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in report.items() if name not in {"modules", "hits", *names}}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_a_bundle(shared_pool: Path, cache: Path, other: str, key_file: str, tmp_path: Path) -> None:
    """The graph break leaves two frames, one of which is for the rest. The bundle is sealed."""
    bundle = str(tmp_path / "bundle")
    assert run("broken", train=True)["frames"] == {"traced": 2, "kept": 2}
    run_python(["-m", "fxpool", "cache", "export", bundle, "--key-file", key_file])
    run_python(["-m", "fxpool", "cache", "import", bundle, "--key-file", key_file], FXPOOL_CACHE_DIR=other)
    assert _without(run("broken", train=True, FXPOOL_CACHE_DIR=other), "remote") == _served(2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_through_a_remote_cache(shared_pool: Path, cache: Path, other: str, redis: str, key_file: str) -> None:
    remote: dict[str, Any] = {"FXPOOL_REMOTE_CACHE": redis, "FXPOOL_REMOTE_KEY_FILE": key_file}
    first = run("broken", train=True, end=WAIT, **remote)
    assert first["frames"] == {"traced": 2, "kept": 2} and first["remote"]["writes"] == 4
    again = _without(run("broken", train=True, FXPOOL_CACHE_DIR=other, **remote))
    assert again.pop("remote") == {"hits": 4}, "two frames, and the graph of each"
    assert again == _served(2)
    assert _without(run("broken", train=True, FXPOOL_CACHE_DIR=other), "remote") == _served(2), "they were written back"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_remote_has_frames_that_do_not_fit(
    shared_pool: Path, cache: Path, other: str, redis: str, key_file: str
) -> None:
    """Frames of two models have one key: each is tried, and the other is left for the next process."""
    remote: dict[str, Any] = {"FXPOOL_REMOTE_CACHE": redis, "FXPOOL_REMOTE_KEY_FILE": key_file}
    change = "for model in models: model.blocks[1].rate = 0.25"
    run("net", end=WAIT, **remote)
    run("net", change=change, end=WAIT, **remote)
    for program in ("", change):
        again = _without(run("net", change=program, FXPOOL_CACHE_DIR=other, **remote), "remote")
        unfit = {"unfit": 1} if again["frames"] != {"served": 1} else {}
        assert again == _served(1, **unfit)
    stranger = run("net", change="for model in models: model.blocks[1].rate = 2.0", FXPOOL_CACHE_DIR=other, **remote)
    assert stranger["frames"] == {"unfit": 2, "traced": 1, "kept": 1} and stranger["captured"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_frame_of_the_remote_that_another_key_sealed_is_not_served(
    shared_pool: Path, cache: Path, other: str, redis: str, key_file: str, tmp_path: Path
) -> None:
    run("net", end=WAIT, FXPOOL_REMOTE_CACHE=redis, FXPOOL_REMOTE_KEY_FILE=key_file)
    strange = _new_key(tmp_path / "strange")
    report = run("net", FXPOOL_CACHE_DIR=other, FXPOOL_REMOTE_CACHE=redis, FXPOOL_REMOTE_KEY_FILE=strange)
    assert report["frames"] == {"traced": 1, "kept": 1} and report["captured"] == 1
    assert report["remote"]["error:not_authentic"] == 2, "the frame, and then its graph"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_frame_whose_graph_left_the_remote_is_traced(
    shared_pool: Path, cache: Path, other: str, redis: str, key_file: str
) -> None:
    import redis as clients

    remote: dict[str, Any] = {"FXPOOL_REMOTE_CACHE": redis, "FXPOOL_REMOTE_KEY_FILE": key_file}
    run("net", end=WAIT, **remote)
    listed = map(json.loads, run_python(["-m", "fxpool", "cache", "ls", "--json"]).splitlines())
    (graph,) = [entry["key"] for entry in listed if entry["compile_seconds"]]
    with clients.Redis.from_url(redis) as client:
        assert client.delete(*client.keys(f"*{graph}*"))
    report = run("net", FXPOOL_CACHE_DIR=other, **remote)
    assert report["frames"] == {"unfit": 1, "traced": 1} or report["frames"] == {"unfit": 1, "traced": 1, "kept": 1}
    assert report["captured"] == 1 and report["misses"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_the_artifacts_of_torch(shared_pool: Path, cache: Path, other: str, tmp_path: Path) -> None:
    """Those of a process that traced, and those of one that was served itself."""
    path = tmp_path / "artifacts"
    save = f"open({str(path)!r}, 'wb').write(torch.compiler.save_cache_artifacts()[0])"
    load = f"torch.compiler.load_cache_artifacts(open({str(path)!r}, 'rb').read())"
    assert run("broken", train=True, end=save)["frames"] == {"traced": 2, "kept": 2}
    for number in range(2):
        directory = Path(other).with_name(f"artifacts{number}")
        directory.mkdir(mode=0o700)
        (directory / "toolchain").symlink_to(cache / "toolchain")
        moved = run("broken", train=True, change=load, end=save, FXPOOL_CACHE_DIR=str(directory))
        assert _without(moved, "remote") == _served(2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_key_file_no_frame_comes_from_a_remote(
    shared_pool: Path, cache: Path, other: str, redis: str, key_file: str
) -> None:
    run("net", end=WAIT, FXPOOL_REMOTE_CACHE=redis, FXPOOL_REMOTE_KEY_FILE=key_file)
    printed, errors = run_with_errors(
        arguments("net"), FXPOOL_FRAMES="on", FXPOOL_CACHE_DIR=other, FXPOOL_REMOTE_CACHE=redis
    )
    report = json.loads(printed.splitlines()[-1])
    assert report["frames"] == {"traced": 1, "kept": 1} and report["captured"] == 1
    assert errors.count("cannot be trusted without a key") == 1
