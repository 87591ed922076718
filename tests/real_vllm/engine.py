"""A real vLLM engine with the small model, drafting or not: requests in, answers and events out."""

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watched import WatchedProposer

sys.path.append(str(Path(__file__).resolve().parent.parent))
from small_model import small_model

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


@dataclass(frozen=True)
class EngineConfig:
    """What tells one engine of these tests from another."""

    drafting: bool = True
    short_form: bool = False
    max_num_batched_tokens: int = 4096
    num_blocks: int | None = None


BASELINE = EngineConfig(drafting=False)


@dataclass(frozen=True)
class Request:
    """A chat (with `prompt_len` that many tokens of it, repeated) and the SamplingParams it is sent with."""

    messages: Sequence[Mapping[str, str]]
    params: Mapping[str, Any] = field(default_factory=dict)
    prompt_len: int | None = None
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What came back for one request, down to what a client sees of it."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    num_logprobs: int | None


@dataclass
class Events:
    """What happened in the engine while a block of code ran."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0


class Engine:
    """One engine in this process."""

    def __init__(self, config: EngineConfig) -> None:
        from vllm import LLM

        drafting: dict[str, Any] = {
            "speculative_config": {
                "method": "custom_class",
                "model": f"{WatchedProposer.__module__}.{WatchedProposer.__name__}",
                "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
            },
            # What is learned depends on the steps before, and a fresh drafter has seen none.
            "additional_config": {"ngram_spec": {"draft_cost": 0.02, "learn": False}},
        }
        if config.short_form:
            short_form = {"method": "ngram_spec", "num_speculative_tokens": NUM_SPECULATIVE_TOKENS}
            drafting = {"speculative_config": {**short_form, "draft_cost": 0.02}}
        self.llm = LLM(
            str(small_model()),
            dtype="float32",
            enforce_eager=True,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=16,
            max_num_batched_tokens=config.max_num_batched_tokens,
            block_size=32,
            num_gpu_blocks_override=config.num_blocks,
            enable_prefix_caching=False,
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
        return [answer_of(output) for output in outputs]

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
        from vllm.sampling_params import StructuredOutputsParams

        schema = (
            {"structured_outputs": StructuredOutputsParams(json=request.schema)} if request.schema else {}
        )
        return SamplingParams(**{"temperature": 0, "max_tokens": 48, **schema, **request.params})

    @contextmanager
    def events(self) -> Iterator[Events]:
        """Counts what happens in the block, and lets the proposer keep its steps from here on."""
        if self.proposer is not None:
            self.proposer.steps.clear()
        before, events = self._counters(), Events()
        yield events
        after = self._counters()
        events.num_draft_tokens = (
            after["spec_decode_num_draft_tokens"] - before["spec_decode_num_draft_tokens"]
        )
        events.num_accepted_tokens = (
            after["spec_decode_num_accepted_tokens"] - before["spec_decode_num_accepted_tokens"]
        )
        events.num_preemptions = after["num_preemptions"] - before["num_preemptions"]

    def _counters(self) -> dict[str, int]:
        counters = dict.fromkeys(
            ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "num_preemptions"), 0
        )
        for metric in self.llm.get_metrics():
            name = metric.name.removeprefix("vllm:")
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


def answer_of(output: Any) -> Answer:
    completion = output.outputs[0]
    return Answer(
        tuple(completion.token_ids),
        completion.text,
        completion.finish_reason,
        completion.stop_reason,
        None if completion.logprobs is None else len(completion.logprobs),
    )
