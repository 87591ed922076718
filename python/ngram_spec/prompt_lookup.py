"""Prompt lookup as vLLM's `ngram` method does it with its defaults: the baseline of a replay."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# What vLLM takes for prompt_lookup_min and prompt_lookup_max where neither is given
# (vllm/config/speculative.py, 0.32.0).
DEFAULT_PROMPT_LOOKUP_LEN = 5


@dataclass(frozen=True, slots=True)
class PromptLookupDraft:
    """The tokens that prompt lookup proposes for one step; none where the context does not repeat itself."""

    token_ids: list[int]

    @property
    def probabilities(self) -> tuple[float, ...]:
        """None: prompt lookup does not say how sure it is."""
        return ()


class PromptLookup:
    """Drafts the tokens behind the leftmost earlier occurrence of the last few tokens of the context.

    Tries the last `prompt_lookup_max` tokens, then one fewer, down to `prompt_lookup_min`; the first n-gram
    that occurs earlier wins, whatever follows it (an occurrence may overlap the last tokens). The draft ends
    at `max_draft_tokens` or at the end of the context. The rule is that of
    `_find_longest_matched_ngram_and_propose_tokens` in vllm/v1/spec_decode/ngram_proposer.py, without its
    limit by `max_model_len`.

    >>> PromptLookup([1, 2, 3, 4, 1, 2], max_draft_tokens=3, prompt_lookup_min=2, prompt_lookup_max=2).draft()
    PromptLookupDraft(token_ids=[3, 4, 1])
    """

    def __init__(
        self,
        prompt: npt.NDArray[np.int32] | Sequence[int],
        *,
        max_draft_tokens: int = 16,
        prompt_lookup_min: int = DEFAULT_PROMPT_LOOKUP_LEN,
        prompt_lookup_max: int = DEFAULT_PROMPT_LOOKUP_LEN,
    ) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._lookup_lens = range(prompt_lookup_max, prompt_lookup_min - 1, -1)
        self._buffer = np.zeros(max(1024, 2 * len(prompt)), dtype=np.int32)
        self._len = 0
        self.extend(prompt)

    def extend(self, token_ids: npt.NDArray[np.int32] | Sequence[int]) -> None:
        """Append the tokens that the target model emitted."""
        end = self._len + len(token_ids)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros(end, dtype=np.int32)])
        self._buffer[self._len : end] = token_ids
        self._len = end

    def draft(self) -> PromptLookupDraft:
        """Return the draft for the next step."""
        context = self._buffer[: self._len]
        for lookup_len in self._lookup_lens:
            start = _leftmost_repeat(context, lookup_len)
            if start is not None:
                behind = start + lookup_len
                return PromptLookupDraft(context[behind : behind + self._max_draft_tokens].tolist())
        return PromptLookupDraft([])


def _leftmost_repeat(context: npt.NDArray[np.int32], lookup_len: int) -> int | None:
    """Return where the last `lookup_len` tokens of the context occur first, or None if only at its end."""
    num_starts = len(context) - lookup_len
    if num_starts <= 0:
        return None
    # One pass over the context for the last token leaves so few starts that the rest costs next to nothing.
    starts = np.flatnonzero(context[lookup_len - 1 : -1] == context[-1])
    for offset in range(lookup_len - 1):
        starts = starts[context[starts + offset] == context[num_starts + offset]]
    return int(starts[0]) if len(starts) else None
