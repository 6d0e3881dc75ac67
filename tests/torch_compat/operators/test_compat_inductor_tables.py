"""`inductor_tables` finds what a program changed in the tables by which Inductor and AOTAutograd compile."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators import inductor_tables, operator_tables, pickled_definitions
from fxpool.torch_compat.operators.operator_overrides import OperatorOverride
from fxpool.torch_compat.operators.operator_tables import DECOMPOSED, LOWERED

aten = torch.ops.aten


def mine(*args: Any, **kwargs: Any) -> Any:
    return args[0]


def _name(effect: Any) -> str:
    return str(effect) if hasattr(effect, "_schema") else getattr(effect, "__qualname__", "")


@pytest.fixture(autouse=True)
def _tables_as_before() -> Iterator[None]:
    """Inductor's tables, which are imported here, without entries of other tests; they are put back."""
    import torch._inductor.decomposition as decomposition
    import torch._inductor.lowering as lowering
    from torch._decomp import global_decomposition_table
    from torch._inductor.codegen import common
    from torch.fx.node import _side_effectful_functions

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
    effects = set(_side_effectful_functions)
    operator_tables._results.clear()
    for entry in inductor_tables.entries():
        for table in tables:
            table.pop(entry.key, None)
        if entry.name.startswith("side effect["):
            _side_effectful_functions.difference_update(
                [e for e in effects if entry.name == f"side effect[{_name(e)}]"]
            )
    yield
    for table, values in zip(tables, before, strict=True):
        table.clear()
        table.update(values)
    _side_effectful_functions.update(effects)
    lowering.fallbacks.clear()
    lowering.fallbacks.update(fallbacks)
    operator_tables._results.clear()


def changed() -> dict[str, Any]:
    """The entries that are not as torch made them, by name."""
    always = "side effects of torch's operators"
    return {entry.name: entry.value for entry in inductor_tables.entries() if entry.name != always}


@pytest.fixture
def as_torch_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tables had been recorded when they were made."""
    recorded: dict[str, dict[str, Any]] = {}
    for module, name, *_ in operator_tables.TABLES:
        table = getattr(importlib.import_module(module), name, {})
        recorded[name] = {operator_tables.key_text(key): value for key, value in table.items()}
    assert "aten.sin.default" in recorded["lowerings"] and "aten.addmm.default" in recorded["decompositions"]
    monkeypatch.setattr(operator_tables, "_original", recorded)


def test_entries_of_torch_do_not_count(as_torch_made_them: None) -> None:
    for module in ("joint_graph", "post_grad", "pre_grad"):
        importlib.import_module(f"torch._inductor.fx_passes.{module}")
    assert changed() == {} and inductor_tables.for_a_worker(lambda entry: True) == []


@pytest.mark.parametrize(
    ("module", "table", "hows"),
    [
        ("torch._inductor.lowering", "lowerings", [LOWERED, DECOMPOSED]),
        ("torch._inductor.lowering", "_maybe_layout_constraints", [LOWERED]),
        ("torch._inductor.decomposition", "decompositions", [DECOMPOSED]),
        ("torch._inductor.decomposition", "extra_random_decomps", [DECOMPOSED]),
    ],
)
def test_a_function_in_a_table_is_of_its_operator(
    module: str, table: str, hows: list[Any], as_torch_made_them: None
) -> None:
    getattr(importlib.import_module(module), table)[aten.sin.default] = mine
    name = f"{table}[aten.sin.default]"
    assert changed() == {name: mine}
    (entry,) = [entry for entry in inductor_tables.entries() if entry.name == name]
    assert entry.operator is aten.sin.default and not entry.is_torchs
    assert inductor_tables.of_operator(name) == [OperatorOverride(how, "aten.sin.default", name) for how in hows]
    (data,) = inductor_tables.for_a_worker(lambda entry: True)
    sent = pickled_definitions._loaded(data)
    assert (sent.module, sent.table, sent.key, sent.function) == (module, table, aten.sin.default, mine)
    assert inductor_tables.for_a_worker(lambda entry: False) == []


@pytest.mark.parametrize("how", ["another's", "a partial", "a copy of metadata"])
def test_a_lowering_made_of_torch_s_functions_counts(how: str, as_torch_made_them: None) -> None:
    from torch._inductor.lowering import lowerings

    cos = lowerings[aten.cos.default]
    made = {
        "another's": cos,
        "a partial": functools.partial(cos),
        "a copy of metadata": functools.wraps(lowerings[aten.sin.default])(lambda x: cos(x)),
    }
    lowerings[aten.sin.default] = made[how]
    assert changed() == {"lowerings[aten.sin.default]": made[how]}
    (entry,) = [entry for entry in inductor_tables.entries() if entry.name == "lowerings[aten.sin.default]"]
    assert entry.is_torchs is (how != "a copy of metadata")


def test_register_lowering_and_fallbacks_are_seen(as_torch_made_them: None) -> None:
    from torch._inductor.lowering import lowerings, make_fallback, register_lowering

    register_lowering(aten.sin.default, type_promotion_kind=None)(mine)
    make_fallback(aten.cos.default, warn=False, override_decomp=True)
    del lowerings[aten.exp.default]
    assert changed().keys() == {f"lowerings[aten.{name}.default]" for name in ("sin", "cos", "exp")}
    assert changed()["lowerings[aten.exp.default]"] is None


def test_a_decomposition_that_torch_has_for_another_operator_counts(as_torch_made_them: None) -> None:
    import torch._refs
    from torch._inductor.decomposition import decompositions

    assert aten.digamma.default not in decompositions
    decompositions[aten.digamma.default] = torch._refs.cos
    del decompositions[aten.addmm.default]
    assert changed() == {
        "decompositions[aten.digamma.default]": torch._refs.cos,
        "decompositions[aten.addmm.default]": None,
    }


def test_fallbacks_that_a_compile_makes_do_not_count(as_torch_made_them: None) -> None:
    from torch._inductor.lowering import fallback_handler, lowerings

    lowerings[torch.ops.quantized.add.default] = fallback_handler(torch.ops.quantized.add.default)
    assert changed() == {}


def test_a_decomposition_of_aotautograd_s_is_found() -> None:
    from torch._decomp import global_decomposition_table

    global_decomposition_table["post_autograd"][aten.sin.default] = mine
    assert changed() == {"decompositions post_autograd[aten.sin.default]": (mine,)}
    # It is not read by operator.
    assert inductor_tables.of_operator("decompositions post_autograd[aten.sin.default]") == []


class Handler:
    def __call__(self, match: Any, x: Any) -> None: ...

    def handle(self, match: Any, x: Any) -> None: ...


@pytest.mark.parametrize("handler", [mine, Handler(), Handler().handle], ids=["function", "object", "method"])
def test_a_pattern_is_found_with_its_code(handler: Any, as_torch_made_them: None) -> None:
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

    patterns: Any = post_grad.pass_patterns[0]
    before = {key: list(entries) for key, entries in patterns.patterns.items()}
    try:
        register_graph_pattern(CallFunction(aten.sin.default, KeywordArg("x")), pass_dict=patterns)(handler)
        ((name, value),) = changed().items()
    finally:
        patterns.patterns.clear()
        patterns.patterns.update(before)
    assert name.startswith("pattern post_grad.pass_patterns[0] call_function aten.sin.default")
    text, code = value
    assert "aten.sin.default" in text and " at 0x" not in text and code == (handler,)
    assert changed() == {}


def test_a_pass_that_a_program_appends_is_found(as_torch_made_them: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import pattern_matcher
    from torch._inductor.fx_passes import post_grad

    added: Any = pattern_matcher.PatternMatcherPass()
    pattern = pattern_matcher.CallFunction(aten.erfc.default, pattern_matcher.Arg())
    pattern_matcher.register_graph_pattern(pattern, pass_dict=added)(mine)
    monkeypatch.setattr(post_grad, "pass_patterns", [*post_grad.pass_patterns, added])
    (name,) = changed()
    assert name.startswith("pattern post_grad.pass_patterns[3]")


def test_other_registries_are_read(as_torch_made_them: None) -> None:
    from torch._inductor.fx_passes import post_grad
    from torch._subclasses import fake_impls

    fake_impls.op_implementations_dict[aten.erfinv.default] = mine
    post_grad.noop_registry[aten.erfinv.default] = (mine, 0)
    try:
        assert changed() == {
            "op_implementations_dict[aten.erfinv.default]": (mine,),
            "noop_registry[aten.erfinv.default]": (mine, 0),
        }
    finally:
        del fake_impls.op_implementations_dict[aten.erfinv.default]
        del post_grad.noop_registry[aten.erfinv.default]


def test_side_effects_are_of_their_operator() -> None:
    from torch.fx.node import _side_effectful_functions, has_side_effect

    library = torch.library.Library("compat_tables", "DEF")
    library.define("note(Tensor x) -> Tensor")
    note = torch.ops.compat_tables.note.default
    try:
        has_side_effect(note)
        (entry,) = [entry for entry in inductor_tables.entries() if entry.name.startswith("side effect[")]
        assert entry.operator is note
        has_side_effect(aten.erfinv.default)
        (of_torch,) = [entry.value for entry in inductor_tables.entries() if entry.name.startswith("side effects")]
        assert "aten.erfinv.default" in of_torch
    finally:
        _side_effectful_functions.discard(note)
        _side_effectful_functions.discard(aten.erfinv.default)
        library._destroy()


def test_passes_and_back_ends_of_a_device_are_found() -> None:
    from torch._inductor.codegen import common

    class Scheduling:
        pass

    class Wrapper:
        pass

    common.register_backend_for_device("compat", Scheduling, Wrapper)
    name = "device_codegens[compat]"
    values = changed()
    assert list(values) == [name] and Scheduling in values[name] and Wrapper in values[name]


def test_a_device_s_passes_count_by_their_uuid() -> None:
    from torch._inductor.codegen import common

    class Passes:
        def uuid(self) -> str:
            return "one"

    common.custom_backend_passes["compat"] = Passes()
    assert changed() == {"custom_backend_passes[compat]": "'one'"}


def test_classes_of_a_pattern_count() -> None:
    import torch._inductor.pattern_matcher as matcher
    from torch._inductor.fx_passes import post_grad

    class Near(matcher.CallFunction):
        pass

    patterns = post_grad.pass_patterns[1].patterns
    before = {key: list(entries) for key, entries in patterns.items()}
    nested = matcher.CallFunction(aten.neg.default, Near(aten.erfc.default, matcher.Arg()))
    try:
        matcher.register_graph_pattern(nested, pass_dict=post_grad.pass_patterns[1])(mine)
        (value,) = [value for name, value in changed().items() if name.startswith("pattern post_grad")]
    finally:
        patterns.clear()
        patterns.update(before)
    assert value[1:] == ((mine,), Near)
