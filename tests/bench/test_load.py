"""What is measured of a server whose delays, tokens and faults are known."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench_runs import chat, prompt, serve_fakes
from fake_server import DRAFTED_STEPS, TOP_LOGPROBS, answer_ids, text_of
from ngram_spec import NgramSpecError
from ngram_spec.bench.load import (
    Endpoint,
    LoadError,
    ask_all,
    find_counting,
    logprob_gap,
    prompt_token_ids,
)
from ngram_spec.bench.records import Answer
from ngram_spec.bench.server import started_server
from ngram_spec.bench.workloads import Prompt

DRAFTS = ("--speculative-config", '{"method": "ngram"}')
EIGHT = [prompt(f"prompt {number}") for number in range(8)]


@contextmanager
def endpoint(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    flags: Sequence[str] = (),
    *,
    step_seconds: float = 0.0,
    timeout: float = 30.0,
    **faults: str,
) -> Iterator[Endpoint]:
    serve_fakes(monkeypatch, **faults)
    monkeypatch.setenv("STEP_SECONDS", str(step_seconds))
    with started_server("m", flags, log_path=folder / "log") as server:
        yield Endpoint(server.url, "m", max_tokens=12, timeout=timeout)


def total_gap(answers: Sequence[Answer]) -> float:
    return sum(answer.chunk_times[-1] - answer.chunk_times[0] for answer in answers)


def test_each_chunk_is_noted_with_its_tokens_and_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    totals = {}
    for step_seconds in (0.05, 0.25):
        with endpoint(monkeypatch, tmp_path, DRAFTS, step_seconds=step_seconds) as there:
            seconds, answers = ask_all(there, EIGHT[:2], concurrency=1)
        for asked, answer in zip(EIGHT, answers, strict=False):
            assert answer.error is None
            assert answer.token_ids == tuple(answer_ids(asked.text, 12))
            assert answer.text == text_of(answer_ids(asked.text, 12))
            sizes = itertools.cycle(DRAFTED_STEPS)
            assert list(answer.chunk_num_tokens) == [*itertools.islice(sizes, 5), 3]
            assert (answer.num_output_tokens, answer.num_prompt_tokens) == (12, 5)
            assert answer.tokens_counted_by == "ids"
            assert answer.finish_reason == "length"
            assert answer.sent_at < answer.chunk_times[0]
            assert list(answer.chunk_times) == sorted(answer.chunk_times)
            assert answer.chunk_times[-1] <= answer.finished_at <= seconds
            # A step takes no less than its delay, on however busy a machine.
            assert answer.chunk_times[0] - answer.sent_at > 0.9 * step_seconds
        totals[step_seconds] = total_gap(answers)
    assert totals[0.25] / totals[0.05] == pytest.approx(5, rel=0.5)


def test_so_many_requests_are_open_at_a_time_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with endpoint(monkeypatch, tmp_path, step_seconds=0.04) as there:
        alone, _ = ask_all(there, EIGHT, concurrency=1)
        together, answers = ask_all(there, EIGHT, concurrency=4)
    assert [answer.prompt_id for answer in answers] == [asked.prompt_id for asked in EIGHT]
    for answer in answers:
        num_open = sum(other.sent_at <= answer.sent_at < other.finished_at for other in answers)
        assert num_open <= 4
    assert alone / together == pytest.approx(4, rel=0.5)


def test_chats_and_texts_give_the_tokens_of_their_answers_and_the_role_counts_for_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with endpoint(monkeypatch, tmp_path) as there:
        _, answers = ask_all(there, [chat("hello"), prompt("hello")], concurrency=2)
    assert [answer.chunk_num_tokens for answer in answers] == [(1,) * 12] * 2


def test_a_server_without_ids_is_counted_by_its_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with endpoint(monkeypatch, tmp_path, DRAFTS, ngram="no ids") as there:
        counted_by = find_counting(there, chat("hello"))
        assert counted_by == "usage"
        there = Endpoint(there.url, "m", counted_by=counted_by, max_tokens=9)
        for asked in (chat("hello"), prompt("hello")):
            _, (answer,) = ask_all(there, [asked], concurrency=1)
            assert answer.chunk_num_tokens == (1, 4, 1, 2, 1)
            assert (answer.num_output_tokens, answer.num_prompt_tokens) == (9, 5)
            assert answer.token_ids is None


def test_a_server_whose_tokens_cannot_be_counted_when_they_come_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        endpoint(monkeypatch, tmp_path, off="usage at the end") as there,
        pytest.raises(NgramSpecError, match=r"return_token_ids.*the usage came only at the end"),
    ):
        find_counting(there, prompt("hello"))


def test_requests_that_fail_are_noted_beside_those_that_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with endpoint(monkeypatch, tmp_path, off="some errors") as there:
        _, answers = ask_all(there, EIGHT, concurrency=1)
    failed = [index for index, answer in enumerate(answers) if answer.error is not None]
    assert failed == [2, 6]
    assert answers[2].error == 'HTTP 500: {"error": {"message": "out of order"}}'
    assert (answers[2].num_output_tokens, answers[2].chunk_times) == (0, ())


def test_a_stream_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        endpoint(monkeypatch, tmp_path, off="ends early") as there,
        pytest.raises(LoadError, match="stream ended early"),
    ):
        find_counting(there, prompt("hello"))


def test_a_server_that_only_fails_is_not_asked_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with endpoint(monkeypatch, tmp_path, off="errors") as there:
        with pytest.raises(LoadError, match=r"3 of 3 requests failed, the last with: HTTP 500"):
            ask_all(there, EIGHT, concurrency=1)
        with pytest.raises(LoadError, match="out of order"):
            find_counting(there, EIGHT[0])


def test_a_server_that_sends_nothing_is_given_up_after_the_time_for_a_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        endpoint(monkeypatch, tmp_path, off="hangs in a block", timeout=0.3) as there,
        pytest.raises(LoadError, match=r"nothing came for 0\.3 s"),
    ):
        ask_all(there, EIGHT, concurrency=4)


def test_where_nobody_listens_every_request_fails() -> None:
    with pytest.raises(LoadError, match="ClientConnector"):
        ask_all(Endpoint("http://127.0.0.1:9", "m"), EIGHT, concurrency=2)


def test_the_ids_of_a_prompt_may_be_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMPT_LEN", "200000")
    with endpoint(monkeypatch, tmp_path) as there:
        _, (answer,) = ask_all(there, [chat("hello")], concurrency=1)
    assert answer.error is None
    assert answer.num_prompt_tokens == 200000


@pytest.mark.parametrize("asked", [chat("hello"), prompt("hello")])
def test_a_server_tells_the_ids_of_a_prompt_and_how_near_the_next_tokens_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: Prompt
) -> None:
    with endpoint(monkeypatch, tmp_path) as there:
        assert prompt_token_ids(there, asked) == [0, 1, 2, 3, 4]
        assert logprob_gap(there, [0, 1, 2]) == pytest.approx(TOP_LOGPROBS[0] - TOP_LOGPROBS[1])
    # One that is gone may tell another time.
    with pytest.raises(LoadError, match="ClientConnector"):
        prompt_token_ids(there, asked)
    with pytest.raises(LoadError, match="ClientConnector"):
        logprob_gap(there, [0, 1, 2])
