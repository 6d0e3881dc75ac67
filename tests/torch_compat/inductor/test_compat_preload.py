"""`preload` imports what every compile needs, before processes are forked that compile."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
from typing import Any

import pytest
import torch

from fxpool.torch_compat.inductor import preload


def test_a_compiler_is_imported_without_starting_a_thread() -> None:
    before = threading.enumerate()
    preload.import_compiler()
    assert set(threading.enumerate()) <= set(before)  # one of an earlier test may have ended
    assert "torch._inductor.compile_fx" in sys.modules and "torch._inductor.codegen.cpp" in sys.modules


@pytest.mark.parametrize("module", preload._MODULES)
def test_a_module_that_is_imported_is_of_this_release(module: str) -> None:
    """A missing one is skipped silently, and would be imported by every worker instead."""
    assert importlib.import_module(module).__name__ == module


def test_modules_that_a_release_lacks_are_skipped_and_others_are_errors() -> None:
    preload._import(("torch.compat_unknown",))
    with pytest.raises(ModuleNotFoundError):
        preload._import(("compat_unknown",))


def test_what_is_said_of_hidden_devices_is_not_shown() -> None:
    log = logging.getLogger("torch.utils.cpp_extension")

    def shown(message: str) -> bool:
        return preload._is_not_of_hidden_devices(log.makeRecord(log.name, logging.WARNING, "", 1, message, (), None))

    assert not shown("No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'") and shown("another message")
    import inspect

    from torch.utils import cpp_extension

    assert "No CUDA runtime is found" in inspect.getsource(cpp_extension)


def test_facts_about_devices_are_forgotten_and_patterns_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import select_algorithm, utils
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime import hints

    @functools.cache
    def asked() -> str:
        return "device"

    @functools.cache
    def of_patterns() -> str:
        return "device"

    for function, module in ((asked, utils), (of_patterns, pad_mm)):
        function.__module__ = module.__name__
        monkeypatch.setattr(module, "compat_cached", function, raising=False)
        function()
    select_algorithm.get_algorithm_selector_cache()
    made = hints.DeviceProperties.create(torch.device("cpu"))
    preload.forget_devices()
    assert asked.cache_info().currsize == 0 and of_patterns.cache_info().currsize == 1
    assert select_algorithm._ALGORITHM_SELECTOR_CACHE is None
    assert hints.DeviceProperties.create(torch.device("cpu")) is not made


def test_counters_are_as_before() -> None:
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    counters["inductor"]["compat_before"] = 1
    generated = metrics.generated_kernel_count
    with preload.counters_kept():
        counters["inductor"]["compat_before"] += 1
        counters["compat"]["inside"] += 1
        metrics.generated_kernel_count = generated + 5
    assert counters["inductor"].pop("compat_before") == 1 and "compat" not in counters
    assert metrics.generated_kernel_count == 0


def test_progress_bars_start_no_thread() -> None:
    tqdm: Any = pytest.importorskip("tqdm")
    before = tqdm.tqdm.monitor_interval
    with preload.no_progress_thread():
        assert tqdm.tqdm.monitor_interval == 0
    assert tqdm.tqdm.monitor_interval == before


def test_without_triton_there_is_nothing_to_warm() -> None:
    if importlib.util.find_spec("triton") is not None:
        pytest.skip("Triton is here: see the tests of Triton kernels")
    before = set(sys.modules)
    preload.settle_assembler()
    preload.warm_triton()
    assert {name for name in set(sys.modules) - before if name.startswith("triton")} == set()
