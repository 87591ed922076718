"""The soak run in short, in real vLLM, and its verdict on runs that are made up; `make soak` is the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benches"))
import soak
from soak import ALLOWANCE, MAX_BYTES, Sample, figures, growth

NUM_ANSWERS = 2_000
KEPT = {
    "index_bytes": MAX_BYTES,
    "new_rows_total": NUM_ANSWERS,
    "faults_total": 0,
    "evictions_total": 1_900,
    "accepted_tokens_total": 9_000,
}


def run(bytes_per_answer: int = 0, **last: float) -> list[Sample]:
    """A run that takes 300 MiB while it warms up, then goes up and down by 100 KiB and leaks so much."""
    samples = []
    for number in range(10, NUM_ANSWERS + 1, 10):
        warm_up = min(number, NUM_ANSWERS // 5) * 3 * 2**18
        up_and_down = (number * 7_919 % 200 - 100) * 2**10
        resident = 2**31 + warm_up + up_and_down + number * bytes_per_answer
        samples.append(Sample(number, resident, {**KEPT, **last}))
    return samples


def broken(samples: list[Sample], control_growth: float = 0) -> list[str]:
    return [figure.sentence for figure in figures(samples, control_growth) if not figure.is_kept]


def test_a_run_that_warms_up_and_then_goes_up_and_down_keeps_its_limits() -> None:
    assert broken(run()) == []
    assert abs(growth(run())) < ALLOWANCE / 8


def test_a_leak_of_a_quarter_of_an_index_per_answer_is_caught() -> None:
    quarter = 160 * 64 // 4
    assert broken(run(bytes_per_answer=quarter)) == [
        "growth of resident memory must be at most 1.75 MiB, got 3.66 MiB"
    ]


def test_what_vllm_grows_by_with_its_own_drafts_is_not_held_against_the_proposer() -> None:
    leaky = run(bytes_per_answer=2_560)
    assert broken(leaky, control_growth=3 * 2**20) == []
    assert len(broken(leaky, control_growth=2**20)) == 1


@pytest.mark.parametrize(
    ("counter", "value", "sentence"),
    [
        ("index_bytes", MAX_BYTES + 1, "bytes of all indexes must be at most 786,432, got 786,433"),
        ("faults_total", 1, "faults must be at most 0, got 1"),
        ("new_rows_total", 3_000, "rows indexed from their start, per answer must be at most 1.20, got 1.50"),
        ("evictions_total", 0, "indexes dropped to stay within max_bytes must be at least 1, got 0"),
        ("accepted_tokens_total", 0, "accepted draft tokens must be at least 1, got 0"),
    ],
)
def test_a_counter_over_its_limit_is_told_in_a_sentence(counter: str, value: int, sentence: str) -> None:
    assert broken(run(**{counter: value})) == [sentence]


@pytest.mark.vllm
def test_a_short_run_in_real_vllm_keeps_its_limits() -> None:
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    # A process of its own: what other tests left in this one would hide what grows.
    command = [sys.executable, soak.__file__, "--num-requests", "160"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "160 answers in" in done.stdout
    assert done.stdout.count(" ok") == len(figures(run()))
