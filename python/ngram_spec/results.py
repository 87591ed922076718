"""The results of a replay: response by response, to JSON and back, and whether two share their records."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ngram_spec._core import NgramSpecError
from ngram_spec.calibration import Calibration
from ngram_spec.replay import ReplayCounts

DRAFTER = "ngram-spec"
BASELINE = "vLLM ngram 5,5"


@dataclass(frozen=True, slots=True)
class ResponseResult:
    """The counts of one response, named so that two drafters can be compared pair by pair."""

    record_id: str
    turn: int | None
    num_prompt_tokens: int
    counts: ReplayCounts

    def __str__(self) -> str:
        """Say which response it is, whatever the drafter did on it."""
        turn = "" if self.turn is None else f" turn {self.turn}"
        num_output_tokens = self.counts.num_output_tokens + 1
        return (
            f"{self.record_id!r}{turn} ({self.num_prompt_tokens} prompt, {num_output_tokens} output tokens)"
        )


@dataclass(frozen=True, slots=True)
class FileResult:
    """What one drafter, told one `draft_cost`, did on one recording, response by response."""

    file: str
    tokenizer: str
    drafter: str
    draft_cost: float | None
    """None for a drafter that knows no cost."""
    responses: list[ResponseResult]
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def total(self) -> ReplayCounts:
        """The counts of all responses: figures of a file weigh every step the same, not every response."""
        return sum((response.counts for response in self.responses), ReplayCounts())

    def counts_by_record(self) -> list[ReplayCounts]:
        """Return the counts of each record, those of all its turns together, in the order of the file."""
        counts: dict[str, ReplayCounts] = {}
        for response in self.responses:
            counts[response.record_id] = counts.get(response.record_id, ReplayCounts()) + response.counts
        return list(counts.values())

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values: the figures of the total, the counts of each response."""
        return {
            "file": self.file,
            "tokenizer": self.tokenizer,
            "drafter": self.drafter,
            "draft_cost": self.draft_cost,
            "total": self.total.figures(),
            "calibration": self.calibration.to_json(),
            "responses": [
                {
                    "id": response.record_id,
                    "turn": response.turn,
                    "num_prompt_tokens": response.num_prompt_tokens,
                }
                | asdict(response.counts)
                for response in self.responses
            ],
        }


@dataclass(frozen=True, slots=True)
class DrafterResult:
    """What one drafter did on one recording: a replay for each `draft_cost` it was told, or its only one."""

    replays: list[FileResult]

    @property
    def file(self) -> str:
        return self.replays[0].file

    @property
    def drafter(self) -> str:
        return self.replays[0].drafter

    def at(self, draft_cost: float) -> FileResult:
        """Return the replay that is judged at a cost: the one that was told it, or the only one."""
        return next((replay for replay in self.replays if replay.draft_cost == draft_cost), self.replays[0])

    def modelled_speedup(self, draft_cost: float) -> float:
        """Return the modelled speed-up at a cost, of the replay that is judged at it."""
        return self.at(draft_cost).total.modelled_speedup(draft_cost)


ByDrafter = dict[tuple[str, str], DrafterResult]
"""Results by file and drafter, in the order in which they came."""


def by_drafter(results: Iterable[FileResult]) -> ByDrafter:
    """Group the replays of the same drafter on the same recording."""
    groups: ByDrafter = {}
    for result in results:
        groups.setdefault((result.file, result.drafter), DrafterResult([])).replays.append(result)
    return groups


def read_results(path: Path) -> ByDrafter:
    """Return what `ngram-spec replay --json` wrote, without the calibration.

    Raises:
        NgramSpecError: the file cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot read the earlier results: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NgramSpecError(f"{path}: the earlier results must be JSON: {error}") from error
    try:
        return by_drafter(_file_result(result) for result in document["results"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise NgramSpecError(
            f"{path}: the earlier results must be what ngram-spec replay --json writes "
            f"({type(error).__name__}: {error})"
        ) from error


def _file_result(result: dict[str, Any]) -> FileResult:
    names = [counts_field.name for counts_field in fields(ReplayCounts)]
    responses = [
        ResponseResult(
            record_id=response["id"],
            turn=response["turn"],
            num_prompt_tokens=response["num_prompt_tokens"],
            counts=ReplayCounts(**{name: int(response[name]) for name in names}),
        )
        for response in result["responses"]
    ]
    return FileResult(result["file"], result["tokenizer"], result["drafter"], result["draft_cost"], responses)


def check_same_records(mine: FileResult, earlier: ByDrafter, source: Path) -> None:
    """Raise unless the earlier results of this drafter are of the same responses in the same order.

    Raises:
        NgramSpecError: names the first difference.
    """
    place = f"{source}: {mine.file}"
    if (mine.file, mine.drafter) not in earlier:
        raise NgramSpecError(f"{place} must be among the earlier results, and is not")
    for theirs in earlier[mine.file, mine.drafter].replays:
        if theirs.tokenizer != mine.tokenizer:
            raise NgramSpecError(
                f"{place} must have had the same tokenizer, got {theirs.tokenizer!r}, now {mine.tokenizer!r}"
            )
        pairs = zip(map(str, mine.responses), map(str, theirs.responses), strict=False)
        for number, (response, earlier_response) in enumerate(pairs, start=1):
            if response != earlier_response:
                raise NgramSpecError(
                    f"{place} must have had the same responses, got {earlier_response} as number {number}, "
                    f"now {response}"
                )
        if len(theirs.responses) != len(mine.responses):
            raise NgramSpecError(
                f"{place} must have had the same responses, got {len(theirs.responses)}, "
                f"now {len(mine.responses)}"
            )
