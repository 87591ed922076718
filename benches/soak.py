"""Has real vLLM answer two thousand requests and checks that the proposer's memory stays within its bound.

    make soak                             2,000 requests
    make soak ARGS="--num-requests 500"   another number

Sixteen requests at a time: beginnings of the chats of the packaged recordings, of all lengths, so that vLLM's
prefix cache saves their prefill, with answers of 1 to 64 tokens. `max_bytes` is so small that indexes are
dropped all the time. The first quarter is the warm-up; through the resident memory of the rest, which has all
of vLLM in it, a straight line is laid. If that rises by more than it may, vLLM answers the same requests with
drafts of its own method "ngram", and what memory grows by then is not the proposer's.
"""

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import linear_regression
from typing import Any
from urllib.request import urlopen

from ngram_spec.bench.server import free_port
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
# Read when vLLM is imported; a user's own settings win. One process: its memory is all there is.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "NUMBA_NUM_THREADS": "1",
    # Threads that spin at a barrier come to a standstill where anything else wants the same core.
    "OMP_NUM_THREADS": "1",
}
MAX_NUM_SEQS = 16
MAX_MODEL_LEN = 384
NUM_SPECULATIVE_TOKENS = 8
BLOCK_SIZE = 32
# The cache of a CPU is resident once it has been written to: few blocks, so that the warm-up fills them all.
NUM_BLOCKS = 160
MAX_ANSWER_LEN = 64
# While a row is within the draft tokens of its end, vLLM asks for no drafts at all.
MAX_PROMPT_LEN = MAX_MODEL_LEN - MAX_ANSWER_LEN - 2 * NUM_SPECULATIVE_TOKENS
# Twice what sixteen of the longest requests need, so live rows always have room and those that left soon go.
MAX_BYTES = 2 * MAX_NUM_SEQS * MAX_MODEL_LEN * 64
DRAFTING = {
    "method": "ngram_spec",
    "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    "draft_cost": 0.2,  # on a CPU each token that is verified takes a good part of the time of a step
    "max_bytes": MAX_BYTES,
}
CONTROL = {
    "method": "ngram",
    "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5,
}
SAMPLE_EVERY = 10
# Fewer are no warm-up and give the line too few points.
MIN_NUM_REQUESTS = 100
SEED = 7

WARM_UP_SHARE = 0.25
ALLOWANCE = 2**20
# A request is indexed once; one that vLLM preempts may be once more.
MAX_INDEXED_PER_ANSWER = 1.2

console = Console(stderr=True)


@dataclass(frozen=True)
class Sample:
    """Where the process stood after so many answers; `counters` are the proposer's, by their metric names."""

    num_answers: int
    resident_bytes: int
    counters: dict[str, float]


@dataclass(frozen=True)
class Figure:
    """One measured value and the limit that it must keep, which is an upper one unless `is_minimum`."""

    name: str
    value: float
    limit: float
    unit: str = ""
    is_minimum: bool = False

    @property
    def is_kept(self) -> bool:
        return self.value >= self.limit if self.is_minimum else self.value <= self.limit

    @property
    def shown_limit(self) -> str:
        return f"{'at least' if self.is_minimum else 'at most'} {shown(self.limit)}{self.unit}"

    @property
    def sentence(self) -> str:
        return f"{self.name} must be {self.shown_limit}, got {shown(self.value)}{self.unit}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-requests", type=int, default=2000, help="(default: %(default)s)")
    parser.add_argument("--control", action="store_true", help='vLLM with "ngram": print its growth in bytes')
    options = parser.parse_args()
    if options.num_requests < MIN_NUM_REQUESTS:
        parser.error(f"--num-requests must be at least {MIN_NUM_REQUESTS}, got {options.num_requests}")

    started = time.monotonic()
    port = None if options.control else free_port()
    llm = start_engine(CONTROL if options.control else {**DRAFTING, "metrics_port": port})
    samples = list(shown_samples(soak(llm, port, options.num_requests), options.num_requests))
    if options.control:
        print(growth(samples))
        return 0
    control_growth = 0.0
    if growth(samples) > MAX_BYTES + ALLOWANCE:
        say("memory grew by more than it may; now the same with vLLM's own drafts")
        control = [sys.executable, __file__, "--control", *sys.argv[1:]]
        control_growth = float(subprocess.run(control, stdout=subprocess.PIPE, check=True).stdout)
        grown = [f"{shown(grown / 2**20)} MiB" for grown in (growth(samples), control_growth)]
        say(f"grown by {grown[0]} with ngram-spec, by {grown[1]} with vLLM's own drafts")
    measured = figures(samples, control_growth)
    print_table(f"{options.num_requests} answers in {time.monotonic() - started:.0f} s", measured)
    broken = [figure.sentence for figure in measured if not figure.is_kept]
    for sentence in broken:
        console.print(f"[red]{sentence}[/]", highlight=False)
    return 1 if broken else 0


def growth(samples: Sequence[Sample]) -> float:
    """Return by how many bytes resident memory grew after the warm-up, along a straight line."""
    measured = [s for s in samples if s.num_answers >= WARM_UP_SHARE * samples[-1].num_answers]
    places = [sample.num_answers for sample in measured]
    slope = linear_regression(places, [sample.resident_bytes for sample in measured]).slope
    return slope * (places[-1] - places[0])


def figures(samples: Sequence[Sample], control_growth: float = 0.0) -> list[Figure]:
    """Return what must hold of a run; `control_growth` is what vLLM grew by with drafts of its own."""
    last = samples[-1].counters
    most_bytes = max(sample.counters["index_bytes"] for sample in samples)
    grown_by = growth(samples) - control_growth
    indexed = last["new_rows_total"] / samples[-1].num_answers
    return [
        Figure("growth of resident memory", grown_by / 2**20, (MAX_BYTES + ALLOWANCE) / 2**20, " MiB"),
        Figure("bytes of all indexes", most_bytes, MAX_BYTES),
        Figure("rows indexed from their start, per answer", indexed, MAX_INDEXED_PER_ANSWER),
        Figure("faults", last["faults_total"], 0),
        # Otherwise the run would show nothing: no bound was met, or nothing was drafted.
        Figure("indexes dropped to stay within max_bytes", last["evictions_total"], 1, is_minimum=True),
        Figure("accepted draft tokens", last["accepted_tokens_total"], 1, is_minimum=True),
    ]


def start_engine(speculative_config: Mapping[str, Any]) -> Any:
    """Return vLLM with the small model, whose other settings are those of the soak run."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    say("starting vLLM")
    from vllm import LLM, _custom_ops

    # On a CPU vLLM keeps a oneDNN kernel for every number of tokens that a step has had, a megabyte each.
    _custom_ops._supports_onednn = False
    return LLM(
        small_model(),
        dtype="float32",
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=NUM_BLOCKS,
        seed=SEED,
        speculative_config=speculative_config,
    )


def soak(llm: Any, metrics_port: int | None, num_requests: int) -> Iterator[Sample]:
    """Answer so many requests and yield a sample after every tenth answer."""
    from vllm import SamplingParams

    engine, num_answers = llm.llm_engine, 0
    waiting = enumerate(requests(num_requests))
    while num_answers < num_requests:
        while engine.get_num_unfinished_requests() < MAX_NUM_SEQS and (request := next(waiting, None)):
            number, (prompt_token_ids, max_tokens) = request
            params = SamplingParams(temperature=0, max_tokens=max_tokens)
            engine.add_request(str(number), {"prompt_token_ids": prompt_token_ids}, params)
        num_before = num_answers
        num_answers += sum(output.finished for output in engine.step())
        if num_answers // SAMPLE_EVERY > num_before // SAMPLE_EVERY:
            yield Sample(num_answers, resident_bytes(), counters(metrics_port) if metrics_port else {})


def requests(num_requests: int) -> Iterator[tuple[list[int], int]]:
    """Yield prompts, as token ids, and how long their answers may get."""
    draw, chats = random.Random(SEED), chat_token_ids()
    for _ in range(num_requests):
        prompt = draw.choice(chats)[: draw.randint(8, MAX_PROMPT_LEN)]
        yield prompt, round(MAX_ANSWER_LEN ** draw.random())  # most are short


def chat_token_ids() -> list[list[int]]:
    """The prompts of the packaged recordings, with their answers, by the tokenizer of the small model."""
    chats = []
    for recording in sorted(files("ngram_spec").joinpath("recordings").iterdir(), key=lambda file: file.name):
        for record in map(json.loads, recording.read_text("utf-8").splitlines()):
            chats.append(record["prompt_token_ids"] + record["output_token_ids"])
    return chats


def counters(metrics_port: int) -> dict[str, float]:
    """The proposer's counters, as its own port serves them."""
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as page:
        families = text_string_to_metric_families(page.read().decode())
    samples = (sample for family in families for sample in family.samples)
    return {sample.name.removeprefix("ngram_spec_"): sample.value for sample in samples}


def resident_bytes() -> int:
    """Resident memory of this process, without what the C library has got back and keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def small_model() -> str:
    program = ROOT / "tests" / "small_model.py"
    done = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def shown_samples(samples: Iterator[Sample], num_requests: int) -> Iterator[Sample]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("answering", total=num_requests)
        for sample in samples:
            memory = f"{sample.resident_bytes / 2**20:.0f} MiB resident"
            progress.update(task, completed=sample.num_answers, description=memory)
            yield sample


def print_table(title: str, measured: Sequence[Figure]) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("measured", "limit", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in measured:
        verdict = "ok" if figure.is_kept else "[red]broken[/]"
        table.add_row(figure.name, f"{shown(figure.value)}{figure.unit}", figure.shown_limit, verdict)
    # The table is what the command is for, so it alone goes to standard output.
    Console(width=max(console.width, 100)).print(table)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def say(what: str) -> None:
    console.print(f"[dim]\\[soak][/] {what}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
