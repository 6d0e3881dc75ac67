"""`global_state` captures the global state that shapes compiled code, and puts another thread or process into it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fxpool.torch_compat.state import compile_flags, global_state
from fxpool.torch_compat.state.global_state import AUTOCAST_DEVICES, OF_A_THREAD, OF_CPU, TABLE

# What a program calls, and the switch that it changes.
CHANGES: dict[str, Callable[[], object]] = {
    "default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "default_device": lambda: torch.set_default_device("meta"),
    "num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "fill_uninitialized_memory": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "grad": lambda: torch.set_grad_enabled(False),
    "autocast_cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast_cache": lambda: torch.set_autocast_cache_enabled(False),
    "sdp_flash": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "sdp_math": lambda: torch.backends.cuda.enable_math_sdp(False),
    "cudnn_benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn_deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "mha_fastpath": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
    "saved_tensor_hooks_disabled": lambda: torch._C._autograd._saved_tensors_hooks_disable("not now"),
    "torch_function": lambda: torch._C._set_torch_function_state(torch._C._TorchFunctionState.ALL_DISABLED),
    "specialized_floats": lambda: TABLE["specialized_floats"][1](["zf0"]),  # type: ignore[misc]
    "distribution_validation": lambda: torch.distributions.Distribution.set_default_validate_args(
        not torch.distributions.Distribution._validate_args
    ),
    **{name: partial(compile_flags.accessors(name)[1], True) for name in compile_flags.FLAGS},
    "numpy_dtypes": lambda: TABLE["numpy_dtypes"][1](["float32", "complex64", "int32"]),  # type: ignore[misc]
    "fp32_precision_mkldnn_matmul": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
}


@pytest.fixture(autouse=True)
def _state_as_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    # torch's own test utilities, which another test may have imported, forbid assignments to backends' switches.
    allowed = "__allow_nonbracketed_mutation_flag"
    monkeypatch.setitem(torch.backends.disable_global_flags.__globals__, allowed, True)
    with global_state.entered(global_state.capture()):
        yield


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_captured_entered_and_left(name: str) -> None:
    before = global_state.capture()
    CHANGES[name]()
    changed = global_state.capture()
    assert changed[name] != before[name]
    with global_state.entered(before):
        assert global_state.capture() == before
    assert global_state.capture() == changed
    with global_state.entered(before), global_state.entered(changed):
        assert global_state.capture() == changed


def test_inference_mode_is_entered_and_left_with_the_switches_that_it_sets() -> None:
    plain = global_state.capture()
    with torch.inference_mode(), torch.autograd.set_multithreading_enabled(False):
        inside = global_state.capture()
        assert inside["inference"] and not inside["grad"]
        with global_state.entered(plain):
            assert global_state.capture() == plain
            assert not torch.ones(1).is_inference() and torch.ones(1, requires_grad=True).mul(2).requires_grad
        assert global_state.capture() == inside
    assert global_state.capture() == plain
    with global_state.entered(inside):
        assert global_state.capture() == inside and torch.ones(1).is_inference()
    with torch.inference_mode(), torch.enable_grad(), torch.autograd._force_original_view_tracking(True):
        odd = global_state.capture()
    assert odd["inference"] and odd["grad"] and odd["view_replay"]
    with global_state.entered(odd, thread_only=True):
        assert global_state.capture() == odd
    assert global_state.capture() == plain


def test_the_state_is_plain_data() -> None:
    state = global_state.capture()
    assert json.loads(json.dumps(state)) == state
    assert len(state) > 50


def test_a_new_thread_is_put_into_the_state_of_the_one_that_asked() -> None:
    seen: list[dict[str, Any]] = []
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    torch.set_default_device("meta")
    state = global_state.capture()

    def ask() -> None:
        fresh = global_state.capture()
        with global_state.entered(state, thread_only=True):
            seen.extend([fresh, global_state.capture()])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    fresh, entered = seen
    assert fresh["grad"] is True and fresh["autocast_cpu"][0] is False
    differing = {name for name in state if fresh.get(name) != state[name]}
    assert differing <= OF_A_THREAD
    assert entered == state


def test_every_switch_of_a_thread_and_of_the_cpu_is_in_the_table() -> None:
    missing = OF_A_THREAD - TABLE.keys()
    assert missing <= {"reapply_views"}  # not in every release
    assert not OF_CPU - TABLE.keys()
    assert {f"autocast_{device}" for device in AUTOCAST_DEVICES} <= TABLE.keys()
    assert {"cpu", "cuda"} <= set(AUTOCAST_DEVICES)


def test_almost_every_switch_can_be_read_in_this_build() -> None:
    """The rest are of back ends that it lacks. A reader that a release broke would be among them."""
    state = global_state.capture()
    assert {
        name for name in TABLE if name not in state and not name.startswith(("cudnn", "fp32_precision_cuda"))
    } == set()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of experimental back ends, as `global_state` ignores them
def test_every_switch_can_be_set_to_what_it_is() -> None:
    state = global_state.capture()
    for name, (_, write) in TABLE.items():
        # oneDNN's switch has no value in a build without Intel's GPUs, and stays without one.
        if write is not None and name in state and (name, state[name]) != ("onednn_allow_tf32", None):
            write(state[name])
    assert global_state.capture() == state


def test_switches_are_those_of_torch_by_these_names() -> None:
    """Each that a release may lack is left out of the table silently; all supported ones have these."""
    names = (
        "grad forward_grad multithreading view_replay autograd_fallback sparse_invariants autocast_cache "
        "vmap_fallback inplace_requires_grad single_level_functions reapply_views torch_function sdp_flash "
        "sdp_mem_efficient sdp_math sdp_cudnn sdp_overrideable sdp_math_reduction mkldnn mkldnn_deterministic "
        "nnpack quantized_engine cudnn cudnn_benchmark cudnn_deterministic sm_carveout "
        "float32_matmul_precision blas linalg rocm_flash onednn_allow_tf32 cuda_allow_fp16_accumulation "
        "cpu_allow_fp16_reduced_precision_reduction only_lift_cpu_tensors"
    )
    assert [name for name in names.split() if name not in TABLE] == []


def test_a_build_without_a_back_end_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise RuntimeError("this build has none")

    monkeypatch.setitem(global_state.TABLE, "cudnn", (refuse, None))
    state = global_state.capture()
    assert "cudnn" not in state and "mkldnn" in state
    with global_state.entered(state):
        assert "cudnn" not in global_state.capture()
