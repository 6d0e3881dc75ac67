"""Reports the progress of jobs to the clients that watch them. Costs nothing while no client does."""

from __future__ import annotations

from collections.abc import Iterable

from fxpool.pool.server.outcomes import Work
from fxpool.pool.wire import messages as m

__all__ = ["JobEvents"]


class JobEvents:
    """The watched jobs. True if at least one job is watched."""

    def __init__(self) -> None:
        self._watched: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._watched)

    def watch(self, work: Work) -> None:
        if work.ask.watched:
            self._watched.add(work.key)

    def forget(self, work: Work) -> None:
        self._watched.discard(work.key)

    def tell(
        self,
        listening: Iterable[Work],
        work: Work,
        what: m.What,
        at: float,
        worker: int | None = None,
        name: str = "",
    ) -> None:
        """Report to the watched jobs of `listening` that `work` reached the stage `what` at `at` (loop time)."""
        part = 0 if work.worker is None else work.key
        for above in listening:
            if above.client is not None and above.key in self._watched:
                above.client.connection.send(
                    m.JobEvent(
                        job=above.ask.job, part=part, what=what, label=work.spec.label, at=at, worker=worker, name=name
                    )
                )
