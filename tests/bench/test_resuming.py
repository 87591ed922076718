"""What is on disk: nothing measured is lost, whatever cut a run off, and no other file is touched."""

import errno
import fcntl
from pathlib import Path

import pytest
from bench_runs import FEW, bench, run_in, serve_fakes
from made_up_runs import SPEC, made_up_run
from ngram_spec import NgramSpecError, cli
from ngram_spec.bench import run as bench_run
from ngram_spec.bench.records import RUN_FILE, AnyRecord, Run, append_record, as_run, read_run
from ngram_spec.bench.run import begin_or_resume


def written(folder: Path) -> Run:
    """A run of two starts, on disk."""
    run = made_up_run({SPEC: {1: 1.25}}, num_groups=2)
    records: tuple[AnyRecord, ...] = (run.settings, *run.starts, *run.blocks)
    for record in records:
        append_record(folder, record)
    return run


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\r", "\x0b", "\x1e"])
def test_an_answer_with_a_line_separator_in_it_is_read_again(tmp_path: Path, separator: str) -> None:
    run = made_up_run({SPEC: {1: 1.25}}, num_rounds=1, num_groups=1)
    (first, *_) = run.blocks
    answers = tuple(one.model_copy(update={"text": f"a{separator}b"}) for one in first.answers)
    append_record(tmp_path, run.settings)
    append_record(tmp_path, first.model_copy(update={"answers": answers}))
    append_record(tmp_path, run.blocks[1])
    assert read_run(tmp_path).blocks[0].answers == answers
    assert len(read_run(tmp_path).blocks) == 2


def test_a_last_line_that_lost_only_its_end_of_line_is_kept(tmp_path: Path) -> None:
    run = written(tmp_path)
    path = tmp_path / RUN_FILE
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert begin_or_resume(tmp_path, run.settings) == run
    assert path.read_bytes().endswith(b"}\n")
    assert read_run(tmp_path) == run


@pytest.mark.parametrize("num_bytes", [2, 20, 300])
def test_a_last_line_that_was_cut_off_is_cut_away_and_nothing_else(tmp_path: Path, num_bytes: int) -> None:
    run = written(tmp_path)
    path = tmp_path / RUN_FILE
    *lines, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, last[:-num_bytes]]))
    resumed = begin_or_resume(tmp_path, run.settings)
    assert resumed.blocks == run.blocks[:-1]
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("content", [b"my own notes", b"\x00\xff\x00", b'{"kind": "settings"}'])
def test_a_file_that_is_no_run_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RUN_FILE).write_bytes(content)
    with pytest.raises(NgramSpecError, match="a run must begin with its settings"):
        begin_or_resume(tmp_path, made_up_run({SPEC: {1: 1.25}}).settings)
    assert (tmp_path / RUN_FILE).read_bytes() == content


def test_the_run_of_other_settings_is_left_as_it_is(tmp_path: Path) -> None:
    run = written(tmp_path)
    path = tmp_path / RUN_FILE
    cut = path.read_bytes()[:-10]
    path.write_bytes(cut)
    with pytest.raises(NgramSpecError, match="temperature was 0"):
        begin_or_resume(tmp_path, run.settings.model_copy(update={"temperature": 1.0}))
    assert path.read_bytes() == cut


def test_an_empty_file_is_where_a_run_begins(tmp_path: Path) -> None:
    settings = made_up_run({SPEC: {1: 1.25}}).settings
    (tmp_path / RUN_FILE).touch()
    assert begin_or_resume(tmp_path, settings) == Run(settings=settings)


def test_a_block_that_is_there_twice_would_count_twice_and_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path)
    append_record(tmp_path, run.blocks[0])
    with pytest.raises(NgramSpecError, match=r"a block must be there once, got that of arm off, round 0"):
        read_run(tmp_path)


def test_a_record_of_an_arm_that_the_settings_lack_is_refused() -> None:
    run = made_up_run({SPEC: {1: 1.25}})
    settings = run.settings.model_copy(update={"arms": run.settings.arms[:1]})
    with pytest.raises(NgramSpecError, match=f"arms must be in the settings, each once, got '{SPEC}'"):
        as_run((settings, *run.blocks), "here")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ('"num_output_tokens":64', '"num_output_tokens":-64'),
        ('"chunk_num_tokens":[2,', '"chunk_num_tokens":[2,2,'),
        ('"seconds":', '"seconds":1e999,"was":'),
        ('"concurrency":1', '"concurrency":0'),
    ],
)
def test_a_measurement_that_cannot_be_is_refused_with_its_line(tmp_path: Path, path: str, value: str) -> None:
    written(tmp_path)
    file = tmp_path / RUN_FILE
    lines = file.read_text("utf-8").splitlines(keepends=True)
    assert path in lines[-1]
    file.write_text("".join([*lines[:-1], lines[-1].replace(path, value, 1)]), encoding="utf-8")
    with pytest.raises(NgramSpecError, match=rf"run.jsonl:{len(lines)}: no record of a run: block"):
        read_run(tmp_path)


def test_a_second_run_into_the_same_folder_is_refused_while_the_first_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_fakes(monkeypatch)
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / RUN_FILE).open("ab") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert bench(tmp_path, *FEW) == 2
    assert (
        "only one ngram-spec bench may measure into a folder, and another one does" in capsys.readouterr().err
    )
    assert (tmp_path / "out" / RUN_FILE).read_bytes() == b""


def test_a_disk_that_is_full_ends_the_run_and_once_there_is_room_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_fakes(monkeypatch)
    num_written = 0

    def append(folder: Path, record: AnyRecord) -> None:
        nonlocal num_written
        num_written += 1
        if num_written == 6:
            with (folder / RUN_FILE).open("a") as file:
                file.write(record.model_dump_json()[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        append_record(folder, record)

    with monkeypatch.context() as patched:
        patched.setattr(bench_run, "append_record", append)
        assert bench(tmp_path, *FEW) == 2
    error = capsys.readouterr().err
    assert "run.jsonl: cannot write what was measured: No space left on device; what it holds stays" in error
    before = run_in(tmp_path).blocks
    assert len(before) == 3
    assert bench(tmp_path, *FEW) in (0, 1)
    assert run_in(tmp_path).blocks[:3] == before
    assert len(run_in(tmp_path).blocks) == 16


def test_an_earlier_run_is_judged_anew_by_another_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    assert cli.main(["bench", "--report", str(tmp_path), "--goal", "tpot_p95=1ms"]) == 0
    assert "tpot_p95=1ms is met in 0 of 2 rounds" in " ".join(capsys.readouterr().out.split())
    assert read_run(tmp_path).settings.goal is None
    assert cli.main(["bench", "--report", str(tmp_path), "--goal", "fast"]) == 2
    assert "tpot_p95=30ms" in capsys.readouterr().err
