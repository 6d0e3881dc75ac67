"""The zygote after its warm-up: fit to be forked, out of reach of any driver, and its workers need not do it again.

There is no GPU here. What could reach for one is a library of NVIDIA's driver that is loaded; bench/gpu/zygote.py
looks for it where there is one.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python
from triton_place import path_with_triton

A100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
FOR_DEVICES = [f"attention@{H200}", f"convolution@{A100}"]


def report_of(arguments: list[str], path: str, home: Path) -> dict[str, Any]:
    environment = {"FXPOOL_POOL": "embedded", "PYTHONPATH": path}
    home.mkdir(mode=0o700, exist_ok=True)
    environment["FXPOOL_CACHE_DIR"] = str(home)
    printed = run_python([str(HERE / "zygote_child.py"), *arguments], 600, **environment)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a zygote where Triton is, of one that did not warm up there, and of one to which no Triton is given."""
    path, home = path_with_triton(), tmp_path_factory.mktemp("zygotes") / "c"
    return {
        "triton": report_of([*FOR_DEVICES, "convolution@cpu"], path, home),
        "fresh": report_of(["--fresh", *FOR_DEVICES, "convolution@cpu"], path, home),
        "plain": report_of([], os.environ.get("PYTHONPATH", ""), home),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["triton", "plain"])
def test_it_stays_one_that_can_be_forked(reports: dict[str, Any], which: str) -> None:
    report = reports[which]
    for name in ("warm", "warm_up_devices", "warm_up", "warm_up_training"):
        assert f"warmup:{name} took" in report["log"]
    assert "Traceback" not in report["log"]
    assert len(report["threads"]) == 1
    assert (report["zygotes"], report["zygotes_after"]) == (1, 1)
    assert report["driver"] == [], "of the driver no more than torch itself loads"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_are_born_with_the_tables(reports: dict[str, Any]) -> None:
    assert reports["triton"]["inherited"]["tables"] == {"joint_graph": 2, "post_grad": 1, "pre_grad": 1}
    # A build for CUDA has Triton beside it, and warms up for devices whatever is put in front.
    of_devices = int(importlib.util.find_spec("triton") is not None)
    plain = reports["plain"]["inherited"]
    assert plain["tables"] == {"joint_graph": 1 + of_devices, "post_grad": 1, "pre_grad": 1}
    assert plain["triton"] == bool(of_devices)
    assert reports["fresh"]["inherited"]["tables"] == {"joint_graph": 0, "post_grad": 0, "pre_grad": 0}
    assert reports["triton"]["inherited"]["triton"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*FOR_DEVICES, "convolution@cpu"])
def test_a_worker_traces_no_patterns_anew(reports: dict[str, Any], name: str) -> None:
    """Forward and backward, for the CPU and for GPUs of which one is not the model that warmed it up."""
    found, fresh = reports["triton"]["compiles"][name], reports["fresh"]["compiles"][name]
    assert found["before"] == found["after"]
    assert found["graphs"] == fresh["graphs"] == 2
    assert fresh["traced"] > found["traced"] == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*FOR_DEVICES, "convolution@cpu"])
def test_nothing_of_the_model_it_was_warmed_up_with_is_in_the_code(reports: dict[str, Any], name: str) -> None:
    found, fresh = reports["triton"]["compiles"][name], reports["fresh"]["compiles"][name]
    assert found["code"] == fresh["code"]


@pytest.mark.slow
def test_workers_do_not_say_that_there_is_no_cuda() -> None:
    """Devices are hidden from them, and their records are shown in the program, once for each compile."""
    program = """
import logging, os
os.environ.update(CUDA_HOME="/somewhere", CUDA_VISIBLE_DEVICES="")
from torch.utils import cpp_extension
records = []
handler = logging.Handler()
handler.emit = records.append
logging.getLogger("torch").addHandler(handler)
logger = logging.getLogger("torch.utils.cpp_extension")
assert cpp_extension._find_cuda_home() == "/somewhere"
assert len(records) == 1, "torch has other words for it: see preload"
from fxpool.torch_compat.inductor import preload
preload.import_compiler()
assert cpp_extension._find_cuda_home() == "/somewhere"
assert len(records) == 1
logger.warning("anything else")
assert len(records) == 2
"""
    run_python(["-c", program])
