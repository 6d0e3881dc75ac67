"""Routes of the dashboard, polling of pool and store, and the stream of changes.

    /TOKEN/                    the page
    /TOKEN/events              a stream (text/event-stream): everything first, then the changes
    /TOKEN/entry/KEY/NAME      an entry in detail
    /TOKEN/code/KEY/NAME       its generated code

Names in a path are digests that are looked up in the store: a path never becomes the name of a file. While no page is
open, polling slows down, but continues for the graphs over time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from fxpool import notices
from fxpool.codecache.store import catalogue
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.codecache.store.quarantine import Record
from fxpool.dashboard import entry_view, generated_code, web
from fxpool.dashboard.pool_view import PoolView
from fxpool.dashboard.store_view import StoreView
from fxpool.dashboard.web import Answer, Request, WebServer, refusal

__all__ = ["Application", "Samples", "failures"]

log = notices.logger(__name__)

_TEMPLATE = Path(__file__).with_name("page.html")
# Seconds between two polls of the pool while a page is open, and while none is.
_LOOK_SECONDS, _IDLE_SECONDS = 0.5, 5.0
_SAMPLE_SECONDS = 2.0
# Seconds after which a stream says that it is there, though nothing changed.
_BEAT_SECONDS = 5.0
_MOST_STREAMS = 16
# Rows in one message, so that the page stays fluid while it takes them in.
_ROWS = 1000
_WAITING = 200
_CODES_KEPT = 20
_SAMPLES_KEPT = 720
_MOST_FAILURES = 100
_DIGITS = 12  # of a key, for a command
_FAILURES = {
    "exception": "raised an exception, passed to its caller",
    "died": "lost its worker",
    "timeout": "exceeded its time limit",
    "memory": "exceeded its memory limit",
    "unavailable": "could not be run by the pool",
    "no_worker": "could not be started by any worker",
    "lost": "was lost with its server",
}


class Samples:
    """Numbers over time in bounded memory: when it is full, every second sample is dropped and the interval doubles.

    Samples have the same names, at growing times. A sample within the interval of the one before is passed over.
    """

    def __init__(self, interval: float, most: int = _SAMPLES_KEPT) -> None:
        self.interval = interval
        #: Counts up whenever samples were dropped: a reader that has some must take all again.
        self.age = 0
        self._most = most
        self.taken: list[dict[str, float]] = []

    def add(self, at: float, values: Mapping[str, float]) -> bool:
        """Keep a sample taken at `at`; return whether it was kept."""
        if self.taken and at < self.taken[-1]["at"] + self.interval:
            return False
        self.taken.append({"at": at, **values})
        if len(self.taken) > self._most:
            self.taken = self.taken[::2]
            self.interval *= 2
            self.age += 1
        return True

    def since(self, at: float) -> list[dict[str, float]]:
        """Return the samples taken after `at`."""
        return [sample for sample in self.taken if sample["at"] > at]


class Application:
    """The page of one runtime directory and one store."""

    def __init__(self, runtime_root: Path, cache_dir: Path) -> None:
        self.pool = PoolView(runtime_root)
        self.store = StoreView(str(cache_dir))
        self.samples = Samples(_SAMPLE_SECONDS)
        self.token = web.new_token()
        self.web = WebServer(self._respond)
        self._streams = 0
        self._news = asyncio.Condition()
        self._wake = asyncio.Event()
        self._looks = 0
        self._one_child = asyncio.Semaphore(1)
        self._codes: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """The page's URL, with its secret."""
        return f"http://127.0.0.1:{self.web.port}/{self.token}/"

    async def start(self, port: int = 0) -> None:
        """Look once, then listen on the loopback interface and go on looking. Raises OSError."""
        await self.web.start("127.0.0.1", port)
        self._tasks = [asyncio.create_task(self._look_at_pool()), asyncio.create_task(self._look_at_store())]

    async def close(self) -> None:
        """Stop listening and looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.web.close()
        self.pool.close()

    # ------------------------------------------------------------ looking

    async def _look_at_pool(self) -> None:
        while True:
            with _said("this host's servers"):
                self.pool.take(await asyncio.to_thread(self.pool.ask))
            self._sample()
            await self._tell()
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                if self._streams:
                    await asyncio.sleep(_LOOK_SECONDS)
                else:
                    await asyncio.wait_for(self._wake.wait(), _IDLE_SECONDS)

    async def _look_at_store(self) -> None:
        while True:
            with _said(f"the store in {self.store.root}"):
                self.store.take(await asyncio.to_thread(self.store.read))
            await self._tell()
            await asyncio.sleep(self.store.pause if self._streams else max(_IDLE_SECONDS, self.store.pause))

    async def _tell(self) -> None:
        async with self._news:
            self._looks += 1
            self._news.notify_all()

    def _sample(self) -> None:
        running = [one for one in self.pool.servers if one["state"] == "running"]
        values = {
            "served": float(self.store.served_count),
            "saved": self.store.seconds_saved,
            "busy": float(sum(one["slots"] - one["slots_free"] for one in running)),
            "slots": float(sum(one["slots"] for one in running)),
            "queued": float(sum(one["queued"] for one in running)),
            "memory": float(sum(sum(one["memory"].values()) for one in running)),
            "host": max((one["limits"]["host_used"] for one in running), default=0.0),
        }
        self.samples.add(round(time.time(), 3), values)

    # ------------------------------------------------------------ answering

    async def _respond(self, request: Request) -> Answer:
        if not web.allowed_host(request.host, self.web.port):
            return refusal(403, "this page only answers 127.0.0.1 and localhost")
        if not web.right_token(request.parts[0], self.token):
            return refusal(403, "the URL lacks its secret: use the URL printed by `fxpool dashboard`")
        match request.parts[1:]:
            case ("",):
                return self._page()
            case ("events",):
                return self._events()
            case ("entry", key, name) if is_hex_digest(key) and is_hex_digest(name):
                return await self._entry(key, name)
            case ("code", key, name) if is_hex_digest(key) and is_hex_digest(name):
                return await self._code(key, name)
        return refusal(404, "not found")

    def _page(self) -> Answer:
        nonce = secrets.token_urlsafe(16)  # marks the page's own script and style
        text = _TEMPLATE.read_text(encoding="utf-8").replace("@NONCE@", nonce)
        headers = {"Content-Security-Policy": web.policy(nonce)}
        return Answer(text.encode(), "text/html; charset=utf-8", headers=headers)

    async def _entry(self, key: str, name: str) -> Answer:
        def read() -> dict[str, Any] | None:
            entry = catalogue.load(self.store.root, key, name)
            if entry is None:
                return None
            why = self.store.why(key, name)
            if why is None:
                return entry_view.details(entry)
            return entry_view.details(entry, catalogue.load(self.store.root, why[0].key, why[0].name), why[1])

        details = await asyncio.to_thread(read)
        return _json(details) if details is not None else refusal(404, "the entry was removed or cannot be read")

    async def _code(self, key: str, name: str) -> Answer:
        if (key, name) not in self.store.listing.rows:
            return refusal(404, "the entry was removed")
        async with self._one_child:
            known = self._codes.get((key, name))
            if known is None:
                known = await generated_code.generated_code(self.store.root, key, name)
                if "code" in known:
                    self._codes[key, name] = known
                    while len(self._codes) > _CODES_KEPT:
                        self._codes.popitem(last=False)
        return _json(known)

    def _events(self) -> Answer:
        if self._streams >= _MOST_STREAMS:
            return refusal(503, "too many pages are open")
        return Answer(kind="text/event-stream; charset=utf-8", stream=self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        self._streams += 1
        self._wake.set()
        jobs = rows = served = looks = 0  # the latest changes that this reader has received
        age, sampled, first = self.samples.age, 0.0, True
        try:
            while True:
                if age != self.samples.age:
                    age, sampled = self.samples.age, 0.0
                changed, removed = self.store.rows(rows)
                message = {
                    "first": first,
                    "now": round(time.time(), 3),
                    "servers": [_trimmed(one) for one in self.pool.servers],
                    "measuring": self.pool.measuring,
                    "jobs": self.pool.jobs.since(jobs),
                    "store": self.store.facts(),
                    "failures": failures(self.pool.jobs.all(), self.store.quarantined, self.store.facts()),
                    "rows": changed[:_ROWS],
                    "removed": removed,
                    "served": self.store.served_since(served),
                    "samples": self.samples.since(sampled),
                    "all_samples": not sampled,
                }
                jobs, rows, served = self.pool.jobs.latest, self.store.listing.latest, self.store.served_count
                sampled = self.samples.taken[-1]["at"] if self.samples.taken else 0.0
                looks = self._looks
                first = False
                yield _event(message)
                for start in range(_ROWS, len(changed), _ROWS):
                    yield _event({"rows": changed[start : start + _ROWS]})
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._next(looks), _BEAT_SECONDS)
        finally:
            self._streams -= 1

    async def _next(self, looks: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self._looks > looks)


def failures(
    jobs: Iterable[Mapping[str, Any]], quarantined: Iterable[Record], store: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return failures of jobs, graphs in quarantine and damaged entries, latest first.

    They have `at` (Unix time, 0 if unknown), `what`, `label` and `why`. Fallbacks inside a program (a graph that cannot
    be sent to a worker, a disabled switch) are only counted there: `fxpool.stats()["fallbacks"]`.
    """
    rows = [
        {
            "at": job["ended"],
            "what": _FAILURES[job["how"]],
            "label": job["label"],
            "why": job["reason"] + (f" (in phase {job['phases'][-1][0]})" if job["phases"] else ""),
        }
        for job in jobs
        if job["how"] in _FAILURES and not job["part_of"]
    ]
    for record in quarantined:
        release = f"fxpool cache quarantine --release {record.key[:_DIGITS]}"
        what = f"is in quarantine: it runs eagerly until `{release}`"
        rows.append({"at": record.when, "what": what, "label": record.name, "why": record.error})
    if store["unreadable"]:
        count = store["unreadable"]
        what = f"{count} entries cannot be read" if count > 1 else "1 entry cannot be read"
        rows.append(
            {"at": 0.0, "what": what, "label": "store", "why": "damaged or of another version; served as misses"}
        )
    aside = store["parts"].get("set aside", {}).get("files", 0)
    if aside:
        what = f"{aside} damaged files were set aside" if aside > 1 else "1 damaged file was set aside"
        rows.append({"at": 0.0, "what": what, "label": "store", "why": "wrong digests; served as misses"})
    return sorted(rows, key=lambda row: row["at"], reverse=True)[:_MOST_FAILURES]


@contextlib.contextmanager
def _said(source: str) -> Any:
    """Log an exception and carry on: a failed poll must not end polling."""
    try:
        yield
    except Exception as error:
        log.warning("could not read %s: %r", source, error)


def _trimmed(server: dict[str, Any]) -> dict[str, Any]:
    """Return a server's facts, with a long queue cut to the rows that a page can show."""
    if len(server.get("waiting", ())) <= _WAITING:
        return server
    return {**server, "waiting": server["waiting"][:_WAITING], "more_wait": len(server["waiting"]) - _WAITING}


def _json(data: Any) -> Answer:
    return Answer(json.dumps(data).encode(), "application/json; charset=utf-8")


def _event(data: dict[str, Any]) -> bytes:
    # JSON has no line breaks outside of strings, and none unescaped within.
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
