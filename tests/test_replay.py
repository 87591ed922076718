"""The replay's arithmetic by hand, and its loop against drafters whose every draft is known."""

import doctest
import importlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_spec.calibration import Calibration
from ngram_spec.prompt_lookup import PromptLookup
from ngram_spec.recordings import TokenIdArray, TokenizedResponse
from ngram_spec.replay import ReplayCounts, ReplaySettings, replay


class ScriptedDraft:
    """The first token has probability 0.95, the second 0.85, the third 0.75."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self.probabilities = [0.95, 0.85, 0.75][: len(token_ids)]


class ScriptedDrafter:
    """Drafts what a function of the context says, so that every step of a replay can be checked by eye."""

    def __init__(self, response: TokenizedResponse, script: Callable[[list[int]], list[int]]) -> None:
        self.context: list[int] = response.prompt_token_ids.tolist()
        self.script = script
        self.extended: list[list[int]] = []

    def extend(self, token_ids: TokenIdArray) -> None:
        self.extended.append(token_ids.tolist())
        self.context += token_ids.tolist()

    def draft(self) -> ScriptedDraft:
        return ScriptedDraft(self.script(self.context))


def tokenized(prompt: Sequence[int], output: Sequence[int]) -> TokenizedResponse:
    return TokenizedResponse(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


def oracle(response: TokenizedResponse, num_draft_tokens: int) -> ScriptedDrafter:
    """A drafter that knows the recording."""
    everything = [*response.prompt_token_ids.tolist(), *response.output_token_ids.tolist()]
    return ScriptedDrafter(
        response, lambda context: everything[len(context) : len(context) + num_draft_tokens]
    )


def replay_scripted(
    output: list[int], script: Callable[[list[int]], list[int]], prompt: Sequence[int] = ()
) -> tuple[ReplayCounts, list[list[int]]]:
    drafters = []

    def make_drafter(response: TokenizedResponse) -> ScriptedDrafter:
        drafters.append(ScriptedDrafter(response, script))
        return drafters[-1]

    counts = replay(tokenized(prompt, output), make_drafter)
    return counts, drafters[0].extended


def counted(counts: ReplayCounts) -> tuple[int, int, int, int, int]:
    return (
        counts.num_steps,
        counts.num_drafts,
        counts.num_draft_tokens,
        counts.num_accepted_tokens,
        counts.num_output_tokens,
    )


# The arithmetic


def test_the_figures_add_up_over_steps_with_and_without_a_draft() -> None:
    counts = ReplayCounts(
        num_steps=993 + 821,
        num_drafts=993,
        num_draft_tokens=4960,
        num_accepted_tokens=3562,
        num_output_tokens=3562 + 993 + 821,
    )
    assert counts.num_output_tokens == 5376
    assert f"{counts.tokens_per_step:.2f}" == "2.96"
    assert f"{counts.coverage:.1%}" == "54.7%"
    assert f"{counts.acceptance_rate:.1%}" == "71.8%"
    assert f"{counts.draft_tokens_per_step:.2f}" == "2.73"
    assert math.isclose(counts.modelled_speedup(0.05), 5376 / (1814 + 0.05 * 4960))
    assert f"{counts.modelled_speedup(0.05):.3f}" == "2.607"


def test_the_modelled_speedup_falls_below_one_where_drafts_fail_and_cost() -> None:
    counts = ReplayCounts(num_steps=10, num_drafts=10, num_draft_tokens=50, num_output_tokens=10)
    assert counts.modelled_speedup(0.0) == 1.0
    assert counts.modelled_speedup(0.2) == 0.5


def test_figures_of_nothing_are_zero_and_raise_nothing() -> None:
    counts = ReplayCounts()
    figures = counts.figures()
    assert figures["tokens_per_step"] == figures["acceptance_rate"] == figures["coverage"] == 0
    assert set(figures["modelled_speedup"].values()) == {0}


def test_counts_add_field_by_field() -> None:
    one = ReplayCounts(num_steps=1, num_drafts=1, num_draft_tokens=4, num_accepted_tokens=2, drafter_ns=500)
    two = ReplayCounts(num_steps=3, num_output_tokens=3, drafter_ns=1500)
    assert one + two == ReplayCounts(
        num_steps=4,
        num_drafts=1,
        num_draft_tokens=4,
        num_accepted_tokens=2,
        num_output_tokens=3,
        drafter_ns=2000,
    )
    assert (one + two).drafter_us_per_step == 0.5


# Calibration


def observed(output: list[int], script: Callable[[list[int]], list[int]]) -> list[tuple[int, int, int]]:
    """The deciles that have tokens: which, how many, how many accepted."""
    calibration = Calibration()
    replay(tokenized([], output), lambda response: ScriptedDrafter(response, script), calibration)
    deciles = enumerate(zip(calibration.num_tokens, calibration.num_accepted, strict=True))
    return [(decile, *counts) for decile, counts in deciles if counts[0]]


def test_calibration_counts_the_draft_tokens_up_to_the_first_rejected_one() -> None:
    # Behind 1: 2 is accepted, 9 is rejected, and nobody knows of 8. Behind 3: 9 is rejected.
    drafts = {1: [2, 9, 8], 3: [9, 5, 6]}
    assert observed([1, 2, 3, 4], lambda context: drafts[context[-1]]) == [(8, 1, 0), (9, 2, 1)]


def test_calibration_counts_no_draft_token_past_the_end_of_the_recording() -> None:
    assert observed([1, 2], lambda context: [2, 3, 4]) == [(9, 1, 1)]
    assert observed([1, 2], lambda context: [3, 3, 4]) == [(9, 1, 0)]
    assert observed([1, 2], lambda context: []) == []


def test_a_drafter_that_predicts_nothing_is_observed_with_nothing() -> None:
    calibration = Calibration()
    settings = ReplaySettings(max_draft_tokens=3)
    counts = replay(tokenized([1, 2] * 6, [1, 2, 1, 2]), settings.prompt_lookup_factory(), calibration)
    assert counts.num_accepted_tokens > 0
    assert sum(calibration.num_tokens) == 0


# The loop


def test_without_drafts_every_token_but_the_first_takes_one_step() -> None:
    counts, extended = replay_scripted([1, 2, 3, 4], lambda context: [])
    assert counted(counts) == (3, 0, 0, 0, 3)
    # The last token is never handed over: nothing is drafted behind it.
    assert extended == [[1], [2], [3]]


def test_a_draft_is_accepted_up_to_its_first_wrong_token_and_the_bonus_token_follows() -> None:
    drafts = {1: [2, 3, 9, 5], 4: [5, 6]}
    counts, extended = replay_scripted([1, 2, 3, 4, 5, 6, 7], lambda context: drafts[context[-1]])
    # Behind 1: accepts 2, 3 of four, bonus 4. Behind 4: accepts 5, 6, bonus 7.
    assert counted(counts) == (2, 2, 6, 4, 6)
    assert extended == [[1], [2, 3, 4]]


def test_a_wrong_first_token_costs_its_draft_and_still_yields_the_bonus_token() -> None:
    counts, extended = replay_scripted([1, 2, 3], lambda context: [8, 9])
    assert counted(counts) == (2, 2, 4, 0, 2)
    assert extended == [[1], [2]]


def test_a_draft_past_the_end_of_the_recording_is_paid_for_and_not_accepted() -> None:
    counts, _ = replay_scripted([1, 2, 3], lambda context: [2, 3, 4, 5])
    # No bonus token is left behind the last recorded one.
    assert counted(counts) == (1, 1, 4, 2, 2)


def test_a_response_of_one_token_is_the_prefill_s_and_takes_no_step() -> None:
    counts, _ = replay_scripted([7], lambda context: [7])
    assert counted(counts) == (0, 0, 0, 0, 0)
    assert counts.tokens_per_step == 0


def test_the_drafter_sees_the_prompt_and_what_was_emitted_and_nothing_else() -> None:
    seen: list[list[int]] = []

    def script(context: list[int]) -> list[int]:
        seen.append(list(context))
        return [3] if context[-1] == 2 else []

    replay_scripted([1, 2, 3, 4, 5], script, prompt=[10, 11])
    assert seen == [[10, 11, 1], [10, 11, 1, 2], [10, 11, 1, 2, 3, 4]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 6))
def test_an_oracle_takes_the_fewest_steps_that_its_draft_length_allows(
    output: list[int], num_draft_tokens: int
) -> None:
    counts = replay(tokenized([5, 6], output), lambda response: oracle(response, num_draft_tokens))
    remaining = len(output) - 1
    assert counts.num_steps == math.ceil(remaining / (num_draft_tokens + 1))
    assert counts.num_accepted_tokens == counts.num_draft_tokens
    assert counts.num_output_tokens == remaining


@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_the_loop_equals_a_walk_that_makes_a_fresh_drafter_for_every_step(
    prompt: list[int], output: list[int], max_draft_tokens: int
) -> None:
    def make_drafter(response: TokenizedResponse) -> PromptLookup:
        return PromptLookup(
            response.prompt_token_ids,
            max_draft_tokens=max_draft_tokens,
            prompt_lookup_min=1,
            prompt_lookup_max=3,
        )

    counts = replay(tokenized(prompt, output), make_drafter)
    num_steps = num_draft_tokens = num_accepted = 0
    position = 1
    while position < len(output):
        draft = make_drafter(tokenized(prompt + output[:position], [])).draft().token_ids
        num_steps += 1
        num_draft_tokens += len(draft)
        for token in draft:
            if position == len(output) or output[position] != token:
                break
            position += 1
            num_accepted += 1
        position += 1
    assert (counts.num_steps, counts.num_draft_tokens) == (num_steps, num_draft_tokens)
    assert counts.num_accepted_tokens == num_accepted


def test_the_baseline_has_the_defaults_of_vllm() -> None:
    response = tokenized([1, 2, 3, 4, 5, *range(6, 40), 1, 2, 3, 4], [5])
    drafter = ReplaySettings(max_draft_tokens=3).prompt_lookup_factory()(response)
    assert drafter.draft().token_ids == []
    drafter.extend(response.output_token_ids)
    assert drafter.draft().token_ids == [6, 7, 8]


def test_the_drafters_of_one_factory_share_one_acceptance_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngram_spec.replay.AcceptanceModel", lambda prior, learn: object())
    monkeypatch.setattr("ngram_spec.replay.Drafter", lambda prompt, **options: options["acceptance"])
    first, second = (ReplaySettings().drafter_factory() for _ in range(2))
    response = tokenized([1], [2])
    assert first(response) is first(response)
    assert first(response) is not second(response)


@pytest.mark.parametrize("module", ["calibration", "paired", "prompt_lookup", "replay"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"ngram_spec.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
