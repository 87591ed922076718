"""Paired differences by hand: ratios, intervals that must and must not hold 1, what is resampled together."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_spec.paired import SpeedupRatio, paired_differences, speedup_ratio
from ngram_spec.replay import ReplayCounts
from ngram_spec.results import DrafterResult, FileResult, ResponseResult


def took(num_steps: int, num_draft_tokens: int = 0) -> ReplayCounts:
    """A response of 100 output tokens behind the first."""
    return ReplayCounts(num_steps=num_steps, num_draft_tokens=num_draft_tokens, num_output_tokens=100)


def one_replay(drafter: str, counts: dict[tuple[str, int | None], ReplayCounts]) -> DrafterResult:
    responses = [ResponseResult(name, turn, 7, counts) for (name, turn), counts in counts.items()]
    return DrafterResult([FileResult("a.jsonl", "ids", drafter, None, responses)])


def test_of_two_records_a_resample_holds_either_twice_or_both() -> None:
    # Twice as fast on one and half as fast on the other: a quarter of all resamples has only the one, a
    # quarter only the other, so the interval from 2.5 % to 97.5 % goes from the worst to the best.
    result = speedup_ratio([took(50), took(100)], [took(100), took(50)], 0.05)
    assert (result.ratio, result.low, result.high) == (1, 0.5, 2)


def test_a_drafter_that_wins_some_and_loses_some_makes_no_measurable_difference() -> None:
    result = speedup_ratio([took(50), took(100)] * 10, [took(100), took(50)] * 10, 0.05)
    assert result.ratio == 1
    assert 0.5 < result.low < 1 < result.high < 2
    assert result.verdict == "no measurable difference"


def test_a_drafter_that_wins_on_each_record_is_better_and_the_other_one_worse() -> None:
    fast, slow = [took(50), took(60), took(70)] * 4, [took(75), took(66), took(84)] * 4
    result = speedup_ratio(fast, slow, 0.05)
    # 225 / 180 in all; no resample is beyond the records' own ratios, 1.1 and 1.5.
    assert result.ratio == pytest.approx(1.25)
    assert 1.1 < result.low < 1.25 < result.high < 1.5
    assert result.verdict == "better"
    assert speedup_ratio(slow, fast, 0.05).verdict == "worse"


def test_records_are_paired_so_that_long_ones_do_not_hide_a_small_gain() -> None:
    # Records differ a hundredfold, and each is 2 % faster: resampled apart, the interval would hold 1.
    theirs = [took(round(100 * 1.5**index)) for index in range(12)]
    ours = [took(round(counts.num_steps / 1.02)) for counts in theirs]
    result = speedup_ratio(ours, theirs, 0.05)
    assert result.verdict == "better"
    assert 1.015 < result.low <= result.high < 1.025


def test_the_cost_decides_between_fewer_steps_and_fewer_draft_tokens() -> None:
    eager, frugal = [took(50, num_draft_tokens=500)] * 8, [took(80, num_draft_tokens=50)] * 8
    assert speedup_ratio(eager, frugal, 0.01).ratio == pytest.approx(80.5 / 55)
    assert speedup_ratio(eager, frugal, 0.2).ratio == pytest.approx(90 / 150)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 500)), min_size=1, max_size=12))
def test_a_drafter_against_itself_makes_exactly_no_difference(pairs: list[tuple[int, int]]) -> None:
    counts = [took(num_steps, num_draft_tokens) for num_steps, num_draft_tokens in pairs]
    result = speedup_ratio(counts, counts, 0.05)
    assert (result.ratio, result.low, result.high) == (1, 1, 1)


def test_the_interval_is_that_of_resampling_one_by_one() -> None:
    generator = random.Random(1)
    ours = [took(generator.randint(40, 80), generator.randint(0, 300)) for _ in range(20)]
    theirs = [took(generator.randint(40, 80), generator.randint(0, 300)) for _ in range(20)]
    ratios = []
    for _ in range(4000):
        drawn = generator.choices(range(20), k=20)
        # Both emit the same tokens, so the ratio is that of what they take.
        ours_took, theirs_took = (
            sum(counts[index].num_steps + 0.05 * counts[index].num_draft_tokens for index in drawn)
            for counts in (ours, theirs)
        )
        ratios.append(theirs_took / ours_took)
    ratios.sort()
    result = speedup_ratio(ours, theirs, 0.05)
    assert result.low == pytest.approx(ratios[100], abs=0.01)
    assert result.high == pytest.approx(ratios[-101], abs=0.01)


def test_the_same_counts_give_the_same_interval() -> None:
    ours, theirs = [took(50), took(60)] * 9, [took(70), took(55)] * 9
    assert speedup_ratio(ours, theirs, 0.05) == speedup_ratio(ours, theirs, 0.05)


def test_few_records_get_no_verdict_though_they_all_agree() -> None:
    assert speedup_ratio([took(50)] * 5, [took(60)] * 5, 0.05).verdict == "too few records"
    assert speedup_ratio([took(50)] * 6, [took(60)] * 6, 0.05).verdict == "better"


def test_records_without_a_step_count_for_nothing() -> None:
    nothing = ReplayCounts()
    assert speedup_ratio([nothing, took(50)], [nothing, took(75)], 0.05) == speedup_ratio(
        [took(50)], [took(75)], 0.05
    )
    assert speedup_ratio([nothing], [nothing], 0.05) == SpeedupRatio(
        ratio=1.0, low=1.0, high=1.0, num_records=0
    )


def test_the_turns_of_a_dialogue_are_resampled_together() -> None:
    ours = one_replay("ours", {("a", 2): took(10), ("a", None): took(40), ("b", None): took(100)})
    theirs = one_replay("theirs", {("a", 2): took(60), ("a", None): took(40), ("b", None): took(50)})
    # Record a: 100 / 50 steps, b: 50 / 100. Turn by turn, a resample of a's first turn only would reach 6.
    differences = paired_differences(ours, theirs, "theirs")
    assert [difference.draft_cost for difference in differences] == [0.01, 0.05, 0.2]
    for difference in differences:
        speedup = difference.speedup
        assert (speedup.num_records, speedup.ratio, speedup.low, speedup.high) == (2, 1, 0.5, 2)


def test_each_cost_is_judged_by_the_replay_that_was_told_it() -> None:
    def told(draft_cost: float, num_steps: int) -> FileResult:
        return FileResult(
            "a.jsonl", "ids", "ours", draft_cost, [ResponseResult("a", None, 7, took(num_steps))]
        )

    ours = DrafterResult([told(0.01, 10), told(0.05, 20), told(0.2, 40)])
    theirs = one_replay("theirs", {("a", None): took(80)})
    ratios = [difference.speedup.ratio for difference in paired_differences(ours, theirs, "theirs")]
    assert ratios == [8, 4, 2]
