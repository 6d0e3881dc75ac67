"""A farm on Dask, without one: answers of a scheduler that the test plays, and workers that cannot start."""

from __future__ import annotations

import asyncio
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from fxpool.pool.wire.farm import Machine

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed"),
]

OWN = {"fxpool": "1", "torch": "1"}
ANNOUNCED = {"name": "m:1", "address": "", "slots": 2, "jobs": 1, "builds": OWN}


def listed(*announced: object) -> list[Machine]:
    """Return the machines that an engine lists if workers announce themselves so."""
    from fxpool.farm.dask_engine import DaskEngine  # needs Dask, which is optional

    workers = {
        f"tcp://m:{number}": {"last_seen": 1.0, "metrics": {"fxpool": one, "task_counts": {"executing": 2}}}
        for number, one in enumerate(announced)
    }

    async def identity(n_workers: int) -> dict[str, Any]:
        return {"workers": {**workers, "tcp://other": {"last_seen": 1.0, "metrics": {}}}}

    engine = DaskEngine("dask://127.0.0.1:9")
    engine._client = SimpleNamespace(scheduler=SimpleNamespace(identity=identity))
    return asyncio.run(engine.machines())


def test_machines_are_workers_that_announce_themselves() -> None:
    (machine,) = listed(ANNOUNCED)
    assert machine == Machine(name="m:1", address="tcp://m:0", slots=2, jobs=2, builds=OWN)
    assert machine.differing(OWN) == []


@pytest.mark.parametrize(
    ("announced", "name", "slots"),
    [
        ({**ANNOUNCED, "news": 1}, "m:1", 2),
        ({"name": "m:1", "builds": OWN}, "m:1", 1),
        ({**ANNOUNCED, "slots": 0}, "m:1", 1),
        ({**ANNOUNCED, "builds": ["torch"]}, "m:1", 2),
        ({**ANNOUNCED, "name": 1}, "tcp://m:1", 2),
        ("2", "tcp://m:1", 1),
    ],
)
def test_a_machine_of_another_version_is_listed_with_that_difference(announced: object, name: str, slots: int) -> None:
    same, other = listed(ANNOUNCED, announced)
    assert same.differing(OWN) == []
    assert (other.name, other.address, other.slots, other.jobs) == (name, "tcp://m:1", slots, 2)
    assert other.differing(OWN) == ["fxpool"] and other.differing({"torch": "1"}) == ["fxpool"]
