"""What a run asks: prompts from JSON lines, in workloads; one block of a workload is a list of its prompts.

The files are those that a replay takes (see `ngram_spec.recordings`). `output` is not needed, and where the
last message is the assistant's it is taken as the recorded answer and left out.
"""

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from itertools import cycle, islice
from typing import Any

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.loops import compression
from ngram_spec.recordings import check_unicode, messages_of, packaged_recordings, read_records, text_of

# So many requests for each one that is open at a time: with fewer, most of a block is its beginning, when all
# prompts are read at once, and its end, when only the longest answers are left.
NUM_REQUESTS_PER_CLIENT = 2


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: the part of the API that answers it, and what is asked there."""

    prompt_id: str
    # "chat/completions" or "completions".
    route: str
    body: Mapping[str, Any]

    @property
    def text(self) -> str:
        """All that the user wrote, without the names of roles and keys."""
        if "prompt" in self.body:
            return str(self.body["prompt"])
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind of traffic, which get a verdict of their own."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def digest(self) -> str:
        """Changes with any change of the prompts."""
        asked = [[prompt.prompt_id, prompt.route, prompt.body] for prompt in self.prompts]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    @property
    def prompt_compression(self) -> float:
        """The median over the prompts."""
        return statistics.median(compression(prompt.text) for prompt in self.prompts)

    def block(self, group: int, num_groups: int, concurrency: int) -> list[Prompt]:
        """Return what is asked in one block: the group's own prompts, filled up to keep all clients busy.

        Those that follow fill it, and then it starts again: a prompt comes twice only where there are too
        few.

        >>> workload = Workload("w", tuple(Prompt(name, "completions", {"prompt": name}) for name in "abcd"))
        >>> [prompt.prompt_id for prompt in workload.block(1, num_groups=2, concurrency=1)]
        ['b', 'd']
        >>> [prompt.prompt_id for prompt in workload.block(1, num_groups=2, concurrency=3)]
        ['b', 'd', 'a', 'c', 'b', 'd']
        """
        own = self.prompts[group::num_groups]
        others = [prompt for prompt in self.prompts if prompt not in own]
        num_requests = len(own) if concurrency == 1 else max(len(own), NUM_REQUESTS_PER_CLIENT * concurrency)
        return list(islice(cycle([*own, *others]), num_requests))


def load_workloads(files: Sequence[Traversable], num_prompts: int) -> list[Workload]:
    """Return a workload for each file, named by it; without a file those of the packaged recordings.

    A file with more than `num_prompts` records gives so many of them, evenly spaced.

    Raises:
        NgramSpecError: a file cannot be read, or a record is not as it must be.
    """
    files = files or packaged_recordings()
    return [Workload(workload_name(file, files), _spaced(_prompts(file), num_prompts)) for file in files]


def workload_name(file: Traversable, files: Sequence[Traversable]) -> str:
    """Return the file's name without its ending, or its path where another of the files has that name."""
    name, *names = (other.name.removesuffix(".jsonl") for other in (file, *files))
    return name if names.count(name) == 1 else str(file)


def _prompts(file: Traversable) -> list[Prompt]:
    prompts: dict[str, Prompt] = {}
    for record, place in read_records(file):
        prompt = _prompt(record, place)
        # Ids of a chat log may be those of conversations; results must stay tellable apart.
        prompt_id = place if prompt.prompt_id in prompts else prompt.prompt_id
        prompts[prompt_id] = Prompt(prompt_id, prompt.route, prompt.body)
    return list(prompts.values())


def _prompt(record: dict[str, Any], place: str) -> Prompt:
    prompt_id = str(record.get("id", place))
    check_unicode(prompt_id, place)
    messages = messages_of(record, place)
    if not messages:
        prompt = Prompt(prompt_id, "completions", {"prompt": text_of(record, "prompt", place)})
    else:
        if messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        if not messages:
            raise NgramSpecError(
                f"{place}: messages must hold what the assistant is to answer, got only its answer"
            )
        prompt = Prompt(prompt_id, "chat/completions", {"messages": messages})
    check_unicode(prompt.text, place)
    return prompt


def _spaced(prompts: Sequence[Prompt], number: int) -> tuple[Prompt, ...]:
    """Return `number` of the prompts: the start of a log may be of one user, or of one day."""
    if len(prompts) <= number:
        return tuple(prompts)
    return tuple(prompts[index * len(prompts) // number] for index in range(number))
