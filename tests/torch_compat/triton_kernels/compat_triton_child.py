"""A process with Triton: uses `fxpool.torch_compat.triton` there, and prints as JSON what came of it.

    compat_triton_child.py NAMES        (Triton, and tests/lowering, are in the import path; NAMES is a list as JSON)

A process of its own, because torch is another one where Triton can be imported, and most tests are of machines that
have none.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from typing import Any

import torch

from fxpool.torch_compat.cuda import device_answers, no_devices
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.inductor import preload
from fxpool.torch_compat.triton import triton_compile, user_kernels

H100 = COMMON["NVIDIA H100 80GB HBM3"]


def is_there(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            try:
                found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
            except AttributeError:
                return False
        return True
    return False


def message(call: Any, *args: Any) -> str:
    try:
        return f"returned {call(*args)!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def drivers() -> dict[str, Any]:
    """Triton's driver under each of the stand-ins, and afterwards."""
    from triton.runtime import driver

    before = driver._active
    with triton_compile.no_driver():
        absent = message(lambda: driver.active.get_current_device())
    with no_devices.out_of_reach():
        out_of_reach = message(lambda: driver.active.get_current_target())
    with device_answers.answering([H100]):
        target = driver.active.get_current_target()
        answered = [target.backend, target.arch, target.warp_size, driver.active.get_current_device()]
        unanswered = message(lambda: driver.active.launcher_cls)
    return {
        "absent": absent,
        "out_of_reach": out_of_reach,
        "answered": answered,
        "unanswered": unanswered,
        "same": driver._active is before,
    }


def kernels_of_the_program() -> dict[str, Any]:
    """A kernel and its constants through the tables of this process: described, found, added again, described again."""
    import triton.language as tl
    import user_kernels_module as module
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation

    def call(kernel: Any, constants: dict[str, Any]) -> torch.fx.Node:
        graph = torch.fx.Graph()
        numbers = {
            "kernel_idx": kernel_side_table.add_kernel(kernel),
            "constant_args_idx": kernel_side_table.add_constant_args(constants),
        }
        return graph.call_function(triton_kernel_wrapper_mutation, (), {**numbers, "grid": [(1,)], "kwargs": {}})

    values = {
        "count": 3, "big": 2**70, "nan": float("inf"), "KIND": tl.float32, "dtype": torch.bfloat16, "none": None,
        "nested": (1, [2.5, {"a": True}]), "static": tl.constexpr(4),
    }  # fmt: skip
    report: dict[str, Any] = {}
    for name in ("added", "tuned"):
        node = call(getattr(module, name), values)
        described = user_kernels.describe(node)
        function = user_kernels.find(json.loads(json.dumps(described.data)))
        index = user_kernels.add(function, described.data)
        again = user_kernels.Description(kernel_side_table.get_kernel(index))
        data = user_kernels.constants(node)
        made = kernel_side_table.get_constant_args(user_kernels.add_constants(json.loads(json.dumps(data))))
        report[name] = {
            "is call": user_kernels.is_call(node),
            "place": [described.module, described.name],
            "function": function is described.function,
            "same": again.data == described.data,
            "new": index != user_kernels.kernel_index(node),
            "tuning": described.data[2] is not None,
            "constants": repr(made) == repr(values) or [repr(made), repr(values)],
        }
    for name, kernel in (("hook", module.hooked), ("local", module.local()), ("pruned", module.pruned)):
        report[name] = message(user_kernels.Description, kernel)
    report["missing"] = message(user_kernels.find, ["user_kernels_module", "compat_unknown", None])
    report["object"] = message(user_kernels.constants, call(module.added, {"x": object()}))
    return report


def compiled() -> dict[str, Any]:
    """One of Inductor's kernels, compiled for launching and for Triton's loader."""
    from triton_child import KERNELS, TRITONS

    made = triton_compile.compile_kernel("doubled", KERNELS["doubled"], {})
    first = made.candidates[0]
    files = triton_compile.compile_for_triton("doubled", KERNELS["doubled"], {})
    reasons = {}
    for reason in ("coordinate_descent_tuning", "device_agnostic"):
        reasons[reason] = message(triton_compile.compile_kernel, "doubled", TRITONS[reason], {})
    return {
        "symbol": first.symbol,
        "elf": first.binary[:4] == b"\x7fELF",
        "types": first.types,
        "arguments": first.arguments,
        "parameters": first.parameters,
        "values": [sorted(one.values) for one in made.candidates],
        "grid": first.grid,
        "warps": first.warps,
        "registers": triton_compile.registers(first.binary, first.symbol),
        "written": made.written,
        "names": made.argument_names,
        "spill_limit": made.spill_limit,
        "told": made.report["kernel_name"],
        "files": len(files),
        "reasons": reasons,
    }


def collected() -> dict[str, Any]:
    """Kernels for CUDA are handed out as Inductor asks for them, and nothing is changed afterwards."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen import triton as codegen

    before = AsyncCompile.triton
    taken = []

    def take(name: str, source: str) -> str:
        taken.append([name, source])
        return "stand-in"

    with triton_compile.collecting(take):
        made = AsyncCompile().triton("kernel", "source", device_str="cuda")
        early = codegen.async_compile.use_process_pool()
    return {
        "made": made,
        "taken": taken,
        "early": early,
        "same": AsyncCompile.triton is before and "use_process_pool" not in vars(codegen.async_compile),
    }


def assembler() -> dict[str, Any]:
    preload.warm_triton()
    compiler = sys.modules["triton.backends.nvidia.compiler"]
    first = compiler.get_ptxas_version.cache_info().currsize
    os.environ["PTXAS_OPTIONS"] = "--compat"
    preload._read_variables()
    options = [compiler.CUDAOptions.ptx_options, compiler.CUDAOptions().ptx_options]
    del os.environ["PTXAS_OPTIONS"]
    preload._read_variables()
    return {"asked": first, "options": options, "afterwards": compiler.CUDAOptions().ptx_options}


def main(names: list[str]) -> None:
    report = {
        "missing": [name for name in names if not is_there(name)],
        "may_collect": triton_compile.may_collect(),
        "drivers": drivers(),
        "user": kernels_of_the_program(),
        "collected": collected(),
        "compiled": compiled(),
        "assembler": assembler(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
