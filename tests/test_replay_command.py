"""What `ngram-spec replay` compares, calibrates, ablates and draws, beside the JSON that it writes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import RECORDS, modelled_speedup, refused, run, sums
from ngram_spec import AcceptanceModel, replay_command


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Eight records whose second half repeats the first, so that drafts of it are accepted."""
    path = tmp_path / "many.jsonl"
    lines = (
        {
            "id": f"r{number}",
            "prompt_token_ids": [*range(10 * number, 10 * number + 60)],
            "output_token_ids": [*range(10 * number, 10 * number + 45 + number)],
        }
        for number in range(8)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_drafter_is_told_each_cost_unless_it_is_told_one(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    document = run(many, "--json", out)
    assert document["settings"]["draft_cost"] is None
    told = {result["draft_cost"]: result for result in document["results"]}
    assert list(told) == [0.01, 0.05, 0.2]
    assert "draft_cost set to c in each speed column, to 0.05 in the others" in capsys.readouterr().out
    # Each is what the drafter does when it is told this cost and no other.
    for cost, result in told.items():
        (alone,) = run(many, "--draft-cost", cost, "--json", out)["results"]
        assert sums(alone)[:-1] == sums(result)[:-1]
        assert f"draft_cost {cost} in all columns" in capsys.readouterr().out


def test_a_file_that_is_named_twice_is_replayed_once(recording: Path, tmp_path: Path) -> None:
    arguments = ["--draft-cost", "0.05", "--json", tmp_path / "out.json"]
    assert len(run(recording, recording, *arguments)["results"]) == 1


def test_calibration_is_printed_as_the_json_has_it(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(many, "--calibration", "--draft-cost", "0.01", "--json", tmp_path / "out.json")
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    calibration = document["results"][0]["calibration"]
    columns = (calibration[name] for name in ("num_tokens", "num_accepted", "predicted_sum"))
    deciles = [sums for sums in zip(*columns, strict=True) if sums[0]]
    rows = [row for row in printed if row[1:2] == ["to"]]
    assert rows
    assert [row[3:] for row in rows] == [
        [str(num), f"{said / num:.3f}", f"{num_accepted / num:.3f}", f"{(num_accepted - said) / num:+.3f}"]
        for num, num_accepted, said in deciles
    ]
    error = calibration["expected_calibration_error"]
    total = str(sum(num for num, _, _ in deciles))
    assert ["expected", "error", total, f"{error:.3f}"] in printed


def test_the_baseline_is_compared_with_record_by_record(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(many, "--baseline", "--json", tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert "Speed-up / that of vLLM ngram 5,5" in printed
    *told, baseline = document["results"]
    for result, difference in zip(told, document["paired_differences"], strict=True):
        cost = result["draft_cost"]
        assert difference["draft_cost"] == cost
        assert difference["ratio"] == modelled_speedup(result, cost) / modelled_speedup(baseline, cost)
        assert difference["num_records"] == 8
        better, worse = difference["low"] > 1, difference["high"] < 1
        verdict = "better" if better else "worse" if worse else "no measurable difference"
        assert difference["verdict"] == verdict
        assert f"{difference['ratio']:.3f} {difference['low']:.3f} to {difference['high']:.3f}" in printed


def test_an_earlier_run_is_compared_with_record_by_record(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, out = tmp_path / "earlier.json", tmp_path / "out.json"
    run(many, "--max-draft-tokens", "1", "--json", earlier)
    same = run(many, "--max-draft-tokens", "1", "--against", earlier, "--json", out)
    assert {difference["ratio"] for difference in same["paired_differences"]} == {1}
    assert capsys.readouterr().out.count("no measurable difference") == 3
    longer = run(many, "--against", earlier, "--json", out)["paired_differences"]
    assert [(difference["versus"], difference["verdict"]) for difference in longer] == 3 * [
        (str(earlier), "better")
    ]


def test_an_earlier_run_that_was_told_one_cost_is_judged_at_all(many: Path, tmp_path: Path) -> None:
    earlier, out = tmp_path / "earlier.json", tmp_path / "out.json"
    (told,) = run(many, "--draft-cost", "0.2", "--json", earlier)["results"]
    document = run(many, "--against", earlier, "--json", out)
    for result, difference in zip(document["results"], document["paired_differences"], strict=True):
        cost = result["draft_cost"]
        assert difference["ratio"] == modelled_speedup(result, cost) / modelled_speedup(told, cost)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": "other"}, "got 'two' (30 prompt, 9 output tokens) as number 2, now 'other' (30 prompt, 9 "),
        (
            {"prompt_token_ids": [5]},
            "got 'two' (30 prompt, 9 output tokens) as number 2, now 'two' (1 prompt",
        ),
        ({"output_token_ids": [5]}, "now 'two' (30 prompt, 1 output tokens)"),
        (None, "must have had the same responses, got 2, now 1"),
    ],
)
def test_earlier_results_of_other_records_are_refused_with_the_first_difference(
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any] | None,
    expected: str,
) -> None:
    earlier = tmp_path / "earlier.json"
    run(recording, "--json", earlier)
    capsys.readouterr()
    second = [] if change is None else [RECORDS[1] | change]
    recording.write_text("".join(json.dumps(record) + "\n" for record in [RECORDS[0], *second]))
    monkeypatch.setattr(replay_command, "replay", lambda *_: pytest.fail("replayed before it was compared"))
    assert f"error: {earlier}: ids.jsonl must" in (
        message := refused(capsys, recording, "--against", earlier)
    )
    assert expected in message


def test_earlier_results_must_have_the_file_and_its_tokenizer(
    recording: Path, many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "earlier.json"
    document = run(recording, "--json", earlier)
    capsys.readouterr()
    message = refused(capsys, recording, many, "--against", earlier)
    assert "many.jsonl must be among the earlier results" in message
    for result in document["results"]:
        result["tokenizer"] = "qwen"
    earlier.write_text(json.dumps(document))
    message = refused(capsys, recording, "--against", earlier)
    assert "must have had the same tokenizer, got 'qwen', now 'ids'" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "the earlier results must be JSON"),
        ("[]", "must be what ngram-spec replay --json writes (TypeError"),
        ('{"settings": {"draft_cost": 0.05}}', "(KeyError: 'results')"),
        (
            '{"settings": {"draft_cost": 0.05}, "results": [{"file": "a", "responses": [{}]}]}',
            "(KeyError: 'id')",
        ),
    ],
)
def test_earlier_results_that_are_none_are_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, expected: str
) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(content)
    assert expected in refused(capsys, recording, "--against", earlier)
    assert "No such file" in refused(capsys, recording, "--against", tmp_path / "none.json")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_plot_is_drawn_over_more_costs_than_the_table(
    recording: Path, tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / f"plot{suffix}"
    document = run(recording, "--baseline", "--plot", plot, "--json", tmp_path / "out.json")
    assert plot.stat().st_size > 10_000
    costs = {result["draft_cost"] for result in document["results"]}
    assert costs == {0.003, 0.006, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, None}
    told_one = run(recording, "--draft-cost", "0.3", "--plot", plot, "--json", tmp_path / "out.json")
    assert [result["draft_cost"] for result in told_one["results"]] == [0.3]


def test_a_plot_that_cannot_be_drawn_is_found_before_the_work(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replay_command, "load_responses", lambda *_: pytest.fail("worked before it was checked")
    )
    assert "must be a .png or .svg" in refused(capsys, recording, "--plot", tmp_path / "plot.pdf")
    assert "cannot write the plot" in refused(capsys, recording, "--plot", tmp_path / "no" / "plot.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = refused(capsys, recording, "--plot", tmp_path / "plot.svg")
    assert "pip install 'ngram-spec[plot]'" in message


class WeightedModel:
    """An acceptance model of two features."""

    def __init__(self, prior: object = None) -> None:
        pass

    @staticmethod
    def feature_names() -> list[str]:
        return ["bias", "match_len"]

    def weights(self) -> dict[str, float]:
        return {"bias": 1.0, "match_len": 2.0}


def test_an_ablation_replays_without_each_feature_at_each_cost(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    priors: list[object] = []

    def unweighted(prior: object, learn: bool) -> AcceptanceModel:
        priors.append(prior)
        return AcceptanceModel()

    monkeypatch.setattr("ngram_spec.ablation.AcceptanceModel", WeightedModel)
    monkeypatch.setattr("ngram_spec.replay.AcceptanceModel", unweighted)
    document = run(many, "--ablate", "--json", tmp_path / "out.json")
    for prior in (None, {"bias": 0.0, "match_len": 2.0}, {"bias": 1.0, "match_len": 0.0}):
        # Once to refuse what is out of range, once for the file, at each of three costs.
        assert priors.count(prior) == 6
    nothing = {"0.01": 0, "0.05": 0, "0.2": 0}
    assert document["ablations"] == [
        {"file": "many.jsonl", "feature": "bias", "changes": nothing},
        {"file": "many.jsonl", "feature": "match_len", "changes": nothing},
    ]
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["match_len", "+0.00%", "+0.00%", "+0.00%"] in rows
    # The table of figures has the whole model only.
    assert len([row for row in rows if row[:1] == ["many.jsonl"] and len(row) == 9]) == 1
    assert not any("without match_len" in " ".join(row) for row in rows)


def test_the_tables_fit_80_columns_when_they_are_piped(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The longest name of those that ship, and the longest verdict.
    renamed, out = many.rename(tmp_path / "summarization.jsonl"), tmp_path / "out.json"
    run(renamed, "--json", out)
    run(renamed, "--baseline", "--calibration", "--against", out, "--json", out)
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if str(tmp_path) not in line]
    for last in ("no measurable difference", "better", "expected error"):
        assert any(last in row for row in rows)
    assert all(len(row) <= 80 and "…" not in row for row in rows)


def test_few_records_are_named_and_not_compared(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(recording, "--baseline", "--json", tmp_path / "out.json")
    assert [row["verdict"] for row in document["paired_differences"]] == ["too few records"] * 3
    printed = capsys.readouterr().out
    assert "fewer than 6 records, so no paired comparison with vLLM ngram 5,5:\nids.jsonl\n" in printed
    assert "95 % interval" not in printed


def test_results_never_replace_what_is_read(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = recording.read_bytes()
    message = refused(capsys, recording, "--json", recording)
    assert "the results would replace an input; name another file" in message
    assert recording.read_bytes() == before
