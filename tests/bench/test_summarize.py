"""A summary follows from the run alone, says what the run cannot tell, and survives being written."""

from pathlib import Path

import pytest
from made_up_runs import SPEC, SUFFIX, WORKLOAD, made_up_run, one_token_repeated
from ngram_spec import NgramSpecError
from ngram_spec.bench.records import (
    OFF,
    OFF_V1,
    RUN_FILE,
    AnyRecord,
    Failure,
    NearTieProbe,
    Run,
    append_record,
    as_run,
    read_run,
)
from ngram_spec.bench.summarize import summarize
from ngram_spec.bench.summary import Summary

MIB = 2**20


def whole_run() -> Run:
    probe = NearTieProbe(workload=WORKLOAD, prompt_id="0-0", num_same_tokens=3, logprob_gap=0.01)
    run = made_up_run(
        {OFF_V1: {1: 0.9, 4: 0.9}, SPEC: {1: 1.25, 4: 1.1}, SUFFIX: {1: 1.2, 4: 0.9}},
        spread=0.02,
        probes=[probe],
        process_bytes={OFF: 100 * MIB, SPEC: 150 * MIB},
        goal="ttft_p95=200ms",
        common_flags=("--max-num-seqs", "64"),
    )
    return run.model_copy(update={"failures": (Failure(arm="llama", round=1, reason="no such method"),)})


def write(run: Run, folder: Path) -> None:
    records: tuple[AnyRecord, ...] = (
        run.settings,
        *run.starts,
        *run.blocks,
        *run.near_tie_probes,
        *run.failures,
    )
    for record in records:
        append_record(folder, record)


def warnings_of(run: Run) -> str:
    return "\n".join(summarize(run).warnings)


def test_a_run_that_was_written_and_read_has_the_same_summary(tmp_path: Path) -> None:
    run = whole_run()
    write(run, tmp_path)
    assert read_run(tmp_path) == run
    assert summarize(read_run(tmp_path)) == summarize(run)


def test_the_order_in_which_blocks_were_measured_matters_not() -> None:
    run = whole_run()
    turned = summarize(run.model_copy(update={"blocks": run.blocks[::-1]}))
    assert [cell.verdict for cell in turned.cells] == [cell.verdict for cell in summarize(run).cells]
    for one, other in zip(turned.cells, summarize(run).cells, strict=True):
        assert one.speedup == other.speedup


def test_a_summary_survives_json() -> None:
    summary = summarize(whole_run())
    assert Summary.model_validate_json(summary.model_dump_json()) == summary


def test_a_run_that_has_measured_nothing_yet_has_a_summary() -> None:
    run = whole_run()
    summary = summarize(Run(settings=run.settings))
    assert summary.cells == ()
    assert [one.headline for one in summary.recommendations] == ["not measured"]
    assert Summary.model_validate_json(summary.model_dump_json()) == summary


def test_cells_stand_by_concurrency_and_then_in_the_order_of_the_arms() -> None:
    places = [(cell.concurrency, cell.arm) for cell in summarize(whole_run()).cells]
    arms = [OFF, OFF_V1, SPEC, SUFFIX]
    assert places == [(1, arm) for arm in arms] + [(4, arm) for arm in arms]


def test_a_cell_holds_ratios_over_both_baselines_and_the_baseline_none() -> None:
    off, v1, spec = summarize(whole_run()).cells[:3]
    assert (off.speedup, off.tpot_ratio, off.num_same_outputs) == (None, None, None)
    assert v1.speedup is not None
    assert v1.speedup_over_off_v1 is None
    assert spec.speedup is not None
    assert spec.speedup_over_off_v1 is not None
    assert spec.tpot_ratio is not None
    assert spec.speedup.estimate == pytest.approx(1.25)
    assert spec.speedup_over_off_v1.estimate == pytest.approx(1.25 / 0.9)
    # (0.64 / 1.25 - 0.05) / (0.64 - 0.05): the first token takes as long with both.
    assert spec.tpot_ratio.estimate == pytest.approx(0.462 / 0.59)
    assert (spec.measures.num_starts, spec.measures.num_blocks) == (2, 12)
    assert spec.measures.kv_cache_tokens == 1000


def test_nothing_is_said_against_an_off_v1_whose_own_answers_are_invalid() -> None:
    run = made_up_run({OFF_V1: {1: 0.9}, SPEC: {1: 1.25}}, outputs={OFF_V1: one_token_repeated})
    _, v1, spec = summarize(run).cells
    assert v1.verdict == "invalid"
    assert (spec.verdict, spec.speedup_over_off_v1) == ("on", None)


def test_the_checklist_answers_five_questions_with_numbers_of_the_run() -> None:
    goal, fit, latency, gain, kept = (item.answer for item in summarize(whole_run()).checklist)
    assert goal.startswith("The goal is ttft_p95=200ms. The baseline is the engine with --max-num-seqs")
    assert "2 starts, 24 blocks: code edit: 100.0 tokens/s at concurrency 1, 100.0 tokens/s" in goal
    assert "ngram-spec on code edit: 1.28 tokens per step at concurrency 1, with drafts in 8.0% of" in fit
    assert (
        "ngram-spec on code edit: 70.0% of the draft tokens accepted, TTFT p95 50.0 ms, TPOT p95" in latency
    )
    assert "ngram-spec on code edit: tokens per second +25.0% at concurrency 1, +10.0% at" in gain
    assert "+50 MiB of main memory" in gain
    assert kept == "code edit: ngram-spec, on."


def test_a_sound_run_has_no_warnings() -> None:
    assert warnings_of(made_up_run({SPEC: {1: 1.25, 4: 1.1}})) == ""


def test_failures_and_arms_that_were_not_measured_are_warnings() -> None:
    assert "Arm llama failed in round 2: no such method." in warnings_of(whole_run())
    run = made_up_run({SPEC: {1: 1.25}, SUFFIX: {1: 1.2}})
    without = tuple(one for one in run.blocks if one.arm != SUFFIX)
    assert warnings_of(run.model_copy(update={"blocks": without})) == "Arm suffix was not measured."


def test_groups_that_share_prompts_hide_how_much_prompts_matter_and_the_run_says_so() -> None:
    run = made_up_run({SPEC: {1: 1.25, 4: 1.1}}, num_groups=3)
    first = run.blocks[0].answers
    filled = tuple(
        one.model_copy(update={"answers": one.answers + first}) if place == (4, 2) else one
        for one in run.blocks
        for place in [(one.concurrency, one.group)]
    )
    assert warnings_of(run.model_copy(update={"blocks": filled})) == (
        "code edit has too few prompts for concurrency 4: some were sent in several blocks, so the intervals "
        "there leave out how much the choice of prompts matters; --num-prompts takes more."
    )


def test_servers_that_ran_before_and_prompts_in_one_group_are_warnings() -> None:
    warnings = warnings_of(made_up_run({SPEC: {1: 1.25}}, num_groups=1, urls={OFF: "http://localhost:8000"}))
    assert "The servers ran before this run" in warnings
    assert "The prompts were sent in one group" in warnings


def test_of_many_intervals_the_run_says_how_many_may_miss_the_truth() -> None:
    loads = range(1, 6)
    arms = {arm: dict.fromkeys(loads, 1.25) for arm in (SPEC, SUFFIX)}
    assert "of the 10 here about 0.5 may" in warnings_of(made_up_run(arms))
    assert "may" not in warnings_of(made_up_run({SPEC: arms[SPEC]}))


def test_preemptions_and_two_versions_of_the_engine_are_warnings() -> None:
    run = made_up_run({SPEC: {1: 1.25}})
    first = run.blocks[0]
    counters = first.counters.model_copy(update={"num_preemptions": 3})
    blocks = (first.model_copy(update={"counters": counters}), *run.blocks[1:])
    starts = (*run.starts[:-1], run.starts[-1].model_copy(update={"engine_version": "0.33.0"}))
    warnings = warnings_of(run.model_copy(update={"blocks": blocks, "starts": starts}))
    assert "Arm off preempted requests 3 times: its KV cache was full." in warnings
    assert "The servers ran different versions of the engine: 0.32.0, 0.33.0." in warnings


def test_a_goal_that_is_none_is_refused() -> None:
    with pytest.raises(NgramSpecError, match="a goal must be"):
        summarize(made_up_run({SPEC: {1: 1.25}}, goal="fast"))


def test_a_line_that_was_cut_off_while_it_was_written_is_left_out(tmp_path: Path) -> None:
    run = whole_run()
    write(run, tmp_path)
    path = tmp_path / RUN_FILE
    path.write_bytes(path.read_bytes()[:-20])
    assert read_run(tmp_path) == run.model_copy(update={"failures": ()})


def test_a_line_that_is_no_record_is_refused_with_its_number(tmp_path: Path) -> None:
    write(whole_run(), tmp_path)
    with (tmp_path / RUN_FILE).open("a") as file:
        file.write('{"kind": "block", "start": "first"}\n')
    num_lines = len((tmp_path / RUN_FILE).read_text().splitlines())
    with pytest.raises(NgramSpecError, match=rf"run.jsonl:{num_lines}: no record of a run: block.start: "):
        read_run(tmp_path)


def test_a_run_must_begin_with_its_settings(tmp_path: Path) -> None:
    run = whole_run()
    with pytest.raises(NgramSpecError, match="a run must begin with its settings"):
        as_run(run.blocks, "here")
    with pytest.raises(NgramSpecError, match="a run must begin with its settings"):
        as_run([], "here")
    with pytest.raises(NgramSpecError, match="cannot read the run"):
        read_run(tmp_path)
