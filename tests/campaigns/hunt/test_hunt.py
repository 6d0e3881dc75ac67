"""A short hunt with a fixed seed, and whether the hunter can fail."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.places import scratch

from .drawing import draw, kinds
from .report import Report
from .runner import AHEAD, Hunter, Outcome, StepOutcome

SEED = 20

# One case of each in the ordinary suite. Add a kind here when it is found wrong and mended.
SHORT = (
    "read_constant", "read_closure", "read_two_hops", "read_environment_at_import", "read_dictionary_filled_by_program",
    "read_json_at_import", "live_global_set_by_program", "use_operator_backward", "use_operator_setup_context",
    "use_low_implicit", "use_low_backward", "use_low_autograd_key", "use_allow_in_graph_lambda", "use_nonstrict_trace",
    "use_autograd_function", "use_checkpoint", "use_cond", "edited_after_import", "path_order", "helper_replaced",
    "registered_again_by_another_module", "added_backward", "rule_added_by_another_module", "comment_and_names",
    "ambient_autocast_default_dtype", "ambient_grad_mode", "ambient_default_dtype", "switched_deterministic",
    "input_strides", "input_scalar_type", "next_requires_grad", "next_global_tensor_in_place", "use_decomposition",
    "live_slots", "use_substitute_in_graph", "pass_with_the_same_uuid", "tensor_method_patched", "read_npy_at_call",
)  # fmt: skip


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A directory with a short name: sockets lie in it. The tool chain is probed once."""
    with scratch("hunt-") as directory:
        yield directory


def test_there_are_many_kinds_and_all_can_be_drawn() -> None:
    table = kinds()
    assert len(table) >= 60
    for name in table:
        first, again = draw(name, 0, SEED), draw(name, 0, SEED)
        assert first == again, "a case is its kind, its number and the seed"
        assert first.steps
        for step in first.steps:
            for file, text in step.files.items():
                if file.endswith(".py"):
                    assert isinstance(text, str)
                    compile(text, f"{name}/{file}", "exec")


def test_modules_imported_ahead_of_the_forks_exist() -> None:
    for names in AHEAD.values():
        assert all(importlib.util.find_spec(name) for name in names.split())


def test_summary_names_wrong_cases_lost_hits_and_kinds_that_tell_nothing(tmp_path: Path) -> None:
    report = Report(tmp_path / "hunt.json", SEED, "fxpool")
    before, stale = StepOutcome("before"), StepOutcome("after", "wrong", detail="2.0, not 3.0")
    lost = StepOutcome("after", wants_hit=True, lost_hit=True)
    report.add(Outcome("stale", 4, {}, [before, stale], telling=True, seconds=1.0))
    report.add(Outcome("wanted", 0, {}, [before, lost], telling=False, seconds=1.0))
    report.add(Outcome("silent", 0, {}, [before, StepOutcome("after")], telling=False, seconds=1.0))
    assert report.findings() == [
        "wrong: stale:4 after: 2.0, not 3.0",
        "lost hits: wanted: 1 of 1",
        "not telling: silent",
    ]


def test_draws_differ() -> None:
    seen = {repr(draw("use_low_implicit", number, SEED).steps) for number in range(8)}
    assert len(seen) == 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_short_hunt(root: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "hunt.json", SEED, "fxpool")
    with Hunter(root) as hunter:
        for outcome in hunter.run_all([draw(name, 0, SEED) for name in SHORT]):
            report.add(outcome)
    print(report.table())
    wrong = [
        f"{one['kind']}:{one['number']}: {step['name']}: {step['detail']}"
        for one in report.outcomes
        for step in one["steps"]
        if step["verdict"] in ("wrong", "broken")
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(one["telling"] for one in report.outcomes) > len(SHORT) // 2
    assert sum(step["counts"]["hits"] for one in report.outcomes for step in one["steps"]), "it is a cache"


# A defect as there was: what the code of a graph's operators and functions is does not count.
_BLIND = """
from fxpool.lowering.request import capture
_sighted = capture.key_parts
capture.key_parts = lambda *arguments, **named: {**_sighted(*arguments, **named), "code": {}}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_key_without_code_is_found(root: Path) -> None:
    # Code that is proven: other code is traced at home, whatever its key.
    cases = [draw("use_low_implicit", number, SEED) for number in (0, 3)]
    with Hunter(root, prelude=_BLIND) as hunter:
        verdicts = [outcome.verdict for outcome in hunter.run_all(cases)]
    assert verdicts == ["wrong", "wrong"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stock_in_its_place_is_never_wrong(root: Path) -> None:
    cases = [draw(name, 1, SEED) for name in ("read_closure", "use_low_backward", "input_overlap")]
    with Hunter(root, backend="inductor") as hunter:
        verdicts = {outcome.kind: outcome.verdict for outcome in hunter.run_all(cases)}
    assert set(verdicts.values()) == {"right"}, verdicts
