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
_WRONG: dict[str, Any] = {"facecolor": "#fff5f5", "edgecolor": "#c53030", "hatch": "xxx"}
_OTHERS = ("#2f855a", "#805ad5", "#b83280", "#975a16")

# The smallest speed-up that is drawn, and the factor that the axis extends to each side of 1 at least.
_LEAST, _AROUND = 1e-6, 2.0


def available() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Draw into `folder`; return the files. Images without data are removed.

    First calls that ran beside others are left out. Speed-ups are hatched in grey if their measurement is doubtful, and
    in red if their outputs are wrong.
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


def _axes(
    figure: Any, lines: Sequence[Line], title: str, unit: str
) -> tuple[Any, list[tuple[Line, float]], dict[str, str]]:
    """Return axes with a label for each case and mode, the lines with the positions of their bars, and colours."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.case, line.mode), []).append(line)
    bars: list[tuple[Line, float]] = []
    marks = []
    for number, group in enumerate(groups.values()):
        first = len(bars) + number  # with a gap between groups
        bars += [(line, first + offset) for offset, line in enumerate(group)]
        marks.append(first + (len(group) - 1) / 2)
    axes = figure.add_subplot()
    axes.set_yticks(marks, [f"{case}, {mode}" for case, mode in groups])
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    backends = list(dict.fromkeys(line.backend for line in lines))
    others = iter(_OTHERS * len(backends))
    return axes, bars, {backend: _COLOURS.get(backend) or next(others) for backend in backends}


def _legend(axes: Any, colours: dict[str, str], hatched: dict[str, dict[str, Any]] | None = None) -> None:
    """Add a legend of the backends, and of the looks in `hatched` by their labels."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=backend) for backend, colour in colours.items()]
    handles += [Patch(**look, label=label) for label, look in (hatched or {}).items()]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _speedups(figure: Any, lines: Sequence[Line]) -> None:
    axes, bars, colours = _axes(figure, lines, "Speed-up over eager, with its 95 % interval", "times as fast")
    hatched: dict[str, dict[str, Any]] = {}
    solid = set()
    edges = [1 / _AROUND, _AROUND]
    for line, position in bars:
        ratio = line.speedup
        assert ratio is not None
        low, value, high = (max(figure, _LEAST) for figure in (ratio.low, ratio.value, ratio.high))
        spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
        edges += [low, high]
        if line.wrong or line.doubtful:
            look = _WRONG if line.wrong else _DOUBTFUL
            hatched["wrong outputs" if line.wrong else "doubtful, see report.html"] = look
            at, side = (0.02, "left") if value >= 1 else (0.98, "right")  # beside the bar
            across = axes.get_yaxis_transform()
            axes.text(at, position, line.backend, ha=side, va="center", size="small", transform=across)
        else:
            look = {"color": colours[line.backend]}
            solid.add(line.backend)
        # From 1, so that as many times slower is as long as that many times faster.
        axes.barh(position, value - 1.0, left=1.0, height=0.85, xerr=spread, ecolor="#1a202c", **look)
    axes.axvline(1.0, color="#1a202c", linewidth=1)
    _logarithmic(axes, min(edges), max(edges))
    _legend(axes, {name: colour for name, colour in colours.items() if name in solid}, hatched)


def _logarithmic(axes: Any, low: float, high: float) -> None:
    """Show ratios from `low` to `high`, with plain numbers at the ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(low / 1.2, high * 1.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 5000 * low else (1.0,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))


def _first_calls(figure: Any, lines: Sequence[Line], left_out: int = 0) -> None:
    warm = any(line.warm_call for line in lines)
    title = "First call alone, including the compile" + ("\ndark: in a second process" if warm else "")
    if left_out:
        title += f"\nwithout {left_out} that ran beside others (--jobs 1)"
    axes, bars, colours = _axes(figure, lines, title, "seconds")
    for line, position in bars:
        axes.barh(position, line.first_call, height=0.85, color=colours[line.backend], alpha=0.5 if warm else 1.0)
        if line.warm_call:
            axes.barh(position, line.warm_call, height=0.45, color=colours[line.backend])
    _legend(axes, colours)
