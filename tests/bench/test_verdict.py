"""What is said of one arm at one load, and of a workload over all loads."""

import pytest
from made_up_runs import ARMS, SPEC, SUFFIX, WORKLOAD, made_up_run, one_token_repeated
from ngram_spec import NgramSpecError
from ngram_spec.bench.goal import parse_goal
from ngram_spec.bench.recommend import break_even_concurrency
from ngram_spec.bench.records import OFF, OFF_V1, Run
from ngram_spec.bench.summarize import summarize
from ngram_spec.bench.summary import Cell, Recommendation

MIB = 2**20


def cells_of(run: Run, arm: str = SPEC) -> dict[int, Cell]:
    """The arm's cells by concurrency."""
    return {cell.concurrency: cell for cell in summarize(run).cells if cell.arm == arm}


def recommendation_of(run: Run) -> Recommendation:
    (recommendation,) = summarize(run).recommendations
    return recommendation


def kept_of(run: Run) -> str:
    """What the checklist says of it."""
    return summarize(run).checklist[-1].answer


def test_25_percent_at_concurrency_1_and_minus_8_at_64_is_on_up_to_about_21() -> None:
    run = made_up_run({SPEC: {1: 1.25, 64: 0.92}}, spread=0.01)
    cells = cells_of(run)
    assert (cells[1].verdict, cells[64].verdict) == ("on", "off")
    recommendation = recommendation_of(run)
    assert recommendation.arm == SPEC
    assert recommendation.headline == "on up to about concurrency 21"
    assert recommendation.break_even_concurrency == pytest.approx(20.6, abs=0.5)
    assert any("interpolated between 1 and 64" in reason for reason in recommendation.reasons)


def test_2_percent_with_an_interval_of_4_is_no_measurable_difference() -> None:
    run = made_up_run({SPEC: {1: 1.02}}, spread=0.035)
    cell = cells_of(run)[1]
    assert cell.speedup is not None
    assert cell.speedup.high / cell.speedup.estimate - 1 == pytest.approx(0.04, abs=0.005)
    assert cell.verdict == "no measurable difference"
    assert cell.reason.startswith("Tokens per second: +2.0% against off (95% interval -2.")
    recommendation = recommendation_of(run)
    assert (recommendation.arm, recommendation.headline) == (None, "no measurable difference")
    assert recommendation.flags == ""


def test_2_percent_with_an_interval_of_1_is_on() -> None:
    assert cells_of(made_up_run({SPEC: {1: 1.02}}, spread=0.005))[1].verdict == "on"


def test_faster_than_off_on_v1_and_slower_than_off_as_it_is_by_default_is_off_and_says_why() -> None:
    run = made_up_run({OFF_V1: {1: 0.91 / 1.06}, SPEC: {1: 0.91}}, spread=0.005)
    cell = cells_of(run)[1]
    assert cell.verdict == "off"
    assert "Tokens per second: -9.0% against off (95% interval " in cell.reason
    assert "It is +6.0% against off-v1 (95% interval " in cell.reason
    assert "the drafts gain, and that set-up loses it again" in cell.reason
    recommendation = recommendation_of(run)
    assert (recommendation.arm, recommendation.headline) == (None, "off")
    assert kept_of(run) == "code edit: leave speculation off (off)."
    assert cell.reason in recommendation.reasons[0]
    v1 = cells_of(run, OFF_V1)[1]
    assert v1.verdict == "baseline"
    assert "-14.2% against off" in v1.reason


def test_where_speed_shows_no_difference_the_set_up_may_lose_what_the_drafts_gain() -> None:
    cell = cells_of(made_up_run({OFF_V1: {1: 0.9}, SPEC: {1: 1.0}}, spread=0.005))[1]
    assert cell.verdict == "no measurable difference"
    assert "the drafts gain, and that set-up may lose it again" in cell.reason
    assert "accepted" not in cell.reason


def test_high_acceptance_and_minus_5_percent_is_off_since_acceptance_is_not_speed() -> None:
    cell = cells_of(made_up_run({SPEC: {1: 0.95}}, spread=0.005, acceptance_rate=0.7))[1]
    assert cell.verdict == "off"
    assert cell.reason.endswith(
        "70.0% of the draft tokens were accepted, 1.28 tokens per step: acceptance is not speed."
    )
    poor = cells_of(made_up_run({SPEC: {1: 0.95}}, spread=0.005, acceptance_rate=0.2))[1]
    assert poor.reason.endswith(" 20.0% of the draft tokens were accepted.")


def test_one_token_repeated_is_invalid_and_never_on() -> None:
    for outputs in ({SPEC: one_token_repeated}, {SPEC: one_token_repeated, OFF: one_token_repeated}):
        run = made_up_run({SPEC: {1: 3.0, 8: 2.0}}, outputs=outputs)
        assert {cell.verdict for cell in cells_of(run).values()} == {"invalid"}
        recommendation = recommendation_of(run)
        assert (recommendation.arm, recommendation.headline) == (None, "invalid")
        assert "no loops: 100.0% of the output tokens" in recommendation.reasons[0]
        assert kept_of(run) == "code edit: no verdict (invalid)."


def test_one_start_of_each_arm_proves_nothing() -> None:
    run = made_up_run({SPEC: {1: 1.5}}, num_rounds=1)
    cell = cells_of(run)[1]
    assert cell.verdict == "no measurable difference"
    assert cell.reason.endswith(
        "6 pairs of blocks, 1 start). One start of each arm may be luck: run more rounds."
    )
    assert any(
        warning.startswith("ngram-spec: one start beside one of arm off.")
        for warning in summarize(run).warnings
    )


def test_an_arm_without_a_pair_has_no_verdict() -> None:
    run = made_up_run({SPEC: {1: 1.5}})
    run = run.model_copy(update={"blocks": tuple(one for one in run.blocks if one.arm != OFF)})
    cell = cells_of(run)[1]
    assert (cell.verdict, cell.speedup) == ("no measurable difference", None)
    assert "Arm off was not measured." in summarize(run).warnings
    recommendation = recommendation_of(run)
    assert (recommendation.headline, recommendation.has_verdict) == ("not compared", False)
    assert recommendation.reasons[-1].startswith("A verdict needs arm off and a speculative arm, ")
    assert kept_of(run) == "code edit: no verdict (not compared)."


@pytest.mark.parametrize(
    ("text", "limit"),
    [("tpot_p95=30ms", 30), ("ITL_p99 = 0.05 s", 50), ("latency_mean=2s", 2000), ("throughput=512.5", 512.5)],
)
def test_a_goal_is_a_latency_with_its_unit_or_a_throughput(text: str, limit: float) -> None:
    assert parse_goal(text).limit == limit


@pytest.mark.parametrize(
    "text", ["", "tpot_p95=30", "tpot=30ms", "tpot_p90=30ms", "speed=3", "throughput=5ms"]
)
def test_another_goal_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(NgramSpecError, match=r"a goal must be .* write for example tpot_p95=30ms"):
        parse_goal(text)


# Of these runs arm off takes 0.64 s for 64 tokens, the first after 0.05 s: (0.64 - 0.05) / 63 = 9.4 ms each.
def test_an_arm_that_meets_a_goal_which_off_misses_is_on() -> None:
    run = made_up_run({SPEC: {1: 1.10}}, goal="tpot_mean=9ms")
    cell = cells_of(run)[1]
    assert (cell.verdict, cell.meets_goal) == ("on", True)
    assert cell.reason.startswith(
        "tpot_mean=9ms is met in 2 of 2 rounds (8.4 ms), with off in 0 of 2 (9.4 ms). Tokens per second: "
    )
    off = cells_of(run, OFF)[1]
    assert (off.verdict, off.meets_goal) == ("baseline", False)
    assert off.reason == "tpot_mean=9ms is met in 0 of 2 rounds (9.4 ms)."
    assert recommendation_of(run).headline == "on"


@pytest.mark.parametrize("goal", ["tpot_mean=9.2ms", "itl_mean=9.2ms", "latency_p50=0.62s", "throughput=103"])
def test_a_goal_between_two_arms_that_are_alike_shows_nothing(goal: str) -> None:
    # By luck the arm was below the limit in both rounds and arm off above it.
    cell = cells_of(made_up_run({SPEC: {1: 1.10}}, spread=0.15, goal=goal))[1]
    assert cell.speedup is not None
    assert cell.speedup.low < 1
    assert "is met in 2 of 2 rounds" in cell.reason
    assert "with off in 0 of 2" in cell.reason
    assert cell.verdict == "no measurable difference"


def test_a_time_to_first_token_is_judged_by_itself() -> None:
    run = made_up_run({SPEC: {1: 1.0}}, spread=0.05, goal="ttft_p95=40ms")
    assert cells_of(run)[1].verdict == "no measurable difference"
    sooner = [
        block.model_copy(
            update={
                "answers": tuple(
                    answer.model_copy(update={"chunk_times": (0.01, *answer.chunk_times[1:])})
                    for answer in block.answers
                )
            }
        )
        for block in run.blocks
        if block.arm == SPEC
    ]
    offs = [block for block in run.blocks if block.arm != SPEC]
    assert cells_of(run.model_copy(update={"blocks": (*offs, *sooner)}))[1].verdict == "on"


def test_an_arm_that_misses_a_goal_which_off_meets_is_off_though_it_is_faster() -> None:
    run = made_up_run({OFF_V1: {1: 0.9}, SPEC: {1: 1.25}}, goal="ttft_p95=60ms")
    late = [
        answer.model_copy(update={"chunk_times": tuple(time + 0.1 for time in answer.chunk_times)})
        for answer in run.blocks[-1].answers
    ]
    assert run.blocks[-1].arm == SPEC
    blocks = (*run.blocks[:-1], run.blocks[-1].model_copy(update={"answers": tuple(late)}))
    cell = cells_of(run.model_copy(update={"blocks": blocks}))[1]
    assert (cell.verdict, cell.meets_goal) == ("off", False)
    assert "is met in 1 of 2 rounds" in cell.reason
    assert "Tokens per second: +2" in cell.reason
    # It lost nothing that these sentences explain.
    assert "loses it again" not in cell.reason
    assert "acceptance is not speed" not in cell.reason
    assert cells_of(run)[1].verdict == "on"


@pytest.mark.parametrize("goal", ["throughput=90", "throughput=900", "itl_p99=50ms"])
def test_where_both_or_neither_meet_the_goal_the_throughput_decides(goal: str) -> None:
    assert cells_of(made_up_run({SPEC: {1: 1.25}}, goal=goal))[1].verdict == "on"
    assert cells_of(made_up_run({SPEC: {1: 0.92}}, goal=goal))[1].verdict == "off"


def test_the_break_even_of_a_goal_is_not_interpolated_from_throughput() -> None:
    run = made_up_run({SPEC: {1: 1.25, 64: 0.92}}, goal="throughput=120")
    recommendation = recommendation_of(run)
    assert (recommendation.headline, recommendation.break_even_concurrency) == (
        "on up to concurrency 1",
        None,
    )


@pytest.mark.parametrize(
    ("speedups", "headline"),
    [
        ({1: 1.3, 8: 1.2, 64: 1.1}, "on"),
        ({1: 1.3, 8: 1.2, 64: 0.9}, "on up to about concurrency 30"),
        ({1: 1.3, 8: 1.001, 64: 0.9}, "on up to concurrency 1"),
        ({1: 1.3, 8: 0.999, 64: 0.9}, "on up to concurrency 1"),
        ({1: 1.3, 8: 0.95, 64: 0.9}, "on up to about concurrency 6"),
        ({1: 1.3, 8: 1.001, 64: 1.001}, "on up to concurrency 1"),
        ({1: 0.8, 8: 1.25, 64: 1.3}, "on from about concurrency 3"),
        ({1: 1.001, 8: 1.25, 64: 1.3}, "on from concurrency 8"),
        ({1: 0.8, 8: 0.999, 64: 1.3}, "on from concurrency 64"),
        ({1: 1.3, 8: 0.9, 64: 1.3}, "on at concurrency 1 and 64"),
        ({1: 0.9, 8: 1.3, 64: 0.9}, "on at concurrency 8"),
        ({1: 1.001, 8: 1.001, 64: 0.9}, "off"),
        ({1: 1.001, 8: 1.001, 64: 0.999}, "no measurable difference"),
    ],
)
def test_the_headline_says_from_where_to_where_an_arm_is_on(
    speedups: dict[int, float], headline: str
) -> None:
    assert recommendation_of(made_up_run({SPEC: speedups}, spread=0.01)).headline == headline


def test_beyond_a_load_without_a_difference_only_the_break_even_is_interpolated() -> None:
    recommendation = recommendation_of(made_up_run({SPEC: {1: 1.3, 8: 1.005, 64: 0.9}}, spread=0.01))
    assert recommendation.headline == "on up to concurrency 1"
    assert recommendation.break_even_concurrency == pytest.approx(8.8, abs=0.1)
    assert any("interpolated between 8 and 64" in reason for reason in recommendation.reasons)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 2.0), (16, 0.5)], 4.0),
        ([(1, 2.0), (4, 1.5), (64, 1 / 1.5)], 16.0),
        ([(2, 0.5), (8, 2.0)], 4.0),
        ([(1, 1.2), (8, 1.1)], None),
        ([(1, 1.2)], None),
        ([], None),
    ],
)
def test_break_even_is_straight_between_points_on_logarithmic_scales(
    points: list[tuple[int, float]], expected: float | None
) -> None:
    assert break_even_concurrency(points) == (None if expected is None else pytest.approx(expected))


def test_the_recommendation_has_the_flags_and_the_memory_of_the_arm() -> None:
    run = made_up_run({SPEC: {1: 1.3}}, process_bytes={OFF: 100 * MIB, SPEC: 150 * MIB})
    recommendation = recommendation_of(run)
    assert recommendation.flags == (
        '--speculative-config \'{"method": "ngram_spec", "num_speculative_tokens": 16}\''
    )
    assert (recommendation.extra_process_bytes, recommendation.extra_gpu_bytes) == (50 * MIB, None)


def test_of_several_arms_the_best_is_named_and_those_that_cannot_be_told_from_it() -> None:
    run = made_up_run({SPEC: {1: 1.30, 8: 1.2}, SUFFIX: {1: 1.31, 8: 0.9}}, spread=0.02)
    recommendation = recommendation_of(run)
    assert recommendation.arm == SPEC
    assert recommendation.reasons[-1] == (
        "suffix: on at 1 (+31.0%), off at 8 (-10.0%). "
        "It cannot be told from ngram-spec at 1, where their intervals overlap."
    )


def test_where_another_arm_is_faster_than_the_one_recommended_it_says_so() -> None:
    run = made_up_run({SPEC: {1: 1.5, 8: 1.2}, SUFFIX: {1: 1.6, 8: 0.9}}, spread=0.005)
    assert recommendation_of(run).reasons[-1].endswith("It is faster than ngram-spec at 1.")


def test_variables_of_the_environment_belong_to_the_recipe() -> None:
    run = made_up_run({SUFFIX: {1: 1.5}})
    assert ARMS[SUFFIX].environment
    reason = "suffix was measured with these environment variables: OMP_NUM_THREADS=1."
    assert reason in recommendation_of(run).reasons


def test_an_arm_whose_answers_are_wrong_at_one_concurrency_is_recommended_at_none() -> None:
    run = made_up_run({SPEC: {1: 1.5, 8: 1.4}, SUFFIX: {1: 1.2, 8: 1.1}})
    wrong = tuple(
        one.model_copy(
            update={"answers": tuple(its.model_copy(update={"token_ids": (1, 2, 3)}) for its in one.answers)}
        )
        if (one.arm, one.concurrency) == (SPEC, 8)
        else one
        for one in run.blocks
    )
    recommendation = recommendation_of(run.model_copy(update={"blocks": wrong}))
    assert recommendation.arm == SUFFIX
    assert (
        "ngram-spec: on at 1 (+50.0%), invalid at 8. It gave wrong answers, so it is recommended nowhere."
    ) in recommendation.reasons


def test_without_a_speculative_arm_nothing_is_recommended() -> None:
    recommendation = recommendation_of(made_up_run({OFF_V1: {1: 0.9}}))
    assert (recommendation.arm, recommendation.headline) == (None, "not measured")
    assert not recommendation.has_verdict
    assert recommendation.workload == WORKLOAD
