"""From the verdicts on one workload to what to serve it with, and up to which concurrency."""

import math
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise

from ngram_spec.bench.checks import SAME_OUTPUTS
from ngram_spec.bench.records import OFF, Arm, Settings
from ngram_spec.bench.summary import Cell, Measures, Recommendation
from ngram_spec.bench.verdict import percent

NOTHING_SHOWN = "no measurable difference"


def recommend(settings: Settings, workload: str, cells: Sequence[Cell]) -> Recommendation:
    """Return what to do for one workload, from its cells: one for each arm at each concurrency."""
    cells = sorted(cells, key=lambda cell: cell.concurrency)
    by_arm = {arm.name: [cell for cell in cells if cell.arm == arm.name] for arm in _speculative(settings)}
    by_arm = {name: its_cells for name, its_cells in by_arm.items() if its_cells}
    if not by_arm:
        reasons = ["No speculative arm was measured.", _needed(settings)]
        return _without_arm(workload, "not measured", reasons, has_verdict=False)
    has_goal = settings.goal is not None
    best = max(by_arm, key=lambda name: _rank(by_arm[name], has_goal))
    ours = by_arm.pop(best)
    headline, break_even = _headline(ours, has_goal)
    reasons = [f"{best} at concurrency {cell.concurrency}: {cell.verdict}. {cell.reason}" for cell in ours]
    is_on = _is_usable(ours) and any(cell.verdict == "on" for cell in ours)
    if not is_on:
        reasons += [_in_short(name, theirs) for name, theirs in by_arm.items()]
        has_verdict = _is_usable(ours) and bool(_points(ours))
        if not has_verdict:
            reasons.append(_needed(settings))
        elif headline == NOTHING_SHOWN:
            reasons.append("More prompts, and more starts (--rounds, --budget), make the intervals narrower.")
        return _without_arm(workload, headline, reasons, has_verdict=has_verdict)
    if break_even is not None:
        reasons.append(_break_even_sentence(ours, break_even))
    reasons += [_compared(best, ours, name, theirs) for name, theirs in by_arm.items()]
    arm = next(arm for arm in settings.arms if arm.name == best)
    if arm.environment:
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in arm.environment.items())
        reasons.append(f"{best} was measured with these environment variables: {variables}.")
    offs = [cell for cell in cells if cell.arm == OFF]
    return Recommendation(
        workload=workload,
        arm=best,
        has_verdict=True,
        headline=headline,
        reasons=tuple(reasons),
        break_even_concurrency=break_even,
        extra_process_bytes=peak_difference(ours, offs, lambda measures: measures.process_bytes),
        extra_gpu_bytes=peak_difference(ours, offs, lambda measures: measures.gpu_bytes),
        flags=shlex.join(arm.flags),
    )


def break_even_concurrency(points: Sequence[tuple[int, float]]) -> float | None:
    """Return where the speed-up first goes through 1, between two of the measured (concurrency, speed-up).

    Straight between them on logarithmic scales of both.

    >>> round(break_even_concurrency([(1, 1.25), (64, 0.92)]), 1)
    20.6
    """
    for (left, left_ratio), (right, right_ratio) in pairwise(points):
        if (left_ratio > 1) != (right_ratio > 1):
            share = math.log(left_ratio) / (math.log(left_ratio) - math.log(right_ratio))
            return math.exp(math.log(left) + share * (math.log(right) - math.log(left)))
    return None


def _speculative(settings: Settings) -> list[Arm]:
    return [arm for arm in settings.arms if arm.is_speculative]


def _needed(settings: Settings) -> str:
    """Return what would give a verdict."""
    if settings.urls is not None and len(settings.urls) < 2:
        return (
            f"One server alone has nothing to be compared with: give --url {OFF}=URL, which drafts nothing, "
            "and --url NAME=URL, which does."
        )
    return (
        f"A verdict needs arm {OFF} and a speculative arm, measured in the same round, with every check "
        "passed."
    )


def _without_arm(
    workload: str, headline: str, reasons: Sequence[str], *, has_verdict: bool
) -> Recommendation:
    return Recommendation(
        workload=workload,
        arm=None,
        has_verdict=has_verdict,
        headline=headline,
        reasons=tuple(reasons),
        break_even_concurrency=None,
        extra_process_bytes=None,
        extra_gpu_bytes=None,
        flags="",
    )


def _is_usable(cells: Sequence[Cell]) -> bool:
    """An arm that gives wrong answers at one concurrency is not to be trusted at another."""
    return all(check.is_passed for cell in cells for check in cell.checks if check.name == SAME_OUTPUTS)


def _rank(cells: Sequence[Cell], has_goal: bool) -> tuple[bool, int, float]:
    """Usable before others, on before not on, then by the mean speed-up over all concurrencies.

    With a goal, an arm that is on at more concurrencies comes first: it reaches the goal there.
    """
    num_on = sum(cell.verdict == "on" for cell in cells)
    logs = [math.log(ratio) for _, ratio in _points(cells)]
    mean_log = sum(logs) / len(logs) if logs else -math.inf
    return _is_usable(cells), num_on if has_goal else min(num_on, 1), mean_log


def _points(cells: Sequence[Cell]) -> list[tuple[int, float]]:
    """Return concurrency and speed-up where both are valid."""
    return [
        (cell.concurrency, cell.speedup.estimate)
        for cell in cells
        if cell.verdict != "invalid" and cell.speedup is not None
    ]


def _headline(cells: Sequence[Cell], has_goal: bool) -> tuple[str, float | None]:
    """Return where one arm is on, in words, and the concurrency from or up to which it is.

    The words go no further than to the nearest load that was measured and is not on.
    """
    words = {cell.verdict for cell in cells}
    on = [cell.concurrency for cell in cells if cell.verdict == "on"]
    if not _is_usable(cells) or words == {"invalid"}:
        return "invalid", None
    if not _points(cells):
        return "not compared", None
    if not on:
        return "off" if "off" in words else NOTHING_SHOWN, None
    if words == {"on"}:
        return "on", None
    all_of_them = [cell.concurrency for cell in cells]
    # A goal may be met without more throughput, so its end is not where the speed-up is 1.
    points = [] if has_goal else _points(cells)
    if on == all_of_them[: len(on)]:
        break_even = break_even_concurrency([point for point in points if point[0] >= on[-1]])
        if break_even is None or _rounded(break_even) >= all_of_them[len(on)]:
            return f"on up to concurrency {on[-1]}", break_even
        return f"on up to about concurrency {max(on[-1], _rounded(break_even))}", break_even
    if on == all_of_them[-len(on) :]:
        break_even = break_even_concurrency([point for point in points if point[0] <= on[0]])
        if break_even is None or _rounded(break_even) <= all_of_them[-len(on) - 1]:
            return f"on from concurrency {on[0]}", break_even
        return f"on from about concurrency {min(on[0], _rounded(break_even))}", break_even
    return f"on at concurrency {_listed(on)}", None


def _rounded(concurrency: float) -> int:
    """Two digits are all that an interpolation is good for."""
    return round(float(f"{concurrency:.2g}"))


def _listed(concurrencies: Sequence[int]) -> str:
    return " and ".join(filter(None, (", ".join(map(str, concurrencies[:-1])), str(concurrencies[-1]))))


def _break_even_sentence(cells: Sequence[Cell], break_even: float) -> str:
    measured = [concurrency for concurrency, _ in _points(cells)]
    below = max(concurrency for concurrency in measured if concurrency <= break_even)
    above = min(concurrency for concurrency in measured if concurrency >= break_even)
    return (
        f"The speed-up goes through 1 at a concurrency of about {_rounded(break_even)}, interpolated between "
        f"{below} and {above}."
    )


def _in_short(name: str, cells: Sequence[Cell]) -> str:
    words = [
        f"{cell.verdict} at {cell.concurrency}"
        + (f" ({percent(cell.speedup.estimate)})" if cell.speedup and cell.verdict != "invalid" else "")
        for cell in cells
    ]
    return f"{name}: {', '.join(words)}."


def _compared(best: str, ours: Sequence[Cell], name: str, theirs: Sequence[Cell]) -> str:
    """Return how another arm did beside the best one: a tie where their intervals overlap."""
    if not _is_usable(theirs):
        return f"{_in_short(name, theirs)} It gave wrong answers, so it is recommended nowhere."
    tied, better = [], []
    by_concurrency = {cell.concurrency: cell for cell in theirs if cell.verdict != "invalid"}
    for cell in ours:
        other = by_concurrency.get(cell.concurrency)
        if other is not None and other.speedup and cell.speedup and cell.verdict != "invalid":
            if other.speedup.low > cell.speedup.high:
                better.append(cell.concurrency)
            elif other.speedup.high >= cell.speedup.low:
                tied.append(cell.concurrency)
    sentence = _in_short(name, theirs)
    if tied:
        sentence += f" It cannot be told from {best} at {_listed(tied)}, where their intervals overlap."
    if better:
        sentence += f" It is faster than {best} at {_listed(better)}."
    return sentence


def peak_difference(
    ours: Sequence[Cell], theirs: Sequence[Cell], of: Callable[[Measures], int | None]
) -> int | None:
    """Return by how much our peak is above theirs; None where one of them is not known."""
    our_peak = max(_known(ours, of), default=None)
    their_peak = max(_known(theirs, of), default=None)
    return None if our_peak is None or their_peak is None else our_peak - their_peak


def _known(cells: Sequence[Cell], of: Callable[[Measures], int | None]) -> list[int]:
    return [value for cell in cells if (value := of(cell.measures)) is not None]
