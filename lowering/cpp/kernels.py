"""Compiles a graph's C++ kernels side by side into one library.

A compiler call per kernel would spend most of its time reading the same header. Instead the kernels of a graph
(backward included) are divided into only as many units as keep the free cores busy. Each unit is compiled by a sub-job,
and the objects are linked to one library, a blob of the entry. If a core is free, kernels compile while the others are
still being generated, and the forward's kernels while the backward is lowered.

    generated kernels ──▶ `Linking.begin` ─┐
    collected kernels ──▶ `Linking.take` ──▶ sub-jobs (g++) ──▶ objects ──▶ `Linking.library` ──▶ entry
                                          └▶ compiled for an earlier graph ─▲

The object of a unit is stored under each of its kernels (`Linking.keep`), so that a graph that changed in one place
compiles only its new kernels. A stored object brings all of its kernels: one that has a kernel of another object of the
library is not used.

If the compiler rejects a unit, its kernels are compiled one by one, and a kernel that is rejected again is compiled
without its namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from fxpool import failures, notices, quantities, temporary
from fxpool.codecache.key import toolchain
from fxpool.codecache.store.kernel_files import KernelFiles
from fxpool.errors import CompileError, NoCompilerError, ShortageError
from fxpool.lowering.cpp import precompiled_header
from fxpool.lowering.cpp.library import loadable_file
from fxpool.lowering.cpp.unit_source import MODULE, function_name, unit_source
from fxpool.torch_compat.cpp import compile_commands, included_headers
from fxpool.torch_compat.inductor import output_code

log = notices.logger(__name__)

COMPILE_UNIT = "fxpool.lowering.cpp.kernels:compile_unit"


class CppCompileError(CompileError):
    """The C++ compiler rejected generated code; `output` is the text that it printed."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        self.command, self.output = list(command), output
        super().__init__(f"C++ compilation failed: {' '.join(command)}\n{output}")


class Unit(msgspec.Struct):
    """One translation unit: its source and the compiler's command; `{directory}` stands for a scratch folder."""

    source: str
    command: list[str]
    source_name: str
    object_name: str


class Submit(Protocol):
    """Runs a job function on bytes, in a thread or in another process."""

    def __call__(self, function: str, payload: bytes, label: str) -> Future[bytes]: ...


#: Returns the number of units that may be compiled at once now, including the waiting caller's core.
Units = Callable[[], int]


@dataclasses.dataclass(frozen=True)
class KernelJobs:
    """How the jobs that compile a graph's kernels are run: where, and how many at a time.

    `apart`: in other processes; only there are Triton's kernels compiled side by side. On a host whose tool chain has
    not been probed, `patient` probes it first. Otherwise the CPU's claims are used, and the host is probed only if the
    compiler rejects them.
    """

    submit: Submit
    units: Units
    patient: bool = True
    apart: bool = False


# A unit of fewer characters waits until the previous unit is done: a small kernel adds little time to a larger unit.
_WORTH_A_UNIT = 8_000

#: Kernels with their digests.
Group = list[tuple[str, compile_commands.CollectedKernel]]
# The digests of an object and of its kernels are stored under each of its kernels.
_KERNEL, _OBJECT = "c++ kernel", "c++ object"


@dataclasses.dataclass(frozen=True)
class Object:
    """A compiled unit, with the digests of its kernels."""

    kernels: list[str]
    content: bytes


class Linking:
    """Builds the library of one graph.

    `toolchain_dir` is the directory of the precompiled header, `stored` has the kernels of earlier graphs.

    If the header is missing, `patient` compiles it first, which takes longer than compiling this graph without it.
    Otherwise the kernels compile without it, and `without_header` is set.
    """

    def __init__(
        self,
        submit: Submit,
        *,
        units: Units,
        toolchain_dir: str | None,
        patient: bool,
        stored: KernelFiles | None = None,
    ) -> None:
        self._submit, self._units, self._tools, self._patient = submit, units, toolchain_dir, patient
        self._stored = stored
        self.without_header = False
        #: Headers that sources name, and words of their command, that the key does not cover.
        self.unlisted: set[str] = set()
        #: The name of each kernel's function in the library, by the kernel's digest.
        self.names: dict[str, str] = {}
        self._called: set[str] = set()
        self._waiting: Group = []
        self._pending: list[tuple[Group, Future[bytes]]] = []
        self._found: list[bytes] = []
        self._made: list[Object] = []
        self._words = ""
        self._command: compile_commands.Command | None = None

    def take(self, kernels: Sequence[compile_commands.CollectedKernel], last: bool) -> None:
        """Take the kernels of one generated module. They start to compile now if that delays nothing else.

        `last`: nothing else will be lowered, so all cores are free for them.
        """
        for kernel in kernels:
            self._called.add(self._note(kernel))
        if last:
            self._start()
        elif self._waiting and self._may_start():
            beside = self._units() - 1
            if beside > 0:
                self._start(beside)

    def begin(self, kernel: compile_commands.CollectedKernel) -> None:
        """Take a kernel of a module that is still being generated. It starts to compile now if a core is free."""
        self._note(kernel)
        if not self._waiting or not self._may_start():
            return
        under_way = any(not compiled.done() for _, compiled in self._pending)
        if under_way and sum(len(waiting.source) for _, waiting in self._waiting) < _WORTH_A_UNIT:
            return
        if self._units() > 1:
            self._start(1)

    def _note(self, kernel: compile_commands.CollectedKernel) -> str:
        digest = output_code.kernel_digest(kernel.argument_types, kernel.source)
        if digest not in self.names and not self._find(digest):
            self.names[digest] = function_name(digest)
            self._waiting.append((digest, kernel))
        return self.names[digest]

    def _find(self, digest: str) -> bool:
        """Take a kernel from an object that was compiled for an earlier graph. Return whether there is one."""
        if self._stored is None:
            return False
        told = self._stored.find(_KERNEL, self._command_words(), digest)
        if told is None:
            return False
        object_digest, *kernels = told.decode("ascii").split()
        if not self.names.keys().isdisjoint(kernels) or (content := self._stored.find(_OBJECT, object_digest)) is None:
            return False
        self._found.append(content)
        self.names.update((one, function_name(one)) for one in kernels)
        return True

    def keep(self) -> None:
        """Store the objects of `library`, for later graphs. Call it in the state in which they were compiled."""
        if self._stored is None:
            return
        for one in self._made:
            object_digest = hashlib.sha256(one.content).hexdigest()
            self._stored.keep(one.content, _OBJECT, object_digest)
            told = " ".join((object_digest, *one.kernels)).encode()
            for kernel in one.kernels:
                self._stored.keep(told, _KERNEL, self._command_words(), kernel)

    def _command_words(self) -> str:
        """Return the compiler's arguments for each unit, apart from the precompiled header, which changes no code."""
        if not self._words:
            self._words = "\0".join(_arguments(precompiled_header.bare_command(self._tools))[0])
        return self._words

    def _may_start(self) -> bool:
        """Return whether a compiler can be called before lowering is finished, without waiting for its header."""
        return not self._patient or precompiled_header.is_ready(self._tools)

    def _start(self, units: int | None = None) -> None:
        """Compile the waiting kernels in `units` units; None means as many as may run now."""
        if not self._waiting:
            return
        if units is None:
            # This is a single unit if others compile, too: each unit reads the header again.
            units = self._units()
        toolchain.require_compiler(self._tools)
        if self._command is None:
            self._command = precompiled_header.command(self._tools, build=self._patient)
            self.without_header = not self._patient and self._command.lacks_header()
        waiting, self._waiting = self._waiting, []
        for group in plan(waiting, units):
            self._pending.append((group, self._compile(group)))

    def _compile(self, group: Group, *, own_namespaces: bool = True) -> Future[bytes]:
        assert self._command is not None
        arguments, made = _arguments(self._command)
        unit = Unit(
            source=unit_source(group, own_namespaces=own_namespaces),
            command=[*arguments, *_ADDED],
            source_name=f"{MODULE}.cpp",
            object_name=os.path.basename(made),
        )
        self.unlisted |= included_headers.unasked(unit.source) | included_headers.unlike(arguments)
        return self._submit(COMPILE_UNIT, msgspec.msgpack.encode(unit), quantities.counted(len(group), "kernel"))

    def library(self) -> bytes | None:
        """Return the library with all kernels that were added, or None if there are no kernels.

        Raises:
            NoCompilerError: there is no compiler to call.
            CppCompileError: a kernel does not compile.
            ShortageError: the host was short of something, also after the other units were done.
        """
        self._start()
        alone: list[bytes] = []
        short: list[Group] = []
        for group, future in self._pending:
            try:
                self._add(group, future.result())
            except CppCompileError:
                alone += self._one_by_one(group)
            except ShortageError as error:
                log.info("compiling %d kernels again after the others: %s", len(group), error)
                short.append(group)
        for group in short:
            self._add(group, self._compile(group).result())
        objects = [*self._found, *(one.content for one in self._made), *alone]
        if not objects:
            return None
        log.info("linking %d objects, %d of them compiled for earlier graphs", len(objects), len(self._found))
        return link(objects, self._command or precompiled_header.bare_command(self._tools))

    def _add(self, group: Group, content: bytes) -> None:
        self._made.append(Object([digest for digest, _ in group], content))

    def _one_by_one(self, group: Group) -> list[bytes]:
        """Compile the kernels of a rejected unit. Return the objects of those that compile without a namespace only.

        Those may define what other kernels define, so they are not stored.
        """
        # A kernel that was started but ended up in no module is skipped.
        called = [(digest, kernel) for digest, kernel in group if function_name(digest) in self._called]
        alone = [(one, self._compile([one]) if len(group) > 1 else None) for one in called]
        objects = []
        for one, future in alone:
            try:
                if future is not None:
                    self._add([one], future.result())
                    continue
            except CppCompileError:
                pass
            objects.append(self._compile([one], own_namespaces=False).result())
        return objects


def _arguments(command: compile_commands.Command) -> tuple[list[str], str]:
    """Return (Inductor's arguments for a unit, path of the object); `{directory}` is the folder of its source."""
    placeholder = "/fxpool-scratch"  # absolute, so that Inductor's builder does not resolve it here
    arguments, made = command.compile(f"{placeholder}/{MODULE}.cpp", MODULE)
    return [argument.replace(placeholder, "{directory}") for argument in arguments], made


# Debug information doesn't name a folder that is gone by then. Torch's headers cause thousands of warnings in each
# unit; printing them takes a tenth of a small unit's time, and they are not shown.
_ADDED = ("-ffile-prefix-map={directory}=/fxpool", "-w")


def plan(kernels: Group, units: int) -> list[Group]:
    """Distribute kernels over at most `units` units of about equal source length."""
    groups: list[Group] = [[] for _ in range(max(1, min(units, len(kernels))))]
    lengths = [0] * len(groups)
    for digest, kernel in sorted(kernels, key=lambda item: -len(item[1].source)):
        shortest = lengths.index(min(lengths))
        groups[shortest].append((digest, kernel))
        lengths[shortest] += len(kernel.source)
    return groups


def link(objects: Sequence[bytes], command: compile_commands.Command) -> bytes:
    """Link compiled units to a shared library. Raises CppCompileError or NoCompilerError.

    The library is loaded to check that no symbol is missing; if that fails, it is linked with torch's libraries.
    """
    with temporary.directory("link") as directory:
        paths = []
        for number, data in enumerate(objects):
            paths.append(os.path.join(directory, f"{number}.o"))
            with open(paths[-1], "wb") as file:
                file.write(data)
        library = ""
        with contextlib.suppress(CppCompileError, OSError):
            arguments, stand_in = command.stand_in(directory)
            _run(arguments, directory, stand_in)
            arguments, library = command.link_lightly(paths, os.path.join(directory, MODULE), stand_in)
            made = _run(arguments, directory, library)
            with loadable_file(library) as path:
                ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_LOCAL)
            return made
        with contextlib.suppress(FileNotFoundError):
            os.unlink(library)  # a library that may be loaded must not be overwritten
        arguments, library = command.link(paths, os.path.join(directory, MODULE))
        return _run(arguments, directory, library)


def compile_unit(payload: bytes) -> bytes:
    """Job: compile one `Unit`, return the object file's bytes.

    Raises:
        CppCompileError: the compiler rejected it.
        NoCompilerError: the compiler cannot be started.
    """
    unit = msgspec.msgpack.decode(payload, type=Unit)
    with temporary.directory("unit") as directory:
        with open(os.path.join(directory, unit.source_name), "w") as file:
            file.write(unit.source)
        command = [argument.replace("{directory}", directory) for argument in unit.command]
        return _run(command, directory, os.path.join(directory, unit.object_name))


def _run(command: list[str], directory: str, output: str) -> bytes:
    """Call the compiler and read its output file."""
    try:
        done = failures.run(command, directory=directory)
    except OSError as error:
        raise NoCompilerError([command[0]], str(error)) from None
    if done.returncode:
        raise CppCompileError(command, (done.stderr or done.stdout).decode("utf-8", "replace")[-20_000:])
    with open(output, "rb") as file:
        return file.read()


def in_threads(workers: int) -> tuple[Submit, Callable[[], None]]:
    """Return a `Submit` on threads of this process (the compiler is a separate process), and a function to end them."""
    executor = ThreadPoolExecutor(workers, thread_name_prefix="fxpool-g++")

    def submit(function: str, payload: bytes, label: str) -> Future[bytes]:
        return executor.submit(compile_unit, payload)

    return submit, lambda: executor.shutdown(wait=True, cancel_futures=True)
