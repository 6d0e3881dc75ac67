"""The outcome of compiling a cached graph again, and the comparison of two compiled graphs as text and data.

Imported by ``fxpool cache verify`` and by the worker that compiles again: plain data and pure functions.
"""

from __future__ import annotations

import difflib
import re

import msgspec

from fxpool.lowering.artifact.entry_parts import Artifact

__all__ = ["RecomputeQuestion", "Recomputed", "diff_of", "differences"]

# Comments that differ between compiles: a kernel's file, the number of the graph in its process.
_PASSING = re.compile(r"^\s*# (kernel path|AOT ID): .*$", re.MULTILINE)
_LINES = 40


class RecomputeQuestion(msgspec.Struct, kw_only=True):
    """Payload of the job: the `request` stored with an entry, the entry's parts, and the seed of random inputs."""

    request: bytes
    stored: Artifact
    toolchain_dir: str
    seed: int


class Recomputed(msgspec.Struct, kw_only=True):
    """The differences of a second compile, by part; and why its outputs could not be compared, empty if they were."""

    differences: dict[str, str] = {}
    not_run: str = ""


def differences(stored: Artifact, recompiled: Artifact) -> dict[str, str]:
    """Compare the plain data of two artifacts: guards, effects, the list of parts."""
    found = {}
    for name, ours, theirs in (
        ("guards", stored.guards, recompiled.guards),
        ("effects", stored.effects, recompiled.effects),
        ("parts", _parts(stored), _parts(recompiled)),
    ):
        if ours != theirs:
            found[name] = diff_of(repr(ours), repr(theirs))
    return found


def _parts(artifact: Artifact) -> list[str]:
    parts = ["library"] if artifact.library is not None else []
    parts += ["triton"] if artifact.triton is not None else []
    return [*parts, *(["built"] * len(artifact.built))]


def diff_of(stored: str, recompiled: str) -> str:
    """Return the differing lines of two texts with one line of context; empty if only irrelevant comments differ."""
    ours, theirs = (_PASSING.sub("", text).splitlines() for text in (stored, recompiled))
    lines = list(difflib.unified_diff(ours, theirs, "cached", "recompiled", lineterm="", n=1))
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"... and {len(lines) - _LINES} more lines"]
    return "\n".join(lines)
