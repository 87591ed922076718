"""Each check fails where it must, says why, and lets real traffic pass."""

import pytest
from made_up_runs import (
    OUTPUT_LEN,
    SPEC,
    WORKLOAD,
    Output,
    answer,
    block,
    made_up_run,
    one_token_repeated,
    text_like,
    timed_answer,
)
from ngram_spec.bench import checks
from ngram_spec.bench.records import OFF, Answer, Block, Counters, NearTieProbe, Run
from ngram_spec.bench.summarize import summarize
from ngram_spec.bench.summary import Cell, Check

FASTER = {SPEC: {1: 1.25}}


def cell_of(run: Run, arm: str = SPEC) -> Cell:
    (cell,) = (cell for cell in summarize(run).cells if cell.arm == arm)
    return cell


def failed(cell: Cell) -> dict[str, str]:
    return {check.name: check.detail for check in cell.checks if not check.is_passed}


def check_of(cell: Cell, name: str) -> Check:
    (check,) = (check for check in cell.checks if check.name == name)
    return check


def with_answers(run: Run, change: dict[str, Answer], arm: str = SPEC) -> Run:
    """Return the run with other answers to some prompts from one arm."""

    def changed(one: Block) -> Block:
        answers = tuple(change.get(its.prompt_id, its) for its in one.answers)
        return one if one.arm != arm else one.model_copy(update={"answers": answers})

    return run.model_copy(update={"blocks": tuple(map(changed, run.blocks))})


def leaves_at(place: int, *prompt_ids: str) -> Output:
    """The same answers, but those to these prompts are others from a token on."""

    def output(prompt_id: str) -> tuple[int, ...]:
        token_ids = text_like(prompt_id)
        if prompt_id not in prompt_ids:
            return token_ids
        return (*token_ids[:place], *(token + 20_000 for token in token_ids[place:]))

    return output


def test_a_sound_arm_passes_every_check_and_each_says_what_it_saw() -> None:
    cell = cell_of(made_up_run(FASTER))
    assert failed(cell) == {}
    assert {check.name for check in cell.checks} == {
        checks.NO_ERRORS,
        checks.SAME_OUTPUTS,
        checks.NO_LOOPS,
        checks.REAL_WORKLOAD,
        checks.ENOUGH_OUTPUT,
        checks.SAME_LENGTH,
        checks.DRAFTS_MADE,
        checks.VALID_BASELINE,
    }
    assert check_of(cell, checks.SAME_OUTPUTS).detail == "48 of 48 answers are those of arm off"
    assert (cell.num_same_outputs, cell.num_near_ties, cell.num_unstable_outputs) == (48, 0, 0)


def test_one_wrong_answer_makes_an_arm_invalid() -> None:
    cell = cell_of(made_up_run(FASTER, outputs={SPEC: leaves_at(5, "3-1")}))
    assert cell.verdict == "invalid"
    assert list(failed(cell)) == [checks.SAME_OUTPUTS]
    assert "2 differ without a near-tie, first to the prompt 3-1" in cell.reason


def test_answers_that_leave_off_at_a_near_tie_are_counted_and_do_not_fail() -> None:
    probe = NearTieProbe(workload=WORKLOAD, prompt_id="3-1", num_same_tokens=5, logprob_gap=0.03)
    cell = cell_of(made_up_run(FASTER, outputs={SPEC: leaves_at(5, "3-1")}, probes=[probe]))
    assert cell.verdict == "on"
    assert (cell.num_same_outputs, cell.num_near_ties) == (46, 2)


def test_a_probe_that_was_not_answered_or_shows_a_clear_winner_does_not_excuse() -> None:
    for gap in (None, 0.2):
        probe = NearTieProbe(workload=WORKLOAD, prompt_id="3-1", num_same_tokens=5, logprob_gap=gap)
        cell = cell_of(made_up_run(FASTER, outputs={SPEC: leaves_at(5, "3-1")}, probes=[probe]))
        assert cell.verdict == "invalid"


def test_where_off_differs_from_itself_answers_are_counted_apart() -> None:
    run = made_up_run(FASTER, outputs={SPEC: leaves_at(5, "3-1")})
    unlike = timed_answer("3-1", (*text_like("3-1")[:5], *range(20_000, 20_000 + OUTPUT_LEN - 5)), 0.64)
    changed = with_answers(run, {"3-1": unlike}, arm=OFF)
    first_round = tuple(one for one in changed.blocks if one.round == 0)
    others = tuple(one for one in run.blocks if one.round != 0)
    run = run.model_copy(update={"blocks": first_round + others})
    cell = cell_of(run)
    assert cell.verdict == "on"
    assert (cell.num_same_outputs, cell.num_unstable_outputs) == (46, 2)
    warning = "Arm off does not always answer alike itself: 1 of 24 prompts of code edit."
    assert warning in summarize(run).warnings


def test_at_a_temperature_outputs_are_not_compared_and_the_run_says_so() -> None:
    run = made_up_run(FASTER, outputs={SPEC: leaves_at(0, "3-1")}, temperature=0.7)
    cell = cell_of(run)
    assert cell.verdict == "on"
    assert cell.num_same_outputs is None
    assert any("temperature 0.7" in warning for warning in summarize(run).warnings)


@pytest.mark.parametrize("loops_with", [{SPEC}, {SPEC, OFF}])
def test_output_that_is_one_token_repeated_is_invalid_whoever_repeats_it(loops_with: set[str]) -> None:
    cell = cell_of(made_up_run(FASTER, outputs=dict.fromkeys(loops_with, one_token_repeated)))
    assert cell.verdict == "invalid"
    assert checks.NO_LOOPS in failed(cell)
    assert failed(cell)[checks.NO_LOOPS].startswith("100.0% of the output tokens")


def test_a_few_loops_of_a_small_model_pass_where_off_has_them_too() -> None:
    def output(prompt_id: str) -> tuple[int, ...]:
        return one_token_repeated(prompt_id) if prompt_id in ("0-0", "1-0", "2-0") else text_like(prompt_id)

    cell = cell_of(made_up_run(FASTER, outputs={SPEC: output, OFF: output}))
    assert cell.verdict == "on"
    assert check_of(cell, checks.NO_LOOPS).detail.startswith("12.5% of the output tokens")
    # Drawn outputs are not compared, so an arm that loops where off does not shows here alone.
    alone = cell_of(made_up_run(FASTER, outputs={SPEC: output}, temperature=0.7))
    assert list(failed(alone)) == [checks.NO_LOOPS]


def test_without_arm_off_nothing_is_compared_with_it() -> None:
    def output(prompt_id: str) -> tuple[int, ...]:
        return one_token_repeated(prompt_id) if prompt_id in ("0-0", "1-0", "2-0") else text_like(prompt_id)

    run = made_up_run(FASTER, outputs={SPEC: output})
    run = run.model_copy(update={"blocks": tuple(one for one in run.blocks if one.arm != OFF)})
    cell = cell_of(run)
    # More than it might be if arm off were known to have none.
    assert failed(cell) == {}
    assert check_of(cell, checks.NO_LOOPS).detail == (
        "12.5% of the output tokens are a few tokens repeated to the answer's end"
    )
    assert check_of(cell, checks.SAME_LENGTH).detail == "not compared: no block has its pair with arm off"
    assert check_of(cell, checks.SAME_OUTPUTS).detail.startswith("not compared: arm off has answered none")
    assert cell.num_same_outputs is None


def test_an_error_makes_the_arm_invalid_and_is_quoted() -> None:
    run = with_answers(made_up_run(FASTER), {"2-2": answer("2-2", error="HTTP 500: out of memory")})
    cell = cell_of(run)
    assert cell.verdict == "invalid"
    assert failed(cell)[checks.NO_ERRORS] == "2 of 48 requests failed, first with: HTTP 500: out of memory"


def test_errors_of_off_make_the_ratio_worthless() -> None:
    run = with_answers(made_up_run(FASTER), {"2-2": answer("2-2", error="HTTP 500")}, arm=OFF)
    assert cell_of(run, OFF).verdict == "invalid"
    cell = cell_of(run)
    assert cell.verdict == "invalid"
    assert "arm off failed a check: no errors: 2 of 48 requests failed" in failed(cell)[checks.VALID_BASELINE]


def test_much_shorter_answers_are_no_speed() -> None:
    def short(prompt_id: str) -> tuple[int, ...]:
        return text_like(prompt_id)[: OUTPUT_LEN // 2]

    cell = cell_of(made_up_run(FASTER, outputs={SPEC: short}, temperature=0.7))
    assert list(failed(cell)) == [checks.SAME_LENGTH]
    assert failed(cell)[checks.SAME_LENGTH].startswith("1536 output tokens, and 3072 with arm off")


def test_lengths_are_compared_over_pairs_so_that_a_run_that_ended_early_passes() -> None:
    run = made_up_run(FASTER, num_rounds=3)
    blocks = tuple(one for one in run.blocks if one.arm == OFF or one.round < 2)
    cell = cell_of(run.model_copy(update={"blocks": blocks}))
    assert failed(cell) == {}
    assert cell.speedup is not None
    assert (cell.speedup.num_pairs, cell.speedup.num_rounds) == (12, 2)


def test_a_speculative_arm_that_never_drafts_is_invalid() -> None:
    run = made_up_run(FASTER)
    none = Counters(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    blocks = tuple(one.model_copy(update={"counters": none}) for one in run.blocks)
    cell = cell_of(run.model_copy(update={"blocks": blocks}))
    assert failed(cell) == {checks.DRAFTS_MADE: "0 drafts"}


def test_a_server_without_counters_passes_with_a_warning() -> None:
    run = made_up_run(FASTER)
    blocks = tuple(one.model_copy(update={"counters": Counters()}) for one in run.blocks)
    run = run.model_copy(update={"blocks": blocks})
    assert cell_of(run).verdict == "on"
    warning = "Whether arm ngram-spec drafted at all is not known: its server has no counters of drafts."
    assert warning in summarize(run).warnings


def test_a_handful_of_tokens_is_not_enough() -> None:
    cell = cell_of(
        made_up_run(FASTER, num_groups=1, num_rounds=2, outputs=dict.fromkeys((OFF, SPEC), of_8_tokens))
    )
    assert failed(cell)[checks.ENOUGH_OUTPUT] == "64 output tokens, of at least 256"


def of_8_tokens(prompt_id: str) -> tuple[int, ...]:
    return text_like(prompt_id)[:8]


def test_prompts_with_one_and_the_same_long_answer_are_filler() -> None:
    def same(_prompt_id: str) -> tuple[int, ...]:
        return text_like("all")

    cell = cell_of(made_up_run(FASTER, outputs={SPEC: same, OFF: same}))
    assert failed(cell)[checks.REAL_WORKLOAD].startswith("1 different answers to 24 prompts")


def test_short_answers_may_be_equal() -> None:
    def yes(_prompt_id: str) -> tuple[int, ...]:
        return text_like("yes")[:8]

    cell = cell_of(made_up_run(FASTER, outputs={SPEC: yes, OFF: yes}))
    assert failed(cell) == {}


def test_prompts_that_repeat_themselves_are_filler() -> None:
    assert failed(cell_of(made_up_run(FASTER, prompt_compression={WORKLOAD: 3.0}))) == {}
    cell = cell_of(made_up_run(FASTER, prompt_compression={WORKLOAD: 80.0}))
    assert "zlib makes them 80 times smaller" in failed(cell)[checks.REAL_WORKLOAD]


def test_arms_that_do_not_speculate_are_not_asked_for_drafts() -> None:
    names = {check.name for check in cell_of(made_up_run(FASTER), OFF).checks}
    assert names == {checks.NO_ERRORS, checks.NO_LOOPS, checks.REAL_WORKLOAD, checks.ENOUGH_OUTPUT}


def test_a_block_without_any_answer_is_no_fault_of_a_check() -> None:
    run = made_up_run(FASTER)
    run = run.model_copy(update={"blocks": (*run.blocks, block([], round=9, group=9))})
    assert cell_of(run).verdict == "on"
