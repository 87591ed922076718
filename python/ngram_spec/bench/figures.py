"""How a report writes its numbers and what they mean: the same on the terminal and on the page."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ngram_spec.bench.records import OFF
from ngram_spec.bench.summary import Cell, Interval, Measures, Percentiles, Recommendation, Summary

# Where nothing here can tell the number.
UNKNOWN = "-"
MODELLED = "Modelled, not measured: nothing was timed, and a cost curve stands for the engine."
MIB, GIB = 2**20, 2**30


def number(value: float | None) -> str:
    """Return the number with about three digits."""
    if value is None:
        return UNKNOWN
    num_decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{num_decimals}f}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return UNKNOWN
    return f"{num_bytes / GIB:.2f} GiB" if abs(num_bytes) >= GIB else f"{num_bytes / MIB:.0f} MiB"


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def load(concurrency: float) -> str:
    """Return a number of requests at once, which need not be whole where it is interpolated."""
    return f"{concurrency:.0f}" if concurrency >= 9.5 else f"{concurrency:.2g}"


def ratio(interval: Interval | None) -> str:
    return UNKNOWN if interval is None else f"{interval.estimate:.2f}"


def bounds(interval: Interval | None) -> str:
    return UNKNOWN if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"


@dataclass(frozen=True)
class Column:
    """One figure of a cell: under which heading it stands, what it means, how it is written."""

    group: str
    heading: str
    # Empty where the column before it says it.
    meaning: str
    text: Callable[[Cell], str]


def _percentile(of: Callable[[Measures], Percentiles | None], name: str) -> Callable[[Cell], str]:
    def text(cell: Cell) -> str:
        percentiles = of(cell.measures)
        return UNKNOWN if percentiles is None else number(getattr(percentiles, name))

    return text


def _drafting(name: str, write: Callable[[float | None], str]) -> Callable[[Cell], str]:
    def text(cell: Cell) -> str:
        drafting = cell.measures.drafting
        return UNKNOWN if drafting is None else write(getattr(drafting, name))

    return text


def _valid(cell: Cell, speedup: Interval | None) -> Interval | None:
    return None if cell.verdict == "invalid" else speedup


def _gib(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else f"{num_bytes / GIB:.2f}"


def _same_outputs(cell: Cell) -> str:
    if cell.num_same_outputs is None:
        return UNKNOWN
    return f"{cell.num_same_outputs} of {cell.measures.num_requests}"


def speedup(cell: Cell) -> str:
    return ratio(_valid(cell, cell.speedup))


def speedup_bounds(cell: Cell) -> str:
    return bounds(_valid(cell, cell.speedup))


SPEED, LATENCY, DRAFTS, MEMORY, OUTPUTS = "Speed", "Latency in ms", "Drafts", "Memory at its peak", "Outputs"

COLUMNS = (
    Column(
        SPEED,
        "speed-up",
        "tokens per second over those of arm off with the same prompts; left out where a check failed",
        speedup,
    ),
    Column(
        SPEED,
        "95% interval",
        "where the true speed-up lies, as far as this run can tell",
        speedup_bounds,
    ),
    Column(
        SPEED,
        "tokens/s",
        "output tokens per second, all requests together",
        lambda cell: number(cell.measures.throughput),
    ),
    Column(
        LATENCY,
        "ITL p50",
        "inter-token latency, the time per output token (p50: half took no longer; p95: 95 of 100 did not)",
        _percentile(lambda measures: measures.itl_ms, "p50"),
    ),
    Column(
        LATENCY,
        "ITL p95",
        "",
        _percentile(lambda measures: measures.itl_ms, "p95"),
    ),
    Column(
        LATENCY,
        "chunk gap p50",
        "time between two chunks of the stream, each of one or, with drafts, of several tokens",
        _percentile(lambda measures: measures.chunk_gap_ms, "p50"),
    ),
    Column(
        LATENCY,
        "chunk gap p95",
        "",
        _percentile(lambda measures: measures.chunk_gap_ms, "p95"),
    ),
    Column(
        LATENCY,
        "TTFT p50",
        "time to first token",
        _percentile(lambda measures: measures.ttft_ms, "p50"),
    ),
    Column(
        LATENCY,
        "TPOT p50",
        "time per output token of a whole answer, without its first",
        _percentile(lambda measures: measures.tpot_ms, "p50"),
    ),
    Column(
        DRAFTS,
        "acceptance rate",
        "accepted tokens over draft tokens",
        _drafting("acceptance_rate", share),
    ),
    Column(
        DRAFTS,
        "tokens/step",
        "output tokens per step of a request, steps without a draft included",
        _drafting("tokens_per_step", number),
    ),
    Column(DRAFTS, "coverage", "share of the steps that had a draft", _drafting("coverage", share)),
    Column(
        DRAFTS,
        "drafter us/step",
        "time in the drafter per step of the engine, in microseconds",
        _drafting("drafter_us_per_step", number),
    ),
    Column(
        DRAFTS,
        "over off-v1",
        "speed-up over arm off-v1, which runs as an engine with drafts must, and has none",
        lambda cell: ratio(_valid(cell, cell.speedup_over_off_v1)),
    ),
    Column(
        MEMORY,
        "process GiB",
        "main memory of all processes of the server",
        lambda cell: _gib(cell.measures.process_bytes),
    ),
    Column(
        MEMORY,
        "GPU GiB",
        "memory of the GPU that is taken",
        lambda cell: _gib(cell.measures.gpu_bytes),
    ),
    Column(
        MEMORY,
        "KV cache used",
        "share of the KV cache in use",
        lambda cell: share(cell.measures.kv_cache_usage),
    ),
    Column(OUTPUTS, "same as off", "answers that are those of arm off token for token", _same_outputs),
    Column(
        OUTPUTS,
        "near-ties",
        "answers that leave those of off where its two best tokens are about as probable: rounding decides",
        lambda cell: count(cell.num_near_ties),
    ),
    Column(
        OUTPUTS,
        "unstable",
        "answers that leave those of off at a token where arm off does not always go on the same itself",
        lambda cell: count(cell.num_unstable_outputs),
    ),
)


def shown_columns(summary: Summary) -> list[Column]:
    """Return the columns that have a figure in at least one cell."""
    return [column for column in COLUMNS if any(column.text(cell) != UNKNOWN for cell in summary.cells)]


def verdict(cell: Cell) -> str:
    if cell.meets_goal is None or cell.verdict == "invalid":
        return cell.verdict
    return f"{cell.verdict}, {'meets' if cell.meets_goal else 'misses'} the goal"


def failed_checks(cells: Iterable[Cell]) -> list[str]:
    """Return a sentence for each check of an arm that failed: at which concurrencies, and why."""
    places: dict[tuple[str, str, str, str], list[int]] = {}
    for cell in cells:
        for check in cell.checks:
            if not check.is_passed:
                failure = cell.workload, cell.arm, check.name, check.detail
                places.setdefault(failure, []).append(cell.concurrency)
    return [
        f"{workload} at {', '.join(map(str, concurrencies))}, {arm}: {name}: {detail}"
        for (workload, arm, name, detail), concurrencies in places.items()
    ]


def by_workload(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each workload, by concurrency, in the order of the run otherwise."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.concurrency):
        groups.setdefault(cell.workload, []).append(cell)
    return groups


def arm_names(summary: Summary) -> list[str]:
    """Return the names of all arms that have a cell, in the order of the settings."""
    present = {cell.arm for cell in summary.cells}
    return [arm.name for arm in summary.settings.arms if arm.name in present]


def headline(summary: Summary) -> str:
    """Return the verdict over all workloads as one sentence."""
    recommendations = summary.recommendations
    judged = [one.workload for one in recommendations if one.has_verdict]
    on = [one.workload for one in recommendations if one.arm is not None]
    pays = "Speculation would pay" if summary.is_modelled else "Speculation pays"
    if not judged:
        return "This run has no verdict"
    if not on:
        every = "any workload here" if len(judged) == len(recommendations) else "any workload with a verdict"
        return f"Speculation is not shown to pay on {judged[0] if len(judged) == 1 else every}"
    if len(recommendations) == 1:
        return f"{pays} on {on[0]}"
    how_many = "all" if len(on) == len(recommendations) else f"{len(on)} of"
    return f"{pays} on {how_many} {len(recommendations)} workloads"


def setting(summary: Summary) -> str:
    """Return on what the run was made, on one line."""
    settings = summary.settings
    parts = [
        settings.model,
        summary.device,
        summary.engine_version and f"vLLM {summary.engine_version}",
        f"ngram-spec {settings.ngram_spec_version}",
        f"up to {settings.max_tokens} output tokens",
        f"temperature {settings.temperature:g}",
        settings.goal and f"goal {settings.goal}",
    ]
    return ", ".join(part for part in parts if part)


def extra_memory(recommendation: Recommendation) -> str | None:
    """Return what the arm takes over arm off, such as "+120 MiB of main memory"; None where not known."""
    parts = memory_differences(recommendation.extra_process_bytes, recommendation.extra_gpu_bytes)
    return f"Memory against {OFF}: {', '.join(parts)}" if parts else None


def memory_differences(process_bytes: int | None, gpu_bytes: int | None) -> list[str]:
    """Return each that is known as a text such as "+120 MiB of main memory"."""
    return [
        f"{'-' if round(extra / MIB) < 0 else '+'}{size(abs(extra))} of {kind}"
        for extra, kind in ((process_bytes, "main memory"), (gpu_bytes, "GPU memory"))
        if extra is not None
    ]
