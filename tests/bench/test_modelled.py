"""Modelled mode: its loop against a plain replay, its arithmetic by hand, and what its report admits."""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ngram_spec import NgramSpecError, cli
from ngram_spec.bench.closed_loop import AnswerCounts, replay_closed_loop
from ngram_spec.bench.modelled import ModelledSettings, Recordings, modelled_summary, run_modelled
from ngram_spec.bench.page import write_page
from ngram_spec.bench.records import OFF
from ngram_spec.bench.summary import Cell, Summary
from ngram_spec.bench.tables import print_summary
from ngram_spec.recordings import TokenizedResponse, load_responses, packaged_recordings
from ngram_spec.replay import ReplaySettings, replay
from ngram_spec.vllm_plugin import METHOD
from rich.console import Console

NOT_LEARNING = ReplaySettings(learn=False)
# As long as it verifies less than a million tokens, a step takes what a step without drafts takes.
FREE = "[[1, 1.0], [1000000, 1.0]]"


def tokenized(prompt: Sequence[int], output: Sequence[int]) -> TokenizedResponse:
    return TokenizedResponse(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


def packaged(index: int = 0) -> list[TokenizedResponse]:
    return [response.tokenize(None) for response in load_responses(packaged_recordings()[index])]


def copies(number: int) -> tuple[str, TokenizedResponse]:
    """An answer that repeats its prompt."""
    passage = [*range(100 * number, 100 * number + 60)]
    return f"copies {number}", tokenized([*passage, 7], passage)


def invents(number: int) -> tuple[str, TokenizedResponse]:
    """An answer in which no token comes twice, so that nothing can be drafted."""
    start = 10_000 + 1000 * number
    return f"invents {number}", tokenized([start], range(start + 1, start + 41))


def settings(tmp_path: Path, curve: str = FREE, **others: object) -> ModelledSettings:
    path = tmp_path / "curve.json"
    path.write_text(curve)
    return ModelledSettings(cost_curve=str(path), drafter=NOT_LEARNING, **others)  # type: ignore[arg-type]


def drafting_cell(summary: Summary, concurrency: int = 1) -> Cell:
    (cell,) = (c for c in summary.cells if c.arm == METHOD and c.concurrency == concurrency)
    return cell


# The loop


@pytest.mark.parametrize("num_rows", [1, 3, 16])
def test_each_answer_fares_as_in_a_replay_of_it_alone_whatever_stands_in_the_other_rows(
    num_rows: int,
) -> None:
    responses = [*packaged(0), *packaged(1)]
    loop = replay_closed_loop(responses, num_rows, 0.05, lambda verified: 1.0, NOT_LEARNING)
    assert loop.num_repetitions == -(-max(8, 2 * num_rows) // 8)
    for response, counts in zip(responses, loop.answers, strict=True):
        alone = replay(response, NOT_LEARNING.drafter_factory())
        times = loop.num_repetitions
        assert counts.num_steps == times * alone.num_steps
        assert counts.num_drafts == times * alone.num_drafts
        assert counts.num_draft_tokens == times * alone.num_draft_tokens
        assert counts.num_accepted_tokens == times * alone.num_accepted_tokens
        assert counts.num_output_tokens == times * alone.num_output_tokens
    total = loop.total
    assert total.num_drafts > 100
    assert sum(loop.num_accepted_by_position) == total.num_accepted_tokens


def test_a_step_verifies_the_last_token_and_the_draft_of_each_row_and_the_batch_is_always_full() -> None:
    _, response = copies(1)
    output = response.output_token_ids.tolist()
    steps = []

    def step_time(verified: Sequence[Sequence[int]]) -> float:
        steps.append([list(row) for row in verified])
        return 1.0

    replay_closed_loop([response], 2, 0.0, step_time, ReplaySettings(max_draft_tokens=3, learn=False))
    assert steps[0] == [[100, 101, 102, 103]] * 2
    # Three accepted, and the bonus token.
    assert steps[1] == [[104, 105, 106, 107]] * 2
    assert all(len(step) == 2 for step in steps)
    assert all(row[0] in output for step in steps for row in step)


def test_each_row_takes_an_equal_part_of_a_step_s_time() -> None:
    responses = packaged(0)
    one = replay_closed_loop(responses, 1, 0.05, lambda verified: 3.0, NOT_LEARNING)
    assert [counts.time for counts in one.answers] == [3.0 * counts.num_steps for counts in one.answers]
    five = replay_closed_loop(responses, 5, 0.05, lambda verified: 3.0, NOT_LEARNING)
    assert five.total.time == pytest.approx(3.0 * five.total.num_steps / 5)


def test_a_long_prompt_is_indexed_before_the_first_step_as_while_an_engine_reads_it() -> None:
    passage = list(range(20_000))
    loop = replay_closed_loop(
        [tokenized(passage, passage[500:600])], 2, 0.0, lambda verified: 1.0, NOT_LEARNING
    )
    assert loop.total.num_drafts == loop.total.num_steps


def test_a_drafter_that_may_learn_does() -> None:
    responses = packaged(0)
    still, learning = (
        replay_closed_loop(responses, 4, 0.05, lambda verified: 1.0, ReplaySettings(learn=learn)).total
        for learn in (False, True)
    )
    assert still.num_draft_tokens != learning.num_draft_tokens


def test_answers_of_one_token_take_no_step() -> None:
    loop = replay_closed_loop([tokenized([1, 2], [3])], 4, 0.05, lambda verified: 1.0, NOT_LEARNING)
    assert loop.answers == [AnswerCounts()]
    mixed = replay_closed_loop(
        [tokenized([1, 2], [3]), copies(1)[1]], 1, 0.05, lambda verified: 1.0, NOT_LEARNING
    )
    assert mixed.answers[0].num_steps == 0
    assert mixed.answers[1].num_output_tokens == 59 * mixed.num_repetitions


# The arithmetic


def test_where_nothing_can_be_drafted_the_method_costs_its_overhead_and_is_off(tmp_path: Path) -> None:
    recordings = {"new": [invents(number) for number in range(6)]}
    cell = drafting_cell(modelled_summary(recordings, settings(tmp_path, concurrencies=(1,))))
    assert cell.speedup is not None
    assert (cell.speedup.estimate, cell.speedup.low, cell.speedup.high) == pytest.approx((1 / 1.2,) * 3)
    assert cell.verdict == "off"
    assert "would not pay if the method cost nothing" in cell.reason


def test_without_any_difference_there_is_none(tmp_path: Path) -> None:
    recordings = {"new": [invents(number) for number in range(6)]}
    free = settings(tmp_path, concurrencies=(1,), method_overhead=0.0)
    cell = drafting_cell(modelled_summary(recordings, free))
    assert cell.speedup is not None
    assert cell.speedup.estimate == pytest.approx(1)
    assert cell.verdict == "no measurable difference"


def test_where_draft_tokens_are_free_the_speedup_is_tokens_per_step_over_the_step(tmp_path: Path) -> None:
    recordings = {"mixed": [*map(copies, range(1, 5)), *map(invents, range(5))]}
    cell = drafting_cell(modelled_summary(recordings, settings(tmp_path, concurrencies=(1,))))
    drafting = cell.measures.drafting
    assert drafting is not None
    assert cell.speedup is not None
    assert cell.speedup.estimate == pytest.approx(drafting.tokens_per_step / 1.2)
    assert drafting.tokens_per_step > 1.5
    assert cell.speedup.low < cell.speedup.estimate < cell.speedup.high
    assert cell.tpot_ratio is not None
    assert cell.tpot_ratio.estimate == pytest.approx(1 / cell.speedup.estimate)
    assert cell.tpot_ratio.low == pytest.approx(1 / cell.speedup.high)


def test_a_step_takes_what_the_curve_gives_for_all_its_tokens(tmp_path: Path) -> None:
    # Each token takes one unit, so nothing pays: 4 rows without drafts take 4 units a step.
    recordings = {"copies": [*map(copies, range(1, 5))]}
    linear = settings(tmp_path, "[[1, 1.0], [1000, 1000.0]]", concurrencies=(4,), method_overhead=0.0)
    summary = modelled_summary(recordings, linear)
    off, ours = summary.cells
    assert off.measures.throughput == pytest.approx(1.0)
    assert ours.measures.throughput <= off.measures.throughput + 1e-9


def test_the_overhead_that_it_can_bear_is_the_one_at_which_nothing_is_gained(tmp_path: Path) -> None:
    recordings = {"mixed": [*map(copies, range(1, 5)), *map(invents, range(5))]}
    curve = "[[1, 1.0], [64, 3.0]]"
    reason = drafting_cell(modelled_summary(recordings, settings(tmp_path, curve)), 4).reason
    (bearable,) = re.findall(r"costs less than (\d+)% of a step", reason)
    at_that = settings(tmp_path, curve, method_overhead=int(bearable) / 100)
    cell = drafting_cell(modelled_summary(recordings, at_that), 4)
    assert cell.speedup is not None
    assert cell.speedup.estimate == pytest.approx(1, abs=0.01)


def test_where_verifying_gets_dear_the_break_even_lies_between_two_concurrencies(tmp_path: Path) -> None:
    recordings = {"copies": [*map(copies, range(1, 8))]}
    # Up to 16 tokens a step costs nothing more, then each costs its full part.
    curve = "[[1, 1.0], [16, 1.0], [10016, 626.0]]"
    summary = modelled_summary(recordings, settings(tmp_path, curve, concurrencies=(1, 64)))
    low, high = (drafting_cell(summary, concurrency).speedup for concurrency in (1, 64))
    assert low is not None
    assert high is not None
    assert low.estimate > 1 > high.estimate
    assert [drafting_cell(summary, concurrency).verdict for concurrency in (1, 64)] == ["on", "off"]
    (recommendation,) = summary.recommendations
    assert recommendation.headline.startswith("on up to about concurrency ")
    assert recommendation.break_even_concurrency is not None
    assert 1 < recommendation.break_even_concurrency < 64


def test_a_step_s_time_gives_seconds(tmp_path: Path) -> None:
    recordings = {"new": [invents(number) for number in range(4)]}
    summary = modelled_summary(
        recordings, settings(tmp_path, "[[1, 2.0], [4, 4.0]]", concurrencies=(1, 4), step_ms=10.0)
    )
    off = {cell.concurrency: cell.measures for cell in summary.cells if cell.arm == OFF}
    assert off[1].throughput == pytest.approx(100)
    # Four rows take twice as long for four times the tokens.
    assert off[4].throughput == pytest.approx(200)
    assert off[4].tpot_ms is not None
    assert off[4].tpot_ms.p50 == pytest.approx(20)
    ours = drafting_cell(summary, 4).measures
    assert ours.tpot_ms is not None
    assert ours.tpot_ms.p50 == pytest.approx(24)
    without = modelled_summary(recordings, settings(tmp_path, concurrencies=(1,)))
    assert all(cell.measures.tpot_ms is None for cell in without.cells)


def test_whole_records_are_resampled_and_one_alone_shows_nothing(tmp_path: Path) -> None:
    three = [("same", copies(number)[1]) for number in range(1, 8)] + [copies(8), copies(9)]
    recordings: Recordings = {"three records": three}
    cell = drafting_cell(modelled_summary(recordings, settings(tmp_path, concurrencies=(1,))))
    assert cell.speedup is not None
    assert cell.speedup.num_pairs == 3
    assert cell.speedup.low > 1
    assert cell.verdict == "on"
    cell = drafting_cell(modelled_summary({"one record": three[:7]}, settings(tmp_path, concurrencies=(1,))))
    assert cell.verdict == "no measurable difference"
    assert "One record says nothing about another" in cell.reason


# The report


def test_the_report_says_that_it_is_modelled_and_on_what(tmp_path: Path) -> None:
    summary = modelled_summary({"copies": [*map(copies, range(1, 8))]}, settings(tmp_path))
    assert summary.is_modelled
    output = io.StringIO()
    print_summary(summary, Console(file=output, width=120))
    said = " ".join(output.getvalue().split())
    assert said.startswith("Modelled")
    assert f"cost curve {tmp_path / 'curve.json'}" in said
    assert "read tokens/s as tokens in that time" in said
    assert "20% of a step without drafts, for the loss of async scheduling" in said
    assert "copies (7 answers)" in said
    assert "start" not in said
    (recommendation,) = summary.recommendations
    assert recommendation.arm == METHOD
    config = json.loads(recommendation.flags.split(" ", 1)[1].strip("'"))
    assert config["draft_cost"] == str(tmp_path / "curve.json")
    write_page(tmp_path / "page.html", None, summary)
    assert "odelled" in (tmp_path / "page.html").read_text()


def test_the_packaged_recordings_are_taken_where_none_is_named() -> None:
    summary = run_modelled([], None, ModelledSettings(concurrencies=(1, 8)))
    assert list(summary.settings.workloads) == ["code_edit", "rag", "summarization"]
    assert len(summary.cells) == 3 * 2 * 2
    assert "135M parameters" in summary.warnings[0]
    assert any("curve h100 itself is modelled" in warning for warning in summary.warnings)
    speedups = [cell.speedup for cell in summary.cells if cell.arm == METHOD]
    assert all(speedup is not None and speedup.estimate > 1 for speedup in speedups)


def test_the_same_run_gives_the_same_summary() -> None:
    def figures() -> list[object]:
        summary = run_modelled(packaged_recordings()[:1], None, ModelledSettings(concurrencies=(4,)))
        return [cell.speedup for cell in summary.cells]

    assert figures() == figures()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"method_overhead": -0.1}, "--method-overhead must be a share of a step, from 0, got -0.1"),
        ({"method_overhead": float("nan")}, "--method-overhead must be a share of a step, from 0, got nan"),
        ({"method_overhead": 1e308}, r"--method-overhead must be a share of a step, from 0, got 1e\+308"),
        ({"step_ms": 0.0}, r"--step-ms must be a time from 1e-09 to 1e\+09, got 0"),
        ({"step_ms": 1e308}, r"--step-ms must be a time from 1e-09 to 1e\+09, got 1e\+308"),
        ({"concurrencies": (4, 0)}, r"concurrencies must be at least 1, got \(4, 0\)"),
        ({"concurrencies": ()}, "concurrencies must be at least 1"),
        ({"cost_curve": "nowhere.json"}, "got 'nowhere.json' in --cost-curve .*No such file"),
        ({"drafter": ReplaySettings(min_match_len=0)}, "min_match_len must be"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_sentence(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(NgramSpecError, match=sentence):
        run_modelled(packaged_recordings()[:1], None, ModelledSettings(**wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("points", ["[[1, 1.0], [2, 1e308]]", "[[1, 1e-320], [2, 1e-320]]"])
def test_a_curve_whose_times_are_beyond_all_measure_is_refused(tmp_path: Path, points: str) -> None:
    with pytest.raises(NgramSpecError, match=r"--cost-curve must give times from 1e-09 to 1e\+09, got"):
        run_modelled(packaged_recordings()[:1], None, settings(tmp_path, points))


# The command


def test_the_command_writes_a_report_that_says_so_and_touches_no_live_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "report.html"
    live.write_text("live")
    file = str(packaged_recordings()[1])
    arguments = ["--concurrency", "8,1", "--num-speculative-tokens", "8", "--method-overhead", "0.1"]
    assert cli.main(["bench", "--modelled", "--out", str(tmp_path), *arguments, "--step-ms", "9", file]) == 0
    assert capsys.readouterr().out.startswith("Modelled")
    assert live.read_text() == "live"
    assert 'href="modelled.json"' in (tmp_path / "modelled.html").read_text()
    document = json.loads((tmp_path / "modelled.json").read_text())
    assert document["run"] is None
    summary = Summary.model_validate(document["summary"])
    assert summary.is_modelled
    assert summary.settings.concurrencies == (1, 8)
    assert any("10% of a step" in warning for warning in summary.warnings)
    assert not any("135M" in warning for warning in summary.warnings)
    assert not any("unit of time" in warning for warning in summary.warnings)
    drafting = drafting_cell(summary).measures.drafting
    assert drafting is not None
    assert len(drafting.accepted_by_position) == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--modelled", "--url", "http://a:1"], "--url must not be given with --modelled"),
        (["--modelled", "--report", "nowhere"], "--report must not be given with --modelled"),
        (["--modelled", "--draft-cost", "0.1"], "--draft-cost must not be given with --modelled"),
        (["--modelled", "--rounds", "3"], "--rounds must not be given with --modelled"),
        (["--modelled", "--quick"], "--quick must not be given with --modelled"),
        (["--modelled", "--temperature", "0"], "--temperature must not be given with --modelled"),
        (["--modelled", "--budget", "5m"], "--budget must not be given with --modelled"),
        (["--modelled", "--", "--max-model-len", "9"], "flags behind -- must not be given with --modelled"),
        (["--modelled", "--concurrency", "many"], "--concurrency must be whole numbers"),
        (["--modelled", "--num-speculative-tokens", "0"], "--num-speculative-tokens must be from 1 to"),
        (["--modelled", "nowhere.jsonl"], "nowhere.jsonl: cannot read"),
        (["--cost-curve", "h100"], "--cost-curve must be given with --modelled"),
        (["--method-overhead", "0", "--quick"], "--method-overhead must be given with --modelled"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr("ngram_spec.bench.run.measure_all", None)  # should one be accepted, nothing starts
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ngram-spec bench: error: ")
    assert sentence in captured.err
    assert captured.out == ""


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    command = ["bench", "--modelled", "--concurrency", "1", "--out", str(file), str(packaged_recordings()[0])]
    assert cli.main(command) == 2
    assert "--out must be a folder" in capsys.readouterr().err
