"""The proposer keeps the contract of vLLM's runner, tried without vLLM.

`vllm_config` here is a stand-in with the few fields that the proposer reads; tests/real_vllm runs the engine.
"""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from ngram_spec import AcceptanceModel, NgramSpecError
from ngram_spec.vllm import MAX_FAULTS, NUM_STEPS_PER_LOOK, NUM_STEPS_PER_SUMMARY, NgramSpecProposer
from ngram_spec.vllm_metrics import summary

MAX_MODEL_LEN = 96
VOCAB_SIZE = 50
MAX_NUM_SEQS = 64
PERIODIC = [1, 2, 3, 4, 5] * 6

# pyo3's own base for a panic of native code: a BaseException, but no Exception.
PanicException = type("PanicException", (BaseException,), {})


@pytest.fixture(autouse=True)
def _log_reaches_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_random_batches_get_one_bounded_list_of_plain_ids_per_row(dtype: type[np.integer[Any]]) -> None:
    random = np.random.default_rng(20)
    proposer = NgramSpecProposer(vllm_config())
    num_draft_tokens = 0
    for _ in range(400):
        alphabet = int(random.integers(1, VOCAB_SIZE))
        rows = [
            random.integers(0, alphabet, size=random.integers(1, MAX_MODEL_LEN + 1)).tolist()
            for _ in range(random.integers(0, MAX_NUM_SEQS + 1))
        ]
        sampled = [row[len(row) - random.integers(0, min(4, len(row)) + 1) :] for row in rows]
        num_tokens, token_ids = buffers(rows, dtype=dtype)
        drafts = proposer.propose(sampled, num_tokens, token_ids, slot_mappings=None)
        assert type(drafts) is list
        assert len(drafts) == len(rows)
        for draft, row, tokens in zip(drafts, rows, sampled, strict=True):
            assert type(draft) is list
            assert len(draft) <= max(0, min(8, MAX_MODEL_LEN - len(row) - 1))
            assert all(type(token_id) is int and 0 <= token_id < VOCAB_SIZE for token_id in draft)
            if not tokens:
                assert draft == []
            num_draft_tokens += len(draft)
    assert proposer.num_faults == 0
    assert num_draft_tokens > 1000


def test_a_row_is_drafted_from_its_own_tokens() -> None:
    proposer = NgramSpecProposer(vllm_config())
    assert propose(proposer, [PERIODIC, [7, 8, 9], [*PERIODIC, 1, 2]]) == [
        [1, 2, 3, 4, 5, 1, 2, 3],
        [],
        [3, 4, 5, 1, 2, 3, 4, 5],
    ]


def test_editing_a_returned_list_changes_no_later_answer() -> None:
    proposer = NgramSpecProposer(vllm_config())
    first = propose(proposer, [PERIODIC, PERIODIC])
    kept = [list(draft) for draft in first]
    assert kept[0]
    first[0].clear()
    first[1].extend([9, 9, 9])
    first.append([9])
    assert propose(proposer, [PERIODIC, PERIODIC]) == kept


def test_the_buffers_of_the_runner_are_only_read() -> None:
    num_tokens, token_ids = buffers([PERIODIC, PERIODIC[:12]])
    before = num_tokens.copy(), token_ids.copy()
    token_ids.flags.writeable = False
    num_tokens.flags.writeable = False
    proposer = NgramSpecProposer(vllm_config())
    assert proposer.propose([[5], [2]], num_tokens, token_ids)[0]
    assert np.array_equal(num_tokens, before[0])
    assert np.array_equal(token_ids, before[1])


def test_tokens_past_the_end_of_a_row_are_never_read() -> None:
    rows = [PERIODIC, [1, 2, 9, 1, 2], [4, 4, 4]]
    answers = []
    for dirt in (0, 3, 49, -1, 2**31 - 1):
        num_tokens, token_ids = buffers(rows)
        for row, tokens in enumerate(rows):
            token_ids[row, len(tokens) :] = dirt
        proposer = NgramSpecProposer(vllm_config())
        answers.append(proposer.propose([[0]] * 3, num_tokens, token_ids))
        assert proposer.num_faults == 0
    assert all(answer == answers[0] for answer in answers)


def test_an_id_outside_the_vocabulary_is_not_drafted_and_spoils_no_other_row() -> None:
    proposer = NgramSpecProposer(vllm_config())
    outside = [[1, 2, VOCAB_SIZE, 4] * 5 + [1, 2], [1, -1] * 8, PERIODIC]
    drafts = propose(proposer, outside)
    assert drafts[0] == []
    assert drafts[1] == []
    assert drafts[2] == [1, 2, 3, 4, 5, 1, 2, 3]


def test_drafts_leave_room_for_the_bonus_token_before_max_model_len() -> None:
    proposer = NgramSpecProposer(vllm_config())
    row = [1, 2, 3] * (MAX_MODEL_LEN // 3)
    lens = range(MAX_MODEL_LEN - 10, MAX_MODEL_LEN + 1)
    drafts = propose(proposer, [row[:length] for length in lens])
    assert [len(draft) for draft in drafts] == [8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_a_draft_ends_at_an_end_of_sequence_id() -> None:
    for config in (
        vllm_config(eos_token_id=4),
        vllm_config(eos_token_id=[4, 7]),
        vllm_config(try_get_generation_config=lambda: {"eos_token_id": [9, 4]}),
        vllm_config({"eos_token_ids": [4]}, eos_token_id=2),
    ):
        assert propose(NgramSpecProposer(config), [PERIODIC]) == [[1, 2, 3, 4]]


def test_an_unreadable_generation_config_leaves_the_ids_of_the_model_config() -> None:
    def unreadable() -> dict[str, Any]:
        raise OSError("no such file")

    proposer = NgramSpecProposer(vllm_config(eos_token_id=4, try_get_generation_config=unreadable))
    assert propose(proposer, [PERIODIC]) == [[1, 2, 3, 4]]


def test_disabled_it_answers_empty_drafts() -> None:
    proposer = NgramSpecProposer(vllm_config({"enabled": False}))
    assert propose(proposer, [PERIODIC, PERIODIC]) == [[], []]
    assert propose(proposer, []) == []


def test_the_limit_of_the_batch_size_holds() -> None:
    # Limits as vLLM itself reads them: a gap and the tail belong to the range before.
    proposer = NgramSpecProposer(vllm_config(per_batch_size=[(1, 2, 6), (5, 6, 99), (4, 4, 2), (8, 9, 0)]))
    longest = {rows: max(map(len, propose(proposer, [PERIODIC] * rows))) for rows in range(1, 12)}
    assert longest == {1: 6, 2: 6, 3: 6, 4: 2, 5: 8, 6: 8, 7: 8, 8: 0, 9: 0, 10: 0, 11: 0}


def test_it_has_the_load_model_that_the_cpu_runner_calls() -> None:
    NgramSpecProposer(vllm_config()).load_model(object(), load_dummy_weights=False)


def test_stats_count_drafts_and_faults() -> None:
    proposer = NgramSpecProposer(vllm_config())
    propose(proposer, [PERIODIC])
    stats = proposer.stats()
    assert stats["num_faults"] == 0
    assert stats["num_draft_tokens"] == 8
    assert all(type(value) is int for value in stats.values())


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
    assert "test_vllm_contract.py" in caplog.text


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


def on_rank(rank: int, executor: str, options: object = None, **sizes: int) -> SimpleNamespace:
    config = vllm_config(options)
    config.parallel_config = SimpleNamespace(rank=rank, distributed_executor_backend=executor, **sizes)
    return config


def test_a_rank_whose_drafts_are_not_used_does_no_work(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"tensor_parallel_size": 2, "prefill_context_parallel_size": 1, "pipeline_parallel_size": 2}
    with caplog.at_level(logging.INFO, logger="vllm.ngram_spec"):
        idle = NgramSpecProposer(on_rank(3, "mp", **sizes))
    assert "max_draft_tokens" not in caplog.text
    assert propose(idle, [PERIODIC, PERIODIC]) == [[], []]
    assert idle.stats()["num_entries"] == idle.stats()["num_calls"] == 0
    assert propose(NgramSpecProposer(on_rank(2, "mp", **sizes)), [PERIODIC])[0]


@pytest.mark.parametrize("executor", ["external_launcher", "ray"])
def test_under_other_executors_every_rank_drafts_alike(executor: str) -> None:
    ranks = [NgramSpecProposer(on_rank(rank, executor, tensor_parallel_size=2)) for rank in range(2)]
    first, second = (propose(rank, [PERIODIC, [*PERIODIC, 1]]) for rank in ranks)
    assert first == second
    assert first[0]


def test_ranks_that_must_draft_alike_take_no_switch_file() -> None:
    with pytest.raises(NgramSpecError, match=r"switch_file.*external_launcher.*got 'off'"):
        NgramSpecProposer(on_rank(0, "external_launcher", {"switch_file": "off"}))


def test_with_prompt_embeddings_allowed_nothing_is_drafted(caplog: pytest.LogCaptureFixture) -> None:
    config = vllm_config()
    config.model_config.enable_prompt_embeds = True
    assert propose(NgramSpecProposer(config), [PERIODIC]) == [[]]
    assert "--enable-prompt-embeds" in caplog.text


def test_drafting_is_off_while_the_switch_file_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "off"
    proposer = NgramSpecProposer(vllm_config({"switch_file": str(switch)}))

    def drafted(num_steps: int = NUM_STEPS_PER_LOOK) -> list[bool]:
        return [bool(propose(proposer, [PERIODIC])[0]) for _ in range(num_steps)]

    assert all(drafted())
    switch.touch()
    assert not any(drafted())
    assert proposer.stats()["is_drafting"] == 0
    switch.unlink()
    assert all(drafted())
    assert "switched off" in caplog.text
    assert "switched on" in caplog.text


def test_a_switch_file_that_cannot_be_looked_for_is_not_there(tmp_path: Path) -> None:
    # As in a directory that may not be searched: the system refuses the question, with another error.
    proposer = NgramSpecProposer(vllm_config({"switch_file": str(tmp_path / ("x" * 5000))}))
    assert propose(proposer, [PERIODIC])[0]
    assert proposer.num_faults == 0


def test_a_pool_that_panicked_leaves_the_proposer_s_own_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    def stats() -> None:
        raise RuntimeError("an earlier call panicked")

    proposer = NgramSpecProposer(vllm_config())
    faulty = Faulty(RuntimeError("an earlier call panicked"))
    monkeypatch.setattr(faulty, "stats", stats, raising=False)
    monkeypatch.setattr(proposer, "_pool", faulty)
    propose(proposer, [PERIODIC])
    assert proposer.stats()["num_faults"] == 1
    assert "num_entries" not in proposer.stats()


def test_stats_add_up_over_rows_with_and_without_accepted_tokens() -> None:
    proposer = NgramSpecProposer(vllm_config())
    num_tokens, token_ids = buffers([PERIODIC] * 4)
    proposer.propose([[5], [3, 4, 5], [], [4, 5]], num_tokens, token_ids)
    proposer.propose([[5], [5]], num_tokens, token_ids)
    stats = proposer.stats()
    assert (stats["num_steps"], stats["num_sampled_rows"]) == (2, 5)
    assert (stats["num_emitted_tokens"], stats["num_accepted_tokens"]) == (8, 3)
    assert stats["drafter_ns"] > 0


def test_the_summary_says_what_follows_from_the_counters() -> None:
    stats = {
        "num_steps": 1814,
        "num_sampled_rows": 1814,
        "num_emitted_tokens": 5376,
        "num_accepted_tokens": 3562,
    }
    of_pool = {"num_drafts": 993, "num_draft_tokens": 4960, "num_bytes": 3 * 2**20, "num_evictions": 2}
    assert summary({**stats, **of_pool, "drafter_ns": 18_140_000, "num_faults": 1}) == (
        "after 1814 steps: 1814 rows, 2.96 tokens per row and step, coverage 54.7%, acceptance rate 71.8%, "
        "10 us per step, 3.0 MiB of indexes, 2 evictions, 1 faults"
    )


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_every_so_many_steps_the_counters_go_to_the_debug_log_and_no_token_does(
    level: int, caplog: pytest.LogCaptureFixture
) -> None:
    row = [31, 32, 33, 34, 35] * 6
    num_tokens, token_ids = buffers([row])
    with caplog.at_level(level, logger="vllm.ngram_spec"):
        proposer = NgramSpecProposer(vllm_config())
        caplog.clear()
        for _ in range(2 * NUM_STEPS_PER_SUMMARY + 1):
            proposer.propose([[34, 35]], num_tokens, token_ids)
    lines = [record.getMessage() for record in caplog.records]
    if level > logging.DEBUG:
        assert lines == []
        return
    assert len(lines) == 2
    assert lines[1].startswith(f"ngram-spec: after {2 * NUM_STEPS_PER_SUMMARY} steps: ")
    assert "2.00 tokens per row and step, coverage 100.0%, acceptance rate 12.5%, " in lines[1]
    assert re.search(r"\b3[1-5]\b(?! us)", lines[1]) is None


def test_of_several_ranks_one_logs_its_counters(caplog: pytest.LogCaptureFixture) -> None:
    num_lines = {}
    for rank in (0, 1):
        config = vllm_config()
        config.parallel_config = SimpleNamespace(rank=rank, tensor_parallel_size=2)
        with caplog.at_level(logging.DEBUG, logger="vllm.ngram_spec"):
            proposer = NgramSpecProposer(config)
            caplog.clear()
            for _ in range(NUM_STEPS_PER_SUMMARY):
                propose(proposer, [PERIODIC[:5]])
        num_lines[rank] = len(caplog.records)
    assert num_lines == {0: 1, 1: 0}


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"draft_cots": 0.1}, ["draft_cots", "0.1", "did you mean draft_cost?", "min_match_len"]),
        ({"max_draft_tokens": 4}, ["max_draft_tokens", "4", "num_speculative_tokens"]),
        ({"vocab_size": 4}, ["vocab_size", "4"]),
        ({"max_bytes": 0}, ["max_bytes", "0", "whole number of bytes"]),
        ({"max_bytes": "1GiB"}, ["max_bytes", "1GiB", "whole number of bytes"]),
        ({"max_bytes": 1.5}, ["max_bytes", "1.5"]),
        ({"max_bytes": 10**30}, ["max_bytes"]),
        ({"draft_cost": -1}, ["draft_cost", "-1", "a number,"]),
        ({"draft_cost": "cheap"}, ["draft_cost", "cheap"]),
        ({"draft_cost": True}, ["draft_cost", "True"]),
        ({"draft_cost": [[1, 1.0], [2]]}, ["draft_cost", "[[1, 1.0], [2]]"]),
        ({"draft_cost": []}, ["draft_cost", "[]"]),
        ({"min_match_len": 0}, ["min_match_len", "0"]),
        ({"eos_token_ids": 2}, ["eos_token_ids", "2", "a list of token ids"]),
        ({"eos_token_ids": [-2]}, ["eos_token_ids", "-2"]),
        ({"draft_cost": "no/such/file.json"}, ["draft_cost", "no/such/file.json", '"h100"', "JSON file"]),
        ({"prior": {"never": [0.5]}}, ["prior", "never", "weights by feature name"]),
        ({"prior": {"nevr": 0.5}}, ["prior", "nevr", "bias, once, twice"]),
        ({"learn": "on"}, ["learn", "on", "true or false"]),
        ({"metrics_port": 70000}, ["metrics_port", "70000", "65535"]),
        ({"metrics_port": "9090"}, ["metrics_port", "9090"]),
        ({"metrics_host": 1}, ["metrics_host", "1"]),
        ({"switch_file": ""}, ["switch_file", "path of a file"]),
        ({"prior": 3}, ["prior", "3"]),
        ({"enabled": "yes"}, ["enabled", "yes", "true or false"]),
        ({"enabled": 1}, ["enabled", "1", "true or false"]),
        ("fast", ["must be an object", "fast"]),
    ],
)
def test_a_bad_option_stops_at_start_with_key_value_and_mend(options: object, told: list[str]) -> None:
    with pytest.raises(NgramSpecError) as refusal:
        NgramSpecProposer(vllm_config(options))
    message = str(refusal.value)
    assert "--additional-config" in message
    for words in told:
        assert words in message


def test_draft_cost_may_be_the_curve_of_an_h100_or_that_of_a_file(tmp_path: Path) -> None:
    steep = tmp_path / "steep.json"
    steep.write_text("[[1, 1.0], [2, 1.9], [16, 9.0]]")
    lens = {
        cost: len(propose(NgramSpecProposer(vllm_config({"draft_cost": cost})), [PERIODIC])[0])
        for cost in ("h100", str(steep))
    }
    assert lens["h100"] == 8
    assert lens[str(steep)] < 8


def test_what_is_accepted_is_learned_unless_it_is_told_not_to() -> None:
    weights = {}
    for learn in (True, False, None):
        proposer = NgramSpecProposer(vllm_config({} if learn is None else {"learn": learn}))
        row = list(PERIODIC)
        for token_id in [7, 8, 9, 1, 2, 3, 7, 9] * 4:  # not what was drafted
            propose(proposer, [row])
            row.append(token_id)
        weights[learn] = proposer.acceptance.weights()
    assert weights[False] == AcceptanceModel().weights()
    assert weights[True] == weights[None] != weights[False]


def test_a_prior_takes_the_place_of_the_shipped_weights() -> None:
    hopeless = NgramSpecProposer(vllm_config({"prior": {"bias": -9.0}, "learn": False}))
    assert propose(hopeless, [PERIODIC]) == [[]]


def test_a_misspelled_section_is_refused_and_those_of_others_are_not() -> None:
    config = vllm_config()
    config.additional_config = {"gdn_prefill_backend": "auto"}
    NgramSpecProposer(config)
    config.additional_config = {"ngram-spec": {"draft_cost": 0.1}}
    with pytest.raises(NgramSpecError, match="ngram-spec"):
        NgramSpecProposer(config)


def test_more_speculative_tokens_than_vllm_can_verify_are_refused_at_start() -> None:
    with pytest.raises(NgramSpecError, match="at most 128, got 129"):
        NgramSpecProposer(vllm_config(num_speculative_tokens=129))


def test_good_options_are_taken_and_the_effective_settings_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {
        "enabled": True,
        "max_bytes": 2**20,
        "draft_cost": [[1, 1.0], [64, 1.5]],
        "min_match_len": 2,
        "eos_token_ids": [3],
    }
    with caplog.at_level(logging.INFO, logger="vllm.ngram_spec"):
        proposer = NgramSpecProposer(vllm_config(json.loads(json.dumps(options))))
        for _ in range(3):
            assert propose(proposer, [PERIODIC]) == [[1, 2, 3]]
    settings = [record.getMessage() for record in caplog.records if "with enabled" in record.getMessage()]
    assert len(settings) == 1
    for words in (
        "draft_cost = [[1, 1.0], [64, 1.5]]",
        "min_match_len = 2",
        "max_draft_tokens = 8",
        "max_context_len = 96",
        "eos_token_ids = [3]",
        "Model Runner V1",
        "async scheduling",
    ):
        assert words in settings[0]


def test_importing_the_package_and_the_proposer_pulls_in_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, ngram_spec, ngram_spec.vllm; print([m for m in ('torch', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
