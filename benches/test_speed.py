"""Time per step from Python, beside prompt lookup and, where vLLM is installed, beside vLLM's own drafter.

The number in brackets behind each figure is the ratio to the fastest of its group in this run. On a shared
machine only those ratios mean much.
"""

import importlib.util
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ngram_spec import Drafter, DrafterPool
from ngram_spec.prompt_lookup import PromptLookup

NUM_EXTENDED, NUM_DRAFTED = 3, 8
CONTEXT_LENS = [4_096, 32_768, 131_072]
Text = npt.NDArray[np.int32]


def pieces(text: Text, start: int) -> Iterator[Text]:
    """What the target emits step by step: the text that follows the context, over and over."""
    return cycle(np.split(text[start : start + 3_000], 3_000 // NUM_EXTENDED))


@pytest.mark.parametrize("context_len", CONTEXT_LENS)
@pytest.mark.parametrize("make", [Drafter, PromptLookup], ids=["ngram_spec", "prompt_lookup"])
def test_one_step_of_one_request(
    benchmark: Any, text: Text, make: Callable[..., Any], context_len: int
) -> None:
    benchmark.group = f"extend {NUM_EXTENDED} + draft {NUM_DRAFTED}, {context_len} tokens"
    # Without a cost per token the drafter drafts all it may, as prompt lookup does.
    options = {"draft_cost": 0.0} if make is Drafter else {}
    drafter = make(text[:context_len], max_draft_tokens=NUM_DRAFTED, **options)
    emitted = pieces(text, context_len)

    def step() -> None:
        drafter.extend(next(emitted))
        drafter.draft()

    benchmark.pedantic(step, rounds=1_000, warmup_rounds=20)


@pytest.mark.parametrize("context_len", CONTEXT_LENS)
def test_indexing_a_prompt(benchmark: Any, text: Text, context_len: int) -> None:
    benchmark.group = "index a prompt"
    drafter = benchmark.pedantic(Drafter, args=(text[:context_len],), rounds=20, warmup_rounds=2)
    benchmark.extra_info["us_per_token"] = benchmark.stats["median"] * 1e6 / context_len
    benchmark.extra_info["bytes_per_token"] = drafter.num_bytes / context_len


@pytest.mark.parametrize("context_len", [2_048, 32_768, 131_072])
@pytest.mark.filterwarnings("ignore:.*reflected list")
@pytest.mark.parametrize("arm", ["ngram_spec", "vllm_numba"])
def test_one_step_of_a_batch_of_64_rows(benchmark: Any, text: Text, arm: str, context_len: int) -> None:
    benchmark.group = f"64 rows, one token each + draft {NUM_DRAFTED}, {context_len} tokens"
    num_rows, num_steps = 64, 200 if context_len < 100_000 else 40
    num_cols = context_len + num_steps + 20
    starts = np.linspace(0, len(text) - num_cols, num_rows).astype(int)
    buffer = np.stack([text[start : start + num_cols] for start in starts])
    num_tokens = np.full(num_rows, context_len, dtype=np.int32)
    if arm == "ngram_spec":
        pool = DrafterPool(max_draft_tokens=NUM_DRAFTED, draft_cost=0.0, max_bytes=2**34)
        propose: Callable[[Text, Text], list[list[int]]] = pool.propose
        while pool.stats()["num_indexed_tokens"] < num_rows * context_len:
            propose(buffer, num_tokens)
    else:
        propose = vllm_numba(num_rows, num_cols)

    def step() -> None:
        num_tokens[:] += 1
        propose(buffer, num_tokens)

    benchmark.pedantic(step, rounds=num_steps - 10, warmup_rounds=5)


def vllm_numba(num_rows: int, num_cols: int) -> Callable[[Text, Text], list[list[int]]]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed, so its drafter is not measured")
    import numba
    from vllm.v1.spec_decode.ngram_proposer import batch_propose_numba

    numba.set_num_threads(1)
    drafts = np.zeros((num_rows, NUM_DRAFTED), dtype=np.int32)
    num_drafted = np.zeros(num_rows, dtype=np.int32)
    rows = list(range(num_rows))

    def propose(buffer: Text, num_tokens: Text) -> list[list[int]]:
        batch_propose_numba(rows, num_tokens, buffer, 2, 5, num_cols, NUM_DRAFTED, drafts, num_drafted)
        return [drafts[row, : num_drafted[row]].tolist() for row in rows]

    return propose
