"""What a run has measured, exactly as it is kept on disk: settings, server starts, blocks, near-tie probes.

A run's folder holds `run.jsonl`, one of these a line, written as soon as it is measured: nothing is lost when
a run ends early, and every number of a report is computed from here. Times are in seconds.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ngram_spec._core import NgramSpecError

RUN_FILE = "run.jsonl"
OFF = "off"
OFF_V1 = "off-v1"


class Record(BaseModel):
    """What all records share: they are values, numbers are finite, and an unknown field is an error."""

    # JSON knows no NaN: one that was written could not be read again.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Arm(Record):
    """One way to serve the model: flags and environment variables on top of those that every arm has."""

    name: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    # Whether drafts are expected: an arm without any is then invalid.
    is_speculative: bool = False


class Settings(Record):
    """What a run was asked for. Resuming it needs the same."""

    kind: Literal["settings"] = "settings"
    ngram_spec_version: str
    model: str
    # None where the run starts its servers itself.
    urls: dict[str, str] | None = None
    arms: Annotated[tuple[Arm, ...], Field(min_length=1)]
    common_flags: tuple[str, ...] = ()
    # Ids of the prompts of each workload, in the order in which they are sent.
    workloads: dict[str, tuple[str, ...]]
    # A digest of the prompts' text, so that a changed file is noticed.
    workload_digests: dict[str, str]
    # The median over a workload's prompts of `loops.compression`: text that repeats itself has a high one.
    prompt_compression: dict[str, float] = {}
    concurrencies: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    max_tokens: int
    temperature: NonNegativeFloat = 0.0
    goal: str | None = None
    # The prompts of a workload are sent in so many groups; the server is idle between two of them.
    num_groups: int


class Start(Record):
    """One start of a server, or one attachment to a server that ran already."""

    kind: Literal["start"] = "start"
    number: int
    arm: str
    # From 0; each round starts every arm once, even rounds from the first arm on and odd ones from the last.
    round: int
    command: tuple[str, ...]
    engine_version: str | None
    seconds_to_ready: float
    # As the server's own metrics give it: number of tokens that its KV cache holds.
    kv_cache_tokens: int | None = None
    device: str | None = None


class Answer(Record):
    """One request and what came back. Times count from the start of the block."""

    prompt_id: str
    sent_at: float
    # One entry for each chunk of the stream that brought tokens.
    chunk_times: tuple[float, ...]
    chunk_num_tokens: tuple[PositiveInt, ...]
    finished_at: float
    num_prompt_tokens: NonNegativeInt | None
    num_output_tokens: NonNegativeInt
    # Where num_output_tokens is from: ids that the server returned, or its usage.
    tokens_counted_by: Literal["ids", "usage"]
    token_ids: tuple[int, ...] | None
    text: str
    finish_reason: str | None
    error: str | None = None

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        if len(self.chunk_times) != len(self.chunk_num_tokens):
            raise ValueError("chunk_times and chunk_num_tokens must be of the same chunks")
        return self


class Counters(Record):
    """How far the server's own counters grew in a block; None where the server has no such counter."""

    num_output_tokens: NonNegativeInt | None = None
    num_drafts: NonNegativeInt | None = None
    num_draft_tokens: NonNegativeInt | None = None
    num_accepted_tokens: NonNegativeInt | None = None
    num_accepted_by_position: tuple[NonNegativeInt, ...] = ()
    num_preemptions: NonNegativeInt | None = None
    # Of ngram-spec's own metrics port.
    drafter_seconds: NonNegativeFloat | None = None
    num_drafter_steps: NonNegativeInt | None = None


class Resources(Record):
    """What the server took during a block; None where nothing here can tell it."""

    # Peaks, of the whole process tree.
    process_bytes: NonNegativeInt | None = None
    gpu_bytes: NonNegativeInt | None = None
    # Peak share of the KV cache in use, from 0 to 1.
    kv_cache_usage: float | None = None
    energy_joules: float | None = None


class Block(Record):
    """One group of prompts of one workload at one concurrency, answered by one start of one arm.

    The unit that is resampled. The same (round, workload, concurrency, group) of two arms are a pair.
    """

    kind: Literal["block"] = "block"
    start: int
    arm: str
    round: int
    workload: str
    concurrency: PositiveInt
    group: int
    # From the first request sent to the last answer's end.
    seconds: PositiveFloat
    answers: tuple[Answer, ...]
    counters: Counters = Counters()
    resources: Resources = Resources()


class NearTieProbe(Record):
    """How close the two best tokens of arm `off` are where another arm's answer first differs from it."""

    kind: Literal["near_tie_probe"] = "near_tie_probe"
    workload: str
    prompt_id: str
    # So many output tokens are the same in both answers.
    num_same_tokens: int
    # Difference of the two best log-probabilities; None where the server would not tell.
    logprob_gap: float | None


class Failure(Record):
    """An arm whose server did not start, died, hung or gave only errors; the run went on without it."""

    kind: Literal["failure"] = "failure"
    arm: str
    round: int
    reason: str


AnyRecord = Annotated[Settings | Start | Block | NearTieProbe | Failure, Field(discriminator="kind")]
_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


class Run(Record):
    """All that a run's folder holds."""

    settings: Settings
    starts: tuple[Start, ...] = ()
    blocks: tuple[Block, ...] = ()
    near_tie_probes: tuple[NearTieProbe, ...] = ()
    failures: tuple[Failure, ...] = ()


def read_run(folder: Path) -> Run:
    """Return what `folder/run.jsonl` holds. A last line that was cut off while it was written is left out.

    Raises:
        NgramSpecError: the file cannot be read, or a line of it is no record; names the line.
    """
    path = folder / RUN_FILE
    try:
        # Not str.splitlines, which also splits at the line separators that answers may hold.
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise NgramSpecError(
            f"{path}: cannot read the run: {error.strerror}; give the folder that ngram-spec bench measured "
            "into"
        ) from error
    if _is_record(last):
        lines.append(last)
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_RECORD.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise NgramSpecError(f"{path}:{number}: no record of a run: {place}: {first['msg']}") from error
    return as_run(records, str(path))


def end_last_line(folder: Path) -> None:
    """Have the next record begin a line: end the last one if it is whole, else cut it off.

    Raises:
        OSError: as of writing a file.
    """
    with (folder / RUN_FILE).open("r+b") as file:
        content = file.read()
        start = content.rfind(b"\n") + 1
        if _is_record(content[start:]):
            file.write(b"\n")
        else:
            file.truncate(start)


def _is_record(line: bytes) -> bool:
    try:
        _RECORD.validate_json(line)
    except ValidationError:
        return False
    return True


def as_run(records: Iterable[AnyRecord], place: str) -> Run:
    """Return the records sorted by kind; the first must be the settings, and all others go with them.

    Raises:
        NgramSpecError: it is not, or one does not.
    """
    every = list(records)
    first, others = every[0] if every else None, every[1:]
    if not isinstance(first, Settings):
        raise NgramSpecError(
            f"{place}: a run must begin with its settings; begin a new run in another folder"
        )
    run = Run(
        settings=first,
        starts=tuple(record for record in others if isinstance(record, Start)),
        blocks=tuple(record for record in others if isinstance(record, Block)),
        near_tie_probes=tuple(record for record in others if isinstance(record, NearTieProbe)),
        failures=tuple(record for record in others if isinstance(record, Failure)),
    )
    _check_places(run, place)
    return run


def _check_places(run: Run, place: str) -> None:
    """Raise unless all are of arms of the run, and no block is there twice: it would count twice."""
    arms = [arm.name for arm in run.settings.arms]
    for name in (*arms, *(start.arm for start in run.starts), *(block.arm for block in run.blocks)):
        if arms.count(name) != 1:
            raise NgramSpecError(f"{place}: arms must be in the settings, each once, got {name!r}")
    seen = set()
    for block in run.blocks:
        key = (block.arm, block.round, block.workload, block.concurrency, block.group)
        if key in seen:
            raise NgramSpecError(
                f"{place}: a block must be there once, got that of arm {block.arm}, round {block.round}, on "
                f"{block.workload} at concurrency {block.concurrency}, group {block.group}, again"
            )
        seen.add(key)


def append_record(folder: Path, record: AnyRecord) -> None:
    """Write one more line to `folder/run.jsonl`, down to the disk.

    Raises:
        OSError: as of writing a file.
    """
    with (folder / RUN_FILE).open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())
