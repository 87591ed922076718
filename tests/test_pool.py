"""The Python face of the pool, and the same drafts in every process. Rust tests rows that come and go."""

import hashlib
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ngram_spec import Drafter, DrafterPool, NgramSpecError

ROWS = np.array([[1, 2, 3, 4, 1, 2], [7, 8, 7, 8, 0, 0], [5, 5, 5, 0, 0, 0]], dtype=np.int32)


def test_each_row_gets_the_draft_of_a_fresh_drafter() -> None:
    pool = DrafterPool(max_draft_tokens=3)
    expected = [Drafter(ROWS[row, :n]).draft(3).token_ids for row, n in enumerate([6, 4, 3])]
    assert pool.propose(ROWS, [6, 4, 3]) == expected
    assert pool.propose(ROWS, np.array([6, 4, 3], dtype=np.int64)) == expected
    assert all(expected)
    assert pool.take_fault() is None


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_random_batches_keep_bounds_and_types_and_share_nothing_with_the_caller(dtype: Any) -> None:
    rng = random.Random(1)
    numpy_rng = np.random.default_rng(1)
    max_context_len, vocab_size = 120, 50
    pool = DrafterPool(max_context_len=max_context_len, vocab_size=vocab_size, max_draft_tokens=20)
    buffer = numpy_rng.integers(0, 4, (64, max_context_len), dtype=np.int32)
    for _ in range(150):
        num_rows = rng.randint(0, 64)
        num_tokens = numpy_rng.integers(0, max_context_len + 1, num_rows).astype(dtype)
        num_sampled = numpy_rng.integers(0, 3, num_rows).astype(dtype)
        limit = rng.randint(0, 20)
        kept = buffer.copy()
        drafts = pool.propose(buffer, num_tokens, num_sampled, limit)
        np.testing.assert_array_equal(buffer, kept)
        assert len(drafts) == num_rows
        for draft, n, sampled in zip(drafts, num_tokens, num_sampled, strict=True):
            assert type(draft) is list
            assert len(draft) <= (max(0, min(limit, max_context_len - n - 1)) if sampled else 0)
            assert all(type(token) is int and 0 <= token < vocab_size for token in draft)
        for draft in drafts:
            draft.append(-1)
        again = pool.propose(buffer, num_tokens, num_sampled, limit)
        assert all(-1 not in draft for draft in again)
        assert [draft[:-1] for draft in drafts] == again


@pytest.mark.parametrize(
    "sampled",
    [[[9], [7, 8, 7]], ([9], (7, 8, 7)), [np.array([9]), np.array([7, 8, 7])], [1, 3], np.array([1, 3])],
)
def test_what_rows_were_given_is_told_by_number_or_as_tokens_and_says_how_many_rows_there_are(
    sampled: Any,
) -> None:
    pool = DrafterPool(max_draft_tokens=3)
    expected = pool.propose(ROWS, [6, 4])
    assert pool.propose(ROWS, [6, 4, 3], sampled) == expected
    stats = pool.stats()
    assert (stats["num_sampled_rows"], stats["num_sampled_tokens"]) == (4, 6)
    assert pool.propose(ROWS, [6, 4, 3], [[], [8]]) == [[], expected[1]]


def test_nothing_past_a_rows_tokens_is_read() -> None:
    clean, dirty = ROWS.copy(), ROWS.copy()
    dirty[1, 4:], dirty[2, 3:] = [7, -9], 5
    assert DrafterPool().propose(clean, [6, 4, 3]) == DrafterPool().propose(dirty, [6, 4, 3])


def test_a_row_that_sampled_nothing_is_indexed_and_drafts_nothing() -> None:
    pool = DrafterPool()
    assert pool.propose(ROWS, [6, 4], [0, 1])[0] == []
    assert pool.stats()["num_indexed_tokens"] == 10


def test_a_batch_without_rows_gets_no_drafts() -> None:
    assert (
        DrafterPool().propose(ROWS, []) == DrafterPool().propose(np.zeros((0, 5), dtype=np.int32), []) == []
    )


def test_limits_may_differ_from_row_to_row() -> None:
    drafts = DrafterPool(draft_cost=0.0).propose(ROWS, [6, 4, 3], max_draft_tokens=[0, 1, 2])
    assert [len(draft) for draft in drafts] == [0, 1, 2]


def test_rows_may_be_a_part_of_a_larger_array() -> None:
    assert DrafterPool().propose(np.tile(ROWS, 2)[:, :6], [6, 4, 3]) == DrafterPool().propose(ROWS, [6, 4, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (ROWS.astype(np.int64), [6]),
            "array of shape (rows, cols) with contiguous rows, got dtype int64",
        ),
        ((ROWS[0], [6]), "got dtype int32 and shape [6]"),
        ((ROWS.T, [3]), "got strides [4, 24]"),
        (([[1]], [1]), "got list"),
        ((np.zeros(41, np.uint8)[1:].view(np.int32).reshape(2, 5), [5]), "got one that is not aligned"),
        ((ROWS, [6, 4, 3, 1]), "num_tokens has at most one entry per row, got 4 for 3 rows"),
        ((ROWS, [6, 7]), "num_tokens must be from 0 to 6, got 7 at row 1"),
        ((ROWS, [-1]), "num_tokens must be from 0 to 6, got -1 at row 0"),
        ((ROWS, [6.0]), "num_tokens must be integers of at most 64 bits, got 6.0 at index 0"),
        ((ROWS, [6], [1, 1]), "num_sampled has at most one entry per entry of num_tokens, got 2 for 1"),
        ((ROWS, [6], ["1"]), "num_sampled must be integers of at most 64 bits, got '1' at index 0"),
        ((ROWS, [6, 4], [1, -1]), "num_sampled must be from 0 to 4294967295, got -1 at row 1"),
        ((ROWS, [6, 4], [1, 1], [1, 65537]), "max_draft_tokens must be from 0 to 65536, got 65537 at row 1"),
        ((ROWS, [6], [1], -2), "max_draft_tokens must be from 0 to 65536, got -2"),
        ((ROWS, [6], [1], [1, 2]), "max_draft_tokens must have one entry per row, got 2 for 1"),
    ],
)
def test_a_bad_batch_is_refused_with_rule_value_and_place(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(NgramSpecError, match=re.escape(message)):
        DrafterPool().propose(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 1000}, "max_bytes must be at least 64 bytes for each token of max_context_len"),
        ({"max_bytes": -1}, "max_bytes must not be negative, got -1"),
        (
            {"max_bytes": 10**30},
            "max_bytes must be at most 2**48, which no machine has, got 9223372036854775807",
        ),
        ({"max_context_len": 0}, "max_context_len must be from 1 to 268435455, got 0"),
        ({"max_context_len": -1}, "max_context_len must be from 1 to 268435455, got -1"),
        ({"vocab_size": 0}, "vocab_size must be from 1 to 4294967295, got 0"),
        ({"draft_cost": -1.0}, "draft_cost must be a finite number of at least 0, got -1"),
    ],
)
def test_a_bad_option_is_refused_with_rule_and_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NgramSpecError, match=re.escape(message)):
        DrafterPool(**options)


def digest_of_2000_calls() -> str:
    """Drafts of a batch in which rows grow, swap and are replaced, as a digest."""
    rng = np.random.default_rng(5)
    pool = DrafterPool(max_bytes=2**21, max_context_len=512)
    buffer = rng.integers(0, 6, (16, 512), dtype=np.int32)
    num_tokens = rng.integers(1, 200, 16)
    digest = hashlib.sha256()
    for _ in range(2_000):
        num_tokens += rng.integers(0, 4, 16)
        a, b = rng.integers(0, 16, 2)
        buffer[[a, b]], num_tokens[[a, b]] = buffer[[b, a]], num_tokens[[b, a]]
        replaced = rng.integers(0, 16)
        if num_tokens[replaced] > 400 or rng.random() < 0.05:
            num_tokens[replaced] = rng.integers(1, 200)
            buffer[replaced] = rng.integers(0, 6, 512)
        num_tokens = np.minimum(num_tokens, 512)
        digest.update(repr(pool.propose(buffer, num_tokens)).encode())
    return digest.hexdigest()


def test_two_processes_draft_the_same_whatever_their_hash_seed_and_thread_count() -> None:
    code = "import test_pool; print(test_pool.digest_of_2000_calls())"
    digests = []
    for seed, threads in (("1", "1"), ("2", "4")):
        env = os.environ | {
            "PYTHONHASHSEED": seed,
            "OMP_NUM_THREADS": threads,
            "PYTHONPATH": str(Path(__file__).parent),
        }
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        digests.append(run.stdout)
    assert digests[0] == digests[1] == digest_of_2000_calls() + "\n"
