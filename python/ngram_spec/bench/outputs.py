"""Are an arm's answers those of arm off? Which are, which leave them at a near-tie, and which are wrong."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ngram_spec.bench.records import OFF, Answer, Block, NearTieProbe

# Where the two best log-probabilities are closer, rounding may decide: a step that verifies drafts adds up
# the same numbers in another order.
MAX_NEAR_TIE_GAP = 0.1


class Likeness(Enum):
    """How an answer compares with those of arm off to the same prompt."""

    SAME = "same"
    NEAR_TIE = "near-tie"
    # Arm off does not always answer this prompt the same itself.
    UNSTABLE = "unstable"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer leaves that of arm off: what the server is to be asked for a near-tie probe."""

    workload: str
    prompt_id: str
    # The tokens that are the same in both; probed is the token behind them.
    same_token_ids: tuple[int, ...]


class OffOutputs:
    """What arm off has answered to each prompt, in all of its blocks, and where other answers leave it."""

    def __init__(self, blocks: Iterable[Block], probes: Iterable[NearTieProbe] = ()) -> None:
        self._answers: dict[tuple[str, str], list[Answer]] = defaultdict(list)
        for block in blocks:
            if block.arm == OFF:
                for answer in block.answers:
                    self._add(block.workload, answer)
        self._gaps = {
            (probe.workload, probe.prompt_id, probe.num_same_tokens): probe.logprob_gap for probe in probes
        }

    def _add(self, workload: str, answer: Answer) -> None:
        known = self._answers[workload, answer.prompt_id]
        if answer.error is None and not any(is_same(answer, other) for other in known):
            known.append(answer)

    def num_answers(self, workload: str, prompt_id: str) -> int:
        """Return how many different answers arm off has given to one prompt."""
        return len(self._answers.get((workload, prompt_id), ()))

    def likeness(self, workload: str, answer: Answer) -> Likeness | None:
        """Return how the answer compares; None where arm off has not answered the prompt."""
        known = self._answers.get((workload, answer.prompt_id), ())
        if not known:
            return None
        if any(is_same(answer, other) for other in known):
            return Likeness.SAME
        for other in known:
            if answer.token_ids is not None and other.token_ids is not None:
                place = num_same_tokens(answer.token_ids, other.token_ids)
                gap = self._gaps.get((workload, answer.prompt_id, place))
                if gap is not None and gap < MAX_NEAR_TIE_GAP:
                    return Likeness.NEAR_TIE
        return Likeness.UNSTABLE if len(known) > 1 else Likeness.DIFFERENT

    def unprobed(self, blocks: Iterable[Block]) -> list[Divergence]:
        """Return the places that must be probed before the blocks' answers can be judged, each once.

        Answers without token ids have none: nobody can say at which token they part.
        """
        divergences: dict[Divergence, None] = {}
        for block in blocks:
            for answer in block.answers:
                if answer.error is None and self.likeness(block.workload, answer) is Likeness.DIFFERENT:
                    (other,) = self._answers[block.workload, answer.prompt_id]
                    if answer.token_ids is not None and other.token_ids is not None:
                        place = num_same_tokens(answer.token_ids, other.token_ids)
                        if (block.workload, answer.prompt_id, place) not in self._gaps:
                            same = other.token_ids[:place]
                            divergences[Divergence(block.workload, answer.prompt_id, same)] = None
        return list(divergences)


def is_same(one: Answer, other: Answer) -> bool:
    """Return whether two answers are the same, token for token where both have ids."""
    if one.token_ids is not None and other.token_ids is not None:
        return one.token_ids == other.token_ids
    return one.text == other.text


def num_same_tokens(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many tokens two answers have in common from their start.

    >>> num_same_tokens((5, 6, 7, 8), (5, 6, 9))
    2
    """
    num_same = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        num_same += 1
    return num_same
