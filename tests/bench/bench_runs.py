"""Runs `ngram-spec bench` on servers that are fake; also as a program, to be interrupted.

python bench_runs.py bench --model fake ...
"""

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from ngram_spec import cli
from ngram_spec.bench import server
from ngram_spec.bench.records import Run, read_run
from ngram_spec.bench.workloads import Prompt

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
PROMPTS: list[dict[str, Any]] = [
    {"id": "chat", "messages": [{"role": "user", "content": "What is the capital of Norway?"}]},
    {"id": "log", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"id": "text", "prompt": "Once upon a time there was a server"},
    {"id": "code", "prompt": "def add(left, right):"},
]
# So short that a test takes seconds, and long enough for a verdict.
FEW = ("--concurrency", "2", "--max-tokens", "32", "--arms", "off,ngram_spec", "--rounds", "2")


def serve_fakes(monkeypatch: pytest.MonkeyPatch, **faults: str) -> None:
    """Have fake servers started from here on, that fail as `faults` says by method ("off" for none)."""
    monkeypatch.setattr(server, "serve_command", fake_command)
    monkeypatch.setenv("FAULTS", json.dumps(faults))


def fake_command(model: str) -> tuple[str, ...]:
    return (sys.executable, str(FAKE_SERVER), "--model", model)


def prompts_file(folder: Path) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def bench(folder: Path, *arguments: object) -> int:
    """Run the command on the prompts with a model that no server has, and return its exit code."""
    own = ["--model", "fake", "--out", folder / "out", prompts_file(folder)]
    return cli.main(["bench", *map(str, (*own, *arguments))])


def run_in(folder: Path) -> Run:
    return read_run(folder / "out")


def processes_of_fakes() -> list[psutil.Process]:
    """Fake servers that run; what they start has their file in its command line too.

    Those of tests that run beside these are not meant: each worker of pytest-xdist has its own name.
    """
    return [process for process in psutil.process_iter() if _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    worker = "PYTEST_XDIST_WORKER"
    try:
        is_fake = str(FAKE_SERVER) in process.cmdline()
        return is_fake and process.environ().get(worker) == os.environ.get(worker)
    except psutil.Error:
        return False


def prompt(text: str) -> Prompt:
    return Prompt(text, "completions", {"prompt": text})


def chat(text: str) -> Prompt:
    return Prompt(text, "chat/completions", {"messages": [{"role": "user", "content": text}]})


def texts(prompts: Iterable[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


if __name__ == "__main__":
    # What is started in the background of a shell ignores it, and so would this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server.serve_command = fake_command
    sys.exit(cli.main(sys.argv[1:]))
