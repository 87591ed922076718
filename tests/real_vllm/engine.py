"""A real vLLM engine with the small model, drafting or not: requests in, answers and events out."""

import gc
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from small_model import small_model
from watched import WatchedProposer

# Read when vLLM is imported: one process, one thread, a small cache, nothing from the network.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
    OMP_NUM_THREADS="1",
    NUMBA_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
)

MAX_MODEL_LEN = 768
NUM_SPECULATIVE_TOKENS = 16
SEED = 11
MAX_TOKENS = 48


@dataclass(frozen=True)
class EngineConfig:
    """What tells one engine of these tests from another."""

    drafting: bool = True
    short_form: bool = False
    metrics_port: int | None = None
    max_num_batched_tokens: int = 4096
    num_blocks: int | None = None
    prefix_caching: bool = False
    max_num_seqs: int = 16
    num_speculative_tokens: int = NUM_SPECULATIVE_TOKENS


BASELINE = EngineConfig(drafting=False)


@dataclass(frozen=True)
class Request:
    """A chat (with `prompt_len` that many tokens of it, repeated) and the SamplingParams it is sent with.

    `structured` is what vLLM's StructuredOutputsParams take, `abort_at` the answer's length to abort it at.
    """

    messages: Sequence[Mapping[str, str]]
    params: Mapping[str, Any] = field(default_factory=dict)
    prompt_len: int | None = None
    structured: Mapping[str, Any] | None = None
    abort_at: int | None = None


@dataclass(frozen=True)
class Answer:
    """What came back for one request, down to what a client sees of it.

    `logprobs` are those of its tokens, where they were asked for, and `margins` by how much the best token's
    beat the next one's, where two were. Neither is the same to the last digit in every batch.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    num_logprobs: int | None
    logprobs: tuple[float, ...] = field(default=(), compare=False)
    margins: tuple[float, ...] = field(default=(), compare=False)


@dataclass
class Events:
    """What happened in the engine while a block of code ran."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_cache_hits: int = 0


class Engine:
    """One engine in this process."""

    def __init__(self, config: EngineConfig) -> None:
        from vllm import LLM

        drafting: dict[str, Any] = {
            "speculative_config": {
                "method": "custom_class",
                "model": f"{WatchedProposer.__module__}.{WatchedProposer.__name__}",
                "num_speculative_tokens": config.num_speculative_tokens,
            },
            # What is learned depends on the steps before, and a fresh drafter has seen none.
            "additional_config": {"ngram_spec": {"draft_cost": 0.02, "learn": False}},
        }
        if config.short_form:
            short_form: dict[str, Any] = {
                "method": "ngram_spec",
                "num_speculative_tokens": config.num_speculative_tokens,
                "draft_cost": 0.02,
            }
            if config.metrics_port is not None:
                short_form["metrics_port"] = config.metrics_port
            drafting = {"speculative_config": short_form}
        self.llm = LLM(
            str(small_model()),
            dtype="float32",
            enforce_eager=True,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            block_size=32,
            num_gpu_blocks_override=config.num_blocks,
            enable_prefix_caching=config.prefix_caching,
            disable_log_stats=False,
            seed=SEED,
            **(drafting if config.drafting else {}),
        )
        self.proposer = WatchedProposer.latest
        WatchedProposer.latest = None

    def alone(self, request: Request) -> Answer:
        return self.together([request])[0]

    def together(self, requests: Sequence[Request]) -> list[Answer]:
        prompts = [{"prompt_token_ids": self.prompt_token_ids(request)} for request in requests]
        outputs = self.llm.generate(prompts, [self.params(request) for request in requests], use_tqdm=False)
        return [answer_of(output.outputs[0]) for output in outputs]

    def serve(self, requests: Mapping[str, Request], concurrency: int) -> dict[str, list[Answer]]:
        """Keeps `concurrency` requests running until all are answered, each with its copies."""
        vllm_engine: Any = self.llm.llm_engine
        waiting, running = list(requests), dict[str, str]()
        answers: dict[str, list[Answer]] = {}
        while waiting or running:
            # Two a step, and no more: so requests arrive while others are at every stage.
            for name in waiting[: min(2, concurrency - len(running))]:
                waiting.remove(name)
                prompt = {"prompt_token_ids": self.prompt_token_ids(requests[name])}
                running[name] = vllm_engine.add_request(name, prompt, self.params(requests[name])) or name
            for output in vllm_engine.step():
                abort_at = requests[output.request_id].abort_at
                if output.finished:
                    del running[output.request_id]
                elif abort_at is not None and len(output.outputs[0].token_ids) >= abort_at:
                    vllm_engine.abort_request([running.pop(output.request_id)], internal=True)
                else:
                    continue
                answers[output.request_id] = [answer_of(completion) for completion in output.outputs]
        return answers

    def prompt_token_ids(self, request: Request) -> list[int]:
        tokenizer = self.llm.get_tokenizer()
        rendered = tokenizer.apply_chat_template(request.messages, add_generation_prompt=True, tokenize=False)
        token_ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False)
        if request.prompt_len is None:
            return token_ids
        return (token_ids * (request.prompt_len // len(token_ids) + 1))[-request.prompt_len :]

    @staticmethod
    def params(request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        params: dict[str, Any] = {"temperature": 0, "max_tokens": MAX_TOKENS, **request.params}
        if request.structured is not None:
            params["structured_outputs"] = StructuredOutputsParams(**request.structured)
        if request.abort_at is None:
            params["output_kind"] = RequestOutputKind.FINAL_ONLY
        return SamplingParams(**params)

    @contextmanager
    def events(self) -> Iterator[Events]:
        """Counts what happens in the block, and lets the proposer keep its steps from here on."""
        if self.proposer is not None:
            self.proposer.steps.clear()
        before, events = self._counters(), Events()
        yield events
        for name, value in self._counters().items():
            setattr(events, name, value - before[name])

    def _counters(self) -> dict[str, int]:
        counters = dict.fromkeys((field.name for field in fields(Events)), 0)
        for metric in self.llm.get_metrics():
            name = "num_" + re.sub("^vllm:(spec_decode_)?(num_)?", "", metric.name)
            if name in counters:
                counters[name] += metric.value
        return counters

    def close(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.proposer
        gc.collect()
        cleanup_dist_env_and_memory()


class Engines:
    """Hands out an engine by its configuration and ends the one before, as vLLM has one per process."""

    def __init__(self) -> None:
        self._config: EngineConfig | None = None
        self._engine: Engine | None = None

    def get(self, config: EngineConfig) -> Engine:
        if self._config != config or self._engine is None:
            self.close()
            self._config, self._engine = config, Engine(config)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._config = self._engine = None


def answer_of(completion: Any) -> Answer:
    positions = [] if completion.logprobs is None else completion.logprobs
    by_rank = [sorted((token.logprob for token in position.values()), reverse=True) for position in positions]
    return Answer(
        tuple(completion.token_ids),
        completion.text,
        completion.finish_reason,
        completion.stop_reason,
        None if completion.logprobs is None else len(completion.logprobs),
        tuple(position[i].logprob for i, position in zip(completion.token_ids, positions, strict=False)),
        tuple(best[0] - best[1] for best in by_rank if len(best) > 1),
    )
