"""The data of `fxpool.stats()` and `fxpool.wait()` with a `repr` and HTML.

They are a dict and a list: equal to plain data, and JSON like it. Pickled or copied, they are plain data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fxpool import quantities
from fxpool.results import markup

__all__ = ["ShownGraphs", "ShownStats"]

_TABLES = ("fallbacks", "bypasses", "eager_calls", "switched_off", "quarantine_retries", "regions", "borrowed")
_NUMBERS = ("entries_written", "corrupt_entries", "quarantined", "restarts")
_GRAPHS = ("graph", "state", "stage", "eager calls", "compiled calls", "error")
_NUMBERS_OF_GRAPHS = ("eager calls", "compiled calls")
_MOST = 20  # graphs that are shown


class ShownStats(dict[str, Any]):
    """The result of `fxpool.stats()`."""

    def __repr__(self) -> str:
        return f"{self._title()}\n{markup.text_table((), [(f'  {name}', value) for name, value in self._rows()])}"

    def _repr_html_(self) -> str:
        return markup.block(self._title(), markup.table(self._rows()))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _title(self) -> str:
        return f"fxpool in this process: {_lookups(self)}"

    def _rows(self) -> list[tuple[str, str]]:
        compiles, host, store, remote = self["compiles"], self["host"], self["store"], self["remote"]
        rows = {
            "compiled": f"{compiles['worker']} by workers, {compiles['in_process']} in this process",
            "saved": f"{self['seconds_saved']:.1f} s of compile time",
        }
        rows |= {_words(name): str(self[name]) for name in _NUMBERS if self[name]}
        rows |= {_words(name): quantities.ranked(self[name]) for name in _TABLES if self[name]}
        if any(remote.values()):
            rows["remote cache"] = f"{quantities.ranked(remote)}; {self['remote_seconds']:.1f} s waited for"
        if any(self["leases"].values()):
            rows["leases"] = quantities.ranked(self["leases"])
        if any(self["farm"].values()):
            rows["farm"] = quantities.ranked(self["farm"])
        if self["background"]:
            rows["background"] = quantities.ranked(Counter(graph["state"] for graph in self["background"]))
        rows["cache directory"] = "none yet"
        if store is not None:
            entries = quantities.counted(store["entries"], "entry", "entries")
            rows["cache directory"] = f"{entries}, {quantities.size(self['cache_disk_bytes'])} on disk"
        if host["processes"]:
            processes = quantities.counted(host["processes"], "process", "processes")
            saved = quantities.span(host["seconds_saved"])
            rows["last 30 days"] = f"{_lookups(host)}, {saved} saved in {processes}"
        return list(rows.items())


class ShownGraphs(list[Any]):
    """The result of `fxpool.wait()`."""

    def __repr__(self) -> str:
        table = [markup.text_table(_GRAPHS, self._rows(), _NUMBERS_OF_GRAPHS)] if self else []
        return "\n".join([self._title(), *table])

    def _repr_html_(self) -> str:
        parts = [markup.grid(_GRAPHS, self._rows(), _NUMBERS_OF_GRAPHS)] if self else []
        return markup.block(self._title(), *parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _title(self) -> str:
        states = quantities.ranked(Counter(graph["state"] for graph in self))
        more = f"; the first {_MOST}:" if len(self) > _MOST else ""
        return f"graphs compiled in the background: {states or 'none'}{more}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                quantities.one_line(graph["label"]),
                graph["state"],
                "eager" if graph["stage"] is None else "pieces" if graph["stage"] < 0 else str(graph["stage"]),
                str(graph["eager_calls"]),
                str(graph["compiled_calls"]),
                quantities.one_line((graph["error"] or "").partition("\n")[0]),
            )
            for graph in self[:_MOST]
        ]


def _lookups(counts: Mapping[str, Any]) -> str:
    """Format as ``12 hits of 15 graphs (80 %), 3 misses``."""
    graphs, fraction = quantities.lookups(counts), quantities.hit_rate(counts)
    rate = f" ({quantities.percent(fraction)})" if fraction is not None else ""
    parts = [f"{quantities.counted(counts['hits'], 'hit')} of {quantities.counted(graphs, 'graph')}{rate}"]
    parts += [quantities.counted(counts["misses"], "miss", "misses")] if counts["misses"] else []
    parts += (
        [quantities.counted(counts["guard_misses"], "guard miss", "guard misses")] if counts["guard_misses"] else []
    )
    parts += [f"{counts['joined']} joined"] if counts["joined"] else []
    return ", ".join(parts)


def _words(name: str) -> str:
    return name.replace("_", " ")
