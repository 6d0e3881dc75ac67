"""`cache verify --recompute`: what is compiled again is as it was, and other code under a key is found."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner, Result
from compiling import compiled

import fxpool
from fxpool.codecache.bundle import bundle
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main
from fxpool.lowering.artifact import recompute_outcome
from fxpool.lowering.artifact.entry_parts import REQUEST, RESULT, Artifact
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.verification import sample
from fxpool.lowering.worker.recompute_job import NoInputsError, real_inputs
from fxpool.torch_compat.dynamo import shape_env, tensors
from fxpool.torch_compat.inductor import aot


def sines(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(-1)


def cosines(x: torch.Tensor) -> torch.Tensor:
    return x.cos().sum(-1)


def trained(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x @ weight).tanh().sum(0)


@pytest.fixture
def kept(shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalStore]:
    monkeypatch.setenv("FXPOOL_KEEP_REQUESTS", "1")
    store = runtime.store()
    assert store is not None
    yield store


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", "verify", *arguments])


def entry_of(store: LocalStore, name: str) -> Entry:
    (entry,) = (
        one.entry
        for one in store.scan()
        if one.entry is not None and one.entry.metadata.origin is not None and one.entry.metadata.origin.name == name
    )
    return entry


@pytest.mark.slow
def test_equal_after_it_was_compiled_again(kept: LocalStore) -> None:
    """A graph with symbolic sizes, and a training graph, whose backward is compared as well."""
    compiled(sines, torch.randn(4, 8), dynamic=True)
    compiled(trained, torch.randn(4, 8), torch.randn(8, 3, requires_grad=True)).sum().backward()
    before = sorted((one.key, one.entry) for one in kept.scan() if one.entry is not None)
    result = verify("--recompute", "5")
    assert result.exit_code == 0, result.output
    assert "recompiled 2 entries: 2 equal, 0 differing, 0 failed" in result.output
    assert result.output.count("equal code, equal outputs") == 2
    assert sorted((one.key, one.entry) for one in kept.scan() if one.entry is not None) == before
    compiled(sines, torch.randn(4, 8), dynamic=True)
    assert fxpool.stats()["hits"] == 1, "an entry with its request is served as any other"


@pytest.mark.slow
def test_a_bundle_includes_the_request_and_it_the_environment(
    kept: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_OF_THE_PROGRAM", "planted")
    compiled(sines, torch.randn(4, 8))
    other = LocalStore(str(tmp_path / "other"))
    bundle.restore_bytes(bundle.entry_as_bundle(entry_of(kept, "sines"), kept), "b", other)
    entry = entry_of(other, "sines")
    holding = [role for role, ref in entry.blobs.items() if b"planted" in (other.read_blob(ref) or b"")]
    assert holding == [REQUEST]


@pytest.mark.slow
def test_other_code_under_a_key_is_found(kept: LocalStore) -> None:
    x = torch.randn(4, 8)
    compiled(sines, x)
    compiled(cosines, x)
    assert "2 equal" in verify("--recompute", "2").output
    ours, theirs = entry_of(kept, "sines"), entry_of(kept, "cosines")
    result = kept.read_blob(ours.blobs[RESULT])
    assert result is not None
    # Digests hold in each: the store was asked to keep them.
    whole = {role: ref for role, ref in theirs.blobs.items() if role != REQUEST}
    kept.publish(msgspec.structs.replace(ours, blobs={**whole, REQUEST: ours.blobs[REQUEST]}), {})
    assert verify().exit_code == 0
    found = verify("--recompute", "2")
    assert found.exit_code == 1 and "1 equal, 1 differing, 0 failed" in found.output
    differs = next(line for line in found.output.splitlines() if "DIFFERS" in line)
    assert differs.startswith(ours.key[:12]) and "code of" in differs and "outputs" in differs
    assert "tmp0.cos()" in found.output and "tmp0.sin()" in found.output
    # Its source is as it was, and what is run is not.
    changed = aot.load_result(result)
    (graph,) = aot.graphs_of(changed)
    other = "def call(args):\n    args.clear()\n    return (torch.zeros(4),)\nimport torch\n"
    code = marshal.dumps(compile(other, "<other>", "exec"))
    graph._fxpool_wrapper = msgspec.structs.replace(graph._fxpool_wrapper, code=code)
    kept.publish(ours, {RESULT: aot.dump_result(changed)})
    found = verify("--recompute", "2")
    assert found.exit_code == 1 and "its compiled form does not match its source" in found.output
    assert "outputs" in found.output


@pytest.mark.slow
def test_what_can_not_be_compiled_again_is_said(kept: LocalStore, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(sines, torch.randn(4, 8))
    monkeypatch.delenv("FXPOOL_KEEP_REQUESTS")
    compiled(cosines, torch.randn(4, 8))
    assert REQUEST not in entry_of(kept, "cosines").blobs, "off unless it is asked for"
    result = verify("--recompute", "9")
    assert result.exit_code == 0 and "recompiled 1 entry: 1 equal" in result.output
    assert "1 entry holds no request to recompile; set FXPOOL_KEEP_REQUESTS=1" in result.output
    kept.publish(entry_of(kept, "sines"), {REQUEST: b"nothing that unpickles"})
    result = verify("--recompute", "9")
    assert result.exit_code == 1 and "could not be recompiled: UnpicklingError" in result.output
    kept.remove(entry_of(kept, "sines").key)
    assert verify("--recompute", "9").exit_code == 1, "nothing was compared"
    monkeypatch.setenv("FXPOOL_POOL", "off")
    result = verify("--recompute", "9")
    assert result.exit_code == 2 and "FXPOOL_POOL=off" in result.output


# ---------------------------------------------------------------- apart from compiles


@pytest.mark.slow
def test_the_same_seed_chooses_the_same_entries() -> None:
    from fxpool.codecache.store.blobs import BlobRef

    entries = [Entry(key=f"{number:064x}", blobs={REQUEST: BlobRef("0" * 64, 1)}) for number in range(20)]
    chosen = sample(entries, 5, 7)
    assert chosen == sample(entries[::-1], 5, 7) != sample(entries, 5, 8)
    assert len(chosen) == 5 and len(sample(entries, 50, 7)) == 20
    assert sample([Entry(key="0" * 64)], 5, 7) == []


@pytest.mark.slow
def test_guards_effects_and_parts_are_compared() -> None:
    one = Artifact(level="aot", result=b"", guards=[["a", 1]], library=b"x")
    assert recompute_outcome.differences(one, one) == {}
    other = msgspec.structs.replace(one, guards=[["a", 2]], library=None)
    assert sorted(recompute_outcome.differences(one, other)) == ["guards", "parts"]


@pytest.mark.slow
def test_only_passing_comments_are_left_out_of_a_diff() -> None:
    ours = "# AOT ID: ['0_inference']\na = 1\n    # kernel path: /tmp/x\n# 1"
    theirs = "# AOT ID: ['4_inference']\na = 1\n    # kernel path: /tmp/y\n# 1"
    assert recompute_outcome.diff_of(ours, theirs) == ""
    assert "-a = 1" in recompute_outcome.diff_of(ours, theirs.replace("a = 1", "a = 2"))
    long = recompute_outcome.diff_of("\n".join(map(str, range(500))), "\n".join(map(str, range(500, 1000))))
    assert len(long.splitlines()) == 41 and "more lines" in long


@pytest.mark.slow
def test_inputs_are_as_they_are_described() -> None:
    with tensors.new_fake_mode(shape_env.ShapeEnv()):
        block = torch.empty(20)
        fakes: list[Any] = [
            torch.empty_strided((3, 4), (1, 3), dtype=torch.bfloat16),
            torch.empty(5, dtype=torch.int64),
            torch.empty(5, dtype=torch.bool),
            torch.empty(2, 2, dtype=torch.complex64, requires_grad=True),
            torch.empty(0, 3),
            block[2:8],
            block[5:11],
            7,
            None,
        ]
    made = real_inputs(fakes, 1)
    for fake, real in zip(fakes[:7], made[:7], strict=True):
        assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)
        assert real.requires_grad == fake.requires_grad and real.is_leaf
    assert set(made[1].tolist()) <= {0, 1}
    made[5][3] = 99.0
    assert made[6][0] == 99.0, "they share memory as they did"
    assert made[7:] == [7, None]
    assert all(torch.equal(one, two) for one, two in zip(real_inputs(fakes, 1)[:5], made[:5], strict=True))
    for refused in (object(), torch.empty(2, device="meta"), torch.randn(2, dtype=torch.complex64).conj()):
        with pytest.raises(NoInputsError):
            real_inputs([refused], 1)
