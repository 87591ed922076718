"""How a report draws: one look for each arm, and SVG that takes its colours and fonts from the page."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from ngram_spec.bench.records import Arm

# Colours are drawn as numbers that nothing else uses and become variables of the page's style, which has a
# light and a dark value for each.
_VARIABLES = {
    "#00f100": "ink",
    "#00f101": "soft",
    "#00f102": "line",
    "#00f103": "surface",
    "#00f104": "plain",
}
NUM_COLOURS = 6
_VARIABLES |= {f"#00f2{number:02x}": f"arm-{number}" for number in range(NUM_COLOURS)}
_COLOURS = {variable: colour for colour, variable in _VARIABLES.items()}
INK, SOFT, LINE, SURFACE, PLAIN = (_COLOURS[name] for name in ("ink", "soft", "line", "surface", "plain"))
MARKERS = "osD^vP"
DASHES = ("-", (0, (5, 2)), (0, (2, 1.5)))


@dataclass(frozen=True)
class Look:
    """How an arm is drawn, everywhere: told apart by colour, and by marker where colours are not seen."""

    colour: str
    marker: str
    dash: Any


def looks(arms: Sequence[Arm]) -> dict[str, Look]:
    """Return the look of each arm: grey without drafts, a colour with them."""
    found = {}
    plain = speculative = 0
    for arm in arms:
        if arm.is_speculative:
            turn, place = divmod(speculative, NUM_COLOURS)
            found[arm.name] = Look(_COLOURS[f"arm-{place}"], MARKERS[(place + turn) % 6], DASHES[turn % 3])
            speculative += 1
        else:
            found[arm.name] = Look(PLAIN, "X" if plain else "|", DASHES[plain % 3])
            plain += 1
    return found


def legend_mark(look: Look, name: str) -> Markup:
    """Return the few pixels that stand in front of an arm's name, as a symbol to be used under that id."""
    figure = Figure(figsize=(26 / 72, 12 / 72), facecolor="none")
    panel = figure.add_axes((0, 0, 1, 1))
    panel.axis("off")
    panel.set_xlim(0, 2)
    panel.plot([0.1, 1, 1.9], [0, 0, 0], color=look.colour, linestyle=look.dash, linewidth=2)
    panel.plot([1], [0], **mark(look))
    box, drawn = _drawn(figure, salt=name)
    return Markup(f'<symbol id="{escape(name)}" {box}>{drawn.replace("</svg>", "</symbol>")}')


def mark(look: Look) -> dict[str, Any]:
    """Return how to plot the arm's points."""
    return {
        "linestyle": "none",
        "marker": look.marker,
        "markersize": 6.5,
        "color": look.colour,
        "markeredgecolor": look.colour if look.marker == "|" else SURFACE,
        "markeredgewidth": 2 if look.marker == "|" else 0.8,
        "zorder": 4,
        "clip_on": False,
    }


def as_svg(figure: Figure, description: str) -> Markup:
    """Return the figure as an SVG element that takes its colours from the page."""
    box, drawn = _drawn(figure, salt=description)
    return Markup(f'<svg {box} role="img" aria-label="{escape(description)}">{drawn}')


def _drawn(figure: Figure, salt: str) -> tuple[str, str]:
    """Return the figure's view box, and what stands behind the opening tag of its SVG."""
    file = io.StringIO()
    # Ids are hashes with this salt: two pictures on one page must not share them.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    drawn = file.getvalue()
    box = re.search(r'viewBox="[^"]*"', drawn)
    assert box is not None
    drawn = drawn[drawn.index(">", box.end()) + 1 :]
    # The style would hold for the whole page, and groups are numbered alike in every picture.
    drawn = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)
    drawn = re.sub(r" font-family: [^;\"]*;?", "", drawn)
    drawn = re.sub(r"#00f[12][0-9a-f]{2}", lambda match: f"var(--{_VARIABLES[match[0]]})", drawn)
    return box[0], drawn
