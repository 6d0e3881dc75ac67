"""`operator_tables` records torch's entries in Inductor's tables, or tells them by structure."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from fxpool.torch_compat.operators import operator_tables

WATCHED = """
import json, sys
from fxpool.torch_compat.operators import inductor_tables, operator_tables as tables
if {watching}:
    tables.watch()
elif given := sys.stdin.buffer.read():
    assert tables.settle(given)
import inspect, torch
import torch._inductor.lowering as lowering
known, before = tables.are_known(), tables.digest()
names = lambda: sorted(entry.name for entry in inductor_tables.entries() if "side effect" not in entry.name)
made = names()
source = inspect.getsource(lowering)[:3]
kept = tables.as_bytes().hex()
lowering.make_fallback(torch.ops.aten.sin.default, warn=False, override_decomp=True)
lowering.lowerings[torch.ops.aten.exp.default] = lowering.lowerings[torch.ops.aten.cos.default]
print(json.dumps([known, made, names(), source, before, tables.digest(), kept]))
"""


@pytest.mark.slow
def test_tables_are_known_by_recording_or_from_another_process(python: str) -> None:
    """Else the digest of all of them tells changed tables."""
    changed, digests, kept = ["lowerings[aten.exp.default]", "lowerings[aten.sin.default]"], set(), b""
    for watching, expected in ((True, changed), (False, []), (False, changed)):
        given = kept if not watching and expected else b""
        done = subprocess.run(
            [python, "-c", WATCHED.format(watching=watching)],
            env={**os.environ},
            input=given,
            capture_output=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr.decode()
        known, made, names, source, before, after, now = json.loads(done.stdout)
        assert known == (watching or bool(given))
        assert made == [] and names == expected and before != after
        assert source  # the loader that `inspect` asks is torch's again
        digests.add(before)
        kept = kept or bytes.fromhex(now)
    assert len(digests) == 1


def test_a_table_is_told_by_identity() -> None:
    import torch._inductor.lowering as lowering

    assert operator_tables.place_of(lowering.lowerings) == ("torch._inductor.lowering", "lowerings")
    assert operator_tables.place_of(dict(lowering.lowerings)) is None


def test_an_examination_is_repeated_if_an_entry_is_another_object() -> None:
    table: dict[str, Any] = {"a": 1.5, "b": []}
    calls = []

    def examine() -> list[int]:
        calls.append(len(table))
        return calls

    assert operator_tables.examined(table, examine) == [2] == operator_tables.examined(table, examine)
    table["b"] = []
    assert operator_tables.examined(table, examine) == [2, 2]
    assert operator_tables.examined(table, examine, name="other") == [2, 2, 2]
