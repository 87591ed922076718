"""The baseline against examples by hand, against brute force, and against vLLM's own code."""

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


def test_prompt_lookup_equals_the_function_of_vllm() -> None:
    proposer = pytest.importorskip("vllm.v1.spec_decode.ngram_proposer", exc_type=ImportError)
    # The Python behind the compiled function: the same code, without the time to compile it.
    propose = proposer._find_longest_matched_ngram_and_propose_tokens.py_func
    random = np.random.default_rng(20)
    num_drafts = 0
    for _ in range(2000):
        vocabulary = int(random.integers(1, 5))
        context = random.integers(0, vocabulary, size=int(random.integers(1, 80)), dtype=np.int32)
        shortest = int(random.integers(1, 6))
        longest = shortest + int(random.integers(0, 4))
        max_draft_tokens = int(random.integers(1, 9))
        theirs = propose(context, shortest, longest, 4096, max_draft_tokens).tolist()
        ours = lookup(context.tolist(), shortest=shortest, longest=longest, max_draft_tokens=max_draft_tokens)
        assert ours == theirs, (context.tolist(), shortest, longest, max_draft_tokens)
        num_drafts += bool(ours)
    assert num_drafts > 1000
