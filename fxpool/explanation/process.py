"""Explains why this process compiled graphs: its latest misses, and each bypass, fallback and switch it counted.

If no graph came to fxpool, it says why: Dynamo is off, traced nothing, stopped, or has another backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fxpool import counters, notices, quantities, reasons
from fxpool.codecache.explain import misses
from fxpool.codecache.explain.misses import MissExplanation
from fxpool.codecache.store.entry import Entry
from fxpool.explanation import keys
from fxpool.results import markup
from fxpool.torch_compat.dynamo.traced_functions import Traced, traced

__all__ = ["CountedReason", "NoGraph", "ProcessExplanation", "counted_reasons", "explain", "why_no_graph"]

_BREAKS = 3  # reasons of Dynamo that are shown


@dataclass(frozen=True, repr=False)
class CountedReason:
    """A reason counted by this process, under the name of a counter of `fxpool.stats()`.

    `example` is the label of the latest graph counted under it, with its function and details, or empty. `texts` are
    the warnings given under it, such as one for each refused directory. `page` is a page of docs/ about it.
    """

    counter: str
    reason: str
    count: int
    meaning: str
    advice: str
    page: str = ""
    example: str = ""
    texts: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = [f"{self.counter}: {self.reason} ({self.count}): {self.meaning}"]
        text += [f"  {line}" for one in self.texts for line in one.splitlines()]
        if self.example:
            text.append(f"  for example {self.example}")
        if self.advice:
            text.append(f"  {self.advice}" + (f" See docs/{self.page}." if self.page else ""))
        return "\n".join(text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        advice = self.advice + (f" See docs/{self.page}." if self.advice and self.page else "")
        rows = [*(("warning", text) for text in self.texts), ("example", self.example), ("do", advice)]
        return markup.block(
            f"{self.counter}: {self.reason} ({self.count}): {self.meaning}",
            markup.table([row for row in rows if row[1]]),
        )


@dataclass(frozen=True, repr=False)
class NoGraph:
    """Why no graph came to fxpool in this process: `why` is a sentence, `advice` a remedy.

    `breaks` are Dynamo's reasons to leave functions to Python.
    """

    why: str
    advice: str
    breaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"no graph: {self.why}", *(f"  {line}" for line in (*self.breaks, self.advice))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [("Dynamo", reason) for reason in self.breaks]
        return markup.block(f"no graph: {self.why}", markup.table([*rows, ("do", self.advice)]))


@dataclass(frozen=True, repr=False)
class ProcessExplanation:
    """Why this process compiled graphs: its `misses`, oldest first, and the `reasons` it counted.

    `no_graph` is set if no graph came to fxpool in this process.
    """

    misses: tuple[MissExplanation, ...]
    reasons: tuple[CountedReason, ...]
    no_graph: NoGraph | None = None

    def __str__(self) -> str:
        parts = [str(one) for one in (*self.misses, *self.reasons, self.no_graph) if one is not None]
        return "\n".join(parts) or _NOTHING

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [one._repr_html_() for one in (*self.misses, *self.reasons, self.no_graph) if one is not None]
        return "".join(parts) or markup.block(_NOTHING)


_NOTHING = "nothing to explain: there were no misses, and no reason was counted"


def explain() -> ProcessExplanation:
    """Explain this process's misses and each reason that it counted. Raises UnsafeDirectoryError."""
    counted = counters.snapshot()
    kept = keys.missed()
    entries = keys.entries() if kept else []
    missed = tuple(misses.explained(miss, _before(miss, entries)) for miss in kept)
    no_graphs = not (counted["graphs"] or any(counted["borrowed"].values()))
    why = why_no_graph(traced()) if no_graphs else None
    return ProcessExplanation(missed, tuple(counted_reasons(counted)), why)


def counted_reasons(counted: Mapping[str, Any]) -> list[CountedReason]:
    """Return each reason in a process's counters (`counters.snapshot`), with its explanation."""
    return [
        _reason(counter, name, count, counted["graphs"])
        for counter in reasons.COUNTERS
        for name, count in sorted(counted.get(counter, {}).items())
        if count and not (counter == "bypasses" and _is_a_refusal(name, counted["switched_off"]))
        if not (counter == "frames" and name in reasons.NO_REASONS)
    ]


def _is_a_refusal(bypass: str, switched_off: Mapping[str, int]) -> bool:
    """Return whether a bypass follows from a refused directory, which is counted for each graph as well."""
    return bypass in switched_off or (bypass == "cache_off" and "cache_directory_refused" in switched_off)


def _reason(counter: str, name: str, count: int, graphs: Sequence[Mapping[str, Any]]) -> CountedReason:
    known = reasons.find(counter, name) or reasons.Reason("no explanation available", "Please report it.")
    example = _example(counter, name, graphs)
    texts = notices.texts(name) if counter == "switched_off" else ()
    return CountedReason(counter, name, count, known.meaning, known.advice, known.page, example, texts)


def _before(miss: misses.Miss, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that existed at the lookup; later entries do not explain the miss."""
    return [entry for entry in entries if entry.metadata.created <= miss.when]


def _example(counter: str, name: str, graphs: Sequence[Mapping[str, Any]]) -> str:
    wanted = f"bypass:{name}" if counter == "bypasses" else name
    for record in reversed(graphs):
        if wanted in record.get("reasons", ()):
            parts = [str(record.get("label", "")), str(record.get("function", ""))]
            shown = ", ".join(filter(None, parts))
            detail = str(record.get("details", {}).get(wanted, ""))
            return f"{shown}: {detail}" if detail else shown
    return counters.example(counter, name)


def why_no_graph(counts: Traced) -> NoGraph:
    """Explain why fxpool had no graph, from Dynamo's counts."""
    if counts.off:
        return NoGraph(f"{counts.off} turns torch.compile off, so functions run eagerly", "Remove that switch.")
    if counts.graphs:
        number = quantities.counted(counts.graphs, "graph")
        return NoGraph(
            f"Dynamo made {number}, but gave none to fxpool",
            'Use torch.compile(..., backend="fxpool"). After fxpool.install(), backend="inductor" sends whole graphs '
            "only in mode subprocess; see docs/install.md.",
        )
    if counts.breaks or counts.frames > counts.finished:
        stopped = quantities.counted(counts.frames - counts.finished, "function")
        more = len(counts.breaks) - _BREAKS
        breaks = (*counts.breaks[:_BREAKS], *([f"{more} more"] if more > 0 else []))
        return NoGraph(
            f"Dynamo stopped while it traced {stopped} (of {counts.frames}), which then ran eagerly",
            "torch.compile(..., fullgraph=True) raises the reason with its line; TORCH_LOGS=graph_breaks logs all.",
            breaks,
        )
    if counts.frames:
        return NoGraph(
            "the functions that Dynamo traced compute nothing with tensors",
            "Compile the function or module that does.",
        )
    return NoGraph(
        "Dynamo traced no function in this process, so everything ran eagerly",
        "Call the function that torch.compile returned, in this process: torch.compile alone traces nothing. Dynamo "
        "skips functions under torch.compiler.disable, and those of torch itself.",
    )
