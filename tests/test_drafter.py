"""The Python face of one request's drafter: agreement with its twin, conversions, refusals, threads."""

import itertools
import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_drafter import naive_draft
from ngram_spec import AcceptanceModel, CostCurve, Drafter, NgramSpecError

# Drafts whatever matches, however improbable, and nothing else.
SURE = AcceptanceModel({"bias": 20.0, "no match": -100.0})


def eager(prompt: Any) -> Drafter:
    """A drafter for which every token pays."""
    return Drafter(prompt, max_draft_tokens=8, draft_cost=0.0, acceptance=SURE)


def test_every_context_over_three_tokens_up_to_length_8_drafts_as_the_twin_does() -> None:
    for length in range(9):
        for context in itertools.product(range(3), repeat=length):
            assert eager(context).draft(4).token_ids == naive_draft(context, 4), context


def test_ten_thousand_random_contexts_draft_as_the_twin_does() -> None:
    rng = random.Random(20)
    for _ in range(10_000):
        alphabet = rng.randint(1, 9)
        context = [rng.randrange(alphabet) for _ in range(rng.randrange(25))]
        assert eager(context).draft(4).token_ids == naive_draft(context, 4), context


@settings(max_examples=300)
@given(st.lists(st.one_of(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 6)), max_size=12))
def test_any_sequence_of_extend_and_draft_answers_as_the_twin_does(operations: list[list[int] | int]) -> None:
    drafter, context = eager([]), list[int]()
    for operation in operations:
        if isinstance(operation, int):
            assert drafter.draft(operation).token_ids == naive_draft(context, operation)
        elif len(context) + len(operation) <= 32:
            drafter.extend(operation)
            context += operation
    assert len(drafter) == len(context)


def test_a_match_that_overlaps_the_suffix_goes_on_periodically() -> None:
    assert eager([1, 2, 1, 2, 1]).draft(5).token_ids == [2, 1, 2, 1, 2]
    assert eager([7, 7]).draft(3).token_ids == [7, 7, 7]


def test_a_match_with_fewer_tokens_behind_it_than_asked_for_drafts_on_behind_them() -> None:
    assert eager([5, 6, 7, 5]).draft(4).token_ids == [6, 7, 5, 6]


def test_the_draft_carries_a_probability_per_token_and_its_match_length() -> None:
    draft = Drafter([1, 2, 3, 4, 9, 1, 2, 3]).draft(2)
    assert (draft.token_ids, draft.match_len, len(draft)) == ([4, 9], 3, 2)
    assert len(draft.probabilities) == 2
    assert all(0 < p < 1 for p in draft.probabilities)
    nothing = Drafter([1, 2, 3]).draft()
    assert (nothing.token_ids, nothing.probabilities, nothing.match_len) == ([], [], 0)


def test_higher_draft_costs_never_give_longer_drafts() -> None:
    context = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    lengths = [len(Drafter(context, draft_cost=cost).draft()) for cost in (0.0, 0.01, 0.05, 0.2, 0.9, 5.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 16
    assert lengths[-1] == 0


def test_a_cost_curve_may_stand_for_the_cost() -> None:
    curve = CostCurve([(1, 1.0), (3, 1.0), (4, 50.0)])
    assert len(Drafter([1, 2, 3, 4, 5, 1], draft_cost=curve).draft()) == 2


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda ids: np.array(ids, dtype=np.int32),
        lambda ids: np.array(ids, dtype=np.int64),
        lambda ids: np.array(ids, dtype=np.uint16),
        lambda ids: np.array(ids, dtype=np.uint64),
        lambda ids: np.repeat(np.array(ids, dtype=np.int32), 2)[::2],
        lambda ids: np.array(ids, dtype=">i4"),
        lambda ids: np.frombuffer(b"x" + np.array(ids, dtype=np.int32).tobytes(), dtype=np.int32, offset=1),
        lambda ids: [np.int32(i) for i in ids],
        iter,
    ],
    ids=[
        "list",
        "tuple",
        "int32",
        "int64",
        "uint16",
        "uint64",
        "strided",
        "big endian",
        "unaligned",
        "scalars",
        "iterator",
    ],
)
def test_all_kinds_of_integer_sequences_mean_the_same(convert: Callable[[list[int]], Any]) -> None:
    drafter = Drafter(convert([1, 2, 3, 9]))
    drafter.extend(convert([1, 2]))
    assert drafter.draft(1).token_ids == [3]
    assert len(drafter) == 6


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, -1], "token ids must be non-negative, got -1 at index 1"),
        (np.array([-5], dtype=np.int32), "token ids must be non-negative, got -5 at index 0"),
        ([1, 2**31], "token ids must fit in 32 bits, got 2147483648 at index 1"),
        (np.array([2**63], dtype=np.uint64), "at index 0"),
        ([1, 2**70], "prompt must be integers of at most 64 bits, got 1180591620717411303424 at index 1"),
        ([1.0], "prompt must be integers of at most 64 bits, got 1.0 at index 0"),
        (np.array([1.0]), "prompt must be integers, got dtype float64"),
        (np.array([True]), "prompt must be integers, got dtype bool"),
        (np.zeros((2, 3), dtype=np.int32), "prompt must be one-dimensional, got shape [2, 3]"),
        (np.int32(3), "prompt must be"),
        ("123", "prompt must be a sequence of integers, got str"),
        (b"123", "prompt must be a sequence of integers, got bytes"),
        (None, "prompt must be a sequence of integers, got NoneType"),
        (7, "prompt must be a sequence of integers, got int"),
    ],
)
def test_what_is_no_sequence_of_token_ids_is_refused_with_rule_and_place(prompt: Any, message: str) -> None:
    with pytest.raises(NgramSpecError, match=re.escape(message)):
        Drafter(prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_draft_tokens": -1}, "max_draft_tokens must be from 0 to 65536, got -1"),
        ({"max_draft_tokens": 2**64}, "max_draft_tokens must be from 0 to 65536, got 9223372036854775807"),
        ({"min_match_len": 0}, "min_match_len must be from 1 to 4294967295, got 0"),
        ({"draft_cost": -0.1}, "draft_cost must be a finite number of at least 0, got -0.1"),
        ({"draft_cost": float("nan")}, "draft_cost must be a finite number of at least 0, got NaN"),
        ({"draft_cost": "0.1"}, "draft_cost must be a number or a CostCurve, got str"),
        ({"eos_token_ids": [2, -3]}, "eos_token_ids must be non-negative token ids, got -3"),
    ],
)
def test_a_bad_option_is_refused_with_rule_and_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NgramSpecError, match=re.escape(message)):
        Drafter([1], **options)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"length": 1.0}, "not resumed x length, got length"),
        ({"bias": float("inf")}, "bias must be a finite weight, got inf"),
        ({"bias": "high"}, "prior bias must be a number, got 'high'"),
    ],
)
def test_a_bad_prior_is_refused_with_rule_and_value(prior: dict[str, Any], message: str) -> None:
    with pytest.raises(NgramSpecError, match=re.escape(message)):
        AcceptanceModel(prior)


def test_a_model_that_learns_is_shared_by_its_drafters_and_one_that_does_not_stays_as_it_is() -> None:
    for learn in (False, True):
        model = AcceptanceModel(learn=learn)
        before = model.weights()
        for _ in range(50):
            drafter = Drafter([1, 2, 3, 4, 5, 1, 2, 3], acceptance=model)
            assert drafter.draft(2).token_ids == [4, 5]
            drafter.extend([9])
        assert (model.weights() != before) == learn
        assert list(before) == sorted(AcceptanceModel.feature_names())


def test_the_candidates_say_what_could_come_next_and_why() -> None:
    positions = Drafter([7, 1, 2, 9, 1, 3, 8, 1, 2, 6, 8, 1]).candidates(3)
    assert [token for token, _ in positions[0]] == [2]
    names = AcceptanceModel.feature_names()
    assert all(len(features) == len(names) for position in positions for _, features in position)
    assert dict(zip(names, positions[0][0][1], strict=True))["once"] == 1.0


def test_a_refused_extend_appends_nothing() -> None:
    drafter = Drafter([1, 2, 3, 1])
    with pytest.raises(NgramSpecError):
        drafter.extend([2, 3, -1])
    assert len(drafter) == 4
    assert drafter.draft(1).token_ids == [2]


def test_a_sequence_that_lies_about_its_length_is_read_all_the_same() -> None:
    class Liar(list[int]):
        def __len__(self) -> int:
            return 2**40

    assert len(Drafter(Liar([1, 2]))) == 2


def test_tokens_that_were_chosen_to_hash_alike_are_indexed_like_others() -> None:
    # By the golden ratio, the usual multiplier: 40,000 of the ids whose hash is lowest took minutes then.
    ids = np.arange(2**21, dtype=np.uint32)
    alike = ids[np.argsort(ids * np.uint32(0x9E3779B1))][:40_000].astype(np.int32)
    assert len(Drafter(alike)) == 40_000


def test_several_threads_may_call_one_drafter() -> None:
    drafter = Drafter([])
    rounds, start = 200, threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for _ in range(rounds):
            drafter.extend([thread] * 5)
            drafter.draft()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(drafter) == 4 * rounds * 5
