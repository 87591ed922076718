"""Measures on a GPU how the time of a step grows with the tokens that it verifies: curves for `draft_cost`.

    python benches/cost_curve.py --out curves             the shape of an 8B model, 2048 tokens of context
    python benches/cost_curve.py --out curves --quick     fewer points, in less than four minutes
    python benches/cost_curve.py --out curves --compare   also replay recordings on the GPU, each step timed
    python benches/cost_curve.py                          without a GPU: check the code, measure nothing

For each number of rows it writes `rows-R.json`, which `draft_cost` and `ngram-spec bench --cost-curve` take,
and for all of them `measured.json`: the card, the versions, every time. A curve is for about so many rows and
about so long a context, since a row's cache is read once however many tokens are verified. Weights are
random, so only times come from the model: what is accepted comes from the recordings.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from decoder import PRESETS, Decoder
from ngram_spec import CostCurve, NgramSpecError, __version__
from ngram_spec.bench.closed_loop import LoopCounts, replay_closed_loop
from ngram_spec.recordings import (
    TokenizedResponse,
    choose_tokenizer,
    load_responses,
    packaged_recordings,
)
from ngram_spec.replay import ReplaySettings
from ngram_spec.vllm_options import read_options
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from verify_steps import GraphedSteps, SelfCheckError, captured_size, check_decoder, check_graphs

ROWS, QUICK_ROWS = (1, 4, 16, 64), (1, 16)
DRAFT_LENS, QUICK_DRAFT_LENS = (0, 1, 2, 3, 4, 6, 8, 12, 16), (0, 1, 2, 4, 8, 16)
NUM_ROUNDS, QUICK_NUM_ROUNDS = 10, 5
NUM_STEPS_PER_ROUND = 10
# What --quick may measure for; with the start, the captures and the comparison it stays below four minutes.
QUICK_SECONDS = 150.0

console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of steps in which each of `num_rows` rows verifies its token and `draft_len` more."""

    num_rows: int
    draft_len: int
    num_steps: int
    median_ms: float
    p10_ms: float
    p90_ms: float

    @property
    def num_tokens(self) -> int:
        return self.num_rows * (1 + self.draft_len)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Recordings replayed at so many rows: the speed-up that the curve gives, and that of the timed steps."""

    num_rows: int
    tokens_per_step: float
    modelled_speedup: float
    measured_speedup: float
    drafter_us_per_step: float


def main() -> int:
    options = _options()
    try:
        self_check()
        if not torch.cuda.is_available():
            print("No GPU was found: this was the self-check only, it passed, and nothing was measured.")
            return 0
        if options.out is None:
            raise NgramSpecError("--out must name a folder for the curves, got none")
        measure_all(options)
    except (NgramSpecError, SelfCheckError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def self_check() -> None:
    """Check all but the times: the decoder, the fit of a curve, and that the drafter takes its file.

    Raises:
        SelfCheckError: something is not as it must be.
    """
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16):
            difference = check_decoder(device, dtype)
            print(
                f"self-check: drafts verified on {device} in {dtype} as in a whole pass, to {difference:.1g}"
            )
    if torch.cuda.is_available():
        check_graphs()
        print("self-check: the graphs compute what they must")
    noisy = [Measured(1, length, 1, ms, ms, ms) for length, ms in enumerate((2.0, 1.9, 2.4, 2.3, 4.0))]
    points = curve_points(noisy, 1)
    if points != [[1, 1.0], [2, 1.0], [3, 1.2], [4, 1.2], [5, 2.0]]:
        raise SelfCheckError(f"a curve must never fall and begin at 1, got {points}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.json"
        path.write_text(json.dumps(points))
        step_time = read_curve(path).step_time(5)
    if step_time != 2.0:
        raise SelfCheckError(
            f"a step of 5 tokens must take 2.0 by the curve that was written, got {step_time}"
        )
    print("self-check: a curve is written as `draft_cost` reads it")


def read_curve(path: Path) -> CostCurve:
    """Return the curve as the drafter reads it in vLLM."""
    curve: CostCurve = read_options({"draft_cost": str(path)}, {}, str(path)).pool["draft_cost"]
    return curve


def measure_all(options: argparse.Namespace) -> None:
    """Measure, write and print."""
    started = time.monotonic()
    shape = PRESETS[options.preset]
    if options.layers is not None:
        shape = dataclasses.replace(shape, num_layers=options.layers)
    recordings = load_recordings(options.recordings) if options.compare else []
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = started + QUICK_SECONDS if options.quick else None
    measured: list[Measured] = []
    comparisons: list[Comparison] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for num_rows in options.rows:
            max_len = options.context + captured_size(1 + max(options.draft_lens))
            decoder = Decoder(shape, num_rows, max_len, device="cuda", dtype=torch.bfloat16)
            steps = GraphedSteps(decoder, options.context)
            measured += measure_rows(steps, num_rows, options, progress, deadline)
            points = curve_points(measured, num_rows)
            if len(points) < 2:
                continue
            path = options.out / f"rows-{num_rows}.json"
            path.write_text(json.dumps(points) + "\n")
            if recordings:
                progress.console.print(f"replaying recordings at {num_rows} rows")
                comparisons.append(compare(steps, num_rows, read_curve(path), recordings, options, measured))
            del decoder, steps
            torch.cuda.empty_cache()
    wanted = len(options.rows) * len(options.draft_lens)
    document = {
        "card": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "ngram_spec": __version__,
        "preset": options.preset,
        "shape": asdict(shape),
        "dtype": "bfloat16",
        "context_len": options.context,
        "seconds": round(time.monotonic() - started, 1),
        "num_points_left_out": wanted - len(measured),
        "measured": [asdict(point) for point in measured],
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    (options.out / "measured.json").write_text(json.dumps(document, indent=1) + "\n")
    _print(measured, comparisons, wanted, options)


def measure_rows(
    steps: GraphedSteps,
    num_rows: int,
    options: argparse.Namespace,
    progress: Progress,
    deadline: float | None,
) -> list[Measured]:
    """Return the times at each draft length, measured in rounds over all of them, which share every drift."""
    times: dict[int, list[float]] = {length: [] for length in options.draft_lens}
    task = progress.add_task(f"{num_rows} rows", total=options.rounds)
    for _ in range(options.rounds):
        if deadline is not None and time.monotonic() > deadline:
            break
        for length, its_times in times.items():
            verified = [[0] * (1 + length)] * num_rows
            its_times += [steps.ms(verified) for _ in range(NUM_STEPS_PER_ROUND)]
        progress.advance(task)
    return [
        Measured(num_rows, length, len(its_times), *_percentiles(its_times))
        for length, its_times in times.items()
        if its_times
    ]


def curve_points(measured: Iterable[Measured], num_rows: int) -> list[list[float]]:
    """Return the curve for about so many rows: [tokens of a step, time relative to the first], never falling.

    Up to one token in each row it follows smaller batches without drafts, and from there on the drafts.
    """
    times = {
        point.num_tokens: point.median_ms
        for point in measured
        if point.num_rows == num_rows or (point.num_rows < num_rows and point.draft_len == 0)
    }
    # Noise of a median may let a larger step look faster; a curve that fell would be refused.
    rising = np.maximum.accumulate([ms for _, ms in sorted(times.items())])
    return [
        [tokens, round(float(ms / rising[0]), 4)] for tokens, ms in zip(sorted(times), rising, strict=True)
    ]


def compare(
    steps: GraphedSteps,
    num_rows: int,
    curve: CostCurve,
    recordings: Sequence[TokenizedResponse],
    options: argparse.Namespace,
    measured: Sequence[Measured],
) -> Comparison:
    """Replay recordings with the drafter, once by the curve and once with each step run and timed."""
    settings = ReplaySettings(max_draft_tokens=max(options.draft_lens))
    modelled = replay_closed_loop(
        recordings, num_rows, curve, lambda verified: curve.step_time(sum(map(len, verified))), settings
    )
    timed = replay_closed_loop(recordings, num_rows, curve, steps.ms, settings)
    (off_ms,) = (p.median_ms for p in measured if (p.num_rows, p.draft_len) == (num_rows, 0))
    return Comparison(
        num_rows=num_rows,
        tokens_per_step=timed.total.num_output_tokens / timed.total.num_steps,
        modelled_speedup=speedup(modelled, num_rows, curve.step_time(num_rows)),
        measured_speedup=speedup(timed, num_rows, off_ms),
        drafter_us_per_step=timed.pool_ns / 1000 / timed.num_pool_calls,
    )


def speedup(loop: LoopCounts, num_rows: int, off_step: float) -> float:
    """Return output tokens per time over those of `num_rows` tokens in each step without drafts."""
    return loop.total.num_output_tokens * off_step / (num_rows * loop.total.time)


def load_recordings(files: Sequence[Path]) -> list[TokenizedResponse]:
    """Return the answers of the files, or of the packaged recordings."""
    answers = []
    for file in files or packaged_recordings():
        responses = load_responses(file)
        tokenizer = choose_tokenizer(None, responses)
        answers += [response.tokenize(tokenizer) for response in responses]
    return answers


def _percentiles(times: Sequence[float]) -> tuple[float, float, float]:
    median, p10, p90 = np.percentile(times, (50, 10, 90))
    return round(float(median), 4), round(float(p10), 4), round(float(p90), 4)


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _print(
    measured: Sequence[Measured],
    comparisons: Sequence[Comparison],
    wanted: int,
    options: argparse.Namespace,
) -> None:
    out = Console()
    table = Table("rows", "draft tokens", "tokens", "ms", "10 % to 90 %", "over no drafts")
    off = {point.num_rows: point.median_ms for point in measured if point.draft_len == 0}
    for point in measured:
        table.add_row(
            str(point.num_rows),
            str(point.draft_len),
            str(point.num_tokens),
            f"{point.median_ms:.3f}",
            f"{point.p10_ms:.3f} to {point.p90_ms:.3f}",
            f"{point.median_ms / off[point.num_rows]:.3f}",
        )
    out.print(table)
    if comparisons:
        table = Table("rows", "tokens/step", "speed-up modelled", "measured", "drafter us/step")
        for one in comparisons:
            table.add_row(
                str(one.num_rows),
                f"{one.tokens_per_step:.2f}",
                f"{one.modelled_speedup:.3f}",
                f"{one.measured_speedup:.3f}",
                f"{one.drafter_us_per_step:.0f}",
            )
        out.print(table)
    if len(measured) < wanted:
        out.print(f"time was up: {wanted - len(measured)} of {wanted} points are left out")
    out.print(f"written to {options.out}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", nargs="*", type=Path, help="for --compare (default: the packaged ones)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the curves go")
    parser.add_argument(
        "--preset", choices=PRESETS, default="8b", help="the model's shape (default: %(default)s)"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="instead of the preset's")
    parser.add_argument(
        "--context",
        type=int,
        default=2048,
        metavar="N",
        help="tokens in each row's cache (default: %(default)s)",
    )
    parser.add_argument("--rows", type=int, nargs="+", metavar="R", help=f"(default: {ROWS})")
    parser.add_argument(
        "--max-draft-tokens", type=int, default=16, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help=f"rows {QUICK_ROWS}, fewer draft lengths")
    parser.add_argument("--compare", action="store_true", help="also time recordings, step by step")
    options = parser.parse_args()
    options.rows = sorted(options.rows or (QUICK_ROWS if options.quick else ROWS))
    for name in ("context", "max_draft_tokens", "layers"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if options.rows[0] < 1:
        parser.error(f"--rows must be at least 1, got {options.rows[0]}")
    lens = QUICK_DRAFT_LENS if options.quick else DRAFT_LENS
    options.draft_lens = [length for length in lens if length < options.max_draft_tokens]
    options.draft_lens.append(options.max_draft_tokens)
    options.rounds = QUICK_NUM_ROUNDS if options.quick else NUM_ROUNDS
    return options


if __name__ == "__main__":
    sys.exit(main())
