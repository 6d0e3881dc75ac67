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
from fxpool.errors import StoreError
from fxpool.torch_compat import cpp


@contextlib.contextmanager
def known(tools: str | None) -> Iterator[None]:
    """Answer Inductor's questions about the host from what is kept under `tools`.

    What is not kept is found out only when a graph asks (one without C++ kernels doesn't), and kept then.
    """
    if toolchain.find_compiler(tools) is None:
        with cpp.instruction_sets_known([]):  # nothing to ask with: the linker says so when it needs one
            yield
        return
    path = os.path.join(tools, f"instruction-sets-{_host_digest(tools)}.json") if tools is not None else None
    found = _kept(path)
    if found is not None:
        with cpp.instruction_sets_known(found):
            yield
        return
    yield
    if path is not None and cpp.was_probed():
        with contextlib.suppress(StoreError, OSError):  # nothing is lost but the next process's time
            blobs.write_private(path, json.dumps(cpp.usable_instruction_sets()).encode())


def _kept(path: str | None) -> list[cpp.InstructionSet] | None:
    if path is None:
        return None
    try:
        found = json.loads(blobs.read_private(path)[0])
        return [(str(name), {str(k): bool(v) for k, v in extra.items()}) for name, extra in found]
    except (OSError, StoreError, ValueError, TypeError, AttributeError):
        return None


def _host_digest(tools: str | None) -> str:
    host = {name: value for name, value in system.system_facts().items() if not name.startswith("fxpool")}
    facts = {**toolchain.toolchain_facts(tools), **host}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
