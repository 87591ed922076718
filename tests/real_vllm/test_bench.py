"""`ngram-spec bench --quick` on servers of real vLLM with the small model, through its command line."""

import json
import os
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from documented import commands

# Before vLLM is imported: engine sets the environment that vLLM reads then.
from engine import MAX_MODEL_LEN
from ngram_spec.bench.records import read_run
from ngram_spec.bench.summarize import summarize
from ngram_spec.bench.summary import Summary
from ngram_spec.recordings import packaged_recordings
from small_model import small_model

pytestmark = pytest.mark.vllm

# As few and short answers as a verdict needs: it must have seen 256 output tokens of each arm.
SIZES = ("--concurrency", "1", "--num-prompts", "3", "--max-tokens", "48")
SECONDS = 1500


def processes_with(mark: str) -> list[psutil.Process]:
    """Processes that have the mark in their environment, which children inherit."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BENCH_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_quick_bench_comes_to_a_verdict_with_an_interval_and_leaves_nothing_running(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    (rag,) = (file for file in packaged_recordings() if file.name == "rag.jsonl")
    (tmp_path / "chat.jsonl").write_text(rag.read_text("utf-8"), encoding="utf-8")
    out, mark = tmp_path / "verdict", uuid.uuid4().hex
    # A server has several processes, unlike the engines of the other tests.
    environment = os.environ | {"BENCH_MARK": mark, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    (documented,) = (one for one in commands("turn-it-off") if one.text.startswith("ngram-spec bench"))
    arguments = shlex.split(documented.text.replace("MODEL", str(small_model())))[1:]
    flags = ("--", "--max-model-len", str(2 * MAX_MODEL_LEN))
    program = Path(sys.executable).with_name("ngram-spec")
    bench = subprocess.run(
        [program, *arguments, "--quick", *SIZES, *flags],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert bench.returncode == 0, bench.stderr
    assert processes_with(mark) == []

    run = read_run(out)
    assert [(start.round, start.arm) for start in run.starts] == [
        (0, "off"),
        (0, "ngram_spec"),
        (1, "ngram_spec"),
        (1, "off"),
    ]
    assert run.failures == ()
    for block in run.blocks:
        # vLLM's own count is that of the ids in its streams.
        num_tokens = sum(answer.num_output_tokens for answer in block.answers)
        assert block.counters.num_output_tokens == num_tokens > 0
        assert {answer.tokens_counted_by for answer in block.answers} == {"ids"}
        assert (block.counters.num_drafts is None) == (block.arm == "off")
        assert (block.counters.drafter_seconds is None) == (block.arm == "off")
        assert (block.resources.process_bytes or 0) > 1e8
    assert all(start.kv_cache_tokens for start in run.starts)

    report = json.loads((out / "report.json").read_text("utf-8"))
    summary = Summary.model_validate(report["summary"])
    assert summary == summarize(run)
    off, ours = summary.cells
    assert (off.arm, off.verdict) == ("off", "baseline")
    assert ours.arm == "ngram_spec"
    # How fast it is depends on the machine; that the answers are right does not.
    assert ours.verdict in ("on", "off", "no measurable difference"), ours.reason
    assert ours.speedup is not None
    assert 0 < ours.speedup.low <= ours.speedup.estimate <= ours.speedup.high
    assert ours.speedup.num_rounds == 2
    assert ours.num_same_outputs == ours.measures.num_requests
    assert ours.measures.drafting is not None
    assert ours.measures.drafting.num_accepted_tokens > 0
    assert ours.measures.drafting.drafter_us_per_step is not None
    page = (out / "report.html").read_text("utf-8")
    assert summary.recommendations[0].headline in page
    assert f"{ours.speedup.estimate:.2f}" in bench.stdout
    assert "verdict/report.html" in bench.stdout
