"""After a hit, collectives wait longer by what it saved: another rank may be compiling. Stock Inductor is the judge."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch._inductor import codecache as stock
from torch.distributed import distributed_c10d

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.torch_compat.dynamo import process_groups

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def distributed() -> Iterator[None]:
    """One rank on gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[timedelta]:
    """By what the timeouts of all groups were made to grow."""
    told: list[timedelta] = []
    really = distributed_c10d._add_ephemeral_timeout_for_all_pgs

    def watched(timeout: timedelta) -> None:
        told.append(timeout)
        really(timeout)

    monkeypatch.setattr(distributed_c10d, "_add_ephemeral_timeout_for_all_pgs", watched)
    return told


@pytest.mark.parametrize("seconds", [0.2, 1.0, 59.99, 3600.0])
def test_as_much_as_in_stock_inductor(seconds: float, distributed: None, grown: list[timedelta]) -> None:
    expected = stock.add_ephemeral_timeout_increase_for_distributed(int(seconds * 1e9))
    assert process_groups.extend_timeouts(seconds) == expected
    assert len(grown) == 2 and grown[0] == grown[1]


def test_in_a_program_of_one_process_nothing_grows(grown: list[timedelta]) -> None:
    assert process_groups.extend_timeouts(100.0) == stock.add_ephemeral_timeout_increase_for_distributed(10**11) == 0
    assert grown == []


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 7).relu()


@pytest.mark.usefixtures("shared_pool", "nothing_lowered_here")
def test_each_hit_is_told_and_no_compile(cache: Path, distributed: None, grown: list[timedelta]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fxpool")
    compiled(X)
    assert fxpool.stats()["compiles"]["worker"] == 1 and grown == []
    store = LocalStore(str(cache))
    (stored,) = store.scan()
    assert stored.entry is not None
    metadata = msgspec.structs.replace(stored.entry.metadata, compile_seconds=90.7)
    store.publish(msgspec.structs.replace(stored.entry, metadata=metadata), {})
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(X), program(X))
    assert fxpool.stats()["hits"] == 1
    assert grown == [timedelta(seconds=90)]
    assert fxpool.stats()["seconds_saved"] == pytest.approx(90.7)
    (times,) = [
        one.distributed_ephemeral_timeout_us
        for one in torch._dynamo.utils.get_compilation_metrics()
        if one.distributed_ephemeral_timeout_us
    ][-1:]
    assert times == 90_700_000
