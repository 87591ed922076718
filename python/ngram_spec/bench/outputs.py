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
    # Arm off itself does not always go on the same from here.
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
        same = self._same_token_ids(workload, answer)
        if same is None:  # without ids nobody can say where they part
            return Likeness.UNSTABLE if len(known) > 1 else Likeness.DIFFERENT
        gap = self._gaps.get((workload, answer.prompt_id, len(same)))
        if gap is not None and gap < MAX_NEAR_TIE_GAP:
            return Likeness.NEAR_TIE
        goes_on = {other.token_ids[: len(same) + 1] for other in known if other.token_ids is not None}
        num_ways = sum(tokens[: len(same)] == same for tokens in goes_on)
        return Likeness.UNSTABLE if num_ways > 1 else Likeness.DIFFERENT

    def _same_token_ids(self, workload: str, answer: Answer) -> tuple[int, ...] | None:
        """Return the tokens that the answer shares with the nearest of arm off; None where one has no ids."""
        known = [other.token_ids for other in self._answers[workload, answer.prompt_id]]
        if answer.token_ids is None or None in known:
            return None
        ids = [token_ids for token_ids in known if token_ids is not None]
        return answer.token_ids[: max(num_same_tokens(answer.token_ids, token_ids) for token_ids in ids)]

    def unprobed(self, blocks: Iterable[Block]) -> list[Divergence]:
        """Return the places that must be probed before the blocks' answers can be judged, each once.

        Answers without token ids have none: nobody can say at which token they part.
        """
        divergences: dict[Divergence, None] = {}
        for block in blocks:
            for answer in block.answers:
                if answer.error is None and self.likeness(block.workload, answer) is Likeness.DIFFERENT:
                    same = self._same_token_ids(block.workload, answer)
                    if same is not None and (block.workload, answer.prompt_id, len(same)) not in self._gaps:
                        divergences[Divergence(block.workload, answer.prompt_id, same)] = None
        return list(divergences)


def is_same(one: Answer, other: Answer) -> bool:
    """Return whether two answers are the same, token for token where both have ids.

    The same text in another number of tokens is not: one of the servers does not count as the other does.
    """
    if one.token_ids is not None and other.token_ids is not None:
        return one.token_ids == other.token_ids
    return one.text == other.text and one.num_output_tokens == other.num_output_tokens


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
