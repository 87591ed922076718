"""Which answers are those of arm off, and which text only repeats itself."""

import doctest
import importlib
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import WORKLOAD, answer, block
from ngram_spec.bench.loops import MAX_PERIOD, MIN_REPEATS, compression, loop_len, loop_share
from ngram_spec.bench.outputs import Divergence, Likeness, OffOutputs, num_same_tokens
from ngram_spec.bench.records import OFF, Answer, NearTieProbe
from ngram_spec.recordings import load_responses, packaged_recordings


def ids(*token_ids: int, prompt_id: str = "p") -> Answer:
    return answer(prompt_id, token_ids=token_ids)


def off_outputs(*answers: Answer, gaps: dict[int, float | None] | None = None) -> OffOutputs:
    """What arm off answered, and the probed gaps behind so many same tokens."""
    probes = [
        NearTieProbe(workload=WORKLOAD, prompt_id="p", num_same_tokens=place, logprob_gap=gap)
        for place, gap in (gaps or {}).items()
    ]
    return OffOutputs([block(answers, arm=OFF)], probes)


@pytest.mark.parametrize("module", ["loops", "outputs", "goal", "verdict", "recommend"])
def test_documented_examples_are_true(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"ngram_spec.bench.{module}"))
    assert results.attempted
    assert not results.failed


def test_an_answer_that_off_gave_in_any_block_is_the_same() -> None:
    outputs = OffOutputs([block([ids(1, 2, 3)], arm=OFF), block([ids(1, 2, 4)], arm=OFF, concurrency=64)])
    assert outputs.likeness(WORKLOAD, ids(1, 2, 4)) is Likeness.SAME


def test_an_answer_that_differs_is_wrong_unless_the_probe_found_a_near_tie_at_that_token() -> None:
    ours, theirs = ids(1, 2, 9, 9), ids(1, 2, 3, 4)
    assert off_outputs(theirs).likeness(WORKLOAD, ours) is Likeness.DIFFERENT
    assert off_outputs(theirs, gaps={2: 0.09}).likeness(WORKLOAD, ours) is Likeness.NEAR_TIE
    assert off_outputs(theirs, gaps={2: 0.1}).likeness(WORKLOAD, ours) is Likeness.DIFFERENT
    assert off_outputs(theirs, gaps={2: None}).likeness(WORKLOAD, ours) is Likeness.DIFFERENT
    assert off_outputs(theirs, gaps={1: 0.01}).likeness(WORKLOAD, ours) is Likeness.DIFFERENT


def test_where_off_differs_from_itself_a_difference_proves_nothing() -> None:
    outputs = off_outputs(ids(1, 2, 3, 4), ids(1, 5, 6))
    assert outputs.likeness(WORKLOAD, ids(1, 7, 7)) is Likeness.UNSTABLE
    assert outputs.num_answers(WORKLOAD, "p") == 2


def test_at_no_other_token_is_an_answer_excused_by_an_off_that_differs_from_itself() -> None:
    outputs = off_outputs(ids(1, 2, 3, 4), ids(1, 5, 6), gaps={2: 0.02, 3: 0.2})
    assert outputs.likeness(WORKLOAD, ids(7, 7, 7)) is Likeness.DIFFERENT
    # Behind that token it goes on with one of off's answers, and is held to that one.
    assert outputs.likeness(WORKLOAD, ids(1, 2, 7)) is Likeness.NEAR_TIE
    assert outputs.likeness(WORKLOAD, ids(1, 2, 3, 7)) is Likeness.DIFFERENT
    assert outputs.unprobed([block([ids(7, 7, 7), ids(1, 7), ids(1, 2, 3, 7)])]) == [
        Divergence(WORKLOAD, "p", ())
    ]


def test_the_same_text_in_another_number_of_tokens_is_not_the_same_answer() -> None:
    # By its usage the other server would be faster than it is.
    outputs = off_outputs(answer("p", [(0.1, 2)], text="one two"))
    assert outputs.likeness(WORKLOAD, answer("p", [(0.1, 2)], text="one two")) is Likeness.SAME
    assert outputs.likeness(WORKLOAD, answer("p", [(0.1, 3)], text="one two")) is Likeness.DIFFERENT


def test_a_prompt_that_off_has_not_answered_cannot_be_compared() -> None:
    failed = answer("p", token_ids=(1, 2), error="gone")
    assert off_outputs(failed).likeness(WORKLOAD, ids(1, 2)) is None


def test_without_token_ids_the_text_is_compared_and_nothing_can_be_probed() -> None:
    outputs = off_outputs(answer("p", text="one two"))
    assert outputs.likeness(WORKLOAD, answer("p", text="one two")) is Likeness.SAME
    other = answer("p", text="one 2")
    assert outputs.likeness(WORKLOAD, other) is Likeness.DIFFERENT
    assert outputs.unprobed([block([other])]) == []


def test_each_place_that_needs_a_probe_is_named_once_and_none_that_has_one() -> None:
    outputs = off_outputs(ids(1, 2, 3, 4), gaps={3: 0.5})
    blocks = [
        block([ids(1, 2, 3, 4), ids(1, 2, 9), ids(1, 2, 8, 4), ids(1, 2, 3, 5), ids(prompt_id="other")]),
        block([answer("p", token_ids=(7,), error="gone")]),
    ]
    assert outputs.unprobed(blocks) == [Divergence(WORKLOAD, "p", (1, 2))]


def test_an_answer_that_goes_on_where_off_ended_is_probed_behind_its_end() -> None:
    assert off_outputs(ids(1, 2)).unprobed([block([ids(1, 2, 3)])]) == [Divergence(WORKLOAD, "p", (1, 2))]


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_number_of_same_tokens_is_the_longest_common_prefix(one: list[int], other: list[int]) -> None:
    longest = max(n for n in range(len(one) + 1) if one[:n] == other[:n])
    assert num_same_tokens(tuple(one), tuple(other)) == longest


@given(
    st.lists(st.integers(0, 9), max_size=40),
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(MIN_REPEATS, 30),
)
def test_a_long_repetition_at_the_end_is_found(start: list[int], period: list[int], num_repeats: int) -> None:
    tokens = start + period * num_repeats
    if len(period) * num_repeats >= len(start):
        assert loop_len(tokens) >= len(period) * num_repeats
        # One token more, such as the end of the text, hides nothing.
        assert loop_len([*tokens, 99]) >= len(period) * num_repeats or len(start) >= len(period) * num_repeats


@given(st.lists(st.integers(0, 3), max_size=60))
def test_a_loop_is_the_longest_end_with_a_period_that_is_short_and_often_repeated(tokens: list[int]) -> None:
    longest = 0
    for end in (len(tokens), len(tokens) - 1):
        for start in range(max(end, 0)):
            tail = tokens[start:end]
            for period in range(1, min(MAX_PERIOD, len(tail) // MIN_REPEATS) + 1):
                if tail[period:] == tail[:-period] and (len(tail) >= 64 or 2 * len(tail) >= len(tokens)):
                    longest = max(longest, len(tail))
    assert loop_len(tokens) == longest


@pytest.mark.parametrize("num_tokens", [1, 20, 100, 300])
def test_a_token_a_sentence_and_a_paragraph_again_and_again_are_loops(num_tokens: int) -> None:
    period = random.Random(0).sample(range(1000), num_tokens)
    repeats = 70 if num_tokens == 1 else MIN_REPEATS
    assert loop_len([1001, 1002, *period * repeats]) == num_tokens * repeats
    assert loop_len([1001, 1002, *period * (MIN_REPEATS - 1)]) == 0


def test_a_table_and_a_list_of_records_are_no_loops() -> None:
    names = [random.Random(index).choice(["Ana", "Bo", "Cem", "Dee"]) for index in range(40)]
    rows = "".join(f"| {name} | {20 + index} | Town |\n" for index, name in enumerate(names))
    records = ",\n".join(f'{{"name": "{name}", "age": {20 + index}}}' for index, name in enumerate(names))
    for text in (f"| name | age | city |\n| --- | --- | --- |\n{rows}", f"[\n{records}\n]"):
        assert loop_share(answer(text=text)) == 0


def test_a_sentence_again_and_again_is_a_loop_with_ids_and_without() -> None:
    sentence = "The lighthouse was first lit in 1871, and its keeper wrote down the weather. "
    text = "It is a lighthouse. " + sentence * 6
    assert loop_share(answer(text=text)) > 0.9
    token_ids = tuple(len(piece) * 1000 + ord(piece[0]) for piece in re.findall(r"\w+|\W", text))
    assert loop_share(answer(text="", token_ids=token_ids)) > 0.9


def test_no_packaged_recording_of_a_real_model_is_taken_for_a_loop() -> None:
    outputs = [response.output for file in packaged_recordings() for response in load_responses(file)]
    assert len(outputs) >= 12
    assert [output for output in outputs if output and loop_share(answer(text=output))] == []


def test_one_text_again_and_again_is_compressed_far_more_than_real_prompts() -> None:
    contexts = [response.context for file in packaged_recordings() for response in load_responses(file)]
    assert max(compression(context) for context in contexts if context) < 4
    assert compression("hello world " * 300) > 40
    assert compression("") == 0
