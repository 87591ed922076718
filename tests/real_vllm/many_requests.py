"""Two hundred requests of every kind that a server gets, short enough for a small model on a CPU."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

from engine import Answer, Request
from requests_of_tests import CHATS, SCHEMA

PLACES = ("Kestrel Valley", "Dunmore", "Ash Ferry", "Lowhill", "Saltmarsh", "Birk Tarn", "Orrin")
THINGS = ("bridge", "mill", "lighthouse", "school", "market hall", "weir", "station", "chapel", "tower")
BUILDERS = ("Ada Marsh", "Tom Rusk", "the Vale brothers", "Ines Holt", "a guild of masons")

NAME = {"type": "string", "maxLength": 32}
PEOPLE = {"type": "integer", "minimum": 1, "maximum": 9}
TOOLS = [
    {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }
    for name, description, properties in (
        ("look_up", "Look up a building.", {"name": NAME}),
        ("book_visit", "Book a visit.", {"name": NAME, "people": PEOPLE}),
    )
]


def fact(number: int) -> str:
    """A sentence about a building, another one for each number."""
    place, thing = PLACES[number % len(PLACES)], THINGS[number % len(THINGS)]
    builder, year = BUILDERS[number % len(BUILDERS)], 1801 + 7 * number % 211
    return f"The {thing} of {place} was built by {builder} in {year}."


def _chat(text: str, system: str | None = None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _copy(number: int) -> list[dict[str, str]]:
    return _chat(f"Repeat this text word for word: {fact(number)} {fact(number + 1)}")


def plain(number: int) -> Request:
    another_year = _chat(f"Repeat this text with another year: {fact(number)} {fact(number)}")
    params = {"max_tokens": 6 + 5 * (number % 5), "logprobs": (None, 0, 1, 3)[number % 4]}
    return Request(_copy(number) if number % 2 else another_year, params)


def long_prompt(number: int) -> Request:
    return Request(list(CHATS.values())[number], {"max_tokens": 12})


def json_schema(number: int) -> Request:
    chat = _chat(f"{fact(number)} Describe it as JSON with title, place and year.")
    params = {"max_tokens": 80, "logprobs": None if number % 3 else 1}
    return Request(chat, params, structured={"json": SCHEMA})


def tool_call(number: int) -> Request:
    """What vLLM's server makes of tool_choice "required"; the small model's own template knows no tools."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.tool_parsers.utils import get_json_schema_from_tools

    tools = [ChatCompletionToolsParam.model_validate({"type": "function", "function": t}) for t in TOOLS]
    schema = get_json_schema_from_tools("required", tools, parallel_tool_calls=False)
    chat = _chat(
        f"{fact(number)} {'Book a visit for 4 people.' if number % 2 else 'Look it up.'}",
        system=f"Answer with one call of these tools: {json.dumps(TOOLS)}",
    )
    return Request(chat, {"max_tokens": 80}, structured={"json": schema})


def choice(number: int) -> Request:
    choices = [f"It was built by {builder}." for builder in BUILDERS]
    chat = _chat(f"{fact(number)} Who built it?")
    return Request(chat, {"max_tokens": 24}, structured={"choice": choices})


def regex(number: int) -> Request:
    pattern = r"The [a-z ]{4,12} of [A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})? was built in (18|19|20)\d\d\."
    chat = _chat(f"{fact(number)} Repeat it without the builder.")
    return Request(chat, {"max_tokens": 48}, structured={"regex": pattern})


def stop_string(number: int) -> Request:
    # More than one token long and within what is copied, so that a draft runs across it.
    stop = (["was built by"], ["built by", "not in the text"], [" of "], ["s built b"])[number % 4]
    return Request(
        _copy(number),
        {
            "stop": stop,
            "include_stop_str_in_output": number % 3 == 0,
            "min_tokens": 6 * (number % 2),
            "logprobs": 0,
        },
    )


def copies(number: int) -> Request:
    # vLLM refuses copies of a greedy answer; sampled from the best token alone, they are as greedy and equal.
    params = {"temperature": 1.0, "top_k": 1, "n": 2 + number % 2}
    return Request(_copy(number), {**params, "max_tokens": 12, "logprobs": 0})


def sampled(number: int) -> Request:
    params = {"temperature": 0.8, "seed": number, "n": 1 + number % 2, "logprobs": 0}
    if number % 4 == 0:
        request = json_schema(number)
        return replace(request, params={**request.params, **params})
    return Request(_copy(number), {**params, "max_tokens": 14, "top_p": 0.9 if number % 2 else 1.0})


def min_tokens(number: int) -> Request:
    # Alone it would end after about 20: refused in the middle of drafts, or allowed well before.
    limits = {"max_tokens": 28, "min_tokens": 24} if number % 2 else {"max_tokens": 28, "min_tokens": 10}
    return Request(_chat(f"Say only this: {fact(number)}"), limits)


def _ten_times(**penalty: float) -> Callable[[int], Request]:
    def request(number: int) -> Request:
        return Request(_chat(f"Write the word {THINGS[number]} ten times."), {"max_tokens": 22, **penalty})

    return request


def aborted(number: int) -> Request:
    return Request(_copy(number), abort_at=3 + number % 8)


KINDS: dict[str, tuple[int, Callable[[int], Request]]] = {
    "plain": (54, plain),
    "long prompt": (8, long_prompt),
    "json": (20, json_schema),
    "tool": (16, tool_call),
    "choice": (8, choice),
    "regex": (8, regex),
    "stop": (24, stop_string),
    "copies": (6, copies),
    "sampled": (12, sampled),
    "min tokens": (8, min_tokens),
    "no penalty": (3, _ten_times()),
    "presence": (7, _ten_times(presence_penalty=1.2)),
    "frequency": (7, _ten_times(frequency_penalty=0.8)),
    "repetition": (7, _ten_times(repetition_penalty=1.2)),
    "aborted": (12, aborted),
}


def many_requests() -> dict[str, Request]:
    """The requests by kind and number, mixed as evenly as their counts allow."""
    places = [
        ((number + 0.5) / count, kind, number)
        for kind, (count, _) in KINDS.items()
        for number in range(count)
    ]
    return {f"{kind} {number}": KINDS[kind][1](number) for _, kind, number in sorted(places)}


def assert_structured(name: str, request: Request, answer: Answer) -> None:
    """The body of a structured answer is complete and what was asked for."""
    from jsonschema import validate

    assert request.structured is not None
    assert answer.finish_reason == "stop", (name, answer.text)
    [(structure, wanted)] = request.structured.items()
    if structure == "json":
        validate(json.loads(answer.text), wanted)
    elif structure == "choice":
        assert answer.text in wanted, name
    else:
        assert re.fullmatch(wanted, answer.text), name
