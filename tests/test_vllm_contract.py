"""The proposer keeps the contract of vLLM's runner, tried without vLLM (see stand_in.py)."""

import logging
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ngram_spec.vllm import NUM_STEPS_PER_SUMMARY, NgramSpecProposer
from ngram_spec.vllm_metrics import summary
from stand_in import MAX_MODEL_LEN, MAX_NUM_SEQS, PERIODIC, VOCAB_SIZE, buffers, on_rank, propose, vllm_config
from stand_in import log_reaches_caplog as log_reaches_caplog


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


def test_with_prompt_embeddings_allowed_nothing_is_drafted(caplog: pytest.LogCaptureFixture) -> None:
    config = vllm_config()
    config.model_config.enable_prompt_embeds = True
    assert propose(NgramSpecProposer(config), [PERIODIC]) == [[]]
    assert "--enable-prompt-embeds" in caplog.text


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


def test_importing_the_package_and_the_proposer_pulls_in_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, ngram_spec, ngram_spec.vllm; print([m for m in ('torch', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
