"""`fxpool.torch_compat.triton`, and the stand-ins for Triton's driver, in a process that has Triton and sees no GPU.

This folder is not called `triton`: pytest puts the folder above it into `sys.path`, where a folder of that name could
be imported as the library.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python
from triton_place import path_with_triton

CHILD = Path(__file__).with_name("compat_triton_child.py")


def _names() -> list[str]:
    """Triton's names that the sources use, but those of objects, which no release's page has."""
    path = Path(__file__).parents[3] / "docs" / "compat_report.py"
    spec = importlib.util.spec_from_file_location("compat_report_of_triton", path)
    assert spec is not None and spec.loader is not None
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    of_objects = ("triton.runtime.driver.",)
    return [name for name in report.names_used() if name.startswith("triton.") and not name.startswith(of_objects)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the child says. It is started once, for all tests of this module."""
    directory = tmp_path_factory.mktemp("t")
    places = {name: str(directory / name) for name in ("i", "t")}
    printed = run_python(
        [str(CHILD), json.dumps(_names())],
        PYTHONPATH=path_with_triton(str(HERE)),
        CUDA_VISIBLE_DEVICES="",
        TMPDIR=str(directory),
        TORCHINDUCTOR_CACHE_DIR=places["i"],
        TRITON_CACHE_DIR=places["t"],
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TORCH_WARM_POOL="0",
    )
    return json.loads(printed.splitlines()[-1])


def test_no_folder_of_the_tests_is_taken_for_triton() -> None:
    spec = importlib.util.find_spec("triton")
    assert spec is None or spec.origin is not None


def test_triton_s_private_names_are_there(report: Any) -> None:
    assert len(_names()) > 8 and report["missing"] == []


def test_triton_s_driver_is_stood_in_for(report: Any) -> None:
    drivers = report["drivers"]
    assert "asked Triton's driver for get_current_device" in drivers["absent"]
    assert drivers["out_of_reach"].startswith("OutOfReachError") and "get_current_target" in drivers["out_of_reach"]
    assert drivers["answered"] == ["cuda", 90, 32, 0]
    assert drivers["unanswered"] == "UnansweredError: Triton's driver for launcher_cls"
    assert drivers["same"]


@pytest.mark.parametrize("name", ["added", "tuned"])
def test_a_program_s_kernel_is_described_and_found_again(name: str, report: Any) -> None:
    kernel = report["user"][name]
    assert kernel["is call"] and kernel["place"] == ["user_kernels_module", name]
    assert kernel["function"] and kernel["same"]
    # An autotuner is made again, a plain kernel is the one that the table has already.
    assert kernel["tuning"] is kernel["new"] is (name == "tuned")
    assert kernel["constants"] is True


def test_a_kernel_without_a_description_says_why(report: Any) -> None:
    kernels = report["user"]
    assert kernels["hook"] == "NotDescribedError: pre_hook of a configuration of hooked"
    assert kernels["pruned"] == "NotDescribedError: early_config_prune of pruned"
    assert kernels["local"] == "NotDescribedError: user_kernels_module.local.<locals>.kernel"
    assert kernels["missing"] == "NotDescribedError: user_kernels_module.compat_unknown"
    assert kernels["object"] == "NotDescribedError: x in arguments: builtins.object"


def test_inductor_hands_out_kernels_as_it_generates_them(report: Any) -> None:
    assert report["may_collect"] is True
    assert report["collected"] == {
        "made": "stand-in",
        "taken": [["kernel", "source"]],
        "early": True,
        "same": True,
    }


def test_a_kernel_of_inductor_s_is_compiled_to_what_a_launch_needs(report: Any) -> None:
    compiled = report["compiled"]
    assert compiled["elf"] and compiled["symbol"] == compiled["told"] == "doubled"
    # A pointer, a 64-bit and a 32-bit number; then pointers to scratch memory that are passed empty.
    assert compiled["types"][:3] == "Oli" and set(compiled["types"][3:]) <= {"O"}
    assert compiled["arguments"][:3] == ["a", "n", "xnumel"] and not any(compiled["arguments"][3:])
    assert compiled["parameters"] == ["a", "n", "xnumel"] and compiled["names"] == ["a", "n", "xnumel", "XBLOCK"]
    assert compiled["values"] and all(values == ["XBLOCK"] for values in compiled["values"])
    assert len(compiled["grid"]) == 3 and "xnumel" in compiled["grid"][0] and compiled["grid"][1:] == ["1", "1"]
    assert compiled["warps"] in (1, 2, 4, 8, 16) and 0 < compiled["registers"] < 256
    assert compiled["written"] == ["a"] and compiled["spill_limit"] == 16
    assert compiled["files"] > 1000


def test_a_kernel_that_only_triton_can_launch_says_why(report: Any) -> None:
    for reason, said in report["compiled"]["reasons"].items():
        assert said == f"NotLaunchableError: {reason}"


def test_triton_s_assembler_is_asked_ahead_and_reads_its_variables_again(report: Any) -> None:
    assembler = report["assembler"]
    assert assembler["asked"] >= 1
    assert assembler["options"] == ["--compat", "--compat"] and assembler["afterwards"] is None
