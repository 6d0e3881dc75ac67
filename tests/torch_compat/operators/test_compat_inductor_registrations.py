"""`inductor_registrations` finds what a program changed in the tables by which Inductor and AOTAutograd compile."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators import by_value, inductor_registrations
from fxpool.torch_compat.operators.inductor_registrations import Tables
from fxpool.torch_compat.operators.otherwise import DECOMPOSED, LOWERED, Otherwise

aten = torch.ops.aten


def mine(*args: Any, **kwargs: Any) -> Any:
    return args[0]


@pytest.fixture(autouse=True)
def _tables_as_before() -> Iterator[None]:
    """Inductor's tables, which are imported here, are put back."""
    import torch._inductor.decomposition as decomposition
    import torch._inductor.lowering as lowering
    from torch._decomp import global_decomposition_table
    from torch._inductor.codegen import common

    # Inductor registers its devices once per process: put back before that, the table would stay empty.
    common.init_backend_registration()
    tables: list[Any] = [
        lowering.lowerings,
        lowering._maybe_layout_constraints,
        decomposition.decompositions,
        decomposition.extra_random_decomps,
        common.device_codegens,
        common.custom_backend_passes,
        common.custom_backend_codegen_configs,
        *(table for table in global_decomposition_table.values() if isinstance(table, dict)),
    ]
    before = [dict(table) for table in tables]
    fallbacks = set(lowering.fallbacks)
    yield
    for table, values in zip(tables, before, strict=True):
        table.clear()
        table.update(values)
    lowering.fallbacks.clear()
    lowering.fallbacks.update(fallbacks)


def found() -> dict[str, Any]:
    return dict(inductor_registrations.of_the_program())


def test_torch_s_own_registrations_do_not_count() -> None:
    for module in ("joint_graph", "post_grad", "pre_grad"):
        importlib.import_module(f"torch._inductor.fx_passes.{module}")
    from torch._inductor.codegen import common

    common.init_backend_registration()
    assert found() == {}
    assert inductor_registrations.for_a_worker() == []


@pytest.mark.parametrize(
    ("module", "table", "how"),
    [
        ("torch._inductor.lowering", "lowerings", LOWERED),
        ("torch._inductor.lowering", "_maybe_layout_constraints", LOWERED),
        ("torch._inductor.decomposition", "decompositions", DECOMPOSED),
        ("torch._inductor.decomposition", "extra_random_decomps", DECOMPOSED),
    ],
)
def test_a_function_in_a_table_is_of_its_operator(module: str, table: str, how: Any) -> None:
    getattr(importlib.import_module(module), table)[aten.sin.default] = mine
    name = f"{table}[aten.sin.default]"
    assert found() == {name: mine}
    assert inductor_registrations.of_operator(name) == Otherwise(how, "aten.sin.default", name)
    (data,) = inductor_registrations.for_a_worker()
    sent = by_value._loaded(data)
    assert (sent.module, sent.table, sent.key, sent.function) == (module, table, aten.sin.default, mine)


def test_register_lowering_is_found() -> None:
    """Of a function of the program's, though torch wraps it."""
    from torch._inductor.lowering import register_lowering

    register_lowering(aten.sin.default, type_promotion_kind=None)(mine)
    (name,) = found()
    assert name == "lowerings[aten.sin.default]"


def test_a_decomposition_of_aotautograd_s_is_found() -> None:
    from torch._decomp import global_decomposition_table

    global_decomposition_table["post_autograd"][aten.sin.default] = mine
    assert found() == {"decompositions post_autograd[aten.sin.default]": mine}
    # It is not read by operator.
    assert inductor_registrations.of_operator("decompositions post_autograd[aten.sin.default]") is None


def test_a_pattern_is_found_with_its_functions() -> None:
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

    patterns: Any = post_grad.pass_patterns[0]
    before = {key: list(entries) for key, entries in patterns.patterns.items()}
    try:
        register_graph_pattern(CallFunction(aten.sin.default, KeywordArg("x")), pass_dict=patterns)(mine)
        ((name, value),) = found().items()
    finally:
        patterns.patterns.clear()
        patterns.patterns.update(before)
    assert name.startswith("pattern post_grad.pass_patterns[0] call_function aten.sin.default")
    text, functions = value
    assert "aten.sin.default" in text and " at 0x" not in text and functions == [mine]
    assert found() == {}


def test_passes_and_back_ends_of_a_device_are_found() -> None:
    from torch._inductor.codegen import common

    class Scheduling:
        pass

    class Wrapper:
        pass

    common.register_backend_for_device("compat", Scheduling, Wrapper)
    name = "device_codegens[compat]"
    values = found()
    assert list(values) == [name] and Scheduling in values[name] and Wrapper in values[name]


def test_a_device_s_passes_count_by_their_uuid() -> None:
    from torch._inductor.codegen import common

    class Passes:
        def uuid(self) -> str:
            return "one"

    common.custom_backend_passes["compat"] = Passes()
    assert found() == {"custom_backend_passes[compat]": [Passes, "one"]}


# --- changes that leave no function


@pytest.fixture
def as_torch_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tables had been recorded when they were made."""
    made = inductor_registrations._Made(
        frozenset(inductor_registrations._fallbacks()),
        frozenset(inductor_registrations._lowered()),
        frozenset(inductor_registrations._decomposed()),
    )
    assert "aten.sin.default" in (made.lowered or ()) and "aten.addmm.default" in (made.decomposed or ())
    monkeypatch.setattr(inductor_registrations, "_made", made)


def test_tables_as_torch_made_them_are_none(as_torch_made_them: None) -> None:
    assert inductor_registrations.tables() is None


def test_a_fallback_and_a_decomposition_taken_away_are_changes(as_torch_made_them: None) -> None:
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import make_fallback

    make_fallback(aten.sin.default, warn=False, override_decomp=True)
    del decompositions[aten.addmm.default]
    tables = inductor_registrations.tables()
    assert tables is not None
    expected = ["fallback aten.sin.default", "without decomposition aten.addmm.default"]
    assert tables.changed == expected == tables.for_key()
    assert tables.disagreements() == []  # with the process that has them


def test_another_process_disagrees_on_what_it_would_compile_otherwise() -> None:
    here = inductor_registrations._fallbacks()
    decomposed = sorted(inductor_registrations._decomposed())
    same = Tables(sorted(here), decomposed, None)
    assert same.disagreements() == [] and same.for_key() == [same.fallbacks, same.decomposed]
    other = Tables(["aten.sin.default"], [name for name in decomposed if name != "aten.addmm.default"], [])
    differing = {(one.how, one.operator) for one in other.disagreements()}
    assert differing == {
        (LOWERED, "aten.sin.default"),
        (DECOMPOSED, "aten.sin.default"),
        (DECOMPOSED, "aten.addmm.default"),
    }


WATCHED = """
import importlib
import json
from fxpool.torch_compat.operators import inductor_registrations
inductor_registrations.watch()
before = inductor_registrations.tables()
import torch
from torch._inductor.lowering import make_fallback
made = inductor_registrations.tables()
import inspect, torch._inductor.lowering as lowering
source = inspect.getsource(lowering)[:3]
make_fallback(torch.ops.aten.sin.default, warn=False, override_decomp=True)
changed = inductor_registrations.tables().changed
print(json.dumps([before, made, changed, source]))
"""


def test_tables_are_recorded_when_their_modules_are_imported(python: str) -> None:
    done = subprocess.run(
        [python, "-c", WATCHED], env={**os.environ}, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    before, made, changed, source = json.loads(done.stdout)
    assert (before, made, changed) == (None, None, ["fallback aten.sin.default"])
    assert source  # the loader that `inspect` asks is torch's again
