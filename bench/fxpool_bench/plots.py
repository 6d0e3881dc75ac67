"""The results as images (PNG): speed-ups and first calls.

matplotlib is imported inside functions, because only ``fxpool[bench]`` installs it.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxpool.bench.report import Line

__all__ = ["FIRST_CALLS", "available", "draw"]

FIRST_CALLS = "first-calls.png"

# In inches: the width of the page, the height of a bar, and that of the parts above and below the bars.
_WIDTH, _BAR, _FRAME = 9.0, 0.22, 1.4
_COLOURS = {"eager": "#718096", "inductor": "#dd6b20", "fxpool": "#2b6cb0"}
_DOUBTFUL: dict[str, Any] = {"facecolor": "#e2e8f0", "edgecolor": "#a0aec0", "hatch": "///"}
_OTHERS = ("#2f855a", "#805ad5", "#b83280", "#975a16")


def available() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Draw into `folder`; return the files. Images without data are removed.

    First calls that ran beside others are left out, and speed-ups of doubtful measurements are hatched in grey.
    """
    made = []
    speedups = [line for line in lines if line.speedup is not None]
    compiled = [line for line in lines if line.first_call and line.backend != "eager"]
    firsts = [line for line in compiled if not line.beside]
    beside = len(compiled) - len(firsts)
    for name, chosen, fill in (
        ("speedups.png", speedups, _speedups),
        (FIRST_CALLS, firsts, functools.partial(_first_calls, left_out=beside)),
    ):
        (folder / name).unlink(missing_ok=True)  # of earlier results
        if chosen:
            figure = _figure(chosen)
            fill(figure, chosen)
            figure.savefig(folder / name, dpi=110)
            made.append(folder / name)
    return made


def _figure(lines: Sequence[Line]) -> Any:
    """Return a figure with space for the bars of `lines`. It does not affect pyplot's state."""
    from matplotlib.figure import Figure

    groups = len({(line.case, line.mode) for line in lines})
    # With the constrained layout, labels of any length stay on the page.
    return Figure(figsize=(_WIDTH, _FRAME + _BAR * (len(lines) + groups)), layout="constrained")


def _rows(lines: Sequence[Line]) -> tuple[list[float], list[float], list[str]]:
    """Return the positions of the bars, and the positions and texts of the labels, with a gap between groups."""
    bars: list[float] = []
    marks: list[float] = []
    labels: list[str] = []
    at = 0.0
    groups: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        key = (line.case, line.mode)
        if groups and key not in groups:
            at += 1.0
        groups.setdefault(key, []).append(at)
        bars.append(at)
        at += 1.0
    for (case, mode), places in groups.items():
        marks.append(sum(places) / len(places))
        labels.append(f"{case}, {mode}")
    return bars, marks, labels


def _grouped(lines: Sequence[Line]) -> list[Line]:
    """Return the lines grouped by case and mode, in the order of their first occurrence."""
    order = list(dict.fromkeys((line.case, line.mode) for line in lines))
    return sorted(lines, key=lambda line: order.index((line.case, line.mode)))


def _axes(figure: Any, lines: Sequence[Line], title: str, unit: str) -> tuple[Any, list[float], dict[str, str]]:
    bars, marks, labels = _rows(lines)
    axes = figure.add_subplot()
    axes.set_yticks(marks, labels)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    backends = list(dict.fromkeys(line.backend for line in lines))
    others = iter(_OTHERS * len(backends))
    return axes, bars, {backend: _COLOURS.get(backend) or next(others) for backend in backends}


def _legend(axes: Any, colours: dict[str, str], doubtful: bool = False) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=backend) for backend, colour in colours.items()]
    if doubtful:
        handles.append(Patch(**_DOUBTFUL, label="doubtful, see report.html"))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _speedups(figure: Any, lines: Sequence[Line]) -> None:
    lines = _grouped(lines)
    axes, bars, colours = _axes(figure, lines, "Speed-up over eager, with its 95 % interval", "times as fast")
    for place, line in zip(bars, lines, strict=True):
        ratio = line.speedup
        assert ratio is not None
        spread = [[max(0.0, ratio.value - ratio.low)], [max(0.0, ratio.high - ratio.value)]]
        look = _DOUBTFUL if line.doubtful else {"color": colours[line.backend]}
        axes.barh(place, ratio.value, height=0.85, xerr=spread, ecolor="#1a202c", **look)
        if line.doubtful:
            axes.text(0.02, place, line.backend, va="center", size="small", transform=axes.get_yaxis_transform())
    axes.axvline(1.0, color="#1a202c", linewidth=1)
    certain = {line.backend for line in lines if not line.doubtful}
    _legend(
        axes,
        {name: colour for name, colour in colours.items() if name in certain},
        any(line.doubtful for line in lines),
    )


def _first_calls(figure: Any, lines: Sequence[Line], left_out: int = 0) -> None:
    lines = _grouped(lines)
    warm = any(line.warm_call for line in lines)
    title = "First call alone, including the compile" + ("\ndark: in a second process" if warm else "")
    if left_out:
        title += f"\nwithout {left_out} that ran beside others (--jobs 1)"
    axes, bars, colours = _axes(figure, lines, title, "seconds")
    for place, line in zip(bars, lines, strict=True):
        axes.barh(place, line.first_call, height=0.85, color=colours[line.backend], alpha=0.5 if warm else 1.0)
        if line.warm_call:
            axes.barh(place, line.warm_call, height=0.45, color=colours[line.backend])
    _legend(axes, colours)
