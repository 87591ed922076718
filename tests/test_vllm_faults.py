"""No fault of drafting stops vLLM: it costs drafts, and shows no token id in the log."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from ngram_spec.vllm import MAX_FAULTS, NgramSpecProposer
from stand_in import PERIODIC, buffers, propose, vllm_config
from stand_in import log_reaches_caplog as log_reaches_caplog

# pyo3's own base for a panic of native code: a BaseException, but no Exception.
PanicException = type("PanicException", (BaseException,), {})


class Faulty:
    """A pool that fails as told."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def propose(self, *args: object) -> list[list[int]]:
        raise self.fault


@pytest.mark.parametrize(
    "fault", [ValueError("no"), MemoryError(), RecursionError(), PanicException("index out of bounds")]
)
def test_a_fault_costs_the_drafts_of_its_step_and_nothing_else(
    fault: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = NgramSpecProposer(vllm_config())
    with monkeypatch.context() as context:
        context.setattr(proposer, "_pool", Faulty(fault))
        assert propose(proposer, [PERIODIC, PERIODIC]) == [[], []]
    assert proposer.num_faults == 1
    assert type(fault).__name__ in caplog.text
    assert propose(proposer, [PERIODIC]) == [[1, 2, 3, 4, 5, 1, 2, 3]]


def test_faults_are_logged_at_powers_of_two_and_without_numbers_of_the_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = NgramSpecProposer(vllm_config())
    monkeypatch.setattr(proposer, "_pool", Faulty(KeyError(31337)))
    caplog.clear()
    for _ in range(10):
        propose(proposer, [PERIODIC])
    assert proposer.num_faults == 10
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [1, 2, 4, 8]
    assert "31337" not in caplog.text
    assert "test_vllm_faults.py" in caplog.text


def test_after_repeated_faults_it_stands_down_for_good_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = NgramSpecProposer(vllm_config())
    assert proposer.stats()["has_stood_down"] == 0
    with monkeypatch.context() as context:
        context.setattr(proposer, "_pool", Faulty(ValueError("no")))
        for _ in range(MAX_FAULTS + 5):
            assert propose(proposer, [PERIODIC]) == [[]]
    assert propose(proposer, [PERIODIC]) == [[]]
    stats = proposer.stats()
    assert (stats["num_faults"], stats["has_stood_down"], stats["is_drafting"]) == (MAX_FAULTS, 1, 0)
    assert caplog.text.count("stands down") == 1


def test_faults_far_apart_do_not_make_it_stand_down(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = NgramSpecProposer(vllm_config())
    num_tokens, token_ids = buffers([PERIODIC])
    monkeypatch.setattr("ngram_spec.vllm.NUM_CLEAN_STEPS", 20)
    for _ in range(MAX_FAULTS + 1):
        with monkeypatch.context() as context:
            context.setattr(proposer, "_pool", Faulty(ValueError("no")))
            proposer.propose([[5]], num_tokens, token_ids)
        for _ in range(20):
            proposer.propose([[5]], num_tokens, token_ids)
    assert proposer.num_faults == MAX_FAULTS + 1
    assert propose(proposer, [PERIODIC])[0]


class FaultyInRows:
    """A pool whose first row faults in the steps that `faults` says; the tests in Rust have real panics."""

    def __init__(self, proposer: NgramSpecProposer, faults: Sequence[tuple[str, str] | None]) -> None:
        self.pool: Any = proposer._pool
        self.faults = list(faults)
        proposer._pool = cast(Any, self)

    def propose(self, *args: object) -> list[list[int]]:
        drafts: list[list[int]] = self.pool.propose(*args)
        return [[], *drafts[1:]] if self.faults[0] else drafts

    def take_fault(self) -> tuple[str, str] | None:
        return self.faults.pop(0)

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self.pool.stats()
        return stats


ROW_FAULT = ("index out of bounds: the len is 3 but the index is 31337", "src/automaton.rs:88:17")


def test_a_fault_in_a_row_costs_that_row_its_draft_and_is_logged_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer = NgramSpecProposer(vllm_config())
    FaultyInRows(proposer, [ROW_FAULT, None])
    assert propose(proposer, [PERIODIC, PERIODIC]) == [[], [1, 2, 3, 4, 5, 1, 2, 3]]
    assert all(propose(proposer, [PERIODIC, PERIODIC]))
    stats = proposer.stats()
    assert (stats["num_faults"], stats["num_steps"], stats["num_sampled_rows"]) == (1, 2, 4)
    told = [record.getMessage() for record in caplog.records if "fault 1" in record.getMessage()]
    assert len(told) == 1
    assert "a row without a draft" in told[0]
    assert "index out of bounds: the len is # but the index is #" in told[0]
    assert "at src/automaton.rs:88:17" in told[0]
    assert "31337" not in caplog.text


def test_steps_in_which_rows_fault_make_it_stand_down_for_good_like_any_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ngram_spec.vllm.NUM_CLEAN_STEPS", 1)  # a step with a fault is not clean
    proposer = NgramSpecProposer(vllm_config())
    num_steps = MAX_FAULTS - 1
    FaultyInRows(proposer, [ROW_FAULT] * num_steps)
    caplog.clear()
    for _ in range(num_steps):
        assert propose(proposer, [PERIODIC, PERIODIC])[1]
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [1, 2, 4, 8]
    assert not proposer.has_stood_down
    monkeypatch.setattr(proposer, "_pool", Faulty(ValueError("no")))
    propose(proposer, [PERIODIC])
    assert proposer.has_stood_down
    assert caplog.text.count("stands down") == 1


def test_the_three_faults_of_one_row_do_not_add_up_to_those_of_another_long_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ngram_spec.vllm.NUM_CLEAN_STEPS", 20)
    proposer = NgramSpecProposer(vllm_config())
    FaultyInRows(proposer, ([ROW_FAULT] * 3 + [None] * 20) * MAX_FAULTS)
    num_tokens, token_ids = buffers([PERIODIC])
    for _ in range(23 * MAX_FAULTS):
        proposer.propose([[5]], num_tokens, token_ids)
    assert (proposer.num_faults, proposer.has_stood_down) == (3 * MAX_FAULTS, False)


def test_a_pool_that_panicked_leaves_the_counters_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def stats() -> None:
        raise RuntimeError("an earlier call panicked")

    proposer = NgramSpecProposer(vllm_config())
    propose(proposer, [PERIODIC])
    before = proposer.stats()
    faulty = Faulty(RuntimeError("an earlier call panicked"))
    monkeypatch.setattr(faulty, "stats", stats, raising=False)
    monkeypatch.setattr(proposer, "_pool", faulty)
    propose(proposer, [PERIODIC])
    after = proposer.stats()
    assert after["num_faults"] == 1
    of_proposer = {"num_faults", "num_steps", "drafter_ns"}
    assert {name for name in before if after[name] != before[name]} == of_proposer
    assert before["num_sampled_rows"] == before["num_drafts"] == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_not_swallowed(stop: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = NgramSpecProposer(vllm_config())
    monkeypatch.setattr(proposer, "_pool", Faulty(stop()))
    with pytest.raises(stop):
        propose(proposer, [PERIODIC])
    assert proposer.num_faults == 0


def test_a_call_of_another_shape_is_contained_and_described(caplog: pytest.LogCaptureFixture) -> None:
    # vLLM's built-in proposers take the number of tokens first; should this call follow, nothing breaks.
    num_tokens, token_ids = buffers([PERIODIC])
    proposer: Any = NgramSpecProposer(vllm_config())
    assert proposer.propose(8, [[5]], num_tokens, token_ids, slot_mappings=None) == []
    assert proposer.propose([[5]], num_tokens, token_ids.astype(np.float64)) == [[]]
    assert proposer.propose([[5]], num_tokens, token_ids[0]) == [[]]
    assert proposer.propose([[5]], None, None) == [[]]
    assert proposer.num_faults == 4
    assert "called with int, list" in caplog.text
    assert "float64" in caplog.text
