"""Intervals by hand, and how often they hold the truth in simulations."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_runs import SPEC, answer, block
from ngram_spec.bench.intervals import pairs_of, ratio_interval, throughput, time_per_token
from ngram_spec.bench.records import OFF, Block
from ngram_spec.bench.summary import Interval

NUM_TOKENS = 100
SIX_SECONDS = st.lists(st.floats(0.1, 10), min_size=6, max_size=6)


def blocks_of(arm: str, seconds: npt.NDArray[np.float64]) -> list[Block]:
    """One block for each (round, group) of an array of seconds."""
    return [
        block(
            [answer(chunks=[(0.0, NUM_TOKENS)])],
            arm=arm,
            round=int(round_),
            group=int(group),
            seconds=float(its_seconds),
        )
        for (round_, group), its_seconds in np.ndenumerate(seconds)
    ]


def interval_of(log_ratios: npt.NDArray[np.float64]) -> Interval:
    """The interval of blocks whose speed-ups are given, by round and group."""
    ours, theirs = blocks_of(SPEC, np.exp(-log_ratios)), blocks_of(OFF, np.ones_like(log_ratios))
    interval = ratio_interval(pairs_of(ours, theirs), throughput)
    assert interval is not None
    return interval


def test_the_estimate_is_the_ratio_of_tokens_over_seconds_of_all_pairs() -> None:
    ours = blocks_of(SPEC, np.array([[1.0, 3.0], [2.0, 2.0]]))
    theirs = blocks_of(OFF, np.array([[2.0, 4.0], [3.0, 3.0]]))
    interval = ratio_interval(pairs_of(ours, theirs), throughput)
    assert interval is not None
    assert interval.estimate == pytest.approx(12 / 8)
    assert (interval.num_pairs, interval.num_rounds) == (4, 2)


def test_two_rounds_with_one_group_have_the_interval_of_student_with_one_degree_of_freedom() -> None:
    # The logs are 0.1 and 0.3, so their mean has the standard error 0.1. The ratio of sums is not quite the
    # mean of logs.
    interval = interval_of(np.array([[0.1], [0.3]]))
    assert math.log(interval.high / interval.estimate) == pytest.approx(12.706 * 0.1, rel=0.05)
    assert math.log(interval.estimate / interval.low) == pytest.approx(12.706 * 0.1, rel=0.05)


def test_groups_that_differ_alike_in_both_rounds_are_a_doubt_about_the_prompts_and_not_of_starts() -> None:
    logs = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    interval = interval_of(np.stack([logs, logs]))
    # Five degrees of freedom; a bootstrap of nested blocks would take it for 12 values and find less doubt.
    expected = 2.571 * logs.std(ddof=1) / math.sqrt(6)
    assert math.log(interval.high / interval.estimate) == pytest.approx(expected, rel=0.1)


def test_one_start_shows_no_doubt_of_starts_and_says_so() -> None:
    interval = interval_of(np.array([[0.1, 0.2, 0.15]]))
    assert interval.num_rounds == 1
    assert interval.low < interval.estimate < interval.high


def test_one_pair_shows_no_doubt_at_all() -> None:
    interval = interval_of(np.array([[0.1]]))
    assert interval.low == interval.estimate == interval.high == pytest.approx(math.exp(0.1))


@settings(max_examples=20, deadline=None)
@given(SIX_SECONDS)
def test_an_arm_against_itself_makes_exactly_no_difference(seconds: list[float]) -> None:
    its_seconds = np.array(seconds).reshape(2, 3)
    interval = ratio_interval(pairs_of(blocks_of(SPEC, its_seconds), blocks_of(OFF, its_seconds)), throughput)
    assert interval is not None
    assert interval.estimate == pytest.approx(1)
    assert interval.low == pytest.approx(1)
    assert interval.high == pytest.approx(1)


@settings(max_examples=20, deadline=None)
@given(SIX_SECONDS, SIX_SECONDS)
def test_the_interval_of_off_over_the_arm_is_the_arm_s_turned_over(
    ours: list[float], theirs: list[float]
) -> None:
    one, other = blocks_of(SPEC, np.reshape(ours, (2, 3))), blocks_of(OFF, np.reshape(theirs, (2, 3)))
    interval = ratio_interval(pairs_of(one, other), throughput)
    turned = ratio_interval(pairs_of(other, one), throughput)
    assert interval is not None
    assert turned is not None
    assert turned.low == pytest.approx(1 / interval.high)
    assert turned.high == pytest.approx(1 / interval.low)


def test_blocks_without_a_pair_do_not_count() -> None:
    ours = blocks_of(SPEC, np.array([[1.0, 1.0], [1.0, 1.0]]))
    theirs = blocks_of(OFF, np.array([[2.0], [2.0]]))
    interval = ratio_interval(pairs_of(ours, theirs), throughput)
    assert interval is not None
    assert interval.estimate == pytest.approx(2)
    assert interval.num_pairs == 2
    assert ratio_interval(pairs_of(ours, []), throughput) is None


def test_a_block_in_which_nothing_was_answered_has_no_rate() -> None:
    failed = block([answer(error="gone")])
    assert ratio_interval([(failed, block([answer(chunks=[(0.0, 9)])], arm=OFF))], throughput) is None


def test_the_time_per_token_leaves_the_first_token_out() -> None:
    ours = block([answer(chunks=[(5.0, 1), (6.0, 4)])])
    theirs = block([answer(chunks=[(0.1, 1), (2.1, 4)])], arm=OFF)
    interval = ratio_interval([(ours, theirs)], time_per_token)
    assert interval is not None
    assert interval.estimate == pytest.approx(0.5)


def test_the_same_blocks_give_the_same_interval() -> None:
    logs = np.random.default_rng(3).normal(0, 0.1, (2, 6))
    assert interval_of(logs) == interval_of(logs)


# Standard deviations of rounds, of groups and of blocks, as logarithms; how often the interval must hold the
# truth in 300 simulated runs of two rounds and six groups. Rounds that differ much more than blocks are the
# hard case: two of them hardly show it. 1.96 standard errors without Student's t hold it in three quarters.
COVERAGES = [
    ((0.0, 0.0, 0.05), 0.95),
    ((0.0, 0.1, 0.05), 0.91),
    ((0.02, 0.0, 0.05), 0.91),
    ((0.02, 0.1, 0.05), 0.91),
    ((0.1, 0.0, 0.05), 0.84),
    ((0.1, 0.1, 0.01), 0.84),
]


@pytest.mark.parametrize(("deviations", "min_coverage"), COVERAGES)
def test_the_interval_holds_the_truth_in_most_runs(
    deviations: tuple[float, float, float], min_coverage: float
) -> None:
    coverage = simulated_coverage(deviations, num_rounds=2, num_groups=6, num_runs=300)
    assert coverage >= min_coverage


def simulated_coverage(
    deviations: tuple[float, float, float], *, num_rounds: int, num_groups: int, num_runs: int
) -> float:
    generator = np.random.default_rng(7)
    of_rounds, of_groups, of_blocks = deviations
    truth = 0.1
    num_held = 0
    for _ in range(num_runs):
        interval = interval_of(
            truth
            + generator.normal(0, of_rounds, (num_rounds, 1))
            + generator.normal(0, of_groups, (1, num_groups))
            + generator.normal(0, of_blocks, (num_rounds, num_groups))
        )
        num_held += interval.low <= math.exp(truth) <= interval.high
    return num_held / num_runs
