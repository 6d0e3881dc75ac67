"""What a host's tool chain can do, found once and kept beside the graphs.

Which vector instructions the CPU, torch and the compiler agree on takes Inductor a chain of test
builds (8 s, in every process that finds no trace of an earlier one). The answer is kept per
compiler, CPU and torch, so that a machine that changes, or a home directory shared by several,
asks again instead of being told wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator

from fxpool.codecache import blobs, system, toolchain
from fxpool.torch_compat import cpp


def headers(tools: str | None) -> str | None:
    """Where precompiled headers are kept; None where there is no such place."""
    return os.path.join(tools, "headers") if tools is not None else None


@contextlib.contextmanager
def known(tools: str | None) -> Iterator[None]:
    """Answer Inductor's questions about the host from what is kept under `tools`; ask once if nothing is."""
    with cpp.instruction_sets_known(instruction_sets(tools)):
        yield


def instruction_sets(tools: str | None) -> list[cpp.InstructionSet]:
    """Usable vector instruction sets of this host, best first.

    Raises:
        NoCompilerError: there is nothing to ask with.
    """
    toolchain.require_compiler()
    path = None
    if tools is not None:
        path = os.path.join(tools, f"instruction-sets-{_host_digest(tools)}.json")
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(blobs.read_private(path)[0])
            return [(str(name), {str(k): bool(v) for k, v in extra.items()}) for name, extra in found]
    found = cpp.usable_instruction_sets()
    if path is not None:
        with contextlib.suppress(Exception):  # nothing is lost but the next process's time
            blobs.write_private(path, json.dumps(found).encode())
    return found


def _host_digest(tools: str | None) -> str:
    facts = {**toolchain.toolchain_facts(tools), **system.system_facts()}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
