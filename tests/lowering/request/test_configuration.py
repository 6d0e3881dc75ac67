"""Configuration as torch uses it: what entries imply, options of other devices, and no warnings of ours."""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from capturing import key_of
from processes import run_python
from torch._inductor.codegen import common

from fxpool.errors import ConfigurationError, UnknownNameError
from fxpool.lowering.core import options
from fxpool.lowering.request import ambient_state
from fxpool.torch_compat.operators import inductor_tables
from fxpool.torch_compat.state import configs

X = torch.ones(4, 4)


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x + 1


# ---------------------------------------------------------------- entries that imply others


@pytest.mark.skipif(not hasattr(inductor_config, "_implications"), reason="no entry of this release implies another")
def test_what_is_captured_is_what_is_in_force() -> None:
    plain = configs.capture()["inductor"]
    targets = sorted(inductor_config._implications)
    assert "emulate_precision_casts" in targets
    with inductor_config.patch(numerics="strict"):
        captured = configs.capture()["inductor"]
        in_force = {name: getattr_of(name) for name in targets}
        assert {name: captured[name] for name in targets} == in_force
        assert in_force != {name: plain[name] for name in targets}
    assert configs.capture()["inductor"] == plain


def getattr_of(name: str) -> Any:
    value: Any = inductor_config
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.skipif(not hasattr(inductor_config, "_implications"), reason="no entry of this release implies another")
@pytest.mark.parametrize("values", [{"numerics": "strict"}, {"numerics": "strict", "emulate_precision_casts": False}])
def test_implied_entries_are_in_force_where_a_state_is_entered(values: dict[str, Any]) -> None:
    plain = configs.capture()
    with inductor_config.patch(values):
        strict = configs.capture()
    with configs.entered(strict):
        assert inductor_config.emulate_precision_casts is True
        assert configs.capture() == strict
        with configs.entered(plain):  # as a thread does that loads what another compiled
            assert inductor_config.emulate_precision_casts is False
            assert configs.capture() == plain
        assert configs.capture() == strict
    assert configs.capture() == plain


# ---------------------------------------------------------------- what counts where a program runs


OTHERWISE: dict[str, list[tuple[str, Any]]] = {
    "inductor": [
        ("compile_worker_watchdog_interval_seconds", 7),
        ("trace.provenance_tracking_max_events", 7),
        ("triton.cudagraph_managed_input_rerecord_limit", 7),
        ("triton.cudagraph_managed_input_rerecord_action", "skip"),
        ("triton.cudagraph_initial_mempool_allocation_gb", 7.0),
        ("triton.cudagraph_dynamic_shape_rerecord_limit", 7),
    ],
    "dynamo": [
        ("gc_gen2_threshold_during_compile", 7),
        ("canonicalize_output_graph_node_order", True),
        ("computed_lazy_constant_max_nodes", 7),
        ("_dynamic_shapes_spec", object()),
    ],
    "compiler": [("static_sources", "L['x']")],
    "distributed": [("pipeline_per_direction_p2p", True), ("pipeline_per_edge_p2p", True)],
}


@pytest.mark.parametrize("module", sorted(OTHERWISE))
def test_what_only_the_running_process_reads_is_in_no_key(module: str) -> None:
    config = configs._MODULES.get(module)
    known = [(name, value) for name, value in OTHERWISE[module] if config is not None and name in config._config]
    if config is None or not known:
        pytest.skip("this release has none of these entries")
    plain = ambient_state.key_parts(ambient_state.capture(before_autograd=True))
    for name, value in known:
        with config.patch({name: value}):
            state = ambient_state.capture(before_autograd=True)
            assert ambient_state.key_parts(state) == plain, name
            # A thread that loads an entry reads these; entries of other threads are not its own.
            sent = state.configuration[module].get(name)
            assert sent == (value if name.startswith("triton.cudagraph") else None), name


# ---------------------------------------------------------------- deprecated entries


def deprecated() -> list[Any]:
    modules = configs._modules_now().values()
    return [entry for module in modules for entry in module._config.values() if getattr(entry, "deprecated", False)]


@pytest.mark.skipif(
    not getattr(inductor_config._config.get("use_mixed_mm"), "deprecated", False),
    reason="no entry of Inductor's is deprecated in this release",
)
def test_reading_and_entering_warn_of_nothing_and_leave_the_warning_to_the_program() -> None:
    before = [entry._deprecation_warned for entry in deprecated()]
    for entry in deprecated():
        entry._deprecation_warned = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state, _ = configs.captured()
            configs.times_templates()
            with inductor_config.patch(max_autotune=True):
                configs.measures()
            with configs.entered(state):
                pass
            state["inductor"]["use_mixed_mm"] = not state["inductor"]["use_mixed_mm"]
            with configs.entered(state):
                assert configs.captured()[0] == state
        assert not any(entry._deprecation_warned for entry in deprecated())
        with pytest.warns(FutureWarning, match="use_mixed_mm"):
            _ = inductor_config.use_mixed_mm
    finally:
        for entry, warned in zip(deprecated(), before, strict=True):
            entry._deprecation_warned = warned


@pytest.mark.slow
def test_a_program_under_w_error_compiles(shared_pool: Path, cache: Path) -> None:
    program = """
import torch, fxpool
f = torch.compile(lambda x: x.sin() + 1, backend="fxpool")
f(torch.ones(4))
assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}, fxpool.stats()
"""
    run_python(["-W", "error::FutureWarning", "-W", "error::DeprecationWarning:fxpool", "-c", program])


# ---------------------------------------------------------------- options of other devices


CONFIGURATION = """
import sys
from torch.utils._config_module import install_config_module
width: int = 4
passes: list = []
install_config_module(sys.modules[__name__])
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The configuration of a back end for a device ``other``."""
    if not hasattr(common, "get_compile_option_owner"):
        pytest.skip("this release has no options of other devices")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "config_of_another_device.py").write_text(CONFIGURATION)
    module = importlib.import_module("config_of_another_device")
    monkeypatch.setitem(common.custom_backend_codegen_configs, "other", module)
    yield module
    sys.modules.pop("config_of_another_device")


def test_options_of_a_device_are_taken_and_checked(device: Any) -> None:
    assert options.parse(None, {"other.width": 8, "max_fusion_size": 3}).inductor == {
        "other.width": 8,
        "max_fusion_size": 3,
    }
    with pytest.raises(ConfigurationError, match="takes int"):
        options.parse(None, {"other.width": "wide"})
    for unknown in ("other.height", "another.width"):
        with pytest.raises(UnknownNameError):
            options.parse(None, {unknown: 8})
    with configs.patched({"other.width": 8, "max_fusion_size": 3}):
        assert (device.width, inductor_config.max_fusion_size) == (8, 3)
    assert device.width == 4


def test_options_of_a_device_are_in_the_key_and_in_the_worker(device: Any) -> None:
    plain = key_of(product, X)
    keys = []
    for width in (8, 9):
        with configs.patched({"other.width": width}):
            keys.append(key_of(product, X))
            state = pickle.loads(pickle.dumps(ambient_state.capture(before_autograd=True)))
    assert len({plain, *keys}) == 3
    assert key_of(product, X) == plain
    sent = list(inductor_tables.entries())
    with ambient_state.entered(state):
        assert device.width == 9
        # Compared before the state is entered: a worker would be said to have other code.
        assert list(inductor_tables.entries()) == sent
    assert device.width == 4


def test_code_that_a_device_is_configured_with_counts(device: Any) -> None:
    plain = key_of(product, X)
    with configs.patched({"other.passes": [product]}):
        assert list(configs.code_values()) == ["device other.passes"]
        assert key_of(product, X) != plain
        state = pickle.loads(pickle.dumps(ambient_state.capture(before_autograd=True)))
    with ambient_state.entered(state):
        assert device.passes == [product]


def test_a_worker_without_the_device_is_not_put_into_its_options(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with configs.patched({"other.width": 8, "max_fusion_size": 3}):
        state = configs.capture()
    monkeypatch.delitem(common.custom_backend_codegen_configs, "other")
    with configs.entered(state):
        assert inductor_config.max_fusion_size == 3
