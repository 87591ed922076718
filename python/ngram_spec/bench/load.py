"""Asks a server over the OpenAI API, with so many requests open at a time, and times each chunk of a stream.

Tokens are counted by the ids that vLLM returns with each chunk, else by the usage that it reports with each,
never by the text. While requests are open, what arrives is only noted down; it is read when all are done.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.records import Answer
from ngram_spec.bench.sizes import REQUEST_TIMEOUT, TEMPERATURE
from ngram_spec.bench.workloads import Prompt

CONNECT_TIMEOUT = 10.0
# The first chunk of a chat brings the ids of its whole prompt, on one line.
MAX_LINE_BYTES = 2**26
# vLLM sends a chunk for each step, and a few without tokens: a stream that goes on and on is cut off.
MAX_CHUNKS_PER_TOKEN = 4
MAX_CHUNKS_WITHOUT_TOKENS = 64
MAX_ERROR_BYTES = 10_000
FIRST_SERVER_ERROR = 500
# A server that fails so often in a row is not asked on: it would take as many timeouts as there are prompts.
MIN_FAILURES_IN_A_ROW = 3
NUM_TRIAL_TOKENS = 8
USAGE_AT_END = "the usage came only at the end of the stream"
COMPLETIONS = "completions"

DATA = b"data:"

CountedBy = Literal["ids", "usage"]


class LoadError(Exception):
    """A server answers with errors only, or not at all."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask, for what, and how the tokens of the answers are counted."""

    url: str
    model: str
    headers: dict[str, str] = field(default_factory=dict)
    counted_by: CountedBy = "ids"
    max_tokens: int = 256
    temperature: float = TEMPERATURE
    # A request that gets nothing for so many seconds has failed.
    timeout: float = REQUEST_TIMEOUT


@dataclass(slots=True)
class Exchange:
    """One request as it went over the wire: what came when, in seconds from the start of the block."""

    prompt: Prompt
    sent_at: float
    lines: list[tuple[float, bytes]] = field(default_factory=list)
    finished_at: float = 0.0
    error: str | None = None


def ask_all(endpoint: Endpoint, prompts: Sequence[Prompt], concurrency: int) -> tuple[float, list[Answer]]:
    """Ask all prompts, in order, with `concurrency` requests open at a time.

    Returns the seconds from the first request to the end of the last answer, and an answer for each prompt.

    Raises:
        LoadError: all requests failed, or so many in a row that the rest was not asked.
    """
    exchanges = asyncio.run(_exchange_all(endpoint, prompts, concurrency))
    answers = [_answer(exchange, endpoint) for exchange in exchanges]
    failed = [answer.error for answer in answers if answer.error is not None]
    if len(answers) < len(prompts) or len(failed) == len(prompts):
        raise LoadError(f"{len(failed)} of {len(answers)} requests failed, the last with: {failed[-1]}")
    return max(exchange.finished_at for exchange in exchanges), answers


def find_counting(endpoint: Endpoint, prompt: Prompt) -> CountedBy:
    """Return how the server lets its tokens be counted, after asking it for an answer or two.

    Raises:
        LoadError: it answers with an error.
        NgramSpecError: tokens cannot be counted, or not when they come.
    """
    refused: list[str] = []
    choices: tuple[CountedBy, ...] = ("ids", "usage")
    for counted_by in choices:
        trial = replace(endpoint, counted_by=counted_by, max_tokens=NUM_TRIAL_TOKENS)
        (exchange,) = asyncio.run(_exchange_all(trial, [prompt], 1))
        answer = _answer(exchange, trial)
        if answer.error is None and answer.num_output_tokens:
            return counted_by
        refused.append(answer.error or "no tokens came")
    if answer.error not in (None, USAGE_AT_END):
        raise LoadError(answer.error)
    raise NgramSpecError(
        f"{endpoint.url}: a server must return token ids (return_token_ids) or its usage with each chunk "
        f"(stream_options.continuous_usage_stats), as vLLM does, or its tokens cannot be counted; "
        f"got: {'; '.join(refused)}"
    )


def prompt_token_ids(endpoint: Endpoint, prompt: Prompt) -> list[int] | None:
    """Return a prompt's token ids as the server makes them, None where it does not tell.

    Raises:
        LoadError: it does not answer, or with an error of its own.
    """
    answer = asyncio.run(
        _post(endpoint, prompt.route, {**prompt.body, "max_tokens": 1, "return_token_ids": True})
    )
    try:
        ids = answer.get("prompt_token_ids") or answer["choices"][0].get("prompt_token_ids")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return ids if isinstance(ids, list) else None


def logprob_gap(endpoint: Endpoint, token_ids: Sequence[int]) -> float | None:
    """Return by how much the best next token's log-probability beats the second; None where not told.

    Raises:
        LoadError: the server does not answer, or with an error of its own.
    """
    body = {
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 2,
        # Two tokens can have the same text.
        "return_tokens_as_token_ids": True,
    }
    answer = asyncio.run(_post(endpoint, COMPLETIONS, body))
    try:
        best = sorted(answer["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
        gap = float(best[0] - best[1])
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return gap if math.isfinite(gap) else None


async def _exchange_all(endpoint: Endpoint, prompts: Sequence[Prompt], concurrency: int) -> list[Exchange]:
    """Return the exchanges in the order of the prompts; fewer where too many failed in a row."""
    exchanges: list[Exchange] = []
    waiting: Iterator[Prompt] = iter(prompts)
    max_failures = max(concurrency, MIN_FAILURES_IN_A_ROW)
    num_failures = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal num_failures
        for prompt in waiting:
            exchange = Exchange(prompt, time.perf_counter() - started_at)
            exchanges.append(exchange)
            await _exchange(session, endpoint, exchange, started_at)
            num_failures = num_failures + 1 if exchange.error is not None else 0
            if num_failures >= max_failures:
                return

    async with _session(endpoint, concurrency) as session:
        started_at = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(min(concurrency, len(prompts)))))
    return exchanges


async def _exchange(
    session: aiohttp.ClientSession, endpoint: Endpoint, exchange: Exchange, started_at: float
) -> None:
    """Send one request and note down what comes, with its time; an error is noted too, never raised."""
    body: dict[str, Any] = {
        **exchange.prompt.body,
        "model": endpoint.model,
        "max_tokens": endpoint.max_tokens,
        "temperature": endpoint.temperature,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if endpoint.counted_by == "ids":
        body["return_token_ids"] = True
    max_chunks = MAX_CHUNKS_PER_TOKEN * endpoint.max_tokens + MAX_CHUNKS_WITHOUT_TOKENS
    num_chunks, last_at = 0, time.perf_counter()
    try:
        async with session.post(f"{endpoint.url}/v1/{exchange.prompt.route}", json=body) as response:
            if response.status != 200:
                exchange.error = await _http_error(response)
            else:
                async for line in response.content:
                    now = time.perf_counter()
                    if line.startswith(DATA):
                        exchange.lines.append((now - started_at, line))
                        num_chunks, last_at = num_chunks + 1, now
                    elif now - last_at > endpoint.timeout:
                        raise TimeoutError  # what keeps a connection open is no answer
                    if num_chunks > max_chunks:
                        exchange.error = f"the stream did not end after {max_chunks} chunks"
                        break
    except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
        exchange.error = _reason(error, endpoint)
    exchange.finished_at = time.perf_counter() - started_at


async def _post(endpoint: Endpoint, route: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what a request without a stream is answered with, an empty object where it is refused.

    Raises:
        LoadError: there is no answer, or the server's fault is the answer: another time there may be one.
    """
    timeout = aiohttp.ClientTimeout(total=endpoint.timeout, sock_connect=CONNECT_TIMEOUT)
    async with _session(endpoint, 1) as session:
        try:
            async with session.post(
                f"{endpoint.url}/v1/{route}", json={"model": endpoint.model, **body}, timeout=timeout
            ) as response:
                if response.status >= FIRST_SERVER_ERROR:
                    raise LoadError(await _http_error(response))
                content = await response.read()
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            raise LoadError(_reason(error, endpoint)) from error
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return answer if response.status == 200 and isinstance(answer, dict) else {}


async def _http_error(response: aiohttp.ClientResponse) -> str:
    content = await response.content.read(MAX_ERROR_BYTES)
    return f"HTTP {response.status}: {_shown(content.decode(errors='replace'))}"


def _reason(error: Exception, endpoint: Endpoint) -> str:
    """Return in words why a request got no answer."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):  # a TimeoutError too
        return f"no connection after {CONNECT_TIMEOUT:g} s"
    if isinstance(error, TimeoutError):
        return f"nothing came for {endpoint.timeout:g} s"
    return _shown(f"{type(error).__name__}: {error}")


@asynccontextmanager
async def _session(endpoint: Endpoint, concurrency: int) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=endpoint.timeout)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency),
        headers=endpoint.headers,
        timeout=timeout,
        read_bufsize=MAX_LINE_BYTES,
    ) as session:
        yield session


def _answer(exchange: Exchange, endpoint: Endpoint) -> Answer:
    """Return what the noted lines say: the text, the tokens and when they came."""
    reader = _Reader(endpoint)
    if exchange.error is None:
        for arrived_at, line in exchange.lines:
            reader.read(arrived_at, line[len(DATA) :].strip())
    return Answer(
        prompt_id=exchange.prompt.prompt_id,
        sent_at=exchange.sent_at,
        chunk_times=tuple(reader.chunk_times),
        chunk_num_tokens=tuple(reader.chunk_num_tokens),
        finished_at=exchange.finished_at,
        num_prompt_tokens=reader.num_prompt_tokens,
        num_output_tokens=reader.num_output_tokens,
        tokens_counted_by=endpoint.counted_by,
        token_ids=tuple(reader.token_ids) if endpoint.counted_by == "ids" else None,
        text="".join(reader.text),
        finish_reason=reader.finish_reason,
        error=exchange.error or reader.error or (None if reader.is_done else "the stream ended early"),
    )


class _Told(BaseModel):
    """What a server tells: taken as it is, and not made to fit."""

    model_config = ConfigDict(strict=True)


class _Delta(_Told):
    content: str | None = None


class _Choice(_Told):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[NonNegativeInt] | None = None


class _Usage(_Told):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class _Chunk(_Told):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _Reader:
    """Adds up the chunks of one stream."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.counted_by, self.max_tokens = endpoint.counted_by, endpoint.max_tokens
        self.chunk_times: list[float] = []
        self.chunk_num_tokens: list[int] = []
        self.num_output_tokens = 0
        self.token_ids: list[int] = []
        self.text: list[str] = []
        self.num_prompt_tokens: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.is_done = False

    def read(self, arrived_at: float, payload: bytes) -> None:
        """Take in one chunk; behind the first that is wrong nothing counts."""
        if payload == b"[DONE]":
            self.is_done = True
        elif self.error is None:
            try:
                chunk = _Chunk.model_validate_json(payload)
                self.error = self._add(arrived_at, chunk)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                self.error = _shown(f"a chunk is not as the OpenAI API has it: {place}: {first['msg']}")

    def _add(self, arrived_at: float, chunk: _Chunk) -> str | None:
        """Return what is wrong with the chunk, None if nothing is."""
        if chunk.error is not None:
            return _shown(json.dumps(chunk.error))
        if chunk.choices is None:
            return "a chunk is not as the OpenAI API has it: it has no choices"
        usage = chunk.usage or _Usage()
        if usage.prompt_tokens is not None:
            self.num_prompt_tokens = usage.prompt_tokens
        num_tokens = 0
        for choice in chunk.choices:
            self.text.append((choice.text if choice.delta is None else choice.delta.content) or "")
            self.finish_reason = choice.finish_reason or self.finish_reason
            self.token_ids += choice.token_ids or ()
            num_tokens += len(choice.token_ids or ())
        if self.counted_by == "usage" and usage.completion_tokens is not None:
            num_tokens = usage.completion_tokens - self.num_output_tokens
            # A usage that comes once, at the end, does not say when the tokens came.
            if num_tokens and not chunk.choices:
                return USAGE_AT_END
            if num_tokens < 0:
                return f"the usage fell from {self.num_output_tokens} to {usage.completion_tokens} tokens"
        if num_tokens:
            self.num_output_tokens += num_tokens
            self.chunk_times.append(arrived_at)
            self.chunk_num_tokens.append(num_tokens)
        if self.num_output_tokens > self.max_tokens:
            return f"{self.num_output_tokens} tokens came, and at most {self.max_tokens} were asked for"
        return None


def _shown(text: str) -> str:
    """Return the start of what a server said, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."
