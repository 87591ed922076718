"""Compares answers with those of vLLM without speculation, and tells a near-tie from a difference."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import pytest
from engine import Answer, Request

# Adding the same numbers in another order moves a log-probability by some 1e-4 in float32: room enough.
NEAR_TIE = 0.1
PENALTIES = {"presence_penalty", "frequency_penalty", "repetition_penalty"}


def with_margins(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The same requests, asking for the two best log-probabilities as well."""
    return {
        name: replace(
            request, params={**request.params, "logprobs": max(2, request.params.get("logprobs") or 0)}
        )
        for name, request in requests.items()
    }


def is_greedy(request: Request) -> bool:
    return request.params.get("temperature", 0) == 0 or request.params.get("top_k") == 1


class Differences(NamedTuple):
    """Answers that left the baseline's path for a reason that is not the proposer's.

    `near_ties`: its two best tokens were nearly as good. `refused_ends`: it ended there, `min_tokens` allowed
    it, and vLLM under speculation did not (see test_many_requests.py).
    """

    near_ties: list[str]
    refused_ends: list[str]


def differences(
    requests: Mapping[str, Request],
    answers: Mapping[str, Sequence[Answer]],
    baseline: Mapping[str, Sequence[Answer]],
) -> Differences:
    """The greedy answers that are not the baseline's. An aborted one is compared as far as both got.

    Raises:
        AssertionError: one differs otherwise.
    """
    found = Differences([], [])
    for name, request in requests.items():
        if not is_greedy(request):
            continue
        assert len(answers[name]) == len(baseline[name]) == request.params.get("n", 1), name
        for copy, (answer, expected) in enumerate(zip(answers[name], baseline[name], strict=True)):
            pairs = zip(answer.token_ids, expected.token_ids, strict=False)
            num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if num_same < min(len(answer.token_ids), len(expected.token_ids)):
                margin = expected.margins[num_same]
                difference = f"{name}, copy {copy}: token {num_same}, margin {margin:.4f}"
                ended = expected.finish_reason == "stop" and expected.stop_reason is None
                is_end = ended and num_same == len(expected.token_ids) - 1
                if is_end and 0 < request.params.get("min_tokens", 0) <= num_same:
                    found.refused_ends.append(difference)
                else:
                    # The margin is that of the model's own log-probabilities; penalties decide by others.
                    assert margin < NEAR_TIE, difference
                    assert not PENALTIES & set(request.params), difference
                    found.near_ties.append(difference)
            elif request.abort_at is None:
                asked = request.params.get("logprobs") is not None
                num_logprobs = len(expected.token_ids) if asked else None
                assert answer == replace(expected, num_logprobs=num_logprobs), f"{name}, copy {copy}"
                logprobs = expected.logprobs if asked else ()
                assert answer.logprobs == pytest.approx(logprobs, abs=0.01), f"{name}, copy {copy}"
            else:
                assert num_same >= request.abort_at, name
    return found
