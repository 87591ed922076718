"""All that a report shows: what the terminal, the JSON file and the page have in common."""

from typing import Literal

from ngram_spec.bench.records import Record, Settings

Word = Literal["on", "off", "no measurable difference", "invalid", "baseline"]


class Interval(Record):
    """An estimate with its 95 % interval; ratios are of arm over baseline, 1 being no difference."""

    estimate: float
    low: float
    high: float
    num_pairs: int
    num_rounds: int


class Percentiles(Record):
    """Of a distribution, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float


class Histogram(Record):
    """Counts between `edges` (one more than counts), in milliseconds, on a logarithmic scale."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class Drafting(Record):
    """What was drafted and accepted, over all steps: those without a draft included."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    # Steps of a row: each emits its accepted tokens and one more.
    num_row_steps: int
    acceptance_rate: float | None
    # Output tokens per step of a row, steps without a draft included.
    tokens_per_step: float
    # Share of steps that had a draft.
    coverage: float
    # vLLM's own "mean acceptance length", which leaves out steps without a draft.
    mean_acceptance_length: float | None
    # Of all drafts, the share whose token at position 1, 2, ... was accepted.
    accepted_by_position: tuple[float, ...] = ()
    drafter_us_per_step: float | None = None


class Measures(Record):
    """One arm on one workload at one concurrency, over all of its blocks."""

    num_starts: int
    num_blocks: int
    num_requests: int
    num_errors: int
    num_output_tokens: int
    # Output tokens per second, all requests together.
    throughput: float
    itl_ms: Percentiles | None
    # The gap between chunks of the stream, which speculation makes longer while tokens come faster.
    chunk_gap_ms: Percentiles | None
    ttft_ms: Percentiles | None
    # (latency - TTFT) / (output tokens - 1) of each request.
    tpot_ms: Percentiles | None
    latency_ms: Percentiles | None
    itl_histogram: Histogram | None
    drafting: Drafting | None
    process_bytes: int | None
    gpu_bytes: int | None
    kv_cache_usage: float | None
    kv_cache_tokens: int | None
    joules_per_token: float | None


class Check(Record):
    """One condition that must hold before an arm's numbers count."""

    name: str
    is_passed: bool
    detail: str


class Cell(Record):
    """One arm on one workload at one concurrency: measured, checked, judged."""

    workload: str
    concurrency: int
    arm: str
    measures: Measures
    # Throughput over that of arm off, and of off-v1 where it was run; None where no pair was measured.
    speedup: Interval | None
    speedup_over_off_v1: Interval | None
    # Time per output token over that of arm off, below 1 where the arm is faster.
    tpot_ratio: Interval | None
    checks: tuple[Check, ...]
    num_same_outputs: int | None
    num_near_ties: int | None
    # Answers that leave those of arm off at a token at which arm off differs from itself too.
    num_unstable_outputs: int | None = None
    # None where no goal was given.
    meets_goal: bool | None
    verdict: Word
    reason: str

    @property
    def judged_speedup(self) -> Interval | None:
        """The interval that the verdict can rest on; None where there is none, or no verdict."""
        return None if self.verdict in ("invalid", "baseline") else self.speedup


class Recommendation(Record):
    """What to do for one workload, and why, in sentences."""

    workload: str
    # None: leave speculation off, if there is a verdict.
    arm: str | None
    # False where nothing was compared, or nothing of it counts.
    has_verdict: bool
    # Such as "on up to about concurrency 23", "on", "off", "no measurable difference", "not compared".
    headline: str
    reasons: tuple[str, ...]
    break_even_concurrency: float | None
    extra_process_bytes: int | None
    extra_gpu_bytes: int | None
    # To be pasted behind `vllm serve MODEL`.
    flags: str


class ChecklistItem(Record):
    """One question of the way to a decision, and what this run answers."""

    question: str
    answer: str


class Summary(Record):
    """A whole run, judged."""

    settings: Settings
    engine_version: str | None
    device: str | None
    cells: tuple[Cell, ...]
    recommendations: tuple[Recommendation, ...]
    checklist: tuple[ChecklistItem, ...]
    # What is wrong with the run as a whole, and what it cannot tell.
    warnings: tuple[str, ...]
    # True where nothing was timed, and a cost curve stands for the engine.
    is_modelled: bool = False
