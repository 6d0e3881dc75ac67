"""The capabilities of a host's tool chain, probed once and stored beside the graphs.

To find the vector instructions that CPU, torch and compiler support, Inductor runs a chain of test builds (8 s and
more, in every process without the result of an earlier one). Here it is one build, which reuses the precompiled header
that kernels need anyway. The result is stored per compiler, CPU and torch. So a machine that changes, or a home
directory that several machines share, is probed again and never gets a wrong result.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator

import filelock

from fxpool import directories, failures, notices, temporary
from fxpool.codecache.key import system_facts, toolchain
from fxpool.codecache.store import blobs
from fxpool.errors import FxpoolError, ShortageError, StoreError
from fxpool.lowering.cpp import precompiled_header
from fxpool.lowering.cpp.library import loadable_file
from fxpool.torch_compat.cpp import compile_commands, instruction_sets
from fxpool.torch_compat.cpp.instruction_sets import InstructionSet

log = notices.logger(__name__)
#: The longest wait, in seconds, for another process that probes the same facts.
_PATIENCE = 120.0


@contextlib.contextmanager
def answering(toolchain_dir: str | None, *, claims: bool = False) -> Iterator[bool]:
    """Answer Inductor's queries about the host from the facts stored under `toolchain_dir`.

    Missing facts are probed and stored when a graph first queries them (a graph without C++ kernels does not). With
    `claims`, the CPU's claims are used instead of probing, and True is yielded: if the kernels compile, the claims
    hold, and no time is spent on a separate proof.
    """
    if toolchain.settle(toolchain_dir) is None:
        with instruction_sets.instruction_sets_known([]):  # no compiler: linking raises the error if needed
            yield False
        return
    path = _path(toolchain_dir)
    kept = _kept(path)
    if kept is not None:
        with instruction_sets.instruction_sets_known(kept):
            yield False
    elif instruction_sets.was_probed():
        yield False
    elif claims and (claimed := instruction_sets.candidates()):
        with instruction_sets.instruction_sets_known(claimed):
            yield True
    else:
        with instruction_sets.instruction_sets_found_by(lambda: find(toolchain_dir)):
            yield False


def are_kept(toolchain_dir: str) -> bool:
    """Return whether this host's facts are stored under `toolchain_dir`."""
    return _kept(_path(toolchain_dir)) is not None


def worth_preparing() -> bool:
    """Return whether a core is free for probing beside a compile."""
    return len(os.sched_getaffinity(0)) > 1


def find(toolchain_dir: str | None) -> list[InstructionSet] | None:
    """Return this host's instruction sets: the stored ones, or the result of one build, which is stored.

    Returns None if the build gives no answer. Concurrent processes probe only once.
    """
    toolchain.settle(toolchain_dir)
    path = _path(toolchain_dir)
    with _alone(toolchain_dir):
        usable = _kept(path)
        if usable is None:
            usable = _probe(toolchain_dir)
            if usable is None:
                log.info("using Inductor's own probes of instruction sets")
                usable = instruction_sets.usable_instruction_sets()
            if path is not None:
                with contextlib.suppress(StoreError, OSError):  # on failure, the next process probes again
                    blobs.write_private(path, json.dumps(usable).encode())
    return usable


@contextlib.contextmanager
def _alone(toolchain_dir: str | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if toolchain_dir is not None:
            try:
                directories.make_private(toolchain_dir)
                stack.enter_context(
                    filelock.FileLock(os.path.join(toolchain_dir, "probe.lock"), timeout=_PATIENCE, mode=0o600)
                )
            except (OSError, filelock.Timeout) as error:  # together, then
                log.info("probing instruction sets without a lock: %s", error)
        yield


def _probe(toolchain_dir: str | None) -> list[InstructionSet] | None:
    """Return the CPU's claims, if a program that uses all of them builds with the flags of kernels, and loads."""
    claimed = instruction_sets.candidates()
    if not claimed:
        return None
    with temporary.directory("probe") as directory:
        source = os.path.join(directory, "probe.cpp")
        with open(source, "w") as file:
            file.write(compile_commands.HEADER + "\n" + instruction_sets.probe_source(claimed[0]))
        try:
            with instruction_sets.instruction_sets_known(claimed):
                command, library = precompiled_header.command(toolchain_dir).link(
                    [source], os.path.join(directory, "probe")
                )
            failures.run(command, directory=directory).check_returncode()
            with loadable_file(library) as path:
                ctypes.CDLL(path)
        except ShortageError:
            raise  # it says nothing about the processor
        except (OSError, subprocess.SubprocessError, FxpoolError) as error:
            log.info("building a probe of all of %s failed: %s", claimed[0], getattr(error, "stderr", None) or error)
            return None
    instruction_sets.enable_tiles()
    return claimed


def _path(toolchain_dir: str | None) -> str | None:
    return (
        os.path.join(toolchain_dir, f"instruction-sets-{_host_digest(toolchain_dir)}.json")
        if toolchain_dir is not None
        else None
    )


def _kept(path: str | None) -> list[InstructionSet] | None:
    if path is None:
        return None
    try:
        rows = json.loads(blobs.read_stored(path)[0])
        return [(str(name), {str(k): bool(v) for k, v in extra.items()}) for name, extra in rows]
    except (OSError, StoreError, ValueError, TypeError, AttributeError):
        return None


def _host_digest(toolchain_dir: str | None) -> str:
    host = {
        name: value for name, value in system_facts.system_facts(toolchain_dir).items() if not name.startswith("fxpool")
    }
    facts = {**toolchain.toolchain_facts(toolchain_dir), **host}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
