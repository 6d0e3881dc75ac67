"""Frames of models in wrappers, with hooks and under other states: served under the same, traced under another."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import frame_changes
import pytest
import ranks
import torch
from frame_programs import Kind
from frame_runs import run
from tiers import first_tier

# ---------------------------------------------------------------- ranks


def _ranks(kind: str, directory: Path) -> list[dict[str, Any]]:
    return ranks.reports("frames/frame_ranks.py", kind, directory=directory)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_of_a_second_start_trace_no_graph(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FXPOOL_FRAMES", "on")
    for rank in _ranks(kind, tmp_path):
        assert rank["frames"]["traced"] > 0 and rank["captured"] > 0
    for rank in _ranks(kind, tmp_path):
        assert rank["frames"]["served"] > 0 and "kept" not in rank["frames"]
        # Dynamo leaves a function of DDP as it is, and looks at it in each process.
        assert rank["frames"].get("traced", 0) == rank["frames"].get("refused:no_code", 0)
        assert (rank["captured"], rank["lowered"], rank["misses"]) == (0, 0, 0)
    monkeypatch.setenv("FXPOOL_FRAMES", "verify")
    for rank in _ranks(kind, tmp_path):
        assert rank["frames"]["verified"] > 0 and "wrong" not in rank["frames"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_graph_that_ddp_splits_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_FRAMES", "on")
    for _ in range(2):
        for rank in _ranks("split", tmp_path):
            assert rank["frames"]["refused:graph"] == 1 and rank["captured"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_that_trace_together_are_refused(shared_pool: Path, cache: Path) -> None:
    """One that is served would leave the others waiting for it. On CPU, torch 2.13 fails if there are several."""
    report = run("net", change="torch._dynamo.config.enable_compiler_collectives = True")
    assert report["frames"] == {"refused:collectives": 1} and report["captured"] == 1


# ---------------------------------------------------------------- states

_MODEL = """
def triple(module, inputs, output):
    return output * 3
def halve(module, inputs, output):
    return output / 2
def negate(module, inputs):
    return (-inputs[0],)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x).relu()
def make():
    return Model(), (torch.linspace(-1, 1, 8).reshape(2, 4),)
"""
#: The context of the calls, and a statement ahead of them, by name.
STATES = {
    "plain": ("", ""),
    "no_grad": ("torch.no_grad()", ""),
    "inference mode": ("torch.inference_mode()", ""),
    "autocast": ("torch.autocast('cpu', dtype=torch.bfloat16)", ""),
    "autocast to another": ("torch.autocast('cpu', dtype=torch.float16)", ""),
    "autocast, off": ("torch.autocast('cpu', dtype=torch.bfloat16, enabled=False)", ""),
    "hook": ("", "function.layer.register_forward_hook(triple)"),
    "another hook": ("", "function.layer.register_forward_hook(halve)"),
    "both hooks": ("", "for hook in (triple, halve): function.layer.register_forward_hook(hook)"),
    "hook before": ("", "function.layer.register_forward_pre_hook(negate)"),
    "hook of the model": ("", "function.register_forward_hook(triple)"),
}
#: Equal to the frame of `forward`: a context that changes nothing, and a hook that is called around it.
EQUAL = frozenset(("plain", "autocast, off", "hook of the model"))


def _kind(first: str, second: str) -> Kind:
    (context, statement), (other, another) = STATES[first], STATES[second]
    return Kind(_MODEL, before=statement, run=another, inside=(context, other))


@pytest.mark.timeout(600)
@pytest.mark.skipif(torch.cuda.is_available(), reason="forked children can't use a GPU that this process used")
@pytest.mark.parametrize("state", first_tier(STATES, "autocast", "hook", "inference mode"))
def test_a_frame_is_served_under_its_own_state_only(state: str, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "f" / "program").mkdir(parents=True)
    frame_changes.warm_up()

    def outcome(other: str, **options: bool) -> dict[str, Any]:
        run_once = functools.partial(frame_changes.run, _kind(state, other), tmp_path / "f")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Dynamo reads .grad of a tensor that is not a leaf
            return frame_changes.in_child(run_once, **options)

    first = outcome(state, changed=False, tracing=True)
    assert first["outcome"] == "kept" and first["same"], first
    for other in STATES:
        report = outcome(other, changed=True, tracing=False)
        if state != other and {state, other} <= EQUAL:
            expected = {"served", "partly", "missed"}
        else:
            expected = {"served" if state == other else "missed"}
        assert report["outcome"] in expected and report.get("same", True), (other, report)


BACKWARD = "for model in models: model.blocks[1].register_full_backward_hook(lambda m, i, o: (i[0] * {rate},))"
PARAMETER = "for model in models: model.blocks[0].layer.weight.register_hook(lambda gradient: gradient * {rate})"
AUTOCAST = """
TOLERANCE.update(rtol=0.02, atol=0.02)
torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hook", [BACKWARD, PARAMETER], ids=["of a module", "of a parameter"])
def test_hooks_of_the_backward_pass(hook: str, shared_pool: Path, cache: Path) -> None:
    """The program compares gradients with eager's under the same hook."""
    run("net", train=True, change=hook.format(rate=2))
    again = run("net", train=True, change=hook.format(rate=2))
    assert again["frames"].get("served") or any(name.startswith("refused:") for name in again["frames"]), again
    run("net", train=True, change=hook.format(rate=5))
    run("net", train=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_under_autocast(shared_pool: Path, cache: Path) -> None:
    assert run("net", train=True, change=AUTOCAST)["frames"] == {"traced": 1, "kept": 1}
    again = run("net", train=True, change=AUTOCAST)
    assert again["frames"] == {"served": 1} and (again["captured"], again["lowered"]) == (0, 0)
    plain = run("net", train=True)
    assert plain["captured"] == 1 and "served" not in plain["frames"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_function_with_its_own_gradient(shared_pool: Path, cache: Path) -> None:
    assert run("own", train=True)["frames"] == {"traced": 1, "kept": 1}
    again = run("own", train=True)
    assert again["frames"] == {"served": 1}
    assert (again["captured"], again["lowered"], again["misses"], again["fallbacks"]) == (0, 0, 0, {})
    edited = run("own", train=True, change="Own.backward = staticmethod(lambda ctx, gradient: (gradient * 7, None))")
    assert "served" not in edited["frames"] and edited["captured"] == 1


# ---------------------------------------------------------------- Inductor's backend, and graphs that are refused


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_inductors_backend_after_install(shared_pool: Path, cache: Path) -> None:
    whole = {"BACKEND": "inductor", "TORCHINDUCTOR_FX_COMPILE_MODE": "subprocess"}
    install = "import fxpool\nfxpool.install()"
    assert run("broken", train=True, change=install, **whole)["frames"] == {"traced": 2, "kept": 2}
    again = run("broken", train=True, change=install, **whole)
    assert again["frames"] == {"served": 2}
    assert (again["captured"], again["lowered"], again["misses"], again["fallbacks"]) == (0, 0, 0, {})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_inductors_backend_in_other_modes(shared_pool: Path, cache: Path) -> None:
    change = "import fxpool\nfxpool.install()"

    def frames_of(mode: str) -> dict[str, int]:
        settings: dict[str, Any] = {"BACKEND": "inductor", "TORCHINDUCTOR_FX_COMPILE_MODE": mode}
        counted: dict[str, int] = run("net", change=change, end="fxpool.wait(300)", **settings)["frames"]
        return counted

    assert frames_of("normal") == {"refused:inductor": 1}
    assert frames_of("async+subprocess") == {"traced": 1, "kept": 1}
    assert frames_of("async+subprocess") == {"served": 1}
