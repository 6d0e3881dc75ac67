"""Times candidates on the CPU (`max_autotune`): exclusively, once per host, with the times stored.

    lowering ──▶ candidates, compiled ──▶ stored times? ──▶ the selection
                                            │ no
                                            ▼
                       exclusive use of the host, other workers stopped ──▶ milliseconds ──▶ stored

<tools>/measured/<digest of processor, compiler, torch, switches and product>    milliseconds by candidate

A worker times in its own process, since that runs on the right processor; all other workers are stopped for that time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from fxpool import notices
from fxpool.bench.measurement import exclusive
from fxpool.codecache.key import system_facts, toolchain
from fxpool.codecache.key.key import canonical
from fxpool.codecache.store import blobs
from fxpool.errors import FxpoolError, StoreError
from fxpool.pool import current_job
from fxpool.torch_compat.cpp import timed_choices
from fxpool.torch_compat.cpp.timed_choices import Selection

__all__ = ["CpuTimes", "tuned"]

log = notices.logger(__name__)

# The version of stored times. Increased when earlier ones may be wrong.
_FORMAT = 1
# The longest wait, in seconds, for another process that measures.
_PATIENCE = 30.0


class CpuTimes:
    """The times of one compile. `surroundings` returns the program's state that affects times, as plain data."""

    def __init__(self, toolchain_dir: str | None, surroundings: Callable[[], Any]) -> None:
        self._tools, self._surroundings = toolchain_dir, surroundings
        #: For people who look at the entry: the product, the number of candidates, and the fastest.
        self.record: list[list[Any]] = []

    @functools.cached_property
    def _about(self) -> list[Any]:
        return [
            _FORMAT,
            system_facts.processor(),
            sorted(toolchain.toolchain_facts(self._tools).items()),
            str(torch.__version__),
            getattr(torch.version, "git_version", ""),
            torch.get_num_threads(),
            self._surroundings(),
        ]

    def find(self, selection: Selection) -> dict[str, float] | None:
        """See `timed_choices.Times`."""
        known = self._kept(selection)
        if not known.keys() >= set(selection.candidates):
            return None
        self._note(selection, known)
        return known

    @contextlib.contextmanager
    def alone(self, selection: Selection) -> Iterator[None]:
        """See `timed_choices.Times`. After `_PATIENCE`, times without exclusive use rather than failing."""
        job = current_job()
        with contextlib.ExitStack() as stack:
            try:
                root = job.runtime_root if job is not None else None
                stack.enter_context(exclusive.measuring(patience=_PATIENCE, runtime_dir=root))
            except (FxpoolError, OSError) as error:  # another process measures for too long
                log.warning("timing %s while other processes may be measuring: %s", selection.operation, error)
            yield

    def keep(self, selection: Selection, times: dict[str, float]) -> None:
        """See `timed_choices.Times`. Never raises: after a failure, the product is timed again."""
        self._note(selection, times)
        if self._tools is None or not any(map(math.isfinite, times.values())):
            return
        try:
            blobs.write_private(self._path(selection), msgspec.msgpack.encode({**self._kept(selection), **times}))
        except StoreError as error:
            log.warning("could not store a timing, the next process will time %s again: %s", selection.operation, error)

    def _kept(self, selection: Selection) -> dict[str, float]:
        if self._tools is None:
            return {}
        try:
            return msgspec.msgpack.decode(blobs.read_stored(self._path(selection))[0], type=dict[str, float])
        except (OSError, StoreError, msgspec.DecodeError):
            return {}

    def _path(self, selection: Selection) -> str:
        assert self._tools is not None
        digest = hashlib.sha256(canonical([self._about, selection.identity()])).hexdigest()
        return os.path.join(self._tools, "measured", digest[:32])

    def _note(self, selection: Selection, times: dict[str, float]) -> None:
        best = min(selection.candidates, key=lambda one: times.get(one, math.inf))
        taken = times.get(best, math.inf)
        row = [
            f"{selection.operation} on the CPU",
            len(selection.candidates),
            best,
            taken if math.isfinite(taken) else None,
        ]
        if row not in self.record:
            self.record.append(row)


@contextlib.contextmanager
def tuned(toolchain_dir: str | None, surroundings: Callable[[], Any]) -> Iterator[CpuTimes]:
    """Time candidates on the CPU exclusively inside the ``with`` block, and store the times."""
    times = CpuTimes(toolchain_dir, surroundings)
    with timed_choices.answered(times):
        yield times
