"""Runs made up for the tests of statistics and verdicts; nothing of them was measured."""

import random
from collections.abc import Callable, Mapping, Sequence

from ngram_spec.bench.records import (
    OFF,
    OFF_V1,
    Answer,
    Arm,
    Block,
    Counters,
    NearTieProbe,
    Resources,
    Run,
    Settings,
    Start,
)

SPEC = "ngram-spec"
SUFFIX = "suffix"
WORKLOAD = "code edit"
ARMS = {
    OFF: Arm(name=OFF),
    OFF_V1: Arm(name=OFF_V1, environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    SPEC: Arm(
        name=SPEC,
        flags=("--speculative-config", '{"method": "ngram_spec", "num_speculative_tokens": 16}'),
        is_speculative=True,
    ),
    SUFFIX: Arm(
        name=SUFFIX,
        flags=("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 32}'),
        environment={"OMP_NUM_THREADS": "1"},
        is_speculative=True,
    ),
}
OUTPUT_LEN = 64
PROMPTS_PER_GROUP = 4
OFF_TOKENS_PER_SECOND = 100.0
FIRST_TOKEN_SECONDS = 0.05

# From prompt id to the ids of its answer.
Output = Callable[[str], tuple[int, ...]]


def text_like(prompt_id: str) -> tuple[int, ...]:
    """Token ids that do not repeat, the same for the same prompt."""
    return tuple(random.Random(prompt_id).sample(range(10_000), OUTPUT_LEN))


def one_token_repeated(prompt_id: str) -> tuple[int, ...]:
    return (len(prompt_id),) * OUTPUT_LEN


def prompts_of(group: int) -> list[str]:
    return [f"{group}-{index}" for index in range(PROMPTS_PER_GROUP)]


def answer(
    prompt_id: str = "p",
    chunks: Sequence[tuple[float, int]] = (),
    *,
    token_ids: tuple[int, ...] | None = None,
    text: str = "",
    error: str | None = None,
) -> Answer:
    """An answer that was asked for at 0, with its chunks as (time, number of tokens)."""
    num_output_tokens = sum(num_tokens for _, num_tokens in chunks) if token_ids is None else len(token_ids)
    return Answer(
        prompt_id=prompt_id,
        sent_at=0.0,
        chunk_times=tuple(time for time, _ in chunks),
        chunk_num_tokens=tuple(num_tokens for _, num_tokens in chunks),
        finished_at=chunks[-1][0] if chunks else 1.0,
        num_prompt_tokens=100,
        num_output_tokens=num_output_tokens,
        tokens_counted_by="ids",
        token_ids=token_ids,
        text=text,
        finish_reason="stop",
        error=error,
    )


def block(
    answers: Sequence[Answer] = (),
    *,
    arm: str = SPEC,
    round: int = 0,
    group: int = 0,
    concurrency: int = 1,
    workload: str = WORKLOAD,
    seconds: float = 1.0,
    counters: Counters | None = None,
    resources: Resources | None = None,
) -> Block:
    return Block(
        start=10 * round + list(ARMS).index(arm),
        arm=arm,
        round=round,
        workload=workload,
        concurrency=concurrency,
        group=group,
        seconds=seconds,
        answers=tuple(answers),
        counters=counters or Counters(),
        resources=resources or Resources(),
    )


def timed_answer(prompt_id: str, token_ids: tuple[int, ...], seconds: float) -> Answer:
    """Two tokens a chunk, evenly from the first on; `seconds` is the whole latency."""
    sizes = [len(token_ids[start : start + 2]) for start in range(0, len(token_ids), 2)]
    step = (seconds - FIRST_TOKEN_SECONDS) / max(1, len(sizes) - 1)
    chunks = [(FIRST_TOKEN_SECONDS + step * index, size) for index, size in enumerate(sizes)]
    return answer(prompt_id, chunks, token_ids=token_ids)


def counters_of(num_output_tokens: int, acceptance_rate: float) -> Counters:
    """Ten tokens drafted, in two drafts, for every 32 of the output."""
    num_drafts = 2 * (num_output_tokens // 32)
    return Counters(
        num_output_tokens=num_output_tokens,
        num_drafts=num_drafts,
        num_draft_tokens=5 * num_drafts,
        num_accepted_tokens=round(5 * num_drafts * acceptance_rate),
    )


def settings_of(
    arms: Sequence[str], concurrencies: Sequence[int], num_groups: int, **changes: object
) -> Settings:
    prompt_ids = tuple(prompt_id for group in range(num_groups) for prompt_id in prompts_of(group))
    settings = Settings(
        ngram_spec_version="0.1.0",
        model="made-up",
        arms=tuple(ARMS[name] for name in arms),
        workloads={WORKLOAD: prompt_ids},
        workload_digests={WORKLOAD: "0"},
        concurrencies=tuple(concurrencies),
        max_tokens=OUTPUT_LEN,
        num_groups=num_groups,
    )
    return settings.model_copy(update=changes)


def made_up_run(
    speedups: Mapping[str, Mapping[int, float]],
    *,
    num_rounds: int = 2,
    num_groups: int = 6,
    spread: float = 0.0,
    acceptance_rate: float = 0.7,
    outputs: Mapping[str, Output] | None = None,
    probes: Sequence[NearTieProbe] = (),
    process_bytes: Mapping[str, int] | None = None,
    **changes: object,
) -> Run:
    """A run in which each arm is so many times as fast as arm off, by concurrency.

    `spread` is by what share the groups take longer and shorter than that, in turn.
    """
    arms = [OFF, *speedups]
    concurrencies = sorted({one for by_concurrency in speedups.values() for one in by_concurrency})
    settings = settings_of(arms, concurrencies, num_groups, **changes)
    blocks = []
    for round_ in range(num_rounds):
        for name in arms:
            for concurrency in concurrencies:
                for group in range(num_groups):
                    ratio = 1.0 if name == OFF else speedups[name][concurrency]
                    noise = 1.0 if name == OFF else 1 + spread * (-1) ** group
                    output = (outputs or {}).get(name, text_like)
                    answers = {prompt_id: output(prompt_id) for prompt_id in prompts_of(group)}
                    num_tokens = sum(map(len, answers.values()))
                    seconds = noise * num_tokens / (OFF_TOKENS_PER_SECOND * ratio)
                    is_speculative = ARMS[name].is_speculative
                    blocks.append(
                        block(
                            [
                                timed_answer(prompt_id, token_ids, seconds / PROMPTS_PER_GROUP)
                                for prompt_id, token_ids in answers.items()
                            ],
                            arm=name,
                            round=round_,
                            group=group,
                            concurrency=concurrency,
                            seconds=seconds,
                            counters=counters_of(num_tokens, acceptance_rate) if is_speculative else None,
                            resources=Resources(process_bytes=(process_bytes or {}).get(name)),
                        )
                    )
    starts = [
        Start(
            number=number,
            arm=arm,
            round=round_,
            command=("vllm", "serve"),
            engine_version="0.32.0",
            seconds_to_ready=1.0,
            kv_cache_tokens=1000,
            device="CPU",
        )
        for number, arm, round_ in sorted({(one.start, one.arm, one.round) for one in blocks})
    ]
    return Run(settings=settings, starts=tuple(starts), blocks=tuple(blocks), near_tie_probes=tuple(probes))
