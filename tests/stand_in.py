"""A stand-in for vLLM's runner: the few fields of its configuration that the proposer reads, and its buffers.

tests/real_vllm runs the engine.
"""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ngram_spec.vllm import NgramSpecProposer

MAX_MODEL_LEN = 96
VOCAB_SIZE = 50
MAX_NUM_SEQS = 64
PERIODIC = [1, 2, 3, 4, 5] * 6


@pytest.fixture(autouse=True)
def log_reaches_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tests of a module that imports it."""
    # vLLM, once imported by another test, keeps its log from the root logger, where caplog listens.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


def vllm_config(
    options: object = None, *, num_speculative_tokens: int = 8, per_batch_size: object = None, **model: Any
) -> SimpleNamespace:
    model_config = SimpleNamespace(
        max_model_len=model.pop("max_model_len", MAX_MODEL_LEN),
        get_vocab_size=lambda: VOCAB_SIZE,
        hf_config=SimpleNamespace(eos_token_id=model.pop("eos_token_id", None)),
        try_get_generation_config=model.pop("try_get_generation_config", lambda: {}),
    )
    assert not model
    return SimpleNamespace(
        model_config=model_config,
        speculative_config=SimpleNamespace(
            num_speculative_tokens=num_speculative_tokens,
            num_speculative_tokens_per_batch_size=per_batch_size,
        ),
        additional_config={} if options is None else {"ngram_spec": options},
    )


def buffers(
    rows: Sequence[Sequence[int]],
    *,
    dtype: type[np.integer[Any]] = np.int32,
    max_model_len: int = MAX_MODEL_LEN,
) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.int32]]:
    """The runner's two buffers, all rows of them, dirty wherever no request stands."""
    token_ids = np.random.default_rng(len(rows)).integers(
        0, VOCAB_SIZE, size=(MAX_NUM_SEQS, max_model_len), dtype=np.int32
    )
    num_tokens = np.zeros(MAX_NUM_SEQS, dtype=dtype)
    for row, tokens in enumerate(rows):
        num_tokens[row] = len(tokens)
        token_ids[row, : len(tokens)] = tokens
    return num_tokens, token_ids


def propose(
    proposer: NgramSpecProposer, rows: Sequence[Sequence[int]], num_sampled: int = 1, **layout: Any
) -> list[list[int]]:
    num_tokens, token_ids = buffers(rows, **layout)
    sampled = [list(row[len(row) - num_sampled :]) for row in rows]
    return proposer.propose(sampled, num_tokens, token_ids, slot_mappings=None)


def on_rank(rank: int, executor: str, options: object = None, **sizes: int) -> SimpleNamespace:
    config = vllm_config(options)
    config.parallel_config = SimpleNamespace(rank=rank, distributed_executor_backend=executor, **sizes)
    return config
