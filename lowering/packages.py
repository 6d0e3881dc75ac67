"""Compiles exported programs ahead of time, in the pool: ``fxpool.aot_compile``.

ExportedProgram ──▶ key: graph, interface, content of its tensors, configuration, tool chain
                      │ hit ──────────────────────────────▶ the package, copied to the given path
                      ▼
                    a file ──▶ worker: AOTInductor ──▶ package, stored in the cache ──▶ the given path
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fxpool import config, counters, interruptions, temporary
from fxpool.codecache.graph.value_encoder import tensor_digest
from fxpool.codecache.key import toolchain
from fxpool.errors import CannotReturnError, CannotTravelError, PoolError
from fxpool.lowering.compiling.graph_compile import GraphCompile, complete
from fxpool.lowering.core import options as call_options
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.request import capture
from fxpool.lowering.request.compile_request import PACKAGE
from fxpool.torch_compat.dynamo import tensors
from fxpool.torch_compat.inductor import packages

if TYPE_CHECKING:
    from fxpool.lowering.request.captured_graph import Captured

__all__ = ["aot_compile"]

_numbers = itertools.count()


def aot_compile(program: Any, path: str | os.PathLike[str], options: Mapping[str, Any] | None) -> str:
    """Implement `fxpool.aot_compile`."""
    packages.graph_of(program)
    path = os.fspath(path)
    if not path.endswith(".pt2"):
        raise ValueError(f"{path!r}: the name of a package must end in .pt2")
    if program.example_inputs is None:
        raise ValueError("AOTInductor needs an exported program with example inputs")
    settings = config.current()
    attempt = Attempt(f"package {next(_numbers)}", call_options.parse(None, options, settings), settings, level=PACKAGE)
    try:
        with interruptions.held_back(), attempt.timed("total"), attempt.options.in_force():
            _compile(program, path, attempt)
    finally:
        attempt.record()
        attempt.report()
    return path


def _compile(program: Any, path: str, attempt: Attempt) -> None:
    try:
        with attempt.timed("capture"):
            captured = _captured(program, attempt)
        if captured.stays is not None:
            raise captured.stays
        graph = GraphCompile(captured, attempt, lambda parts: parts.result())
        with attempt.timed("lookup"):
            package = graph.look_up()
        if package is None:
            package = _in_worker(program, graph, os.path.dirname(os.path.abspath(path)))
        _put(package, path)
        return
    except (CannotTravelError, CannotReturnError) as error:
        attempt.step_down(error.reason, error)
    except PoolError as error:
        attempt.step_down_without_pool(error)
    attempt.level, attempt.outcome = "in_process", Outcome.IN_PROCESS
    counters.count("compiles", "in_process")
    with attempt.timed("compile"), toolchain.failures_explained(attempt.toolchain_dir), interruptions.let_through():
        packages.build(program, path, {})


def _captured(program: Any, attempt: Attempt) -> Captured:
    with tensors.modes_disabled():
        contents = {name: _content(one) for name, one in packages.tensors_of(program).items()}
    facts = {"interface": packages.interface(program), "tensors": contents}
    return capture.capture_program(
        packages.graph_of(program), packages.inputs_of(program), facts, label=attempt.label, into=attempt.destination
    )


def _content(value: Any) -> str:
    """Return the digest of a parameter, buffer or constant, as AOTInductor may fold it. Raises CannotTravelError."""
    if not isinstance(value, torch.Tensor):
        raise CannotTravelError("value", f"the program holds a {type(value).__name__}")
    return tensor_digest(value)


def _in_worker(program: Any, graph: GraphCompile, beside: str) -> bytes:
    # Beside the package, which is as large: the temporary directory may be a small tmpfs.
    os.makedirs(beside, exist_ok=True)
    with temporary.directory("program", beside) as directory:
        written = os.path.join(directory, "program.pt2")
        try:
            packages.write(program, written)
        except Exception as error:  # torch.export.save may raise anything, depending on the program
            raise CannotTravelError("unpicklable", f"{type(error).__name__}: {error}") from error
        graph.captured.read_program(written)
        complete(graph.captured, graph.attempt)
        package: bytes = graph.compile()
        return package


def _put(package: bytes, path: str) -> None:
    """Write a package atomically."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".fxpool-", suffix=".pt2", delete=False) as file:
        try:
            file.write(package)
            file.flush()
            try:
                shutil.copymode(path, file.name)  # the mode of the file that it replaces
            except OSError:
                os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _umask() -> int:
    """Return the mask for modes of new files. Reading it from /proc changes it for no other thread."""
    with open("/proc/self/status") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022)
