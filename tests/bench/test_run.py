"""Whole runs on fake servers: what is measured in which order, what a fault costs, when a run ends."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench_runs import FEW, PROMPTS, bench, processes_of_fakes, prompts_file, run_in, serve_fakes
from fake_server import KV_CACHE_TOKENS, KV_CACHE_USAGE, NUM_DRAFTED, TOP_LOGPROBS, VERSION
from ngram_spec import cli
from ngram_spec.bench import run as run_module
from ngram_spec.bench.records import Block, Run
from ngram_spec.bench.server import Server, started_server

NUM_PROMPTS = len(PROMPTS)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert processes_of_fakes() == []


@contextmanager
def off_and_ngram(folder: Path) -> Iterator[tuple[Server, Server]]:
    """Two servers that run, the second with drafts."""
    drafts = ("--speculative-config", '{"method": "ngram"}')
    with (
        started_server("m", log_path=folder / "1.log") as off,
        started_server("m", drafts, log_path=folder / "2.log") as ngram,
    ):
        yield off, ngram


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_fakes(monkeypatch)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one whole run of three arms."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as monkeypatch:
        serve_fakes(monkeypatch)
        assert bench(folder, *FEW, "--arms", "off,ngram,ngram_spec", "--concurrency", "2,1") == 0
    return folder


def order(run: Run) -> list[tuple[int, str]]:
    return [(start.round, start.arm) for start in run.starts]


def place(block: Block) -> tuple[str, int, int]:
    return block.workload, block.concurrency, block.group


def identity(block: Block) -> tuple[str, int, tuple[str, int, int]]:
    return block.arm, block.round, place(block)


def blocks_of(run: Run, arm: str) -> list[Block]:
    return [block for block in run.blocks if block.arm == arm]


def test_arms_are_measured_in_mirrored_order_with_the_same_prompts(measured: Path) -> None:
    run = run_in(measured)
    arms = ["off", "ngram", "ngram_spec"]
    assert order(run) == [(0, arm) for arm in arms] + [(1, arm) for arm in reversed(arms)]
    assert [start.number for start in run.starts] == list(range(6))
    assert {start.engine_version for start in run.starts} == {VERSION}
    assert {start.kv_cache_tokens for start in run.starts} == {KV_CACHE_TOKENS}
    for start in run.starts:
        its_blocks = [block for block in run.blocks if block.start == start.number]
        assert [place(block) for block in its_blocks] == [
            ("mine", concurrency, group) for concurrency in (1, 2) for group in range(NUM_PROMPTS)
        ]
        assert {(block.arm, block.round) for block in its_blocks} == {(start.arm, start.round)}
        asked = [[answer.prompt_id for answer in block.answers] for block in its_blocks]
        assert asked[:NUM_PROMPTS] == [["chat"], ["log"], ["text"], ["code"]]
        assert asked[NUM_PROMPTS:][0] == ["chat", "log", "text", "code"]


def test_counters_and_times_of_a_block_are_those_of_its_server(measured: Path) -> None:
    for block in run_in(measured).blocks:
        num_tokens = sum(answer.num_output_tokens for answer in block.answers)
        num_chunks = sum(len(answer.chunk_times) for answer in block.answers)
        counters = block.counters
        assert num_tokens == 32 * len(block.answers)
        assert counters.num_output_tokens == num_tokens
        assert block.seconds == pytest.approx(max(answer.finished_at for answer in block.answers))
        assert block.resources.kv_cache_usage == KV_CACHE_USAGE
        assert (block.resources.process_bytes or 0) > 1e6
        if block.arm == "off":
            assert counters.num_drafts is None
        else:
            # The fake server drafts in each step.
            assert counters.num_drafts == num_chunks
            assert counters.num_draft_tokens == NUM_DRAFTED * num_chunks
            assert counters.num_accepted_tokens == num_tokens - num_chunks
            assert sum(counters.num_accepted_by_position) == counters.num_accepted_tokens
        if block.arm == "ngram_spec":
            # Its drafter takes 0.1 ms.
            assert counters.num_drafter_steps == num_chunks
            assert counters.drafter_seconds == pytest.approx(num_chunks * 1e-4)
        else:
            assert counters.drafter_seconds is None


def test_the_report_is_written_and_can_be_made_again_from_the_measurements(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [measured / "out" / name for name in ("report.json", "report.html")]
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    assert cli.main(["bench", "--report", str(measured / "out")]) == 0
    # Whether it pays there is a matter of time, and time that of the machine.
    assert re.search("^Speculation .* on mine$", capsys.readouterr().out, re.MULTILINE)
    assert [file.read_bytes() for file in files] == contents


@pytest.mark.usefixtures("fakes")
def test_a_run_goes_on_where_it_stopped_and_measures_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, *FEW) == 0
    assert "round 2: starting off (12 of 16 blocks measured, about " in capsys.readouterr().err
    whole = run_in(tmp_path)
    path = tmp_path / "out" / "run.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # Stopped in the middle of a line, in the third start.
    path.write_text("".join([*lines[:-8], lines[-8][:50]]))
    assert bench(tmp_path, *FEW) == 0
    resumed = run_in(tmp_path)
    assert sorted(map(identity, resumed.blocks)) == sorted(map(identity, whole.blocks))
    assert order(resumed) == [(0, "off"), (0, "ngram_spec"), *[(1, "ngram_spec")] * 2, (1, "off")]
    num_lines = len(path.read_text().splitlines())
    assert bench(tmp_path, *FEW) == 0
    assert len(path.read_text().splitlines()) == num_lines


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--max-tokens", "16"), "max_tokens was 32 and is now 16"),
        (("--draft-cost", "0.2"), "arms was "),
        (("--num-prompts", "2"), "workloads was "),
        (("--", "--seed", "7"), "common_flags was "),
    ],
)
@pytest.mark.usefixtures("fakes")
def test_a_run_with_other_settings_is_not_gone_on_with(
    measured: Path, capsys: pytest.CaptureFixture[str], changed: tuple[str, ...], message: str
) -> None:
    same = (*FEW, "--arms", "off,ngram,ngram_spec", "--concurrency", "2,1")
    assert bench(measured, *same, *changed) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "or another --out" in error


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies at start", "ended with exit code 7 before it was ready"),
        ("hangs at start", "not ready after 8 s"),
        ("dies in a block", "ended with exit code 3; its output"),
        ("hangs in a block", "nothing came for 2 s"),
        ("errors", "HTTP 500"),
        ("usage at the end", "a server must return token ids"),
    ],
)
def test_an_arm_that_fails_is_noted_down_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    reason: str,
) -> None:
    serve_fakes(monkeypatch, ngram=fault)
    # Two requests of the warm-up, and one that finds out how tokens are counted.
    monkeypatch.setenv("NUM_GOOD_REQUESTS", "3")
    times = ("--start-timeout", "8s", "--request-timeout", "2s", "--rounds", "1")
    assert bench(tmp_path, *FEW, *times, "--arms", "off,ngram,ngram_spec") == 0
    run = run_in(tmp_path)
    (failure,) = run.failures
    assert (failure.arm, failure.round) == ("ngram", 0)
    assert reason in failure.reason
    assert blocks_of(run, "ngram") == []
    for arm in ("off", "ngram_spec"):
        assert len(blocks_of(run, arm)) == NUM_PROMPTS
    shown = capsys.readouterr().err
    assert f"ngram failed: {failure.reason.partition(';')[0]}" in shown
    assert "fake server for ngram, " in shown  # the end of its log


def test_without_arm_off_there_is_no_verdict_and_no_other_arm_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, off="dies at start")
    assert bench(tmp_path, *FEW) == 1
    run = run_in(tmp_path)
    assert [failure.arm for failure in run.failures] == ["off"]
    assert run.blocks == ()


def test_where_every_other_arm_fails_there_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, ngram_spec="errors")
    assert bench(tmp_path, *FEW) == 1
    assert order(run_in(tmp_path)) == [(0, "off")]


def test_a_server_without_metrics_is_measured_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_fakes(monkeypatch, off="no metrics", ngram_spec="no metrics")
    assert bench(tmp_path, *FEW) == 0
    for block in run_in(tmp_path).blocks:
        assert block.counters.num_output_tokens is None
        assert block.resources.kv_cache_usage is None
    shown = capsys.readouterr().err
    assert shown.count("/metrics, so what was drafted and accepted, and the KV cache, stay unknown") == 2


def test_where_answers_differ_a_later_start_of_off_says_how_near_the_tokens_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, ngram_spec="other answers")
    # The gap is no near-tie, so the arm is invalid.
    assert bench(tmp_path, *FEW) == 1
    run = run_in(tmp_path)
    assert order(run)[-1] == (1, "off")
    probed = {(probe.workload, probe.prompt_id, probe.num_same_tokens) for probe in run.near_tie_probes}
    assert probed == {("mine", str(prompt["id"]), 3) for prompt in PROMPTS}
    assert len(run.near_tie_probes) == NUM_PROMPTS
    for probe in run.near_tie_probes:
        assert probe.logprob_gap == pytest.approx(TOP_LOGPROBS[0] - TOP_LOGPROBS[1])


def test_where_no_later_start_of_off_is_due_one_is_made_for_the_probes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, ngram_spec="other answers")
    bench(tmp_path, *FEW, "--rounds", "1")
    run = run_in(tmp_path)
    assert order(run) == [(0, "off"), (0, "ngram_spec"), (0, "off")]
    assert len(run.near_tie_probes) == NUM_PROMPTS


def test_places_whose_probe_failed_are_probed_by_the_same_command_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, off="errors in probes", ngram_spec="other answers")
    bench(tmp_path, *FEW)
    run = run_in(tmp_path)
    assert run.near_tie_probes == ()
    (failure,) = run.failures
    assert (failure.arm, failure.round) == ("off", 1)
    assert "HTTP 503" in failure.reason
    serve_fakes(monkeypatch, ngram_spec="other answers")
    bench(tmp_path, *FEW)
    run = run_in(tmp_path)
    assert len(run.near_tie_probes) == NUM_PROMPTS
    assert len(run.blocks) == 16


def test_servers_that_run_are_probed_too_where_a_run_was_interrupted_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, ngram="other answers")
    with off_and_ngram(tmp_path) as (off, ngram):
        few = ("--concurrency", "2", "--max-tokens", "32", "--rounds", "1", "--out", str(tmp_path / "out"))
        urls = ("--url", f"mine={ngram.url}", "--url", f"off={off.url}")
        command = ["bench", *urls, *few, str(prompts_file(tmp_path))]
        cli.main(command)
        assert len(run_in(tmp_path).near_tie_probes) == NUM_PROMPTS
        path = tmp_path / "out" / "run.jsonl"
        lines = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "near_tie_probe" not in line), "utf-8")
        cli.main(command)
    run = run_in(tmp_path)
    assert len(run.near_tie_probes) == NUM_PROMPTS
    assert order(run) == [(0, "off"), (0, "mine"), (0, "off")]


@pytest.mark.usefixtures("fakes")
def test_rounds_are_repeated_until_the_speed_up_is_known_well_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = ("--concurrency", "1", "--max-tokens", "72", "--arms", "off,ngram_spec", "--num-prompts", "2")
    with monkeypatch.context() as context:
        # How well it is known after two rounds is a matter of the machine.
        context.setattr(run_module._Bench, "_is_precise", lambda _bench: True)
        assert bench(tmp_path, *few) == 0
    assert [number for number, _ in order(run_in(tmp_path))] == [0, 0, 1, 1]
    # The same command with another limit goes on: when to stop is no setting.
    assert bench(tmp_path, *few, "--precision", "1e-9", "--rounds", "4") == 0
    assert order(run_in(tmp_path))[4:] == [(2, "off"), (2, "ngram_spec"), (3, "ngram_spec"), (3, "off")]


@pytest.mark.usefixtures("fakes")
def test_no_rounds_are_begun_that_would_pass_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--concurrency", "1", "--max-tokens", "72", "--arms", "off,ngram_spec", "--num-prompts", "2")
    assert bench(tmp_path, *few, "--precision", "1e-9", "--budget", "1s") == 0
    assert [number for number, _ in order(run_in(tmp_path))] == [0, 0, 1, 1]
    assert "pass the budget of 1 s; the same command measures on" in capsys.readouterr().err


@pytest.mark.usefixtures("fakes")
def test_servers_that_run_are_asked_in_turn_block_by_block(tmp_path: Path) -> None:
    with off_and_ngram(tmp_path) as (off, ngram):
        few = ("--concurrency", "2", "--max-tokens", "32", "--rounds", "2", "--out", str(tmp_path / "out"))
        urls = ("--url", f"mine={ngram.url}/v1", "--url", f"off={off.url}/")
        assert cli.main(["bench", *urls, *few, str(prompts_file(tmp_path))]) == 0
        run = run_in(tmp_path)
        assert run.settings.urls == {"off": off.url, "mine": ngram.url}
        assert run.settings.model == "m"
        assert [block.arm for block in run.blocks] == (["off", "mine"] * 4) + (["mine", "off"] * 4)
        assert order(run) == [(0, "off"), (0, "mine"), (1, "mine"), (1, "off")]
        assert all(block.counters.num_output_tokens is not None for block in run.blocks)
        # They are not ours to end.
        off.check_alive()
        ngram.check_alive()


@pytest.mark.parametrize("name", ["server", "ngram_spec"])
@pytest.mark.usefixtures("fakes")
def test_one_server_alone_is_measured_without_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    few = ("--concurrency", "2", "--max-tokens", "72", "--rounds", "2", "--out", str(tmp_path / "out"))
    drafts = ("--speculative-config", '{"method": "ngram"}')
    with started_server("m", drafts, log_path=tmp_path / "1.log") as server:
        assert cli.main(["bench", "--url", f"{name}={server.url}", *few, str(prompts_file(tmp_path))]) == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (cell,) = report["summary"]["cells"]
    assert cell["arm"] == name
    assert cell["measures"]["throughput"] > 0
    assert cell["speedup"] is None
    assert all(check["is_passed"] for check in cell["checks"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("This run has no verdict ")
    assert "give --url off=URL, which drafts nothing, and --url NAME=URL, which does" in shown
    assert "mine: no verdict (not " in shown
    assert "leave speculation off" not in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_loses_no_block(
    tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    program = Path(__file__).with_name("bench_runs.py")
    own = ["--model", "fake", "--out", str(out), str(prompts_file(tmp_path))]
    command = [sys.executable, str(program), "bench", *own, *FEW]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (out / "run.jsonl").exists() or '"arm":"ngram_spec","round":0,"workload"' not in (
            out / "run.jsonl"
        ).read_text("utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in error
    assert processes_of_fakes() == []
    num_blocks = len(run_in(tmp_path).blocks)
    assert 4 < num_blocks < 16
    assert subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    run = run_in(tmp_path)
    assert len(run.blocks) == 16
    assert len({(block.arm, block.round, block.group) for block in run.blocks}) == 16
