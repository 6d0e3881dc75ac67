"""`config_decisions` lists the configuration that is not in a key, with the reasons; anything else is in every key."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from fxpool.torch_compat.state import configs
from fxpool.torch_compat.state.config_decisions import DIRECTORIES, MODULES, ONLY_TRAVELS, STAYS, UNREAD


def entries(name: str) -> set[str]:
    module: Any = importlib.import_module(MODULES[name])
    return set(module._config)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_configuration_is_there_and_is_captured(name: str) -> None:
    try:
        known = entries(name)
    except ImportError:
        assert name in ("comms", "distributed", "export")  # not in every release
        return
    assert known and configs.capture()[name].keys() <= known


@pytest.mark.parametrize("name", MODULES)
def test_an_entry_is_decided_once(name: str) -> None:
    assert not STAYS[name].keys() & ONLY_TRAVELS[name].keys()
    assert all(reason and not reason.endswith(".") for reason in (*STAYS[name].values(), *ONLY_TRAVELS[name].values()))


#: Of each group the entries that all supported releases have: a rename would put them into every key.
KNOWN = {
    "inductor": "fx_graph_cache compile_threads worker_start_method trace.enabled trace.debug_dir cpp.cxx "
    "cpp_cache_precompile_headers verbose_progress developer_warnings autotune_local_cache sleep_sec_TESTING_ONLY",
    "functorch": "enable_autograd_cache bundled_autograd_cache strict_autograd_cache",
    "fx": "translation_validation_no_bisect",
    "dynamo": "specialize_int assume_static_by_default recompile_limit guard_nn_modules verbose "
    "automatic_dynamic_local_pgo fake_tensor_cache_enabled minimum_call_count cprofile",
    "compiler": "job_id dynamic_sources unbacked_sources force_disable_caches",
}


@pytest.mark.parametrize("name", KNOWN)
def test_entries_that_are_decided_are_of_this_release(name: str) -> None:
    names = KNOWN[name].split()
    assert [one for one in names if one not in entries(name)] == []
    decided = STAYS[name].keys() | ONLY_TRAVELS[name].keys()
    assert [one for one in names if one not in decided] == []


def test_most_decisions_are_in_use() -> None:
    """A few are of releases before or after this one."""
    for name in ("inductor", "functorch", "dynamo"):
        decided = STAYS[name].keys() | ONLY_TRAVELS[name].keys()
        assert len(decided - entries(name)) < len(decided) / 2


def test_directories_are_entries_of_inductor_s() -> None:
    assert DIRECTORIES & entries("inductor")


def test_configuration_that_no_compile_reads_is_not_captured() -> None:
    assert not set(UNREAD) & set(MODULES.values())
    assert importlib.import_module("torch.utils.serialization.config") is not None
