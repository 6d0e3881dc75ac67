"""What the benchmarks print, write and draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rows import Row, Summary

from fxpool.bench import results

__all__ = ["Measured", "as_json", "machine", "markdown", "plot", "table"]

HEADINGS = ("id", "what", "state", "rival", "ours", "theirs", "ratio", "min", "max", "goal", "verdict")


@dataclass(frozen=True)
class Measured:
    """One row with its judgements. `problems` say why a number must not be believed; then no goal is met."""

    row: Row
    summaries: Sequence[Summary]
    problems: Sequence[str]
    results: Mapping[str, Sequence[Mapping[str, Any]]]

    def verdict(self, summary: Summary) -> str:
        if self.problems:
            return "not met: " + self.problems[0]
        return "met" if summary.met else "not met"


def machine(ours: str) -> dict[str, Any]:
    """What a reader needs to judge the numbers, `ours` being the backend measured; not which machine it was."""
    facts = results.machine()
    versions = {name: facts["versions"].get(name, "none") for name in ("torch", "transformers", "fxpool")}
    return {"ours": ours, "cpu": facts["cpu"], "cores": facts["cores"], **versions}


def _shown(row: Row, value: float) -> str:
    if not row.value.endswith("_seconds"):
        return f"{value:.2f}"
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.3f} ms"


def _cells(measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    for one in measured:
        for summary in one.summaries:
            cells.append(
                (
                    one.row.id,
                    one.row.title,
                    one.row.state + (", server" if one.row.server else ""),
                    summary.rival + (" (limit)" if summary.rival == "eager" else ""),
                    _shown(one.row, summary.ours),
                    _shown(one.row, summary.theirs),
                    f"{summary.ratio:.3f}",
                    f"{summary.lowest:.3f}",
                    f"{summary.highest:.3f}",
                    f"<= {summary.goal:.2f}",
                    one.verdict(summary),
                )
            )
    return cells


def table(measured: Sequence[Measured]) -> Table:
    shown = Table(title="Medians of pairs, each call in a fresh process")
    for heading in HEADINGS:
        shown.add_column(heading, justify="right" if heading in HEADINGS[4:10] else "left")
    for cells in _cells(measured):
        shown.add_row(*cells)
    return shown


def markdown(measured: Sequence[Measured], facts: Mapping[str, Any], pairs: int) -> str:
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores; torch {facts['torch']}, transformers {facts['transformers']}, "
        f"fxpool {facts['fxpool']}. Ours is the backend {facts['ours']}; {pairs} pairs, A B A B, "
        "each call in a fresh process.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
    ]
    lines += ["| " + " | ".join(cells) + " |" for cells in _cells(measured)]
    return "\n".join(lines) + "\n"


def as_json(measured: Sequence[Measured], facts: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    return {
        "machine": dict(facts),
        "pairs": pairs,
        "rows": [
            {
                "id": one.row.id,
                "title": one.row.title,
                "state": one.row.state,
                "value": one.row.value,
                "problems": list(one.problems),
                "summaries": [{**asdict(summary), "verdict": one.verdict(summary)} for summary in one.summaries],
                "results": {side: [dict(result) for result in results] for side, results in one.results.items()},
            }
            for one in measured
        ],
    }


def plot(measured: Sequence[Measured], facts: Mapping[str, Any], path: Path) -> None:
    """Ratios as bars, from the lowest to the highest pair as whiskers, goals as black marks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [(one, summary) for one in measured for summary in one.summaries]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(lines) + 1.6), layout="constrained")
    for place, (one, summary) in enumerate(lines):
        good = one.verdict(summary) == "met"
        axes.barh(place, summary.ratio, height=0.6, color="#4c8c5b" if good else "#b5533c")
        axes.plot([summary.lowest, summary.highest], [place, place], color="#333333", linewidth=1.5)
        axes.plot([summary.goal, summary.goal], [place - 0.4, place + 0.4], color="black", linewidth=2.5)
    axes.set_yticks(range(len(lines)))
    axes.set_yticklabels([f"{one.row.name}, {one.row.state}: / {summary.rival}" for one, summary in lines], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="#999999", linewidth=1, linestyle="--")
    axes.set_xlim(left=0)
    axes.set_xlabel("ratio of seconds, ours / theirs (bar: median, line: all pairs, black mark: goal)")
    axes.set_title(f"{facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}", fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
