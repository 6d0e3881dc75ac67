"""Prometheus metrics of this host's servers and the store, in text format. Needs the extra `metrics`.

Labels are a server's environment (twelve digits), a job's result, and kinds of processes and files, but never names of
graphs, functions or files. prometheus_client is imported inside functions: only commands that serve metrics need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fxpool import forks
from fxpool.dashboard.pool_view import PoolView
from fxpool.dashboard.store_view import StoreView
from fxpool.dashboard.web import Answer, Request, WebServer, allowed_host, refusal
from fxpool.errors import MissingExtraError

__all__ = ["Source", "families", "in_background", "serve"]

_LOOPBACK = ("127.0.0.1", "localhost")


class Source:
    """Looks at pool and store when it is scraped. For one thread at a time."""

    def __init__(self, runtime_root: Path, cache_dir: Path) -> None:
        """Raises MissingExtraError if the client library of Prometheus is not installed."""
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("metrics", "prometheus-client", "metrics") from error
        self._pool, self._store = PoolView(runtime_root), StoreView(str(cache_dir))

    def text(self) -> bytes:
        """Look, and return the numbers in Prometheus's text format."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        self._pool.look()
        self._store.look()
        current = list(families(self._pool.servers, self._store.facts(), len(self._store.quarantined)))

        class Current(Collector):
            def collect(self) -> Iterable[Any]:
                return current

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Current())
        return generate_latest(registry)

    def close(self) -> None:
        self._pool.close()


def families(servers: Iterable[dict[str, Any]], store: dict[str, Any], quarantined: int) -> Iterator[Any]:
    """Yield the metric families of servers (their status facts) and of a store (`StoreView.facts`)."""
    servers = list(servers)
    states = [([server["name"]], server["state"] == "running") for server in servers]
    yield _gauge("server_up", "1 if the server answers", states, ("server",))
    running = [([server["name"]], server) for server in servers if server["state"] == "running"]
    yield from _of_servers(running)
    yield from _of_farms([([*names, farm["address"]], farm) for names, server in running for farm in server["farms"]])
    yield from _of_store(store, quarantined)


def _family(kind: str, name: str, text: str, values: Iterable[tuple[list[str], float]], labels: tuple[str, ...]) -> Any:
    from prometheus_client import core

    family = getattr(core, f"{kind}MetricFamily")(f"fxpool_{name}", text, labels=labels)
    for names, value in values:
        family.add_metric(names, value)
    return family


_gauge = functools.partial(_family, "Gauge")
_counter = functools.partial(_family, "Counter")


def _histogram(name: str, text: str, servers: list[tuple[list[str], dict[str, Any]]], times_of: str) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"fxpool_{name}", text, labels=("server",))
    for names, server in servers:
        times = server["jobs"][times_of]
        bounds = [*map(str, times["bounds"]), "+Inf"]
        buckets = list(zip(bounds, itertools.accumulate(times["counts"]), strict=True))
        family.add_metric(names, buckets, times["sum"])
    return family


def _of_servers(of: list[tuple[list[str], dict[str, Any]]]) -> Iterator[Any]:
    by = ("server",)
    yield _gauge("server_seconds", "Age of the server", [(n, s["seconds"]) for n, s in of], by)
    yield _gauge("clients", "Connected processes", [(n, len(set(s["clients"]))) for n, s in of], by)
    yield _gauge("slots", "Jobs that may run at once", [(n, s["slots"]) for n, s in of], by)
    yield _gauge("slots_busy", "Slots in use", [(n, s["slots"] - s["slots_free"]) for n, s in of], by)
    states = [
        ([*n, state], count)
        for n, s in of
        for state, count in (
            ("queued", s["queued"]),
            ("running", sum(not job["stopped"] for job in s["running"])),
            ("stopped", sum(job["stopped"] for job in s["running"])),
        )
    ]
    yield _gauge("jobs", "Jobs that wait, run, or are paused for a measurement", states, ("server", "state"))
    yield _gauge("workers", "Worker processes, including idle ones", [(n, len(s["workers"])) for n, s in of], by)
    yield _gauge("paused", "1 while jobs are paused for a measurement", [(n, s["paused"]) for n, s in of], by)
    memory = [([*n, kind], size) for n, s in of for kind, size in s["memory"].items()]
    yield _gauge("memory_bytes", "Proportional set size", memory, ("server", "processes"))
    used = [(n, s["limits"]["host_used"]) for n, s in of]
    yield _gauge("host_memory_used_ratio", "Fraction of the host's or cgroup's memory in use", used, by)
    mark = [(n, s["limits"]["host_mark"]) for n, s in of]
    yield _gauge("host_memory_mark_ratio", "Fraction above which no further job starts", mark, by)
    yield _gauge("memory_pressed", "1 while usage is above the mark", [(n, s["limits"]["pressed"]) for n, s in of], by)
    endings = [([*n, how], count) for n, s in of for how, count in sorted(s["jobs"]["ended"].items())]
    yield _counter("jobs_ended", "Jobs by outcome, including sub-jobs", endings, ("server", "how"))
    for name, text in (
        ("jobs", "Jobs submitted"),
        ("joined", "Jobs that joined a running job"),
        ("sub_jobs", "Sub-jobs"),
        ("forks", "Workers forked"),
        ("prepared", "Workers forked with the modules of their program"),
        ("reused", "Jobs run by a reused worker"),
        ("retries", "Jobs retried"),
        ("deaths", "Deaths of workers and zygotes"),
        ("not_begun", "Workers that could not start their job"),
    ):
        shown = "jobs_submitted" if name == "jobs" else name
        yield _counter(shown, text, [(n, s["counters"][name]) for n, s in of], by)
    yield _histogram("job_seconds", "Time from the start of the worker to the end of the job", of, "ran")
    yield _histogram("job_wait_seconds", "Time from submission to the start of the worker", of, "waited")


def _of_farms(farms: list[tuple[list[str], dict[str, Any]]]) -> Iterator[Any]:
    of_farm = ("server", "farm")
    able = [(names, sum(not one["differs"] for one in farm["machines"])) for names, farm in farms]
    yield _gauge("farm_machines", "Machines of the farm that compile for this host", able, of_farm)
    yield _gauge("farm_jobs", "Jobs that the farm has", [(names, len(farm["jobs"])) for names, farm in farms], of_farm)
    ends = [([*names, end], n) for names, farm in farms for end, n in sorted(farm["counters"].items())]
    yield _counter("farm_jobs_ended", "Jobs by what became of them", ends, (*of_farm, "how"))


def _of_store(store: dict[str, Any], quarantined: int) -> Iterator[Any]:
    yield _gauge("store_up", "1 if the directory exists and is accepted", [([], store["state"] == "there")], ())
    yield _gauge("store_entries", "Compiled graphs in the store", [([], store["entries"])], ())
    yield _gauge("store_unreadable_entries", "Entries that cannot be read", [([], store["unreadable"])], ())
    yield _gauge("store_compile_seconds", "Compile time of all entries", [([], store["seconds"])], ())
    sizes = [([kind], part["bytes"]) for kind, part in store["parts"].items()]
    yield _gauge("store_bytes", "Bytes on disk", sizes, ("kind",))
    files = [([kind], part["files"]) for kind, part in store["parts"].items()]
    yield _gauge("store_files", "Files", files, ("kind",))
    calls = [([outcome], count) for outcome, count in sorted(store["counted"].get("once", {}).items())]
    yield _gauge("once_calls", "Calls of fxpool.once in the last 30 days", calls, ("outcome",))
    uncached = [([reason], count) for reason, count in sorted(store["counted"].get("uncached", {}).items())]
    yield _gauge("uncached_processes", "Processes of 30 days to which the cache was of no use", uncached, ("reason",))
    yield _gauge("quarantined_graphs", "Graphs that killed their workers", [([], quarantined)], ())


async def serve(source: Source, address: str, port: int, ready: Any, stop: asyncio.Event) -> None:
    """Answer ``GET /metrics`` until `stop` is set; `ready` is called with the port. Raises OSError.

    On a loopback address, requests must name this machine (see `web`); on other addresses, any client may ask.
    """
    one = asyncio.Lock()

    async def respond(request: Request) -> Answer:
        if address in _LOOPBACK and not allowed_host(request.host, web.port):
            return refusal(403, "metrics are only served for 127.0.0.1 and localhost")
        if request.parts != ("metrics",):
            return refusal(404, "not found: see /metrics")
        async with one:
            text = await asyncio.to_thread(source.text)
        return Answer(text, "text/plain; version=0.0.4; charset=utf-8")

    web = WebServer(respond)
    await web.start(address, port)
    try:
        ready(web.port)
        await stop.wait()
    finally:
        await web.close()


@contextlib.contextmanager
def in_background(runtime_root: Path, cache_dir: Path, address: str, port: int) -> Iterator[int]:
    """Serve in a thread during a ``with`` block; gives the port. Raises OSError, MissingExtraError."""
    source = Source(runtime_root, cache_dir)
    started = forks.event()
    results: list[int | OSError] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def ready(result: int | OSError) -> None:
        results.append(result)
        started.set()

    def run() -> None:
        try:
            loop.run_until_complete(serve(source, address, port, ready, stop))
        except OSError as error:
            ready(error)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run, name="fxpool-metrics", daemon=True)
    thread.start()
    started.wait()
    if isinstance(results[0], OSError):
        thread.join()
        raise results[0]
    try:
        yield results[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        source.close()
