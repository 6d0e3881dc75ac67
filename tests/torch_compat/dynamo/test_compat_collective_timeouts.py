"""`collective_timeouts` has collectives wait longer by what a hit saved, as after a hit of Inductor's own cache."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import get_metrics_context

from fxpool.torch_compat.dynamo import process_groups


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What torch would write down of the compile in its metrics context, once that is left."""
    written: dict[str, Any] = {}
    monkeypatch.setattr(get_metrics_context(), "_on_exit", lambda began, ended, values, *error: written.update(values))
    return written


@pytest.fixture
def one_rank() -> Iterator[None]:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this build has no gloo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_without_processes_nothing_waits_longer(metrics: dict[str, Any]) -> None:
    assert process_groups.extend_timeouts(2.9) == 0
    with get_metrics_context():
        assert process_groups.extend_timeouts(1.5) == 0
        process_groups.extend_timeouts(0.25)
    assert metrics["distributed_ephemeral_timeout_us"] == 1_750_000


def test_groups_wait_longer_by_whole_seconds(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[datetime.timedelta] = []
    distributed: Any = torch.distributed.distributed_c10d
    original = distributed._add_ephemeral_timeout_for_all_pgs

    def add(more: datetime.timedelta) -> None:
        told.append(more)
        original(more)

    monkeypatch.setattr(distributed, "_add_ephemeral_timeout_for_all_pgs", add)
    assert process_groups.extend_timeouts(2.9) == 2
    assert [more.total_seconds() for more in told] == [2.0]
