"""Servers that answer what no server should: each costs an answer or a count, and none stops the run."""

import itertools
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from bench_runs import prompt
from ngram_spec import NgramSpecError
from ngram_spec.bench import load
from ngram_spec.bench import server as bench_server
from ngram_spec.bench.load import (
    CountedBy,
    Endpoint,
    LoadError,
    ask_all,
    find_counting,
    logprob_gap,
    prompt_token_ids,
)
from ngram_spec.bench.records import Counters
from ngram_spec.bench.scrape import (
    Counts,
    Gpus,
    Sampler,
    engine_version,
    kv_cache_tokens,
    models,
    read_metrics,
)

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"
GOOD = {"choices": [{"text": " a", "token_ids": [1], "finish_reason": None}]}
MAX_TOKENS = 4


def body(content: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def event(chunk: object) -> bytes:
    return b"data: " + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()) + b"\n\n"


@contextmanager
def answering(*parts: bytes | Iterable[bytes]) -> Iterator[str]:
    """A server that sends these bytes to whoever asks for whatever, and then closes."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            try:
                for part in parts:
                    for piece in [part] if isinstance(part, bytes) else part:
                        self.wfile.write(piece)
            except OSError:
                pass  # who asked has gone

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def slowly(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece
        time.sleep(0.05)


def error_of(*parts: bytes | Iterable[bytes], counted_by: CountedBy = "ids") -> str:
    """What is noted of a request to such a server, which is all that it fails with."""
    with answering(*parts) as url:
        there = Endpoint(url, "m", max_tokens=MAX_TOKENS, timeout=0.5, counted_by=counted_by)
        with pytest.raises(LoadError) as raised:
            ask_all(there, [prompt("p")], 1)
    return str(raised.value)


def test_what_a_good_answer_is() -> None:
    with answering(EVENTS, event(GOOD), event(GOOD), DONE) as url:
        _, (answer,) = ask_all(Endpoint(url, "m", max_tokens=MAX_TOKENS), [prompt("p")], 1)
    assert (answer.error, answer.num_output_tokens, answer.token_ids) == (None, 2, (1, 1))


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (b"nonsense", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 99_999, "Invalid JSON"),
        (b"[]", "a chunk is not as the OpenAI API has it"),
        (b"1", "a chunk is not as the OpenAI API has it"),
        (b"{}", "it has no choices"),
        ({"error": {"message": "out of order"}}, "out of order"),
        ({"choices": 1}, "choices"),
        ({"choices": [1]}, "choices.0"),
        ({"choices": [{"text": 1}]}, "choices.0.text"),
        ({"choices": [{"delta": {"content": ["a"]}}]}, "choices.0.delta.content"),
        ({"choices": [{"text": "a", "token_ids": "12"}]}, "choices.0.token_ids"),
        ({"choices": [{"text": "a", "token_ids": ["1", "2"]}]}, "choices.0.token_ids.0"),
        ({"choices": [{"text": "a", "token_ids": [-1]}]}, "choices.0.token_ids.0"),
        ({"choices": [{"text": "a", "finish_reason": 1}]}, "choices.0.finish_reason"),
        ({"choices": [], "usage": {"prompt_tokens": -1}}, "usage.prompt_tokens"),
        ({"choices": [], "usage": [1]}, "usage"),
        (b'{"choices": [{"text": "\\ud800"}]}', "Invalid JSON"),
        (
            {"choices": [{"text": "a", "token_ids": [1, 2, 3, 4, 5]}]},
            "6 tokens came, and at most 4 were asked",
        ),
    ],
)
def test_a_chunk_that_is_none_is_the_error_of_its_answer(chunk: object, reason: str) -> None:
    assert reason in error_of(EVENTS, event(GOOD), event(chunk), event(GOOD), DONE)


@pytest.mark.parametrize(
    ("usages", "reason"),
    [
        ((1, -1), "usage.completion_tokens"),
        ((3, 2), "the usage fell from 3 to 2 tokens"),
        ((1, 10**9), "1000000000 tokens came, and at most 4 were asked for"),
        ((1, "2"), "usage.completion_tokens"),
        ((1, 1.5), "usage.completion_tokens"),
    ],
)
def test_a_usage_that_cannot_be_counts_for_nothing(usages: tuple[object, ...], reason: str) -> None:
    chunks = [event({"choices": [{"text": "a"}], "usage": {"completion_tokens": one}}) for one in usages]
    assert reason in error_of(EVENTS, *chunks, DONE, counted_by="usage")


def test_a_stream_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_LINE_BYTES", 2**18)
    assert "the stream did not end after 80 chunks" in error_of(
        EVENTS, itertools.repeat(event({"choices": []}))
    )
    assert "nothing came for 0.5 s" in error_of(EVENTS, slowly(b": still there\n"))
    assert "LineTooLong" in error_of(EVENTS, itertools.repeat(b"x" * 2**20))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((b"",), "ServerDisconnectedError"),
        ((b"\x00\x01\x02\r\n\r\n",), "400"),
        ((EVENTS,), "the stream ended early"),
        ((EVENTS, event(GOOD)), "the stream ended early"),
        ((body(b"<html>Welcome</html>"),), "the stream ended early"),
        ((body(b"", "302 Found", "Location: /v1/completions"),), "TooManyRedirects"),
        ((body(b"\xff" * 99_999, "500 Internal Server Error"),), "HTTP 500"),
        ((b"HTTP/1.1 500 X\r\n\r\n", itertools.repeat(b"sorry ")), "HTTP 500: sorry"),
        ((EVENTS.replace(b"Connection", b"Content-Length: 99\r\nConnection"), event(GOOD)), "Payload"),
    ],
)
def test_an_answer_that_is_no_stream_is_an_error_of_one_line(
    parts: tuple[bytes | Iterable[bytes], ...], reason: str
) -> None:
    error = error_of(*parts)
    assert reason in error
    assert "\n" not in error
    assert len(error) < 500


def test_a_server_that_tells_no_tokens_is_refused_before_anything_is_measured() -> None:
    with answering(EVENTS, event({"choices": [{"text": "a"}]}), DONE) as url:
        there = Endpoint(url, "m", timeout=1.0)
        with pytest.raises(NgramSpecError, match="a server must return token ids"):
            find_counting(there, prompt("p"))


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        b"[" * 99_999,
        b"{}",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [1]}',
        b'{"choices": {"0": 1}}',
        b'{"choices": [{"logprobs": null, "prompt_token_ids": "1 2"}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [null]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [[1, 2]]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [{"a": "1", "b": 2}]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [{"a": 1}]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [{"a": -1, "b": -Infinity}]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [{"a": NaN, "b": -1}]}}]}',
    ],
)
def test_a_probe_that_is_not_answered_tells_nothing(answer: bytes) -> None:
    with answering(body(answer)) as url:
        there = Endpoint(url, "m", timeout=1.0)
        assert logprob_gap(there, [1, 2]) is None
        assert prompt_token_ids(there, prompt("p")) is None


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found"])
def test_a_probe_that_is_refused_tells_nothing(status: str) -> None:
    with answering(body(b'{"error": "logprobs are off"}', status)) as url:
        there = Endpoint(url, "m", timeout=1.0)
        assert logprob_gap(there, [1, 2]) is None
        assert prompt_token_ids(there, prompt("p")) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "ServerDisconnectedError"),
        (body(b"out of\norder", "500 Internal Server Error"), "HTTP 500: out of order"),
        (body(b"", "503 Service Unavailable"), "HTTP 503"),
    ],
)
def test_a_probe_without_an_answer_can_be_made_again(answer: bytes, reason: str) -> None:
    with answering(answer) as url:
        there = Endpoint(url, "m", timeout=1.0)
        with pytest.raises(LoadError, match=reason):
            logprob_gap(there, [1, 2])
        with pytest.raises(LoadError, match=reason):
            prompt_token_ids(there, prompt("p"))


def test_a_probe_whose_answer_does_not_end_is_given_up() -> None:
    with answering(EVENTS, slowly(b" ")) as url, pytest.raises(LoadError, match=r"for 0\.5 s"):
        logprob_gap(Endpoint(url, "m", timeout=0.5), [1, 2])


def test_a_server_that_takes_no_connection_is_given_up_sooner_than_one_that_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "CONNECT_TIMEOUT", 0.3)
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # nobody accepts them, so that soon there is no room for another
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        there = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", timeout=60)
        with pytest.raises(LoadError, match=r"no connection after 0\.3 s"):
            ask_all(there, [prompt("p")], 1)
        with pytest.raises(LoadError, match=r"no connection after 0\.3 s"):
            logprob_gap(there, [1, 2])


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        b"\xff",
        b"[" * 99_999,
        b"[]",
        b"{}",
        b'{"data": null}',
        b'{"data": [1]}',
        b'{"data": "abc"}',
        b'{"data": []}',
        b'{"data": [{"id": "\\ud800"}]}',
        b"<html>Welcome</html>",
    ],
)
def test_a_server_that_names_no_model_is_refused_with_its_url(answer: bytes) -> None:
    with answering(body(answer)) as url:
        with pytest.raises(NgramSpecError, match=url):
            models(url, {})
        assert engine_version(url) is None


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(NgramSpecError, match="99999 must be the root of a server"):
        models("http://127.0.0.1:99999", {})
    assert read_metrics("http://127.0.0.1:99999") is None


@pytest.mark.parametrize(
    "lines",
    [
        b"\xff\xfe",
        b"<html>Welcome</html>",
        b"vllm:generation_tokens_total",
        b"vllm:generation_tokens_total{",
        b'vllm:generation_tokens_total{engine="0" 1',
        b"vllm:generation_tokens_total{} many",
        b"vllm:generation_tokens_total NaN",
        b"vllm:generation_tokens_total +Inf",
        b"vllm:generation_tokens_total -5",
        b"vllm:generation_tokens_total 1.5",
        b"vllm:kv_cache_usage_perc NaN\nvllm:kv_cache_usage_perc -1\nvllm:kv_cache_usage_perc +Inf",
        b"vllm:spec_decode_num_accepted_tokens_per_pos_total 1",
        b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="first"} 1',
        b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} NaN',
        b'vllm:cache_config_info{kv_cache_size_tokens="many"} 1',
        b'vllm:cache_config_info{block_size="16"} 1',
        b"# TYPE x nonsense\n# HELP\n#\n\x00",
    ],
)
def test_metrics_that_are_none_stay_unknown(lines: bytes) -> None:
    with answering(body(lines + b"\n")) as url:
        counts = Counts(url, url)
        assert counts.growth(0) in (Counters(), Counters(num_output_tokens=0))
        assert kv_cache_tokens(url) is None
        sampler = Sampler(url, None, Gpus())
        with sampler.running():
            pass
        assert sampler.resources(None).kv_cache_usage is None


def test_a_counter_that_falls_is_of_another_start_and_tells_nothing() -> None:
    by_position = b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'
    lines = b"vllm:generation_tokens_total %d\n" + by_position + b" %d\n"
    with answering(body(lines % (9, 9))) as url:
        counts = Counts(url, None)
    with answering(body(lines % (2, 2))) as now:
        counts._urls = (now, None)
        assert counts.growth(0) == Counters()


def test_metrics_that_do_not_end_stay_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_server, "MAX_BODY_BYTES", 2**20)
    with answering(EVENTS, itertools.repeat(b"vllm:generation_tokens_total 1\n")) as url:
        assert read_metrics(url) is None
    with answering(EVENTS, slowly(b"#\n")) as url, pytest.raises(OSError, match="did not end after"):
        bench_server.fetch(url, timeout=0.5)
    with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}") as url,
        pytest.raises(OSError, match="2 of 99"),
    ):
        bench_server.fetch(url, timeout=5)
