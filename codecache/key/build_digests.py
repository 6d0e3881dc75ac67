"""Digests of what this machine compiles with, by name: a farm gives a job only to machines with equal ones.

They are the facts of a key's components `system` and `toolchain`, without what is the same for all graphs of a program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fxpool.codecache.key import system_facts, toolchain

__all__ = ["differing", "digests"]

# Digits: enough to tell builds apart. Keys decide which entries may be served.
_DIGITS = 16


def digests(root: str | None = None, *, cpp: bool = True) -> dict[str, str]:
    """Return the digests by name; `root` is the directory of cached facts about the tool chain.

    Without `cpp` the facts are left out that do not affect code for other devices than the CPU.
    """
    facts = dict(system_facts.system_facts(root))
    if cpp:
        facts |= toolchain.toolchain_facts(root)
    else:
        facts = {name: value for name, value in facts.items() if name not in system_facts.OF_CPU}
    return {name: hashlib.sha256(str(value).encode()).hexdigest()[:_DIGITS] for name, value in sorted(facts.items())}


def differing(own: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return the names of `wanted` digests that a machine with its `own` lacks, or has another of."""
    return sorted(name for name, digest in wanted.items() if own.get(name) != digest)
