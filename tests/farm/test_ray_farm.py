"""The registry of a farm behind Ray, without Ray: machines are objects of one event loop, and time is a number."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fxpool.farm.engine import PERIOD, SILENCE
from fxpool.farm.ray_farm import Farm, LostError

pytestmark = pytest.mark.timeout(20)


class _Station:
    """A machine whose jobs end as the test says."""

    def __init__(self, farm: Farm, address: str, slots: int = 1) -> None:
        self._farm, self._address, self._slots = farm, address, slots
        self.running: dict[bytes, asyncio.Future[bytes]] = {}
        self.cancelled: list[str] = []
        self.announce()

    def announce(self) -> None:
        self._farm.announce(self._address, self._address.encode(), self._slots, self)

    async def run(self, order: bytes) -> bytes:
        assert len(self.running) < self._slots
        self.running[order] = asyncio.get_running_loop().create_future()
        try:
            return await self.running[order]
        finally:
            del self.running[order]

    def cancel(self, key: str) -> None:
        self.cancelled.append(key)


class _Case:
    """A farm that is older than `SILENCE`, and calls of its bridges."""

    def __init__(self) -> None:
        self.now = 0.0
        self.farm = Farm(lambda: self.now)
        self.now = 2 * SILENCE
        self._asks = 0

    def ask(
        self, key: str, *allowed: str, priority: int = 0, bridge: str = "b"
    ) -> tuple[str, asyncio.Task[tuple[bool, bytes | str]]]:
        self._asks += 1
        ask = f"{bridge}{self._asks}"
        called = self.farm.ask(bridge, ask, key, key.encode(), allowed, priority)
        return ask, asyncio.get_running_loop().create_task(called)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def jobs(self) -> list[int]:
        return [jobs for _, jobs in self.farm.machines("b")]


def _in_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_equal_keys_are_one_run() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m", slots=2)
        calls = [of.ask("k", "m", bridge=bridge)[1] for bridge in "bc"]
        await of.settle()
        assert list(station.running) == [b"k"] and of.jobs() == [1]
        station.running[b"k"].set_result(b"answer")
        assert await asyncio.gather(*calls) == [(True, b"answer")] * 2
        assert of.jobs() == [0]
        of.ask("k", "m")
        await of.settle()
        assert list(station.running) == [b"k"], "a later ask is another run"

    _in_loop(case())


def test_the_machine_with_the_fewest_jobs_per_slot_runs_a_job() -> None:
    async def case() -> None:
        of = _Case()
        small, large = _Station(of.farm, "s", slots=1), _Station(of.farm, "l", slots=4)
        for number in range(5):
            of.ask(f"k{number}", "s", "l")
        await of.settle()
        assert [len(small.running), len(large.running)] == [1, 4]

    _in_loop(case())


def test_a_machine_that_is_not_allowed_runs_nothing() -> None:
    async def case() -> None:
        of = _Case()
        station, other = _Station(of.farm, "m"), _Station(of.farm, "o")
        for number in range(3):
            of.ask(f"k{number}", "m")
        await of.settle()
        assert list(station.running) == [b"k0"] and not other.running
        assert of.jobs() == [3, 0], "jobs that wait count"

    _in_loop(case())


def test_higher_priority_first_then_in_order() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m")
        of.ask("first", "m")
        for key, priority in (("a", 0), ("b", 0), ("c", 5), ("d", 0)):
            of.ask(key, "m", priority=priority)
        of.ask("d", "m", priority=1)  # the second ask raises it
        order = []
        for _ in range(5):
            await of.settle()
            (running,) = station.running
            order.append(running)
            station.running[running].set_result(b"")
        assert order == [b"first", b"c", b"d", b"a", b"b"]

    _in_loop(case())


def test_a_job_whose_machine_ends_runs_on_another() -> None:
    async def case() -> None:
        of = _Case()
        first, second = _Station(of.farm, "m"), _Station(of.farm, "n")
        _, call = of.ask("k", "m", "n")
        await of.settle()
        first.running[b"k"].set_exception(LostError("killed"))
        await of.settle()
        assert of.jobs() == [1], "the machine has left"
        second.running[b"k"].set_result(b"answer")
        assert await call == (True, b"answer")

    _in_loop(case())


def test_a_job_whose_machine_is_silent_runs_on_another() -> None:
    async def case() -> None:
        of = _Case()
        first, second = _Station(of.farm, "m"), _Station(of.farm, "n")
        _, call = of.ask("k", "m", "n")
        await of.settle()
        of.now += SILENCE + PERIOD
        second.announce()
        of.farm.tick()
        await of.settle()
        assert first.cancelled == ["k"] and list(second.running) == [b"k"]
        first.announce()  # it comes back, and its answer is not waited for
        assert of.jobs() == [1, 0]
        second.running[b"k"].set_result(b"answer")
        assert await call == (True, b"answer")

    _in_loop(case())


def test_a_job_without_another_machine_fails() -> None:
    async def case() -> None:
        of = _Case()
        station, _ = _Station(of.farm, "m"), _Station(of.farm, "other")
        _, call = of.ask("k", "m")
        _, waiting = of.ask("w", "m")
        await of.settle()
        station.running[b"k"].set_exception(LostError("killed"))
        succeeded, reason = await call
        assert not succeeded and "no other may run it; m: killed" in str(reason)
        succeeded, reason = await waiting
        assert not succeeded and "part of the farm now: ['m']" in str(reason)

    _in_loop(case())


def test_a_job_that_ends_its_machines_runs_three_times() -> None:
    async def case() -> None:
        of = _Case()
        stations = {name: _Station(of.farm, name) for name in "abcd"}
        _, call = of.ask("k", *stations)
        for _ in range(3):
            await of.settle()
            (busy,) = [station for station in stations.values() if station.running]
            busy.running[b"k"].set_exception(LostError("killed"))
        succeeded, reason = await call
        assert not succeeded and "3 machines were lost while they ran the job" in str(reason)
        assert of.jobs() == [0]

    _in_loop(case())


def test_an_exception_of_a_machine_is_the_job_s() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m")
        _, call = of.ask("k", "m")
        await of.settle()
        station.running[b"k"].set_exception(ValueError("bad order"))
        assert await call == (False, "m: ValueError: bad order")
        assert of.jobs() == [0]

    _in_loop(case())


def test_machines_may_register_late_after_a_restart_of_the_registry() -> None:
    async def case() -> None:
        of = _Case()
        of.farm = Farm(lambda: of.now)
        _, call = of.ask("k", "m")
        _, never = of.ask("n", "gone")
        await of.settle()
        of.farm.tick()
        station = _Station(of.farm, "m")
        await of.settle()
        station.running[b"k"].set_result(b"answer")
        assert await call == (True, b"answer")
        assert not never.done()
        of.now += SILENCE
        of.farm.tick()
        assert not (await never)[0]

    _in_loop(case())


def test_the_last_withdrawal_ends_a_job() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m")
        first, call = of.ask("k", "m")
        second, other = of.ask("k", "m", bridge="c")
        await of.settle()
        of.farm.withdraw(first)
        assert await call == (False, "the job was withdrawn")
        assert not station.cancelled and not other.done()
        of.farm.withdraw(second)
        assert station.cancelled == ["k"]
        _, later = of.ask("k", "m")
        await of.settle()
        assert of.jobs() == [2], "its slot is taken until it has ended"
        station.running[b"k"].set_result(b"cancelled")
        await of.settle()
        station.running[b"k"].set_result(b"answer")
        assert await later == (True, b"answer")

    _in_loop(case())


def test_a_waiting_job_is_withdrawn() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m")
        of.ask("k", "m")
        ask, call = of.ask("w", "m")
        await of.settle()
        of.farm.withdraw(ask)
        assert not (await call)[0] and of.jobs() == [1]
        station.running[b"k"].set_result(b"")
        await of.settle()
        assert not station.running and not station.cancelled

    _in_loop(case())


def test_a_withdrawal_may_overtake_its_ask() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m")
        of.farm.withdraw("b1")
        assert await of.farm.ask("b", "b1", "k", b"k", ["m"], 0) == (False, "the job was withdrawn")
        assert not station.running

    _in_loop(case())


def test_a_repeated_ask_is_one() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m", slots=2)
        calls = [asyncio.create_task(of.farm.ask("b", "b1", "k", b"k", ["m"], 0)) for _ in range(2)]
        await of.settle()
        station.running[b"k"].set_result(b"answer")
        assert await asyncio.gather(*calls) == [(True, b"answer")] * 2

    _in_loop(case())


def test_asks_of_a_silent_bridge_are_withdrawn() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m", slots=2)
        _, call = of.ask("k", "m", bridge="killed")
        _, other = of.ask("l", "m")
        for _ in range(5):
            await of.settle()
            of.now += SILENCE
            station.announce()
            of.farm.machines("b")
            of.farm.tick()
        assert not (await call)[0] and station.cancelled == ["k"]
        assert not other.done()

    _in_loop(case())


def test_a_bridge_that_closes_withdraws_its_asks() -> None:
    async def case() -> None:
        of = _Case()
        station = _Station(of.farm, "m", slots=2)
        _, call = of.ask("k", "m", bridge="c")
        _, other = of.ask("l", "m")
        await of.settle()
        of.farm.forget("c")
        assert not (await call)[0] and station.cancelled == ["k"] and not other.done()

    _in_loop(case())
