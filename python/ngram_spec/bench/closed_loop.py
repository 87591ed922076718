"""Replays recorded answers through a batch that is always full: what a drafter would have done in an engine.

So many rows stand for so many clients. Each row replays one recorded answer after another, and all rows share
one `DrafterPool`, as they do in an engine. How long a step takes is a function that the caller gives: a cost
curve where nothing is timed (`modelled`), or a real forward pass (`benches/cost_curve.py`).

The step that reads a prompt is left out: the same tokens are read with drafts as without. As in `replay`, the
first output token is that step's, and a draft past the end of an answer is paid for in vain.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from ngram_spec._core import AcceptanceModel, CostCurve, DrafterPool
from ngram_spec.recordings import TokenIdArray, TokenizedResponse
from ngram_spec.replay import ReplaySettings, num_equal

SEED = 0
# So many answers for each row: with fewer, most of them would have begun together.
NUM_ANSWERS_PER_ROW = 2

StepTime = Callable[[Sequence[Sequence[int]]], float]
"""How long a step takes, from what it verifies: for each row its last token and its draft."""


@dataclass(slots=True)
class AnswerCounts:
    """What happened to one recorded answer, over all of its repetitions.

    `time` is its share of the steps: each row of a batch takes an equal part of the step's time.
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    time: float = 0.0


@dataclass(slots=True)
class LoopCounts:
    """What happened in a whole run of the loop."""

    answers: list[AnswerCounts]
    # Of all drafts, how many had their token at position 1, 2, ... accepted.
    num_accepted_by_position: list[int]
    num_repetitions: int
    num_pool_calls: int = 0
    pool_ns: int = 0

    @property
    def total(self) -> AnswerCounts:
        """The sums over all answers."""
        total = AnswerCounts()
        for counts in self.answers:
            total.num_steps += counts.num_steps
            total.num_drafts += counts.num_drafts
            total.num_draft_tokens += counts.num_draft_tokens
            total.num_accepted_tokens += counts.num_accepted_tokens
            total.num_output_tokens += counts.num_output_tokens
            total.time += counts.time
        return total


@dataclass(slots=True)
class _Row:
    answer: int
    output: list[int]
    # Answers that begin after the last one that counts only keep the batch full.
    counts: AnswerCounts | None
    num_emitted: int = 1

    @property
    def last_token(self) -> int:
        return self.output[self.num_emitted - 1]


def replay_closed_loop(
    responses: Sequence[TokenizedResponse],
    num_rows: int,
    draft_cost: float | CostCurve,
    step_time: StepTime,
    settings: ReplaySettings,
) -> LoopCounts:
    """Return what happened to each response, all of them equally often, with `num_rows` always at once.

    A response of one token takes no step; its counts are 0. Of `settings` the cost is not read.

    Raises:
        NgramSpecError: an option of the drafter is out of its range.
    """
    pool = DrafterPool(
        max_draft_tokens=settings.max_draft_tokens,
        draft_cost=draft_cost,
        min_match_len=settings.min_match_len,
        eos_token_ids=sorted({token for response in responses for token in response.eos_token_ids}),
        acceptance=AcceptanceModel(settings.prior, learn=settings.learn),
    )
    loop = LoopCounts([AnswerCounts() for _ in responses], [0] * settings.max_draft_tokens, 0)
    replayable = [number for number, response in enumerate(responses) if len(response.output_token_ids) > 1]
    if not replayable:
        return loop
    loop.num_repetitions = -(-max(len(replayable), NUM_ANSWERS_PER_ROW * num_rows) // len(replayable))
    num_left = loop.num_repetitions * len(replayable)
    upcoming = _upcoming(replayable, loop.num_repetitions)
    width = max(len(one.prompt_token_ids) + len(one.output_token_ids) for one in responses)
    buffer = np.zeros((num_rows, width), dtype=np.int32)
    num_tokens = np.zeros(num_rows, dtype=np.int32)

    def begin(row: int) -> _Row:
        answer, is_counted = next(upcoming)
        response = responses[answer]
        prompt_len = len(response.prompt_token_ids)
        buffer[row, :prompt_len] = response.prompt_token_ids
        buffer[row, prompt_len] = response.output_token_ids[0]
        num_tokens[row] = prompt_len + 1
        counts = loop.answers[answer] if is_counted else None
        return _Row(answer, response.output_token_ids.tolist(), counts)

    rows = [begin(row) for row in range(num_rows)]
    _index(pool, buffer, num_tokens)
    while num_left:
        started = perf_counter_ns()
        drafts = pool.propose(buffer, num_tokens)
        loop.pool_ns += perf_counter_ns() - started
        loop.num_pool_calls += 1
        verified = [[row.last_token, *draft] for row, draft in zip(rows, drafts, strict=True)]
        share = step_time(verified) / num_rows
        has_begun = False
        for number, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            num_accepted = num_equal(draft, row.output, row.num_emitted)
            end = min(row.num_emitted + num_accepted + 1, len(row.output))
            emitted = row.output[row.num_emitted : end]
            if row.counts is not None:
                _count(row.counts, draft, num_accepted, len(emitted), share)
                for position in range(num_accepted):
                    loop.num_accepted_by_position[position] += 1
            if end == len(row.output):
                num_left -= row.counts is not None
                rows[number] = begin(number)
                has_begun = True
                continue
            known = num_tokens[number]
            buffer[number, known : known + len(emitted)] = emitted
            num_tokens[number] += len(emitted)
            row.num_emitted = end
        if has_begun:
            _index(pool, buffer, num_tokens)
    return loop


def _upcoming(answers: Sequence[int], num_repetitions: int) -> Iterator[tuple[int, bool]]:
    """Yield all answers so many times, then without end those that do not count, in ever another order."""
    generator = random.Random(SEED)
    repetition = 0
    while True:
        for answer in generator.sample(answers, len(answers)):
            yield answer, repetition < num_repetitions
        repetition += 1


def _index(pool: DrafterPool, buffer: TokenIdArray, num_tokens: TokenIdArray) -> None:
    """Have the pool index the prompts that have come, as it does while an engine reads them in slices."""
    nothing_sampled = [0] * len(num_tokens)
    num_indexed = -1
    while pool.stats()["num_indexed_tokens"] > num_indexed:
        num_indexed = pool.stats()["num_indexed_tokens"]
        pool.propose(buffer, num_tokens, nothing_sampled)


def _count(
    counts: AnswerCounts, draft: Sequence[int], num_accepted: int, num_emitted: int, time: float
) -> None:
    counts.num_steps += 1
    counts.num_drafts += bool(draft)
    counts.num_draft_tokens += len(draft)
    counts.num_accepted_tokens += num_accepted
    counts.num_output_tokens += num_emitted
    counts.time += time
