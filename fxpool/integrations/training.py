"""Count hits, misses and seconds since a training began, under the names that the callbacks of trainers log."""

from __future__ import annotations

from fxpool import counters

__all__ = ["NAMES", "Since"]

#: The names that are logged, with the counters of ``fxpool.stats()`` that they add up.
NAMES = {
    "fxpool/hits": ("hits",),
    "fxpool/misses": ("misses", "guard_misses"),
    "fxpool/compile_seconds": ("compile_seconds",),
    "fxpool/seconds_saved": ("seconds_saved",),
}


class Since:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._before = _totals()

    def values(self) -> dict[str, float]:
        """Return the difference to the creation for each of `NAMES`: numbers of graphs, and seconds."""
        return {name: total - self._before[name] for name, total in _totals().items()}


def _totals() -> dict[str, float]:
    # Without the records of graphs, of which there may be a thousand: this is called for each step.
    snapshot = counters.snapshot(graphs=False)
    return {name: float(sum(snapshot[one] for one in summed)) for name, summed in NAMES.items()}
