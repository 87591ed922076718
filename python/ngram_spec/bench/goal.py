"""What a user wants a server to reach, such as `tpot_p95=30ms` or `throughput=500`, and whether it does."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.intervals import (
    Rate,
    latency,
    ratio_interval,
    throughput,
    time_per_token,
    time_to_first_token,
)
from ngram_spec.bench.measures import measure
from ngram_spec.bench.records import Block
from ngram_spec.bench.summary import Measures

LATENCIES = ("ttft", "tpot", "itl", "latency")
RATES: dict[str, Rate] = {
    "ttft": time_to_first_token,
    "tpot": time_per_token,
    "itl": time_per_token,
    "latency": latency,
    "throughput": throughput,
}
STATISTICS = ("mean", "p50", "p95", "p99")
MS_PER_UNIT = {"ms": 1.0, "s": 1000.0}

_LATENCY = re.compile(rf"({'|'.join(LATENCIES)})_({'|'.join(STATISTICS)})=([0-9]+(?:\.[0-9]+)?)(ms|s)")
_THROUGHPUT = re.compile(r"throughput=([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class Goal:
    """A latency of at most `limit` milliseconds, or a throughput of at least `limit` tokens per second."""

    text: str
    metric: str
    # None for throughput.
    statistic: str | None
    limit: float

    def value(self, measures: Measures) -> float | None:
        """Return what was measured of the goal's metric; None where nothing was."""
        if self.statistic is None:
            return measures.throughput
        percentiles = getattr(measures, f"{self.metric}_ms")
        return None if percentiles is None else float(getattr(percentiles, self.statistic))

    def is_better(self, pairs: Sequence[tuple[Block, Block]]) -> bool:
        """Return whether the first blocks beat the second ones in the mean of the metric, beyond luck."""
        ratio = ratio_interval(pairs, RATES[self.metric])
        if ratio is None:
            return False
        return ratio.low > 1 if self.statistic is None else ratio.high < 1

    def shown(self, measures: Measures) -> str:
        """Return the value with its unit."""
        value = self.value(measures)
        if value is None:
            return "not measured"
        return f"{value:.1f} tokens/s" if self.statistic is None else f"{value:.1f} ms"

    def is_met(self, measures: Measures) -> bool:
        """Return whether the goal is met; what could not be measured does not meet it."""
        value = self.value(measures)
        if value is None:
            return False
        return value >= self.limit if self.statistic is None else value <= self.limit


def parse_goal(text: str) -> Goal:
    """Return the goal that a text names.

    >>> parse_goal("tpot_p95=30ms").limit, parse_goal("ttft_p99=0.5s").limit
    (30.0, 500.0)

    Raises:
        NgramSpecError: it names none.
    """
    compact = "".join(text.split()).lower()
    if match := _LATENCY.fullmatch(compact):
        metric, statistic, value, unit = match.groups()
        return Goal(compact, metric, statistic, float(value) * MS_PER_UNIT[unit])
    if match := _THROUGHPUT.fullmatch(compact):
        return Goal(compact, "throughput", None, float(match[1]))
    raise NgramSpecError(
        f"a goal must be {'|'.join(LATENCIES)}, then _{'|_'.join(STATISTICS)}, '=' and a time in ms or s, "
        f"or throughput=TOKENS_PER_SECOND, got {text!r}; write for example tpot_p95=30ms"
    )


@dataclass(frozen=True, slots=True)
class GoalOutcome:
    """In how many rounds an arm met the goal, and what it reached over all of them."""

    goal: Goal
    num_met: int
    num_rounds: int
    shown: str

    @property
    def is_met(self) -> bool:
        """Whether it was met in every round: once out of two is luck as well."""
        return self.num_met == self.num_rounds


def goal_outcome(goal: Goal, blocks: Sequence[Block]) -> GoalOutcome:
    """Return how the blocks of one arm, workload and concurrency do, round by round."""
    rounds = sorted({block.round for block in blocks})
    met = [goal.is_met(measure([block for block in blocks if block.round == number])) for number in rounds]
    return GoalOutcome(goal, sum(met), len(rounds), goal.shown(measure(blocks)))
