"""Compiles an exported program in a worker."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from fxpool import temporary
from fxpool.codecache.key import toolchain
from fxpool.errors import CannotTravelError
from fxpool.lowering.artifact.entry_parts import Artifact
from fxpool.lowering.cpp import host_facts
from fxpool.lowering.cpp.built_libraries import inductors_builds
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.torch_compat.dynamo import process_groups
from fxpool.torch_compat.inductor import packages
from fxpool.torch_compat.operators.operator_overrides import OperatorOverride

__all__ = ["compile_package"]

Around = Callable[[Sequence[OperatorOverride]], contextlib.AbstractContextManager[None]]


def compile_package(
    request: CompileRequest, others: Sequence[OperatorOverride], around: Around, phase: Callable[[str], None]
) -> Artifact:
    """Compile the program in the file that a request names. The result is the package.

    Raises:
        CannotTravelError: the file is gone or cannot be read here.
        Exception: any error of AOTInductor.
    """
    started = time.perf_counter()
    with (
        ambient_state.entered(request.ambient),
        toolchain.failures_explained(request.toolchain_dir),
        host_facts.answering(request.toolchain_dir),
        inductors_builds(request.toolchain_dir),
        temporary.directory("package") as directory,
    ):
        assert request.program is not None
        try:
            program = packages.read(request.program)
        except Exception as error:  # written by the client, with its operators and classes
            raise CannotTravelError("program", f"{type(error).__name__}: {error}") from error
        made = os.path.join(directory, "model.pt2")
        phase("lowering")
        default = request.ambient.switches.get("process_group", False)
        with around(others), process_groups.shown(request.group_sizes, default=default):
            packages.build(program, made, {})
        with open(made, "rb") as file:
            package = file.read()
    seconds = time.perf_counter() - started
    # AOTInductor calls a C++ compiler for every device.
    return Artifact(level=request.level, result=package, seconds=seconds, compiled_cpp=True)
