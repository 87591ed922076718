"""The requests of these tests: the prompts of the packaged recordings, and a few with a special end."""

import json
from importlib.resources import files
from typing import Any

from engine import MAX_MODEL_LEN, Request

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "place": {"enum": ["harbour", "valley", "school"]},
        "year": {"type": "integer", "minimum": 1800, "maximum": 2100},
    },
    "required": ["title", "place", "year"],
    "additionalProperties": False,
}
EXAMPLE = '{"title": "The Kestrel Valley bridge", "place": "valley", "year": 1934}'


def _chats() -> dict[str, list[dict[str, str]]]:
    chats = {}
    for task in ("rag", "summarization", "code_edit"):
        for line in files("ngram_spec").joinpath(f"recordings/{task}.jsonl").read_text("utf-8").splitlines():
            record: dict[str, Any] = json.loads(line)
            chats[record["id"]] = record["messages"]
    return chats


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


CHATS = _chats()
DOZEN = {name: Request(messages) for name, messages in CHATS.items()}

COPY = (
    "Repeat this text word for word: "
    "The lamp of the lighthouse was lit at dusk, and the lamp was put out at dawn."
)
WITH_A_STOP = {
    # More than one token long, and within what is copied, so that a draft runs across it.
    "stop string": Request(_user(COPY), {"stop": ["was lit at"], "logprobs": 1}),
    "stop string kept": Request(
        _user(COPY), {"stop": ["was lit at"], "include_stop_str_in_output": True, "logprobs": 1}
    ),
    "end of sequence": Request(_user(COPY), {"stop": ["not in the text"], "logprobs": 1}),
    "the nearer of two": Request(_user(COPY), {"stop": ["lighthouse was lit", "put out"], "logprobs": 0}),
}
TO_MAX_MODEL_LEN = {
    "to max_model_len": Request(
        CHATS["rag-lighthouse"], {"max_tokens": None, "ignore_eos": True}, prompt_len=MAX_MODEL_LEN - 60
    ),
    # Longer than N before the end of the other, whose last steps vLLM gives no drafts to any row.
    "beside it": Request(CHATS["summary-bridge"], {"max_tokens": 80, "ignore_eos": True}),
}
WITH_SCHEMA = {
    f"schema {number}": Request(
        _user(f"{text} Answer with JSON such as {EXAMPLE}"), {"max_tokens": 80}, structured={"json": SCHEMA}
    )
    for number, text in enumerate(
        (
            "Describe the Kestrel Valley bridge of 1934.",
            "Describe the lighthouse of 1871 at the harbour.",
            "Describe the telescope on the roof of a school in 2019.",
        )
    )
}
REQUESTS = {**DOZEN, **WITH_A_STOP, **TO_MAX_MODEL_LEN, **WITH_SCHEMA}
