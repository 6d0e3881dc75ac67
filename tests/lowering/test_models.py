"""Real models, compiled by workers and served from the cache, against stock Inductor."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from tiers import first_tier

Child = Callable[..., dict[str, Any]]
# Operators of eager mode that no compiled graph of these models runs.
EAGER_ONLY = {"aten::layer_norm", "aten::gelu", "aten::softmax", "aten::relu", "aten::silu", "aten::batch_norm"}


def check_outputs(found: Path, expected: dict[str, Any]) -> None:
    ours = torch.load(found)
    assert ours.keys() == expected.keys()
    for what in expected:
        torch.testing.assert_close(ours[what], expected[what], rtol=1e-4, atol=1e-5)


def check_compiled_code_ran(report: dict[str, Any]) -> None:
    assert report["calls"]["infer"] >= 1
    assert report["calls"]["train"] >= 2, "forward and backward"
    for what, names in report["operators"].items():
        assert not EAGER_ONLY & set(names), what


def check_nothing_of_a_compiler_was_needed(report: dict[str, Any], cache: Path) -> None:
    watched = report["watched"]
    assert watched["compilers"] == []
    assert watched["started"] == [], "a hit starts no process"
    assert any(path.startswith(str(cache)) for path in watched["opened"]), "the witness must see files"
    # Dynamo reads sources of the functions that it traces, 20 of torch's files; hashing torch reads all two thousand.
    of_torch = str(Path(torch.__file__).parent)
    assert sum(path.startswith(of_torch) and path.endswith(".py") for path in watched["opened"]) < 40
    assert not [path for path in watched["opened"] if "torchinductor_" in path]
    # Besides modules and the system's own: the first bytes of the compiler and of what it runs (is it a script?) and
    # Python's own question where temporary files may lie.
    system = (
        "/proc/",
        "/sys/",
        "/dev/",
        "/usr/bin/",
        "/usr/lib/gcc/",
        "/usr/libexec/gcc/",
        "/etc/",
        tempfile.gettempdir(),
    )
    homes = (sys.prefix, sys.base_prefix, str(Path(torch.__file__).parent), *filter(None, sys.path))
    strange = [p for p in watched["opened"] if p.startswith("/") and not p.startswith((*system, *homes, str(cache)))]
    assert strange == []


@pytest.mark.slow
@pytest.mark.parametrize("model", first_tier(zoo.NAMES, "gpt2", "resnet"))
def test_a_worker_compiles_and_a_second_process_is_served(
    model: str, child: Child, inductor: Any, tmp_path: Path, cache: Path
) -> None:
    asked = zoo.asked(model)
    cold = child(model, save=str(tmp_path / "cold.pt"), **asked)
    check_outputs(tmp_path / "cold.pt", inductor(model, **asked))
    check_compiled_code_ran(cold)
    graphs = cold["stats"]["misses"]
    assert graphs >= 2
    assert cold["lowerings"] == 0, "GraphLowering was constructed in the parent"
    assert cold["stats"]["compiles"] == {"worker": graphs, "in_process": 0}
    assert cold["stats"]["entries_written"] == graphs
    assert len(list(cache.glob("entries/*/*/*.entry"))) == graphs
    assert (cold["stats"]["hits"], cold["stats"]["fallbacks"], cold["stats"]["bypasses"]) == (0, {}, {})

    # One model in an interpreter of its own, the others in forks.
    warm = child(model, fresh=model == "gpt2", save=str(tmp_path / "warm.pt"), **asked)
    check_outputs(tmp_path / "warm.pt", inductor(model, **asked))
    check_compiled_code_ran(warm)
    assert warm["lowerings"] == 0
    assert warm["stats"]["hits"] == graphs
    assert (warm["stats"]["misses"], warm["stats"]["guard_misses"]) == (0, 0)
    assert warm["stats"]["compiles"] == {"worker": 0, "in_process": 0}
    assert (warm["stats"]["fallbacks"], warm["stats"]["bypasses"]) == ({}, {})
    assert warm["children"] == [], "a hit needs no server"
    check_nothing_of_a_compiler_was_needed(warm, cache)
    assert len(list(cache.glob("entries/*/*/*.entry"))) == graphs


# Twenty seconds each: one of them stands for all in the quick tests.
MODES = [(model, mode) for model in zoo.NAMES for mode in ("normal", "serialize")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mode"),
    MODES,
)
def test_modes_that_compile_here_give_the_same(
    model: str, mode: str, child: Child, inductor: Any, tmp_path: Path
) -> None:
    asked = zoo.asked(model)
    report = child(model, mode, save=str(tmp_path / "out.pt"), **asked)
    check_outputs(tmp_path / "out.pt", inductor(model, **asked))
    check_compiled_code_ran(report)
    graphs = report["stats"]["misses"]
    assert report["lowerings"] >= graphs, "this mode lowers in the parent: the witness must see it"
    assert report["stats"]["compiles"] == {"worker": 0, "in_process": graphs}
    assert report["stats"]["entries_written"] == graphs
    assert report["stats"]["fallbacks"] == {}
    assert report["children"] == []
