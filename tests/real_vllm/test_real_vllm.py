"""vLLM answers the same with the proposer as without, in every turn that a request can take.

All of this runs the real engine with a real small model, greedy and in float32: in bfloat16 the shape of a
batch alone can tip a near-tie. Each test also asserts that what it is about took place.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.request import urlopen

import pytest
from engine import (
    BASELINE,
    MAX_MODEL_LEN,
    NUM_SPECULATIVE_TOKENS,
    Answer,
    Engine,
    EngineConfig,
    Engines,
    Events,
    Request,
)
from ngram_spec.vllm import MAX_FAULTS
from requests_of_tests import DOZEN, REQUESTS, TO_MAX_MODEL_LEN, WITH_A_STOP, WITH_SCHEMA
from sampling import mend_sampling
from watched import WatchedProposer

# The warnings are of vLLM's own libraries.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

DRAFTING = EngineConfig()
CHUNKED = EngineConfig(max_num_batched_tokens=64)
# One request of max_model_len needs 24 blocks of 32 tokens; of the dozen prompts three fit, and barely grow.
SMALL_CACHE = EngineConfig(num_blocks=34)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="module")
def baseline(engines: Engines) -> dict[str, Answer]:
    """What vLLM without speculation answers to every request of these tests, each alone."""
    engine = engines.get(BASELINE)
    return one_by_one(engine, REQUESTS)


def watched(engine: Engine) -> WatchedProposer:
    assert engine.proposer is not None
    return engine.proposer


def assert_same(answers: Mapping[str, Answer], baseline: Mapping[str, Answer]) -> None:
    for name, answer in answers.items():
        assert answer == baseline[name], name


def together(engine: Engine, requests: Mapping[str, Request]) -> dict[str, Answer]:
    return dict(zip(requests, engine.together(list(requests.values())), strict=True))


def one_by_one(engine: Engine, requests: Mapping[str, Request]) -> dict[str, Answer]:
    return {name: engine.alone(request) for name, request in requests.items()}


@contextmanager
def sound_drafts(engine: Engine, num_accepted_tokens: int = 1) -> Iterator[Events]:
    """So many draft tokens were accepted in the block, and every draft was a fresh drafter's."""
    with engine.events() as events:
        yield events
    assert events.num_accepted_tokens >= num_accepted_tokens
    watched(engine).assert_drafts_are_those_of_fresh_drafters()


def test_a_dozen_prompts_alone_give_the_same_ids(engines: Engines, baseline: dict[str, Answer]) -> None:
    engine = engines.get(DRAFTING)
    with sound_drafts(engine, num_accepted_tokens=100):
        answers = one_by_one(engine, DOZEN)
    assert_same(answers, baseline)
    assert len(answers) == 12


def test_a_dozen_prompts_in_one_batch_give_the_same_ids(
    engines: Engines, baseline: dict[str, Answer]
) -> None:
    engine = engines.get(DRAFTING)
    # Of different lengths, so that rows end early and others take their places.
    requests = {
        name: Request(request.messages, {"max_tokens": 48 if number % 3 else 12})
        for number, (name, request) in enumerate(DOZEN.items())
    }
    accepted_before = watched(engine).stats()["num_accepted_tokens"]
    with sound_drafts(engine, num_accepted_tokens=100) as events:
        answers = together(engine, requests)
    # What the proposer reads off the lengths of what was sampled is what vLLM counts.
    assert watched(engine).stats()["num_accepted_tokens"] - accepted_before == events.num_accepted_tokens
    for name, answer in answers.items():
        num_tokens = len(answer.token_ids)
        assert num_tokens > 0
        assert answer.token_ids == baseline[name].token_ids[:num_tokens], name
        if requests[name].params["max_tokens"] == 48:
            assert answer == baseline[name], name
    assert max(len(rows) for rows in watched(engine).steps) == 12
    assert watched(engine).num_moves() > 0


def test_a_request_that_reaches_max_model_len_ends_where_it_would(
    engines: Engines, baseline: dict[str, Answer]
) -> None:
    engine = engines.get(DRAFTING)
    with sound_drafts(engine):
        answers = together(engine, TO_MAX_MODEL_LEN)
    assert_same(answers, baseline)
    assert answers["to max_model_len"].finish_reason == "length"
    longest = max(len(row.token_ids) for rows in watched(engine).steps for row in rows)
    assert MAX_MODEL_LEN - 2 * NUM_SPECULATIVE_TOKENS <= longest <= MAX_MODEL_LEN
    assert len(answers["to max_model_len"].token_ids) == 60


def test_after_an_abort_in_mid_stream_the_others_go_on_as_if_alone(
    engines: Engines, baseline: dict[str, Answer]
) -> None:
    engine = engines.get(DRAFTING)
    requests = dict(list(DOZEN.items())[:5])
    first = next(iter(requests))
    requests[first] = replace(requests[first], abort_at=4)
    with sound_drafts(engine):
        answers = {name: copies[0] for name, copies in engine.serve(requests, concurrency=5).items()}
    aborted = answers.pop(first)
    assert aborted.finish_reason is None
    assert aborted.token_ids == baseline[first].token_ids[: len(aborted.token_ids)]
    assert sorted(answers) == sorted(set(requests) - {first})
    assert_same(answers, baseline)
    assert watched(engine).num_moves() > 0


def test_json_schema_output_is_valid_and_the_same(engines: Engines, baseline: dict[str, Answer]) -> None:
    engine = engines.get(DRAFTING)
    with sound_drafts(engine):
        answers = together(engine, WITH_SCHEMA)
    assert_same(answers, baseline)
    for answer in answers.values():
        assert answer.finish_reason == "stop"
        assert set(json.loads(answer.text)) == {"title", "place", "year"}


def test_stop_strings_and_end_of_sequence_stop_where_they_would(
    engines: Engines, baseline: dict[str, Answer]
) -> None:
    engine = engines.get(DRAFTING)
    with sound_drafts(engine):
        answers = together(engine, WITH_A_STOP)
    assert_same(answers, baseline)
    for name, answer in answers.items():
        assert answer.finish_reason == "stop"
        assert answer.num_logprobs == len(answer.token_ids)
        if name == "end of sequence":
            assert answer.stop_reason is None
            assert answer.token_ids[-1] == watched(engine).eos_token_id
        else:
            assert answer.stop_reason in WITH_A_STOP[name].params["stop"]


def test_sampled_output_keeps_its_limits(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.get(DRAFTING)
    mend_sampling(monkeypatch)
    requests = {
        f"{name} {max_tokens}": Request(
            request.messages, {"temperature": 0.8, "seed": seed, "max_tokens": max_tokens, "logprobs": 0}
        )
        for seed, (name, request) in enumerate(list(DOZEN.items())[:4])
        for max_tokens in (1, 7, 40)
    }
    with sound_drafts(engine, num_accepted_tokens=20):
        answers = together(engine, requests)
    for name, answer in answers.items():
        max_tokens = requests[name].params["max_tokens"]
        eos = watched(engine).eos_token_id
        assert 1 <= len(answer.token_ids) <= max_tokens
        assert answer.finish_reason in ("stop", "length")
        if answer.finish_reason == "length":
            assert len(answer.token_ids) == max_tokens
        assert (answer.token_ids[-1] == eos) == (answer.finish_reason == "stop")
        assert eos not in answer.token_ids[:-1]
        assert answer.num_logprobs == len(answer.token_ids)


def test_a_proposer_that_reads_past_the_end_of_a_row_is_found_out(engines: Engines) -> None:
    engine = engines.get(DRAFTING)
    proposer = watched(engine)
    with engine.events():
        proposer.reads_past_end = 3
        try:
            together(engine, dict(list(DOZEN.items())[:3]))
        finally:
            proposer.reads_past_end = 0
    with pytest.raises(AssertionError, match="in step"):
        proposer.assert_drafts_are_those_of_fresh_drafters()


def test_a_drafter_that_fails_at_every_step_stands_down_and_the_answers_stay_the_same(
    engines: Engines, baseline: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.get(DRAFTING)
    proposer = watched(engine)
    # Put back afterwards, as the next test may get this engine.
    for name in ("num_faults", "has_stood_down", "_is_drafting", "_num_recent_faults", "_num_clean_steps"):
        monkeypatch.setattr(proposer, name, getattr(proposer, name))
    requests = dict(list(DOZEN.items())[:2])
    with engine.events() as events, monkeypatch.context() as context:
        context.setattr(proposer, "_pool", None)
        answers = together(engine, requests)
    assert_same(answers, baseline)
    assert events.num_draft_tokens == 0
    assert proposer.num_faults == MAX_FAULTS
    assert proposer.has_stood_down


def test_a_target_that_accepts_every_draft_token_is_found_out(
    engines: Engines, baseline: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.get(DRAFTING)
    from vllm.v1.sample import rejection_sampler

    verify = rejection_sampler.rejection_sample

    def believe(draft_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        target_logits = args[4]
        target_logits[range(len(draft_token_ids)), draft_token_ids.long()] = 1e9
        return verify(draft_token_ids, *args, **kwargs)

    monkeypatch.setattr(rejection_sampler, "rejection_sample", believe)
    answers = together(engine, DOZEN)
    with pytest.raises(AssertionError):
        assert_same(answers, baseline)


def test_prompts_prefilled_in_chunks_give_the_same_ids(engines: Engines, baseline: dict[str, Answer]) -> None:
    engine = engines.get(CHUNKED)
    requests = dict(list(DOZEN.items())[::2])
    with sound_drafts(engine):
        answers = together(engine, requests)
    assert_same(answers, baseline)
    partial = [row for rows in watched(engine).steps for row in rows if not row.has_sampled]
    assert len(partial) > len(requests)


def test_a_preempted_request_resumes_as_if_nothing_had_happened(
    engines: Engines, baseline: dict[str, Answer]
) -> None:
    engine = engines.get(SMALL_CACHE)
    requests = dict(list(DOZEN.items())[:6])
    with sound_drafts(engine) as events:
        answers = together(engine, requests)
    assert_same(answers, baseline)
    assert events.num_preemptions > 0
    assert watched(engine).num_returns() > 0


def test_the_short_form_drafts_gives_the_same_ids_and_starts_again_on_its_port(
    engines: Engines, baseline: dict[str, Answer]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = EngineConfig(short_form=True, metrics_port=port)
    requests = dict(list(DOZEN.items())[:3])
    for _ in range(2):
        engine = engines.get(config)
        with engine.events() as events:
            answers = together(engine, requests)
        assert_same(answers, baseline)
        given = engine.llm.llm_engine.vllm_config.additional_config
        assert given == {"ngram_spec": {"draft_cost": 0.02, "metrics_port": port}}
        # Those of this engine, so the port was free again for the second one.
        assert accepted_tokens_at(port) == events.num_accepted_tokens > 0
        del engine
        engines.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def accepted_tokens_at(port: int) -> float:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return float(
        next(line for line in lines if line.startswith("ngram_spec_accepted_tokens_total ")).split()[1]
    )


def test_the_requests_of_this_module_have_names_of_their_own() -> None:
    groups = (DOZEN, WITH_A_STOP, TO_MAX_MODEL_LEN, WITH_SCHEMA)
    assert len(REQUESTS) == sum(map(len, groups))
