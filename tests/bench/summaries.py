"""Summaries and runs made up for the tests of reports; nothing of them was measured."""

import itertools
import math
from collections.abc import Sequence

from ngram_spec.bench.records import (
    OFF,
    OFF_V1,
    Answer,
    Arm,
    Block,
    Failure,
    NearTieProbe,
    Run,
    Settings,
    Start,
)
from ngram_spec.bench.summary import (
    Cell,
    Check,
    ChecklistItem,
    Drafting,
    Histogram,
    Interval,
    Measures,
    Percentiles,
    Recommendation,
    Summary,
    Word,
)

SPEC = "ngram-spec"
ARMS = (
    Arm(name=OFF),
    Arm(name=OFF_V1, environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}, flags=("--no-async-scheduling",)),
    Arm(
        name=SPEC,
        flags=("--speculative-config", '{"method": "ngram_spec", "num_speculative_tokens": 16}'),
        is_speculative=True,
    ),
    Arm(
        name="vllm-ngram",
        flags=("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}'),
        is_speculative=True,
    ),
    Arm(
        name="suffix",
        flags=("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 32}'),
        is_speculative=True,
    ),
)
# Speed-up of each arm at one request at a time, and how it falls each time the concurrency doubles.
SPEEDUPS = {
    OFF: (1.0, 0.0),
    OFF_V1: (0.93, 0.0),
    SPEC: (1.9, 0.17),
    "vllm-ngram": (1.3, 0.09),
    "suffix": (1.7, 0.2),
}
# Output that copies much, little, and hardly at all.
COPYING = {"code edit": 1.25, "rag": 1.0, "chat": 0.56}
EDGES = tuple(10 ** (exponent / 20) for exponent in range(-20, 61))


def percentiles(mean: float) -> Percentiles:
    return Percentiles(mean=mean, p50=0.9 * mean, p95=1.9 * mean, p99=3.1 * mean)


def interval(estimate: float, half: float = 0.04) -> Interval:
    return Interval(estimate=estimate, low=estimate - half, high=estimate + half, num_pairs=16, num_rounds=2)


def histogram(median: float, fast_share: float) -> Histogram:
    """Two humps: one step's time, and a share of tokens that came several at a time."""

    def hump(place: float, at: float, width: float) -> float:
        return math.exp(-(((math.log(place) - math.log(at)) / width) ** 2))

    middles = [math.sqrt(low * high) for low, high in itertools.pairwise(EDGES)]
    shares = [
        (1 - fast_share) * hump(middle, 1.1 * median, 0.12) + fast_share * hump(middle, 0.3 * median, 0.35)
        for middle in middles
    ]
    return Histogram(edges=EDGES, counts=tuple(round(4000 * part) for part in shares))


def drafting(tokens_per_step: float, max_draft_tokens: int) -> Drafting:
    num_row_steps = 10_000
    num_drafts = 7_400
    num_accepted = round(num_row_steps * (tokens_per_step - 1))
    decay = 1 - num_drafts / (num_accepted + num_drafts)
    by_position = tuple(decay**position for position in range(1, max_draft_tokens + 1))
    num_draft_tokens = num_drafts * max_draft_tokens // 2
    return Drafting(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted,
        num_row_steps=num_row_steps,
        acceptance_rate=num_accepted / num_draft_tokens,
        tokens_per_step=tokens_per_step,
        coverage=num_drafts / num_row_steps,
        mean_acceptance_length=1 + num_accepted / num_drafts,
        accepted_by_position=by_position,
        drafter_us_per_step=14.2,
    )


def bare_measures(throughput: float) -> Measures:
    """An arm whose server tells nothing and whose stream could not be timed."""
    return Measures(
        num_starts=1,
        num_blocks=2,
        num_requests=8,
        num_errors=0,
        num_output_tokens=2048,
        throughput=throughput,
        itl_ms=None,
        chunk_gap_ms=None,
        ttft_ms=None,
        tpot_ms=None,
        latency_ms=None,
        itl_histogram=None,
        drafting=None,
        process_bytes=None,
        gpu_bytes=None,
        kv_cache_usage=None,
        kv_cache_tokens=None,
        joules_per_token=None,
    )


def measures(arm: str, speedup: float, concurrency: int) -> Measures:
    itl = 11.3 * (1 + concurrency / 40) / speedup
    max_draft_tokens = {SPEC: 16, "vllm-ngram": 5, "suffix": 32}.get(arm)
    tokens_per_step = 1 + max(0.05, 1.3 * speedup - 0.8)
    throughput = 1000 * concurrency / itl
    return bare_measures(throughput).model_copy(
        update={
            "num_starts": 2,
            "num_requests": 40,
            "itl_ms": percentiles(itl),
            "chunk_gap_ms": percentiles(itl * (tokens_per_step if max_draft_tokens else 1)),
            "ttft_ms": percentiles(38.0 + 9 * concurrency),
            "tpot_ms": percentiles(itl),
            "latency_ms": percentiles(300 * itl),
            "itl_histogram": histogram(
                11.3 * (1 + concurrency / 40), 0.0 if max_draft_tokens is None else 1 - 1 / tokens_per_step
            ),
            "drafting": drafting(tokens_per_step, max_draft_tokens) if max_draft_tokens else None,
            "process_bytes": 3_650_722_201 + (0 if arm == OFF else 171_966_464),
            "gpu_bytes": 72_477_573_120,
            "kv_cache_usage": min(0.97, 0.013 * concurrency),
            "kv_cache_tokens": 412_384,
            "joules_per_token": 0.9 / speedup,
        }
    )


def cell(arm: str, workload: str, concurrency: int, speedup: float, word: Word | None = None) -> Cell:
    if word is None:
        word = "on" if speedup > 1.05 else "off" if speedup < 0.95 else "no measurable difference"
        word = "baseline" if arm == OFF else word
    is_valid = word != "invalid"
    return Cell(
        workload=workload,
        concurrency=concurrency,
        arm=arm,
        measures=measures(arm, speedup, concurrency),
        speedup=interval(speedup) if arm != OFF else None,
        speedup_over_off_v1=interval(speedup / 0.93) if arm not in (OFF, OFF_V1) else None,
        tpot_ratio=interval(1 / speedup) if arm != OFF else None,
        checks=(
            Check(name="answers", is_passed=True, detail="40 of 40 requests were answered"),
            Check(
                name="varied output",
                is_passed=is_valid,
                detail="no answer repeats one token" if is_valid else "31 of 40 answers repeat one token",
            ),
            Check(name="drafts", is_passed=True, detail="7,400 drafts were verified"),
        ),
        num_same_outputs=38 if arm != OFF else None,
        num_near_ties=2 if arm != OFF else None,
        meets_goal=None,
        verdict=word,
        reason=f"{speedup - 1:+.0%} against off",
    )


def settings(
    workloads: Sequence[str] = tuple(COPYING),
    concurrencies: Sequence[int] = (1, 4, 16, 64),
    arms: Sequence[Arm] = ARMS,
) -> Settings:
    return Settings(
        ngram_spec_version="0.1.0",
        model="Qwen/Qwen2.5-Coder-32B-Instruct",
        arms=tuple(arms),
        common_flags=("--max-model-len", "8192"),
        workloads={name: tuple(f"{name}-{number}" for number in range(40)) for name in workloads},
        workload_digests={name: f"{len(name):02x}" * 32 for name in workloads},
        concurrencies=tuple(concurrencies),
        max_tokens=512,
        num_groups=8,
    )


def recommendation(workload: str, arm: str | None, break_even: float | None) -> Recommendation:
    flags = " ".join(next(one for one in ARMS if one.name == SPEC).flags[:1])
    spec = """'{"method": "ngram_spec", "num_speculative_tokens": 16, "draft_cost": 0.05}'"""
    if arm is None:
        headline = "off"
        reasons: tuple[str, ...] = (
            "No arm is faster than off by more than its interval at any concurrency.",
        )
    else:
        headline = "on" if break_even is None else f"on up to about concurrency {break_even:.0f}"
        reasons = (
            f"{arm} makes 1.90 times the tokens per second of off at 1, and less as the load grows.",
            "Its output is that of off but for near-ties.",
        )
    return Recommendation(
        workload=workload,
        arm=arm,
        has_verdict=True,
        headline=headline,
        reasons=reasons,
        break_even_concurrency=break_even,
        extra_process_bytes=171_966_464 if arm else None,
        extra_gpu_bytes=0 if arm else None,
        flags=f"{flags} {spec}" if arm else "",
    )


def summary(
    workloads: Sequence[str] = tuple(COPYING),
    concurrencies: Sequence[int] = (1, 4, 16, 64),
    arms: Sequence[Arm] = ARMS,
) -> Summary:
    """Return a run in which ngram-spec is on for text that copies, and one cell is invalid."""
    cells = []
    for workload in workloads:
        for concurrency in concurrencies:
            for arm in arms:
                first, fall = SPEEDUPS[arm.name]
                copying = COPYING.get(workload, 1.0) if arm.is_speculative else 1.0
                speedup = first * copying * (1 - fall * math.log2(concurrency) / 2)
                is_broken = (workload, concurrency, arm.name) == ("rag", 16, "suffix")
                cells.append(cell(arm.name, workload, concurrency, speedup, "invalid" if is_broken else None))
    return Summary(
        settings=settings(workloads, concurrencies, arms),
        engine_version="0.32.0",
        device="NVIDIA H200",
        cells=tuple(cells),
        recommendations=tuple(
            recommendation(
                name,
                *((SPEC, 45.0) if name == "code edit" else (SPEC, 23.0) if name == "rag" else (None, None)),
            )
            for name in workloads
        ),
        checklist=(
            ChecklistItem(
                question="Is the output the same?", answer="38 of 40 answers are; 2 part at near-ties."
            ),
            ChecklistItem(
                question="What does speculation itself cost?",
                answer="off-v1 runs at 0.93 of off: the runner that drafts need costs 7 %.",
            ),
            ChecklistItem(
                question="Does memory allow it?", answer="164 MiB more main memory, no more on the GPU."
            ),
        ),
        warnings=(
            "Arm vllm-ngram was started once only, so its intervals do not hold differences of starts.",
        ),
    )


def run(of: Summary) -> Run:
    """Return what could lie beside such a summary: two starts of each arm, a block, a probe, a failure."""
    starts = [
        Start(
            number=number,
            arm=arm.name,
            round=number // len(of.settings.arms),
            command=("vllm", "serve", of.settings.model, *of.settings.common_flags, *arm.flags),
            engine_version=of.engine_version,
            seconds_to_ready=41.5 + number,
            kv_cache_tokens=412_384,
            device=of.device,
        )
        for number, arm in enumerate(of.settings.arms * 2)
    ]
    workload = next(iter(of.settings.workloads))
    answer = Answer(
        prompt_id=of.settings.workloads[workload][0],
        sent_at=0.0,
        chunk_times=(0.0, 0.01, 0.02),
        chunk_num_tokens=(1, 5, 1),
        finished_at=0.02,
        num_prompt_tokens=120,
        num_output_tokens=7,
        tokens_counted_by="ids",
        token_ids=(1, 2, 3, 4, 5, 6, 7),
        text="an answer that no report shows",
        finish_reason="stop",
    )
    block = Block(
        start=0, arm=OFF, round=0, workload=workload, concurrency=1, group=0, seconds=0.02, answers=(answer,)
    )
    return Run(
        settings=of.settings,
        starts=tuple(starts),
        blocks=(block,),
        near_tie_probes=(
            NearTieProbe(
                workload=workload, prompt_id=answer.prompt_id, num_same_tokens=118, logprob_gap=0.013
            ),
        ),
        failures=(Failure(arm="suffix", round=1, reason="the server ended with exit status 1 after 12 s"),),
    )
