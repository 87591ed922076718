"""The pictures of a report, each with what it shows in words."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from ngram_spec.bench.drawing import INK, LINE, SOFT, SURFACE, Look, as_svg, looks, mark
from ngram_spec.bench.figures import bounds, load, number, ratio, share
from ngram_spec.bench.records import OFF
from ngram_spec.bench.summary import Cell, Histogram, Percentiles, Summary

# In points, which the page scales to the width that it has: on a phone to a little less than one pixel each.
WIDTH, HEIGHT = 360, 230
HILLS_HEIGHT, STRIP_HEIGHT, AXIS_HEIGHT = 150, 13, 40
FONT_SIZE = 12


@dataclass(frozen=True)
class Chart:
    """One picture: its title, what it shows in words, and the arms of its legend, with a remark or ''."""

    title: str
    description: str
    arms: dict[str, str]
    svg: Markup


def speedup_chart(summary: Summary, workload: str) -> Chart | None:
    """Return the speed-up against concurrency with its intervals; None where no arm has one."""
    cells = [cell for cell in summary.cells if cell.workload == workload and cell.arm != OFF]
    valid = [cell for cell in cells if cell.speedup is not None and cell.verdict != "invalid"]
    invalid = [cell for cell in cells if cell.verdict == "invalid"]
    if not valid:
        return None
    styles = looks(summary.settings.arms)
    arms = tuple(name for name in styles if any(cell.arm == name for cell in cells))
    concurrencies = sorted({cell.concurrency for cell in cells})
    place = _places(concurrencies, arms)
    figure, panel = _new_figure()

    # An interval that tells nothing, a hundred times as wide, would press all else into a line.
    limit = 2 * max(1.0, *(cell.speedup.estimate for cell in valid if cell.speedup))
    ends = [1.0, *(end for cell in valid if cell.speedup for end in (cell.speedup.low, cell.speedup.high))]
    ends = [min(end, limit) for end in ends]
    margin = max(0.14 * (max(ends) - min(ends)), 0.04)
    panel.set_ylim(min(ends) - margin, max(ends) + margin)
    panel.axhline(1, color=SOFT, linewidth=1.2, zorder=1)
    panel.annotate(OFF, (1, 1), (4, 0), xycoords=("axes fraction", "data"), **_NOTE, va="center")
    sentences = []
    for arm in arms:
        look = styles[arm]
        own = sorted((cell for cell in valid if cell.arm == arm), key=lambda cell: cell.concurrency)
        x = [place(cell) for cell in own]
        intervals = [cell.speedup for cell in own if cell.speedup is not None]
        y = [one.estimate for one in intervals]
        panel.vlines(
            x,
            [one.low for one in intervals],
            [one.high for one in intervals],
            color=look.colour,
            linewidth=1.6,
        )
        panel.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=1.6, zorder=3)
        panel.plot(x, y, **mark(look))
        if own:
            told = (f"{ratio(c.speedup)} ({bounds(c.speedup)}) at {c.concurrency}" for c in own)
            sentences.append(f"{arm}: {', '.join(told)}.")
    for cell in invalid:
        panel.annotate(
            "×",
            (place(cell), 0),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=14,
            color=styles[cell.arm].colour,
        )
        sentences.append(f"{cell.arm} at {cell.concurrency} is invalid.")
    # Numbers at more loads would stand on each other.
    for concurrency in concurrencies[:: 1 + len(concurrencies) // 7]:
        _name_best(panel, [cell for cell in valid if cell.concurrency == concurrency], place)
    sentences += _mark_break_even(panel, summary, workload, concurrencies)

    panel.set_xscale("log")
    panel.set_xlim(concurrencies[0] / 1.45, concurrencies[-1] * 1.45)
    panel.set_xticks(concurrencies, [str(concurrency) for concurrency in concurrencies])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("requests at once", fontsize=FONT_SIZE, color=SOFT)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    title = _title(summary, f"Speed-up over off, {workload}")
    return _chart(figure, title, sentences, dict.fromkeys(arms, ""))


def latency_chart(summary: Summary, workload: str, concurrency: int) -> Chart | None:
    """Return the distribution of the time per output token, above its percentiles and those of the chunk gap.

    None where no arm's stream was timed.
    """
    timed = [
        (cell, cell.measures.itl_ms, cell.measures.itl_histogram)
        for cell in summary.cells
        if (cell.workload, cell.concurrency) == (workload, concurrency)
    ]
    drawn = [(cell, itl, bars) for cell, itl, bars in timed if itl and bars and sum(bars.counts)]
    if not drawn:
        return None
    styles = looks(summary.settings.arms)
    strip_height = STRIP_HEIGHT * len(drawn) + 8
    height = HILLS_HEIGHT + strip_height + AXIS_HEIGHT
    figure = Figure(figsize=(WIDTH / 72, height / 72), facecolor="none")
    above = _panel(figure, (14, AXIS_HEIGHT + strip_height, 14, 4))
    strip = _panel(figure, (14, AXIS_HEIGHT, 14, HILLS_HEIGHT))
    sentences = []
    ends: list[float] = []
    for row, (cell, itl, bars) in enumerate(drawn):
        look = styles[cell.arm]
        heights = _density(bars)
        above.stairs(heights, bars.edges, fill=True, color=look.colour, alpha=0.5 / len(drawn), linewidth=0)
        above.stairs(heights, bars.edges, color=look.colour, linewidth=1.6, linestyle=look.dash)
        gap = cell.measures.chunk_gap_ms
        ends += _bulk(bars)
        ends += _draw_range(strip, row, itl, look, bars.edges[0], is_filled=True)
        sentence = f"{cell.arm}: time per token p50 {number(itl.p50)} ms, p95 {number(itl.p95)} ms"
        if gap is not None:
            ends += _draw_range(strip, row + 0.42, gap, look, bars.edges[0], is_filled=False)
            sentence += f"; chunk gap p50 {number(gap.p50)} ms, p95 {number(gap.p95)} ms"
        sentences.append(f"{sentence}.")
    # So wide that at least one of 1, 2 and 5 is on the axis.
    margin = max(1.15, math.sqrt(4 * min(ends) / max(ends)))
    is_wide = max(ends) / min(ends) > 60
    for panel in (above, strip):
        panel.set_yticks([])
        panel.set_xscale("log")
        panel.set_xlim(min(ends) / margin, max(ends) * margin)
        panel.xaxis.set_major_locator(LogLocator(subs=(1,) if is_wide else (1, 2, 5)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.grid(axis="x", color=LINE, linewidth=0.8)
    above.set_ylim(bottom=0)
    above.tick_params(axis="x", length=0, labelbottom=False)
    strip.set_ylim(len(drawn) - 0.1, -0.5)
    strip.set_xlabel("milliseconds", fontsize=FONT_SIZE, color=SOFT)
    title = _title(summary, f"Time per output token, {workload}, {concurrency} at once")
    return _chart(figure, title, sentences, _remarks(cell for cell, _, _ in drawn))


def acceptance_chart(summary: Summary, workload: str) -> Chart | None:
    """Return the share of drafts accepted up to each position, at the lowest concurrency; None if unknown."""
    cells = [cell for cell in summary.cells if cell.workload == workload]
    lowest = min((cell.concurrency for cell in cells), default=0)
    drawn = [
        (cell, cell.measures.drafting.accepted_by_position)
        for cell in cells
        if cell.concurrency == lowest
        and cell.measures.drafting is not None
        and cell.measures.drafting.accepted_by_position
    ]
    if not drawn:
        return None
    styles = looks(summary.settings.arms)
    figure, panel = _new_figure()
    sentences = []
    for cell, shares in drawn:
        look = styles[cell.arm]
        positions = range(1, len(shares) + 1)
        panel.plot(positions, shares, color=look.colour, linestyle=look.dash, linewidth=1.6, zorder=3)
        # With many positions a mark at each would hide the line.
        panel.plot(positions, shares, **mark(look), markevery=max(1, len(shares) // 8))
        told = ", ".join(share(part) for part in shares)
        sentences.append(f"{cell.arm}, from position 1 on: {told}.")
    panel.set_ylim(0, 1)
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    panel.set_xlim(0.5, max(len(shares) for _, shares in drawn) + 0.5)
    panel.set_xlabel("position in the draft", fontsize=FONT_SIZE, color=SOFT)
    title = _title(summary, f"Drafts accepted up to each position, {workload}, {lowest} at once")
    return _chart(figure, title, sentences, _remarks(cell for cell, _ in drawn))


_NOTE: dict[str, Any] = {"textcoords": "offset points", "fontsize": FONT_SIZE, "color": SOFT}


def _title(summary: Summary, title: str) -> str:
    return f"Modelled: {title[0].lower()}{title[1:]}" if summary.is_modelled else title


def _new_figure() -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), facecolor="none")
    # Room for what stands at the left of the axis, below it, at its right ("off") and above it (break-even).
    panel = _panel(figure, (42, AXIS_HEIGHT, 24, 20))
    panel.grid(axis="y", color=LINE, linewidth=0.8)
    return figure, panel


def _panel(figure: Figure, margins: tuple[float, float, float, float]) -> Any:
    """Return axes with so many points around them, at the left, below, at the right and above."""
    left, below, right, above = margins
    width, height = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    box = (left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height)
    panel = figure.add_axes(box, facecolor="none", axisbelow=True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(LINE)
    panel.tick_params(labelsize=FONT_SIZE, color=LINE, labelcolor=SOFT, length=3)
    panel.tick_params(axis="y", length=0)
    return panel


def _places(concurrencies: Sequence[int], arms: Sequence[str]) -> Callable[[Cell], float]:
    """Return where a cell stands: at its concurrency, moved a little so that no interval covers another."""
    neighbours = itertools.pairwise(concurrencies)
    narrowest = min((math.log(high / low) for low, high in neighbours), default=1.0)
    step = min(0.4 * narrowest, 0.3) / len(arms)

    def place(cell: Cell) -> float:
        return cell.concurrency * math.exp(step * (arms.index(cell.arm) - (len(arms) - 1) / 2))

    return place


def _name_best(panel: Any, cells: Sequence[Cell], place: Callable[[Cell], float]) -> None:
    """Write the highest speed-up beside its mark, where it is one."""
    gains = [(cell.speedup.estimate, place(cell)) for cell in cells if cell.speedup]
    estimate, x = max(gains, default=(0.0, 0.0))
    if estimate > 1:
        panel.annotate(f"{estimate:.2f}", (x, estimate), (4, 4), **_NOTE | {"color": INK})


def _mark_break_even(panel: Any, summary: Summary, workload: str, concurrencies: Sequence[int]) -> list[str]:
    sentences = []
    for recommendation in summary.recommendations:
        at = recommendation.break_even_concurrency
        if recommendation.workload == workload and at is not None:
            sentences.append(f"{recommendation.arm} breaks even at about {load(at)} requests at once.")
            if concurrencies[0] <= at <= concurrencies[-1]:
                panel.axvline(at, color=SOFT, linewidth=1.2, linestyle=(0, (1.5, 2)), zorder=1)
                is_right = at > math.sqrt(concurrencies[0] * concurrencies[-1])
                panel.annotate(
                    f"breaks even at about {load(at)}",
                    (at, 1),
                    (6 if is_right else -6, 4),
                    xycoords=("data", "axes fraction"),
                    **_NOTE,
                    ha="right" if is_right else "left",
                )
    return sentences


def _density(bars: Histogram) -> list[float]:
    """Return the share of tokens per step of the logarithmic axis, so that arms with other edges compare."""
    total = sum(bars.counts)
    widths = (math.log(high / low) for low, high in itertools.pairwise(bars.edges))
    return [count / total / width for count, width in zip(bars.counts, widths, strict=True)]


def _bulk(bars: Histogram) -> tuple[float, float]:
    """Return between which edges all but a few of the tokens are."""
    seen, total = 0, sum(bars.counts)
    inside = []
    for place, count in enumerate(bars.counts):
        if seen + count > 0.002 * total and seen < 0.998 * total:
            inside.append(place)
        seen += count
    return bars.edges[inside[0]], bars.edges[inside[-1] + 1]


def _draw_range(
    panel: Any, row: float, percentiles: Percentiles, look: Look, shortest: float, *, is_filled: bool
) -> tuple[float, float]:
    """Draw the range from p50 to p95, with a mark at p50: filled and thick, or hollow and thin.

    Returns both as drawn: 0 ms, of tokens that came together, has no place on a logarithmic axis.
    """
    ends = max(percentiles.p50, shortest), max(percentiles.p95, shortest)
    panel.plot(
        ends,
        (row, row),
        color=look.colour,
        linewidth=2.4 if is_filled else 0.9,
        solid_capstyle="butt",
    )
    style = mark(look) | {"markersize": 6 if is_filled else 4.5}
    if not is_filled:
        style |= {"markerfacecolor": SURFACE, "markeredgecolor": look.colour, "markeredgewidth": 1}
    panel.plot(ends[:1], [row], **style)
    return ends


def _remarks(cells: Iterable[Cell]) -> dict[str, str]:
    return {cell.arm: "invalid" if cell.verdict == "invalid" else "" for cell in cells}


def _chart(figure: Figure, title: str, sentences: Sequence[str], arms: dict[str, str]) -> Chart:
    description = " ".join((f"{title}.", *sentences))
    return Chart(title, description, arms, as_svg(figure, description))
