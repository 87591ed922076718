"""Measures what the proposer takes inside vLLM, on its own counter, at sixteen rows and with its defaults.

    python benches/proposer.py
    python benches/proposer.py --num-rounds 20   on a busy machine

In each round sixteen chats are answered together. The steps that count are those in which all of them
decode, behind the first one, which indexes what of their prompts was prefilled last. Whatever else the
machine does makes a round slower and never faster, so the best one is what to read. On a CPU the model itself
is the worst neighbour: its weights pass through the caches in every step, and the proposer then finds nothing
there. So the calls of each round are made once more, without a model between them.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from ngram_spec.vllm import NgramSpecProposer
from rich.progress import track
from soak import MAX_ANSWER_LEN, MAX_NUM_SEQS, Figure, chat_token_ids, console, print_table, start_engine

DRAFTING = {"method": "ngram_spec", "num_speculative_tokens": 16}
# The cache of the soak run has room for sixteen of these with their answers.
MAX_PROMPT_LEN = 192
LIMIT_PER_STEP, LIMIT_PER_ROW = 50, 5


@dataclass(frozen=True)
class Call:
    """A call of the proposer: copies of what it was given, and its time by the proposer's own counter."""

    proposer: NgramSpecProposer
    arguments: tuple[list[list[int]], Any, Any]
    microseconds: float

    @property
    def has_all_rows(self) -> bool:
        sampled = self.arguments[0]
        return len(sampled) == MAX_NUM_SEQS and all(sampled)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-rounds", type=int, default=8, help="(default: %(default)s)")
    options = parser.parse_args()

    llm = start_engine(DRAFTING)
    in_vllm, alone = [], []
    for number in track(range(options.num_rounds), "answering", console=console):
        with recorded_calls() as calls:
            answer_sixteen(llm, number)
        in_vllm.append(microseconds_per_step(calls))
        with recorded_calls() as again:
            for call in calls:
                call.proposer.propose(*call.arguments)
        alone.append(microseconds_per_step(again))
    limit = LIMIT_PER_STEP + LIMIT_PER_ROW * MAX_NUM_SEQS
    print_table(
        f"the proposer, in a step of {MAX_NUM_SEQS} rows, {options.num_rounds} rounds",
        [
            Figure("in vLLM, best round", min(in_vllm), limit, " us"),
            Figure("in vLLM, median", median(in_vllm), limit, " us"),
            Figure("the same calls without a model, best round", min(alone), limit, " us"),
            Figure("the same calls without a model, median", median(alone), limit, " us"),
        ],
    )


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """Keep every call of the proposer that is made in the block."""
    calls: list[Call] = []
    propose = NgramSpecProposer.propose
    spent_before: dict[NgramSpecProposer, int] = {}

    def recorded(proposer: NgramSpecProposer, *arguments: Any, **more: Any) -> list[list[int]]:
        # Nothing of the proposer is touched, and with that put into the caches, before it is called.
        drafts = propose(proposer, *arguments, **more)
        spent = proposer.stats()["drafter_ns"]
        sampled, num_tokens, token_ids = arguments[:3]
        copies = [list(row) for row in sampled], num_tokens.copy(), token_ids.copy()
        calls.append(Call(proposer, copies, (spent - spent_before.get(proposer, spent)) / 1e3))
        spent_before[proposer] = spent
        return drafts

    NgramSpecProposer.propose = recorded  # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        NgramSpecProposer.propose = propose  # type: ignore[method-assign]


def microseconds_per_step(calls: Sequence[Call]) -> float:
    decoding = [call.microseconds for call in calls if call.has_all_rows]
    return mean(decoding[1:])


def answer_sixteen(llm: Any, round_number: int) -> None:
    from vllm import SamplingParams

    chats = chat_token_ids()
    params = SamplingParams(temperature=0, max_tokens=MAX_ANSWER_LEN, ignore_eos=True)
    for row in range(MAX_NUM_SEQS):
        # Cut off from their starts, so that no two are alike and none was seen in an earlier round.
        chat = chats[row % len(chats)][round_number + row // len(chats) :][:MAX_PROMPT_LEN]
        llm.llm_engine.add_request(f"{round_number}-{row}", {"prompt_token_ids": chat}, params)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()


if __name__ == "__main__":
    main()
