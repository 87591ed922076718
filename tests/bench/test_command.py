"""The command line of `ngram-spec bench`: what is refused before a server starts, and what is planned."""

import importlib.util
import re
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import ngram_spec.bench
import pytest
from bench_runs import fake_command, prompts_file, serve_fakes
from ngram_spec import cli
from ngram_spec.bench import arms, plan, server
from ngram_spec.bench.run import Plan
from ngram_spec.bench.server import started_server
from ngram_spec.bench.sizes import QUICK_MODEL


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM counts as installed, for a GPU; starting it is a failure."""
    monkeypatch.setattr(plan, "serve_command", fake_command)
    monkeypatch.setattr(plan, "is_cpu_build", lambda: False)
    monkeypatch.setattr(server, "is_cpu_build", lambda: False)
    monkeypatch.setattr("ngram_spec.bench.run.measure_all", lambda *_: pytest.fail("it must be refused"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.main(["bench", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ngram-spec bench: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def planned(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Plan:
    plans: list[Plan] = []

    def stop(made: Plan, _progress: object) -> None:
        plans.append(made)
        raise KeyboardInterrupt

    monkeypatch.setattr("ngram_spec.bench.run.measure_all", stop)
    assert cli.main(["bench", *map(str, arguments)]) == 130
    return plans[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--model M must be given, or --url NAME=URL"),
        (("--arms", "off,ngrams"), "got 'ngrams'"),
        (("--arm", "mine"), "--arm must be NAME=JSON, each name once, got 'mine'"),
        (("--arm", "mine={}", "--arm", "mine={}"), "each name once, got 'mine={}'"),
        (("--concurrency", "1,x"), "--concurrency must be whole numbers from 1 to 4096, such as 1,8,64, got"),
        (("--concurrency", "0"), "got '0'"),
        (("--concurrency", ""), "got ''"),
        (("--concurrency", "1,,2"), "got '1,,2'"),
        (("--concurrency", "1000000000"), "got '1000000000'"),
        (("--concurrency", "9" * 5000), "--concurrency must be whole numbers from 1 to 4096"),
        (("--max-tokens", "0"), "--max-tokens must be at least 1, got 0"),
        (("--num-prompts", "0"), "--num-prompts must be at least 1"),
        (("--rounds", "-1"), "--rounds must be at least 1"),
        (("--budget", "15"), "--budget must be a time such as 90s, 15m or 1h, got '15'"),
        (("--start-timeout", "0s"), "--start-timeout must be a time"),
        (("--precision", "nan"), "--precision must be a share of the speed-up between 0 and 1, such as 0.03"),
        (("--precision", "3"), "such as 0.03, got 3"),
        (("--temperature", "-1"), "--temperature must be at least 0"),
        (("--temperature", "inf"), "--temperature must be at least 0, got inf"),
        (("--budget", "9" * 400 + "h"), "--budget must be a time"),
        (("--goal", ""), "write for example tpot_p95=30ms"),
        (("--arms", "ngram", "--arm", 'off={"method": "ngram"}'), "--arm must not be named off"),
        (("--arm", "off-v1={}"), "--arm must not be named off-v1"),
        (("--arm", f"{'x' * 65}={{}}"), "an arm's name must be 1 to 64 letters"),
        (("--arm", f"x={'[' * 99999}"), "--arm x must be JSON"),
        (("--draft-cost", "[" * 99999), "draft_cost must be a number"),
        (("--goal", "fast"), "write for example tpot_p95=30ms"),
        (("--draft-cost", "dear"), "draft_cost must be a number"),
        (("--num-speculative-tokens", "200"), "--num-speculative-tokens must be from 1 to 128, got 200"),
        (("--num-speculative-tokens", "0"), "--num-speculative-tokens must be from 1 to 128, got 0"),
        (("--url", "localhost:8000"), "--url must be NAME=URL"),
        (("--url", "a=http://x", "--url", "b=http://y"), "--url must be given for arm off too"),
        (("--url", "http://x", "--url", "http://y"), "each arm once, got 'server' twice"),
        (("--url", "off=http://x", "--url", "a=http://x/v1"), "each server once, got http://x twice"),
        (("--url", "http://[::1"), "http://[::1 must be the root of a server"),
        *(
            (("--url", "off=http://x", *ignored), f"{ignored[0]} must not be given with --url, whose servers")
            for ignored in (
                ("--arms", "off"),
                ("--arm", "mine={}"),
                ("--num-speculative-tokens", "16"),
                ("--draft-cost", "0.1"),
                ("--start-timeout", "5m"),
                ("--tokenizer", "qwen"),
            )
        ),
        (("--url", "off=http://x", "--", "--seed", "1"), "flags behind -- must not be given with --url"),
        (("--url", "http://127.0.0.1:9"), "http://127.0.0.1:9 must be the root of a server"),
        (("missing.jsonl",), "missing.jsonl: cannot read the recording"),
        (("--report", "nowhere"), "nowhere/run.jsonl: cannot read the run"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    model = () if not arguments or arguments[0] in ("--url", "--report") else ("--model", "m")
    assert message in refused(capsys, *model, *arguments)


@pytest.mark.parametrize(
    "ignored",
    [
        ("chat.jsonl",),
        ("--", "--seed", "1"),
        ("--model", "m"),
        ("--url", "off=http://x"),
        ("--arms", "off,ngram"),
        ("--num-speculative-tokens", "16"),
        ("--concurrency", "1"),
        ("--temperature", "0"),
        ("--quick",),
        ("--rounds", "2"),
        ("--out", "elsewhere"),
        ("--step-ms", "0"),
    ],
)
def test_a_report_of_what_was_measured_takes_a_goal_and_nothing_else(
    capsys: pytest.CaptureFixture[str], ignored: tuple[str, ...]
) -> None:
    what = {"chat.jsonl": "a file", "--": "flags behind --"}.get(ignored[0], ignored[0])
    message = refused(capsys, "--report", "nowhere", "--goal", "tpot_p95=30ms", *ignored)
    assert f"{what} must not be given with --report, which only shows again what was measured" in message
    assert "cannot read the run" in refused(capsys, "--report", "nowhere", "--goal", "tpot_p95=30ms")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def without_aiohttp(name: str) -> ModuleSpec | None:
        return None if name == "aiohttp" else find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_aiohttp)
    message = refused(capsys, "--quick")
    assert "not installed (aiohttp): pip install 'ngram-spec[bench]'" in message


def test_the_command_line_loads_nothing_of_the_bench_before_it_is_used() -> None:
    unwanted = {"aiohttp", "pydantic", "psutil", "prometheus_client", "jinja2", "matplotlib", "vllm", "torch"}
    code = f"import sys, ngram_spec.cli; print(sorted(sys.modules.keys() & {unwanted}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_a_quick_run_takes_a_small_model_two_arms_and_four_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(monkeypatch, "--quick")
    assert made.settings.model == QUICK_MODEL
    assert [arm.name for arm in made.settings.arms] == ["off", "ngram_spec"]
    assert made.max_rounds == 2
    assert list(made.settings.workloads) == ["code_edit", "rag", "summarization"]
    # What is given wins.
    made = planned(monkeypatch, "--quick", "--model", "m", "--rounds", "4", "--concurrency", "2,1")
    assert (made.settings.model, made.max_rounds, made.settings.concurrencies) == ("m", 4, (1, 2))


@pytest.mark.parametrize(
    ("is_cpu", "names"),
    [(False, ["off", "off-v1", "ngram", "ngram_spec"]), (True, ["off", "ngram", "ngram_spec"])],
)
def test_off_v1_is_left_out_where_it_is_off_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_cpu: bool, names: list[str]
) -> None:
    for module in (plan, server):
        monkeypatch.setattr(module, "is_cpu_build", lambda: is_cpu)
    assert [arm.name for arm in planned(monkeypatch, "--model", "m").settings.arms] == names
    assert ("off-v1 is left out" in capsys.readouterr().err) == is_cpu
    every = ("--arms", "off,off-v1,ngram")
    assert len(planned(monkeypatch, "--model", "m", *every).settings.arms) == 3


def test_options_of_the_arms_and_flags_of_the_servers_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(
        monkeypatch,
        *("--model", "m", "--arms", "off,ngram_spec", "--arm", 'mine={"method": "ngram"}'),
        *("--num-speculative-tokens", "32", "--draft-cost", "h100", "--", "--seed", "7", "--", "x"),
    )
    _, ours, mine = made.settings.arms
    assert arms.drafter_of(ours) == {
        "method": "ngram_spec",
        "num_speculative_tokens": 32,
        "draft_cost": "h100",
    }
    assert arms.drafter_of(mine) == {"method": "ngram"}
    assert made.settings.common_flags == ("--no-enable-prefix-caching", "--seed", "7", "--", "x")


def test_times_and_sizes_are_taken_as_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = planned(
        monkeypatch,
        *("--model", "m", "--budget", "1.5h", "--start-timeout", "90s", "--request-timeout", "3m"),
        *("--precision", "0.1", "--goal", "TPOT_p95 = 30ms", "--max-tokens", "7", "--num-prompts", "3"),
        *("--temperature", "0.5", "--out", tmp_path / "there", prompts_file(tmp_path)),
    )
    assert (made.budget, made.start_timeout, made.endpoint.timeout) == (5400, 90, 180)
    assert (made.precision, made.settings.goal) == (0.1, "tpot_p95=30ms")
    assert (made.endpoint.max_tokens, made.endpoint.temperature) == (7, 0.5)
    assert made.settings.workloads == {"mine": ("chat", "log", "text")}
    assert made.settings.num_groups == 3
    assert made.folder == tmp_path / "there"


def test_the_key_of_a_protected_server_is_taken_from_the_variable_that_vllm_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert planned(monkeypatch, "--quick").endpoint.headers == {}
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    made = planned(monkeypatch, "--quick")
    assert made.endpoint.headers == {"Authorization": "Bearer secret"}
    # It is kept nowhere.
    assert "secret" not in made.settings.model_dump_json()
    capsys.readouterr()
    monkeypatch.setenv("VLLM_API_KEY", "secret\nof two lines")
    message = refused(capsys, "--quick")
    assert "VLLM_API_KEY must be printable ASCII without blanks" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("flags", "variable"),
    [
        (("--api-key", "hush"), "VLLM_API_KEY"),
        (("--api_key=hush",), "VLLM_API_KEY"),
        (("--hf-token=hush",), "HF_TOKEN"),
    ],
)
def test_a_secret_among_the_flags_is_refused_unseen_since_a_report_would_show_it(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], variable: str
) -> None:
    message = refused(capsys, "--model", "m", "--", *flags)
    assert f"set {variable} in the environment instead" in message
    assert "hush" not in message


def test_a_model_that_a_running_server_does_not_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serve_fakes(monkeypatch)
    with started_server("theirs", log_path=tmp_path / "log") as running:
        message = refused(capsys, "--url", f"off={running.url}", "--model", "mine")
        assert f"--model must be one that {running.url} serves (theirs), got 'mine'" in message
        made: Any = planned(monkeypatch, "--url", f"off={running.url}")
    assert made.settings.model == "theirs"
    assert made.settings.urls == {"off": running.url}


def test_every_module_of_the_bench_has_its_place_in_the_flow() -> None:
    folder = Path(ngram_spec.bench.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`([a-z_]+)`", ngram_spec.bench.__doc__ or "")) == names


def test_a_signal_that_is_ignored_as_with_nohup_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def look(_plan: object, _progress: object) -> None:
        seen.extend(signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr("ngram_spec.bench.run.measure_all", look)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli.main(["bench", "--quick"]) == 130
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen[0] is signal.SIG_IGN
    assert callable(seen[1])
