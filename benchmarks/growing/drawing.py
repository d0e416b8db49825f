"""The picture of all curves: one panel per kind of work, log axes, slopes on the lines."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.growing.curve import Curve

_COLUMNS: Final = 2
_PANEL_INCHES: Final = (4.6, 3.1)
_COLOURS: Final = ("#1f5a99", "#b5541c", "#3b7d3b")
_SETTINGS: Final[dict[Any, Any]] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Text stays text: a small file that can be searched.
    "svg.fonttype": "none",
    # The same figures give the same file.
    "svg.hashsalt": "growth",
}


def draw(curves: Sequence[Curve], path: Path, caption: str) -> None:
    """Write the picture as SVG."""
    panels = list(dict.fromkeys(curve.panel for curve in curves))
    rows = -(-len(panels) // _COLUMNS)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(_COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).flatten().tolist()
        for panel, place in zip(panels, axes, strict=False):
            _draw_panel(place, [curve for curve in curves if curve.panel == panel])
        for place in axes[len(panels) :]:
            place.set_axis_off()
        figure.supxlabel(caption, fontsize=7, color="#555555")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve, colour in zip(curves, _COLOURS, strict=False):
        label = f"{curve.name}: slope {curve.slope:.2f}, last decade {curve.last_slope:.2f}"
        axes.plot(curve.x, curve.y, "o-", color=colour, markersize=3, linewidth=1.2, label=label)
        least = [min(values) for values in curve.rounds]
        most = [max(values) for values in curve.rounds]
        axes.fill_between(curve.x, least, most, color=colour, alpha=0.15, linewidth=0)
        fixed, per_unit = curve.line
        axes.plot(curve.x, [fixed + per_unit * x for x in curve.x], ":", color=colour, linewidth=0.8)
        for knee in curve.knees:
            at = curve.y[list(curve.x).index(knee.x)]
            axes.plot([knee.x], [at], "o", color=colour, markersize=9, fillstyle="none")
        if curve.bound is not None:
            axes.axhline(curve.bound, color="#888888", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", yscale="log", title=curves[0].panel, xlabel=curves[0].work, ylabel=curves[0].cost)
    axes.set_ylim(*_limits(curves))
    axes.minorticks_off()
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.5)
    axes.legend(loc="upper left", frameon=False, labelcolor="linecolor", handlelength=1)


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return whole decades around all costs, with room for the labels above."""
    values = [value for curve in curves for value in (*curve.y, *([curve.bound] if curve.bound else []))]
    bottom, top = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**bottom, 10.0 ** (top + max(1, (top - bottom) // 3))
