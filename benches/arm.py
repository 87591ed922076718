"""Measures one arm: one vLLM engine, with the proposer or without, that answers chats one after another.

    python benches/arm.py --model FOLDER --chats CHATS.json --result RESULT.jsonl --num-speculative-tokens 16

CHATS.json holds [name, messages] pairs. RESULT.jsonl gets one line per answer as it comes: a `Measured`.
The first chat is answered once before, uncounted: the first steps of an engine pay for what later ones reuse.
"""

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NUM_WARM_UP_TOKENS = 16
# A user's own settings win.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "INFO"}


@dataclass(frozen=True)
class Measured:
    """One answer: its tokens, what it took, and what was drafted for it.

    `num_target_steps` counts the steps after the one that gave the first token, with a draft or without;
    `prefill_seconds` ends with the first token, and `decode_seconds` begins there.
    """

    name: str
    token_ids: list[int]
    num_target_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    prefill_seconds: float
    decode_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--chats", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--max-tokens", type=int, default=128, help="per answer (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="of the model (default: %(default)s)")
    parser.add_argument("--enforce-eager", action="store_true", help="run the model uncompiled")
    parser.add_argument(
        "--num-speculative-tokens",
        type=int,
        default=0,
        help="draft tokens per step; 0 runs without speculation",
    )
    parser.add_argument("--draft-cost", type=float, help="as of the proposer")
    options = parser.parse_args()

    chats: list[tuple[str, list[dict[str, str]]]] = json.loads(options.chats.read_text("utf-8"))
    llm, prompts = start(options, [messages for _, messages in chats])
    answer(llm, prompts[0], NUM_WARM_UP_TOKENS, "warm-up")
    with options.result.open("w", encoding="utf-8") as result:
        for (name, _), prompt in zip(chats, prompts, strict=True):
            measured = answer(llm, prompt, options.max_tokens, name)
            result.write(json.dumps(asdict(measured)) + "\n")
            result.flush()  # whoever started this arm shows how far it is


def start(options: argparse.Namespace, chats: list[list[dict[str, str]]]) -> tuple[Any, list[list[int]]]:
    """Return the engine and the rendered prompts."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from transformers import AutoTokenizer
    from vllm import LLM

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = [
        tokenizer.encode(
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False),
            add_special_tokens=False,
        )
        for chat in chats
    ]
    speculation: dict[str, Any] = {}
    if options.num_speculative_tokens:
        speculation["speculative_config"] = {
            "method": "ngram_spec",
            "num_speculative_tokens": options.num_speculative_tokens,
        }
        if options.draft_cost is not None:
            speculation["speculative_config"]["draft_cost"] = options.draft_cost
    llm = LLM(
        options.model,
        dtype=options.dtype,
        enforce_eager=options.enforce_eager,
        # vLLM drafts for no row once one is within N of the end: leave that room behind the longest answer.
        max_model_len=max(map(len, prompts)) + options.max_tokens + options.num_speculative_tokens + 1,
        max_num_seqs=1,
        enable_prefix_caching=False,  # the warm-up must not save the first chat its prefill
        disable_log_stats=False,  # drafted and accepted tokens are read from vLLM's own metrics
        **speculation,
    )
    return llm, prompts


def answer(llm: Any, prompt_token_ids: list[int], max_tokens: int, name: str) -> Measured:
    """Return one greedy answer, measured step by step."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    drafted_before, accepted_before = _counters(llm)
    token_ids: list[int] = []
    num_target_steps = 0
    started = first = last = time.perf_counter()
    engine.add_request(
        name, {"prompt_token_ids": prompt_token_ids}, SamplingParams(temperature=0, max_tokens=max_tokens)
    )
    while engine.has_unfinished_requests():
        for output in engine.step():
            last = time.perf_counter()
            if not token_ids:
                first = last
            elif len(output.outputs[0].token_ids) > len(token_ids):
                num_target_steps += 1
            token_ids = list(output.outputs[0].token_ids)
    drafted, accepted = _counters(llm)
    return Measured(
        name=name,
        token_ids=token_ids,
        num_target_steps=num_target_steps,
        num_draft_tokens=drafted - drafted_before,
        num_accepted_tokens=accepted - accepted_before,
        prefill_seconds=first - started,
        decode_seconds=last - first,
    )


def _counters(llm: Any) -> tuple[int, int]:
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    drafted, accepted = (f"vllm:spec_decode_num_{what}_tokens" for what in ("draft", "accepted"))
    return int(values.get(drafted, 0)), int(values.get(accepted, 0))


if __name__ == "__main__":
    main()
