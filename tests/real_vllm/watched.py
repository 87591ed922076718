"""The proposer of these tests: it drafts as NgramSpecProposer does and keeps what it saw and said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from ngram_spec import Drafter
from ngram_spec.vllm import NgramSpecProposer


@dataclass(frozen=True)
class Row:
    """One row in one step: the request's tokens, whether it sampled some, and its draft."""

    token_ids: tuple[int, ...]
    has_sampled: bool
    draft_token_ids: tuple[int, ...]


class WatchedProposer(NgramSpecProposer):
    """NgramSpecProposer with a memory of its steps and a fault to plant: `reads_past_end` tokens."""

    latest: ClassVar["WatchedProposer | None"] = None

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self.num_speculative_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self.eos_token_id = int(vllm_config.model_config.hf_config.eos_token_id)
        self.draft_cost = float(vllm_config.additional_config["ngram_spec"]["draft_cost"])
        self.steps: list[list[Row]] = []
        self.reads_past_end = 0
        WatchedProposer.latest = self

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.integer[Any]],
        token_ids_cpu: npt.NDArray[np.int32],
        *args: object,
        **kwargs: object,
    ) -> list[list[int]]:
        rows = [
            tuple(token_ids_cpu[i, : num_tokens_no_spec[i]].tolist()) for i in range(len(sampled_token_ids))
        ]
        drafts = super().propose(
            sampled_token_ids, num_tokens_no_spec + self.reads_past_end, token_ids_cpu, *args, **kwargs
        )
        # Copies throughout: the buffers are the runner's and the lists will be the scheduler's.
        self.steps.append(
            [
                Row(token_ids, bool(sampled), tuple(draft))
                for token_ids, sampled, draft in zip(rows, sampled_token_ids, drafts, strict=True)
            ]
        )
        return drafts

    def assert_drafts_are_those_of_fresh_drafters(self) -> None:
        """Every draft is what a drafter says that has seen this row's own tokens and nothing else."""
        assert self.num_faults == 0
        num_draft_tokens = 0
        for step, rows in enumerate(self.steps):
            for place, row in enumerate(rows):
                expected = self._fresh_draft(row)
                assert list(row.draft_token_ids) == expected, f"row {place} in step {step}"
                num_draft_tokens += len(expected)
        assert num_draft_tokens > 0

    def _fresh_draft(self, row: Row) -> list[int]:
        max_draft_tokens = min(self.num_speculative_tokens, self.max_model_len - len(row.token_ids) - 1)
        if not row.has_sampled or max_draft_tokens <= 0:
            return []
        drafter = Drafter(
            row.token_ids,
            max_draft_tokens=self.num_speculative_tokens,
            draft_cost=self.draft_cost,
            eos_token_ids=[self.eos_token_id],
        )
        return drafter.draft(max_draft_tokens).token_ids

    def num_moves(self) -> int:
        """How often a request went on in another row than in the step before."""
        moves = 0
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            for old_place, old in enumerate(before):
                places = [place for place, row in enumerate(after) if _continues(row, old)]
                moves += bool(places) and old_place not in places
        return moves

    def num_returns(self) -> int:
        """How often a request that stood in an earlier step was missing in the next, and came back later."""
        returns = 0
        for step in range(1, len(self.steps)):
            for old in self.steps[step - 1]:
                if any(_continues(row, old) for row in self.steps[step]):
                    continue
                returns += any(_continues(row, old) for later in self.steps[step + 1 :] for row in later)
        return returns


def _continues(row: Row, old: Row) -> bool:
    return row.token_ids[: len(old.token_ids)] == old.token_ids
