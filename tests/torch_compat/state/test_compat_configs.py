"""`configs` captures configuration as data, for keys and for workers, and applies it elsewhere."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config

from fxpool.torch_compat import versions
from fxpool.torch_compat.state import configs
from fxpool.torch_compat.state.config_decisions import ONLY_TRAVELS, STAYS

RELEASE = versions.parse(torch.__version__)


def a_pass(graph: torch.fx.Graph) -> None:
    """A pass of the program's."""


def test_plain_values_are_captured_and_entered_elsewhere() -> None:
    with (
        inductor_config.patch({"max_autotune": True, "cpp.threads": 3}),
        functorch_config.patch(treat_parameters_as_free_to_save=False),
    ):
        state = copy.deepcopy(configs.capture())
    assert state["inductor"]["max_autotune"] is True and state["inductor"]["cpp.threads"] == 3
    assert configs.capture() != state
    with configs.entered(state):
        assert inductor_config.max_autotune is True and inductor_config.cpp.threads == 3
        assert functorch_config.treat_parameters_as_free_to_save is False
        assert configs.capture() == state
    assert inductor_config.max_autotune is False


def test_a_value_that_is_changed_in_place_is_seen_and_copied() -> None:
    table = {"f": 1}
    with inductor_config.patch(autotune_lookup_table=table):
        first = configs.capture()["inductor"]["autotune_lookup_table"]
        assert first == table and first is not table
        inductor_config.autotune_lookup_table["g"] = 2
        assert configs.capture()["inductor"]["autotune_lookup_table"] == {"f": 1, "g": 2}
        assert first == {"f": 1}


def test_code_is_apart_from_plain_values() -> None:
    assert configs.code_values() == {}
    with inductor_config.patch(post_grad_custom_pre_pass=a_pass):
        state, code = configs.captured()
        assert code == {"inductor.post_grad_custom_pre_pass": a_pass}
        assert "post_grad_custom_pre_pass" not in state["inductor"]
    with configs.entered(state, code):
        assert inductor_config.post_grad_custom_pre_pass is a_pass
    assert inductor_config.post_grad_custom_pre_pass is None


def test_what_stays_is_not_captured_and_what_travels_is_not_in_the_key() -> None:
    state = configs.capture()
    keyed = configs.key_values(state)
    for name in state:
        assert not STAYS[name].keys() & state[name].keys(), name
        assert not ONLY_TRAVELS[name].keys() & keyed[name].keys(), name
    assert "cpp.cxx" in state["inductor"] and "max_autotune" in keyed["inductor"]
    assert "max_autotune" in state["inductor"] and "cpp.cxx" not in keyed["inductor"]


def test_a_directory_of_torch_s_own_does_not_count() -> None:
    name = next(name for name in ("cutlass.cutlass_dir", "cuda.cutlass_dir") if name in inductor_config._config)
    state = configs.capture()
    assert state["inductor"][name] is not None and configs.key_values(state)["inductor"][name] is None
    with inductor_config.patch({name: "/mine"}):
        assert configs.key_values(configs.capture())["inductor"][name] == "/mine"


def test_no_warning_is_used_up_by_reading_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    entry: Any = inductor_config._config["autotune_lookup_table"]
    if not hasattr(entry, "deprecated"):
        pytest.skip(f"torch {torch.__version__} has no deprecated entries")
    monkeypatch.setattr(entry, "deprecated", True)
    monkeypatch.setattr(entry, "_deprecation_warned", False)
    configs._deprecated.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = configs.capture()
        with pytest.warns(Warning, match="autotune_lookup_table is deprecated"):
            assert inductor_config.autotune_lookup_table == state["inductor"]["autotune_lookup_table"]
    finally:
        configs._deprecated.cache_clear()


def test_threads_have_values_of_their_own_since_2_12() -> None:
    assert configs.per_thread() == (RELEASE >= (2, 12))


def test_torch_keeps_its_last_export_since_2_13() -> None:
    kept = RELEASE >= (2, 13)
    assert kept is configs._KEEPS
    # And what is read with its help is what each entry has.
    read = configs._values("inductor", inductor_config)
    names = configs._entries("inductor", inductor_config)
    assert set(names) == read.keys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        atoms = [n for n in names if type(read[n]) in configs._ATOMS]
        assert {n: read[n] for n in atoms} == {n: getattr(inductor_config, n) for n in atoms}
    assert len(atoms) > 200


# --- options


def test_options_are_checked_as_torch_compile_does() -> None:
    names = configs.inductor_option_names()
    assert "max_autotune" in names and "triton.cudagraphs" in names
    assert configs.check_inductor_option("max-autotune", True) == ("max_autotune", True)
    assert configs.check_inductor_option("triton.cudagraphs", False) == ("triton.cudagraphs", False)
    with pytest.raises(KeyError, match="compat_unknown"):
        configs.check_inductor_option("compat_unknown", 1)
    with pytest.raises(TypeError, match="option 'max_autotune' takes bool, not str"):
        configs.check_inductor_option("max_autotune", "yes")


def test_options_are_in_force_for_a_while() -> None:
    with configs.patched({"max_autotune": True, "triton.cudagraphs": True}):
        assert configs.times_templates() and configs.cudagraphs()
    assert not configs.times_templates() and not configs.cudagraphs()


def test_modes_are_torch_s() -> None:
    assert {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"} <= set(configs.mode_names())
    assert configs.mode_options("default") == {}
    assert configs.mode_options("reduce-overhead")["triton.cudagraphs"] is True
    assert configs.mode_options("max-autotune")["max_autotune"] is True
    with pytest.raises(KeyError):
        configs.mode_options("compat_unknown")


# --- questions


@pytest.mark.parametrize(
    ("question", "option"),
    [
        (configs.calls_through_cpp, "cpp_wrapper"),
        (configs.freezing, "freezing"),
        (configs.decides_by_memory, "partitioned_scatter_enabled"),
        (configs.cudagraphs, "triton.cudagraphs"),
        (configs.times_templates, "max_autotune_gemm"),
    ],
)
def test_an_option_answers_a_question(question: Any, option: str) -> None:
    for value in (True, False):
        with inductor_config.patch({option: value}):
            assert question() is value


@pytest.mark.parametrize("option", configs._MEASURING)
def test_an_option_that_measures_is_named(option: str) -> None:
    assert configs.measures() == ""
    if option not in inductor_config._config:
        pytest.skip(f"torch {torch.__version__} has no {option}")
    before = inductor_config._config[option].default
    value = {int: 2, list: [8]}.get(type(before), True)
    with inductor_config.patch({option: value}):
        assert configs.measures() == option


def test_templates_that_are_timed_otherwise_are_named() -> None:
    with inductor_config.patch({"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}):
        first = configs.measures()
        assert first in ("", "max_autotune_conv_backends", *configs._TIMED_OTHERWISE)
        with inductor_config.patch(max_autotune_gemm_backends="ATEN,CUTLASS"):
            assert configs.measures() in ("max_autotune_gemm_backends", first)
        with inductor_config.patch({configs._CHOOSES_BY_TIME: False}):
            assert configs.measures() in (configs._CHOOSES_BY_TIME, first)
    expected = "benchmark_template_fusion" if RELEASE >= (2, 15) else "benchmark_epilogue_fusion"
    assert expected == configs._CHOOSES_BY_TIME


def test_kernels_are_compiled_with_a_graph_that_is_called_through_cpp() -> None:
    with inductor_config.patch(configs.KERNELS_AT_COMPILE_TIME):
        assert inductor_config.triton.store_cubin is True and not configs.kernels_on_first_call()
    with inductor_config.patch({"triton.autotune_at_compile_time": False}):
        assert configs.kernels_on_first_call()


def test_switches_of_torch_s_caches_are_read() -> None:
    with inductor_config.patch(fx_graph_cache=True, force_disable_caches=False):
        assert configs.caches_disabled() is None
        with inductor_config.patch(fx_graph_cache=False):
            assert configs.caches_disabled() == "fx_graph_cache"
        with torch.compiler.config.patch(force_disable_caches=True):
            assert configs.caches_disabled() == "force_disable_caches"
    with functorch_config.patch(enable_autograd_cache=False):
        assert configs.autograd_cache_disabled()
    with functorch_config.patch(enable_autograd_cache=True):
        assert not configs.autograd_cache_disabled()
    with functorch_config.patch(strict_autograd_cache=True):
        assert configs.must_be_kept()
        with functorch_config.patch(bypass_autograd_cache_key=True):
            assert not configs.must_be_kept()
    with inductor_config.patch(fx_graph_remote_cache=True):
        assert configs.remote_cache_wanted() == "fx_graph_remote_cache"
    with inductor_config.patch(fx_graph_remote_cache=False), functorch_config.patch(enable_remote_autograd_cache=True):
        assert configs.remote_cache_wanted() == "enable_remote_autograd_cache"
    with inductor_config.patch(fx_graph_remote_cache=False), functorch_config.patch(enable_remote_autograd_cache=False):
        assert configs.remote_cache_wanted() is None
    with inductor_config.patch(unsafe_marked_cacheable_functions=["mine.f"]):
        assert configs.functions_marked_cacheable() == frozenset(["mine.f"])
