"""The picture of a replay: modelled speed-up against cost, one panel for each recording."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ngram_spec._core import NgramSpecError
from ngram_spec.results import BASELINE, DRAFTER, DrafterResult

PLOTTED_DRAFT_COSTS: tuple[float, ...] = (0.003, 0.006, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# All of two lines, since matplotlib centres them.
TICKS = {0.003: "0.003\n", 0.01: "0.01\nidle", 0.05: "0.05\nmoderate", 0.2: "0.2\nbusy", 0.5: "0.5\n"}
SUFFIXES = (".png", ".svg")

# In inches.
PANEL_WIDTH, PANEL_HEIGHT, MARGIN_HEIGHT = 3.4, 2.6, 1.1
MAX_COLUMNS = 3

# Blue and vermilion of the Okabe-Ito palette: told apart with any colour vision, in grey by marker and dash.
STYLES: dict[str, dict[str, Any]] = {
    DRAFTER: {"color": "#0072B2", "marker": "o", "linewidth": 2, "zorder": 3},
    BASELINE: {"color": "#D55E00", "marker": "s", "linewidth": 1.5, "linestyle": "--", "zorder": 2},
}
GREY, PALE_GREY = "#555555", "#e5e5e5"


def check_plottable(path: Path) -> None:
    """Raise unless OUT names a picture that can be drawn here.

    Raises:
        NgramSpecError: the suffix is of no format that is written, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise NgramSpecError(f"{path}: a plot must be a .png or .svg, got the suffix {path.suffix!r}")
    _figure_module()


def write_plot(path: Path, results: Sequence[DrafterResult], caption: str) -> None:
    """Draw the modelled speed-up of each drafter on each recording at `PLOTTED_DRAFT_COSTS`.

    Raises:
        NgramSpecError: matplotlib is not installed, or the file cannot be written.
    """
    files = list(dict.fromkeys(result.file for result in results))
    # Four panels make a square rather than a row and one left over.
    num_columns = 2 if len(files) == 4 else min(len(files), MAX_COLUMNS)
    num_rows = -(-len(files) // num_columns)
    size = (max(2, num_columns) * PANEL_WIDTH, num_rows * PANEL_HEIGHT + MARGIN_HEIGHT)
    figure = _figure_module().Figure(figsize=size, facecolor="white", layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    for panel, file in zip(panels, files, strict=False):
        _draw(panel, file, [result for result in results if result.file == file])
    for panel in panels[len(files) :]:
        panel.set_axis_off()
    figure.suptitle("Modelled speed-up over decoding without drafts", fontsize=11)
    figure.supxlabel(f"cost of one more verified token, in target steps\n{caption}", fontsize=8.5)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot write the plot: {error.strerror}") from error


def _draw(panel: Any, file: str, results: Sequence[DrafterResult]) -> None:
    """Draw one recording: a curve for each drafter, and the line of decoding without drafts."""
    curves = {
        result.drafter: [result.modelled_speedup(cost) for cost in PLOTTED_DRAFT_COSTS] for result in results
    }
    top = 1.15 * max(1.0, *(max(speedups) for speedups in curves.values()))
    panel.set_ylim(0, top)
    panel.axhline(1.0, color=GREY, linewidth=1, zorder=1)
    edge = {"xycoords": ("axes fraction", "data"), "va": "center"}
    _label(panel, "off", (1, 1.0), (3, 0), color=GREY, **edge)
    start_above = math.inf
    # From the top down: curves fall to the right, so a label above a curve does not touch it, but it would
    # touch another curve that starts just above.
    for drafter, speedups in sorted(curves.items(), key=lambda curve: -curve[1][0]):
        style = STYLES[drafter]
        panel.plot(PLOTTED_DRAFT_COSTS, speedups, markersize=4, **style)
        crowded = start_above - speedups[0] < 0.15 * top
        start = (PLOTTED_DRAFT_COSTS[0], speedups[0])
        _label(panel, drafter, start, (-3, -18 if crowded else 5), color=style["color"])
        start_above = speedups[0]
    panel.set_title(file, fontsize=9.5, loc="left")
    panel.set_xscale("log")
    panel.set_xticks(list(TICKS), list(TICKS.values()))
    panel.set_xticks([], minor=True)
    panel.grid(axis="y", color=PALE_GREY, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8, color=GREY)
    panel.spines[["top", "right"]].set_visible(False)


def _label(
    panel: Any, text: str, point: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    panel.annotate(text, point, offset, textcoords="offset points", fontsize=8, **style)


def _figure_module() -> ModuleType:
    try:
        import matplotlib.figure
    except ImportError as error:
        raise NgramSpecError(
            "a plot needs the package matplotlib, which is not installed: pip install 'ngram-spec[plot]'"
        ) from error
    module: ModuleType = matplotlib.figure
    return module
