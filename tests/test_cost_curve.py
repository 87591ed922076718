"""The bench of the cost curve without a GPU: its self-check, its fit, what it writes. Nothing is timed."""

import importlib.util
import json
import math
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from ngram_spec.bench.modelled import ModelledSettings, run_modelled
from ngram_spec.recordings import load_responses, packaged_recordings

BENCHES = Path(__file__).resolve().parent.parent / "benches"
HAS_TORCH = importlib.util.find_spec("torch") is not None
pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed, so its decoder is not checked")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module benches/cost_curve.py."""
    monkeypatch.syspath_prepend(BENCHES)
    return importlib.import_module("cost_curve")


def without_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHES / "cost_curve.py"), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def measured(bench: Any, *points: tuple[int, int, float]) -> list[Any]:
    return [bench.Measured(rows, length, 1, ms, ms, ms) for rows, length, ms in points]


def test_without_a_gpu_it_checks_itself_and_says_that_nothing_was_measured(tmp_path: Path) -> None:
    run = without_gpu("--out", str(tmp_path / "curves"))
    assert run.returncode == 0, run.stderr
    assert "self-check: drafts verified on cpu in torch.float32 as in a whole pass" in run.stdout
    assert run.stdout.endswith("this was the self-check only, it passed, and nothing was measured.\n")
    assert not (tmp_path / "curves").exists()


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    run = without_gpu("--context", "0")
    assert run.returncode == 2
    assert "--context must be at least 1, got 0" in run.stderr


def test_verifying_drafts_against_the_cache_is_a_whole_forward_pass(bench: Any) -> None:
    import torch

    assert bench.check_decoder("cpu", torch.float32) < 1e-5


def a_mask_that_sees_the_future(num_slots: int, end: int) -> None:
    """Stand in the place of the causal mask."""


def a_mask_of_the_first_tokens(num_slots: int, end: int) -> Any:
    from torch.nn.attention.bias import causal_upper_left

    return causal_upper_left(num_slots, end)


@pytest.mark.parametrize("mask", [a_mask_that_sees_the_future, a_mask_of_the_first_tokens])
def test_a_planted_fault_of_the_mask_is_found(bench: Any, monkeypatch: pytest.MonkeyPatch, mask: Any) -> None:
    import torch

    monkeypatch.setattr("decoder.causal_lower_right", mask)
    with pytest.raises(bench.SelfCheckError, match="must give the logits of a whole forward pass"):
        bench.check_decoder("cpu", torch.float32)


def test_a_planted_fault_of_the_cache_is_found(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    flattened = importlib.import_module("decoder").flattened

    def with_rows_swapped(verified: Any, num_tokens: int, *, device: str) -> Any:
        token_ids, rows, slots = flattened(verified, num_tokens, device=device)
        # The prompts alone fill so many tokens.
        return (token_ids, 2 - rows, slots) if num_tokens == 15 else (token_ids, rows, slots)

    monkeypatch.setattr("verify_steps.flattened", with_rows_swapped)
    with pytest.raises(bench.SelfCheckError):
        bench.check_decoder("cpu", torch.float32)


def test_sizes_are_rounded_up_as_for_graphs(bench: Any) -> None:
    sizes = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 17: 24, 256: 256, 257: 272, 1088: 1088}
    assert {number: bench.captured_size(number) for number in sizes} == sizes


def test_a_curve_follows_smaller_batches_up_to_its_own_and_then_the_drafts(bench: Any) -> None:
    points = measured(bench, (1, 0, 2.0), (1, 3, 2.2), (4, 0, 2.4), (4, 1, 2.3), (4, 3, 3.0), (16, 0, 4.0))
    # At 4 tokens it is four rows without drafts that count; 8 tokens may not be faster than 4.
    assert bench.curve_points(points, 4) == [[1, 1.0], [4, 1.2], [8, 1.2], [16, 1.5]]
    assert bench.curve_points(points, 1) == [[1, 1.0], [4, 1.1]]


def test_a_curve_that_was_written_is_what_modelled_mode_and_the_drafter_take(
    bench: Any, tmp_path: Path
) -> None:
    path = tmp_path / "rows-4.json"
    path.write_text(json.dumps(bench.curve_points(measured(bench, (4, 0, 2.0), (4, 3, 5.0)), 4)))
    curve = bench.read_curve(path)
    assert [curve.step_time(number) for number in (4, 10, 16)] == [1.0, 1.75, 2.5]
    summary = run_modelled(
        packaged_recordings()[:1], None, ModelledSettings(cost_curve=str(path), concurrencies=(4,))
    )
    assert summary.device == f"cost curve {path}"


def test_steps_that_take_what_the_curve_gives_are_compared_as_equal(bench: Any) -> None:
    recordings = [response.tokenize(None) for response in load_responses(packaged_recordings()[0])]
    points = measured(bench, (2, 0, 4.0), (2, 4, 5.0), (2, 16, 9.0))
    curve = bench.CostCurve([tuple(point) for point in bench.curve_points(points, 2)])

    class Steps:
        """Stand in for the GPU: a step takes what is expected, times a factor where anything is drafted."""

        def __init__(self, factor: float) -> None:
            self.factor = factor

        def ms(self, verified: list[list[int]]) -> float:
            num_tokens = sum(map(len, verified))
            ms: float = 4.0 * curve.step_time(num_tokens)
            return ms * (self.factor if num_tokens > 2 else 1.0)

    options = Namespace(draft_lens=[0, 4, 16])
    equal = bench.compare(Steps(1.0), 2, curve, recordings, options, points)
    assert math.isclose(equal.modelled_speedup, equal.measured_speedup)
    assert equal.modelled_speedup > 1.5
    slower = bench.compare(Steps(2.0), 2, curve, recordings, options, points)
    assert slower.modelled_speedup == equal.modelled_speedup
    assert slower.measured_speedup < 0.7 * equal.measured_speedup


class StandIn:
    """Stand in for the GPU: a step takes 1 ms and 0.01 for each token, and a tenth more every other time."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        self.num_steps = 0

    def ms(self, verified: list[list[int]]) -> float:
        self.num_steps += 1
        return (1.0 + 0.01 * sum(map(len, verified))) * (1.1 if self.num_steps % 2 else 1.0)


@pytest.fixture
def on_a_gpu(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bench as on a machine with a GPU, but for the steps."""
    monkeypatch.setattr(bench, "Decoder", StandIn)
    monkeypatch.setattr(bench, "GraphedSteps", StandIn)
    monkeypatch.setattr(bench.torch.cuda, "get_device_name", lambda: "a stand-in")
    return bench


def options(bench: Any, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Namespace:
    monkeypatch.setattr(sys, "argv", ["cost_curve.py", *map(str, arguments)])
    parsed: Namespace = bench._options()
    return parsed


def test_all_that_was_measured_is_written_beside_the_curves(
    on_a_gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("--rows", 4, 1, "--max-draft-tokens", 6, "--compare")
    on_a_gpu.measure_all(options(on_a_gpu, monkeypatch, "--out", tmp_path, "--quick", *rows))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measured.json", "rows-1.json", "rows-4.json"]
    document = json.loads((tmp_path / "measured.json").read_text())
    assert document["card"] == "a stand-in"
    assert document["shape"]["hidden"] == 4096
    assert document["num_points_left_out"] == 0
    points = document["measured"]
    assert [(point["num_rows"], point["draft_len"]) for point in points] == [
        (rows, length) for rows in (1, 4) for length in (0, 1, 2, 4, 6)
    ]
    assert all(point["num_steps"] == 50 for point in points)
    assert points[0]["median_ms"] == pytest.approx(1.05 * 1.01, abs=0.001)
    curve = json.loads((tmp_path / "rows-4.json").read_text())
    assert [tokens for tokens, _ in curve] == [1, 4, 8, 12, 20, 28]
    assert curve[-1][1] == pytest.approx(1.28 / 1.01, abs=0.001)
    assert [comparison["num_rows"] for comparison in document["comparisons"]] == [1, 4]
    assert all(
        comparison["measured_speedup"] == pytest.approx(comparison["modelled_speedup"], rel=0.05)
        for comparison in document["comparisons"]
    )
    assert "speed-up modelled" in capsys.readouterr().out


def test_what_time_did_not_allow_is_left_out_and_counted(
    on_a_gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_a_gpu, "QUICK_SECONDS", -1.0)
    on_a_gpu.measure_all(options(on_a_gpu, monkeypatch, "--out", tmp_path, "--quick"))
    document = json.loads((tmp_path / "measured.json").read_text())
    assert document["num_points_left_out"] == 2 * 6
    assert not list(tmp_path.glob("rows-*"))
    assert "time was up: 12 of 12 points are left out" in capsys.readouterr().out
