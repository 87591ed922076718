"""Replays recorded responses: what a drafter would have saved on them, without running a model.

The first output token is kept, since the prefill gives it. Then every step drafts, accepts while the draft
equals the recording, and adds the bonus token. For greedy outputs this is exactly what greedy verification
does; for sampled outputs it is an unbiased estimate.

A draft is not cut to what remains of the recording: an engine does not know where the answer will end, so
what is drafted past it is verified, and paid for, in vain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from ngram_spec._core import AcceptanceModel, Drafter
from ngram_spec.calibration import Calibration
from ngram_spec.prompt_lookup import PromptLookup
from ngram_spec.recordings import TokenIdArray, TokenizedResponse

# The costs that every report shows: an idle GPU at batch size 1, a moderate load, a busy one.
REPORTED_DRAFT_COSTS: tuple[float, ...] = (0.01, 0.05, 0.2)


class ReplayedDraft(Protocol):
    """What a replay reads of a draft."""

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def probabilities(self) -> Sequence[float]:
        """Of each token being accepted if those before it were; empty where the drafter predicts nothing."""


class ReplayedDrafter(Protocol):
    """What a replay asks of a drafter: `Drafter`, `PromptLookup`, or one of your own."""

    def extend(self, token_ids: TokenIdArray, /) -> None: ...
    def draft(self) -> ReplayedDraft: ...


DrafterFactory = Callable[[TokenizedResponse], ReplayedDrafter]
"""Makes the drafter of one response from its prompt and its EOS ids (only an oracle looks at its output)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """The options of the drafter that is replayed, with the names and defaults of `Drafter`.

    But it learns, as in vLLM and unlike a `Drafter` of its own: `learn` is true.
    """

    max_draft_tokens: int = 16
    draft_cost: float = 0.05
    min_match_len: int = 1
    prior: Mapping[str, Any] | None = None
    learn: bool = True

    def drafter_factory(self) -> DrafterFactory:
        """Return what makes a `Drafter` with these options; all that it makes share one `AcceptanceModel`.

        So a factory serves one file: with `learn`, each response is drafted with what those before it taught.

        Raises:
            NgramSpecError: an option is out of its range; found here, not at the first response.
        """
        acceptance = AcceptanceModel(self.prior, learn=self.learn)

        def make_drafter(response: TokenizedResponse) -> Drafter:
            return Drafter(
                response.prompt_token_ids,
                max_draft_tokens=self.max_draft_tokens,
                draft_cost=self.draft_cost,
                min_match_len=self.min_match_len,
                eos_token_ids=response.eos_token_ids,
                acceptance=acceptance,
            )

        no_tokens = np.array([], dtype=np.int32)
        make_drafter(TokenizedResponse(no_tokens, no_tokens))
        return make_drafter

    def prompt_lookup_factory(self) -> DrafterFactory:
        """Return what makes the baseline: vLLM's `ngram`, its defaults and these `max_draft_tokens`."""
        return lambda response: PromptLookup(
            response.prompt_token_ids, max_draft_tokens=self.max_draft_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """What happened in a number of steps; every figure of a report follows from these sums.

    >>> counts = ReplayCounts(
    ...     num_steps=993 + 821,
    ...     num_drafts=993,
    ...     num_draft_tokens=4960,
    ...     num_accepted_tokens=3562,
    ...     num_output_tokens=5376,
    ... )
    >>> round(counts.tokens_per_step, 2), round(counts.coverage, 3), round(counts.acceptance_rate, 3)
    (2.96, 0.547, 0.718)
    """

    num_steps: int = 0
    num_drafts: int = 0
    """Steps that had a draft of at least one token."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    """Tokens that the steps emitted, bonus tokens included: the whole output but for its first token."""
    drafter_ns: int = 0
    """Time in `extend` and `draft`, in nanoseconds; building the drafter from the prompt is not in it."""

    def __add__(self, other: "ReplayCounts") -> "ReplayCounts":
        mine, theirs = asdict(self), asdict(other)
        return ReplayCounts(**{name: mine[name] + theirs[name] for name in mine})

    @property
    def tokens_per_step(self) -> float:
        """Tokens per target step over all steps, those without a draft and the bonus tokens included."""
        return _ratio(self.num_output_tokens, self.num_steps)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def draft_tokens_per_step(self) -> float:
        """Draft tokens per target step, over all steps."""
        return _ratio(self.num_draft_tokens, self.num_steps)

    @property
    def coverage(self) -> float:
        """Share of the steps that had a draft."""
        return _ratio(self.num_drafts, self.num_steps)

    @property
    def drafter_us_per_step(self) -> float:
        """Microseconds in the drafter per step."""
        return _ratio(self.drafter_ns / 1000, self.num_steps)

    def modelled_speedup(self, draft_cost: float) -> float:
        """Output tokens / sum over the steps of (1 + draft_cost x draft tokens).

        That is the speed-up over decoding without drafts where one more verified token costs `draft_cost`
        target steps.
        """
        return _ratio(self.num_output_tokens, self.num_steps + draft_cost * self.num_draft_tokens)

    def figures(self) -> dict[str, Any]:
        """Return the counts and every figure that a report shows of them, ready for JSON."""
        return asdict(self) | {
            "tokens_per_step": self.tokens_per_step,
            "acceptance_rate": self.acceptance_rate,
            "draft_tokens_per_step": self.draft_tokens_per_step,
            "coverage": self.coverage,
            "modelled_speedup": {str(cost): self.modelled_speedup(cost) for cost in REPORTED_DRAFT_COSTS},
            "drafter_us_per_step": self.drafter_us_per_step,
        }


def replay(
    response: TokenizedResponse, make_drafter: DrafterFactory, calibration: Calibration | None = None
) -> ReplayCounts:
    """Return the counts of one response, stepped through with a drafter of its own.

    `calibration`, where given, observes the predicted probabilities. The tokens behind the first rejected one
    and those past the end of the recording are left out: nobody knows what the target model says of them.
    """
    drafter = make_drafter(response)
    output = response.output_token_ids
    # Comparing plain ints is several times faster than comparing numpy scalars one by one.
    recorded = output.tolist()
    num_steps = num_drafts = num_draft_tokens = num_accepted_tokens = drafter_ns = 0
    start, end = 0, 1
    while end < len(recorded):
        emitted = output[start:end]
        before = perf_counter_ns()
        drafter.extend(emitted)
        draft = drafter.draft()
        draft_token_ids = draft.token_ids
        drafter_ns += perf_counter_ns() - before
        num_accepted = num_equal(draft_token_ids, recorded, end)
        num_steps += 1
        num_drafts += bool(draft_token_ids)
        num_draft_tokens += len(draft_token_ids)
        num_accepted_tokens += num_accepted
        if calibration is not None and draft_token_ids:
            num_known = min(num_accepted + 1, len(recorded) - end)
            calibration.observe(draft.probabilities[:num_known], num_accepted=num_accepted)
        # A draft accepted up to the last recorded token leaves no bonus token to add.
        start, end = end, min(end + num_accepted + 1, len(recorded))
    return ReplayCounts(
        num_steps=num_steps,
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        num_output_tokens=max(0, len(recorded) - 1),
        drafter_ns=drafter_ns,
    )


def num_equal(draft_token_ids: Sequence[int], recorded: Sequence[int], start: int) -> int:
    """Return how many draft tokens agree with the recording from `start` on."""
    num_equal = 0
    for drafted, token in zip(draft_token_ids, recorded[start : start + len(draft_token_ids)], strict=False):
        if drafted != token:
            break
        num_equal += 1
    return num_equal


def _ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, 0 where nothing happened."""
    return numerator / denominator if denominator else 0.0
