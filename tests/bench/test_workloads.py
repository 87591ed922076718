"""Which prompts a run takes from a file, and which of them one block asks."""

import json
from pathlib import Path

import pytest
from bench_runs import prompt, prompts_file
from ngram_spec import NgramSpecError
from ngram_spec.bench.workloads import Workload, load_workloads


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def block_ids(workload: Workload, group: int, num_groups: int, concurrency: int) -> str:
    return "".join(one.prompt_id for one in workload.block(group, num_groups, concurrency))


def test_a_file_is_a_workload_of_chats_and_texts_and_a_recorded_answer_is_not_asked(tmp_path: Path) -> None:
    (workload,) = load_workloads([prompts_file(tmp_path)], num_prompts=9)
    assert workload.name == "mine"
    routes = {one.prompt_id: one.route for one in workload.prompts}
    assert routes == dict.fromkeys(("chat", "log"), "chat/completions") | dict.fromkeys(
        ("text", "code"), "completions"
    )
    asked = {one.prompt_id: one.body for one in workload.prompts}
    assert asked["log"] == {"messages": [{"role": "user", "content": "Hi"}]}
    assert asked["text"] == {"prompt": "Once upon a time there was a server"}


def test_without_a_file_the_packaged_recordings_are_asked() -> None:
    workloads = load_workloads([], num_prompts=3)
    assert [workload.name for workload in workloads] == ["code_edit", "rag", "summarization"]
    assert [len(workload.prompts) for workload in workloads] == [3, 3, 3]
    assert all(1 < workload.prompt_compression < 5 for workload in workloads)


def test_of_a_long_file_prompts_are_taken_evenly(tmp_path: Path) -> None:
    path = written(tmp_path / "long.jsonl", *({"id": n, "prompt": f"p{n}"} for n in range(100)))
    (workload,) = load_workloads([path], num_prompts=4)
    assert [one.prompt_id for one in workload.prompts] == ["0", "25", "50", "75"]


def test_files_of_one_name_and_records_of_one_id_stay_tellable_apart(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", {"id": "x", "prompt": "1"}, {"id": "x", "prompt": "2"})
    (tmp_path / "b").mkdir()
    second = written(tmp_path / "b" / "a.jsonl", {"prompt": "3"})
    workloads = load_workloads([first, second], num_prompts=9)
    assert [workload.name for workload in workloads] == [str(first), str(second)]
    assert [one.prompt_id for one in workloads[0].prompts] == ["x", f"{first}:2"]
    assert workloads[1].prompts[0].prompt_id == f"{second}:1"


def test_a_name_that_two_files_share_without_their_endings_is_their_path(tmp_path: Path) -> None:
    files = [tmp_path / "chat.jsonl", tmp_path / "chat"]
    for file in files:
        file.write_text(json.dumps({"prompt": "Hello"}) + "\n")
    assert [workload.name for workload in load_workloads(files, 1)] == [str(file) for file in files]


def test_any_change_of_the_prompts_changes_the_digest(tmp_path: Path) -> None:
    (one,) = load_workloads([written(tmp_path / "a.jsonl", {"id": "x", "prompt": "1"})], 9)
    (same,) = load_workloads([written(tmp_path / "a.jsonl", {"id": "x", "prompt": "1", "output": "y"})], 9)
    (other,) = load_workloads([written(tmp_path / "a.jsonl", {"id": "x", "prompt": "2"})], 9)
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": []}, "messages must be a non-empty list"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "what the assistant is to answer"),
        ({"output": "y"}, "must have messages or prompt"),
        ({"prompt": "1", "messages": []}, "not both"),
        ({"prompt": "\ud800"}, "valid Unicode"),
        ({"prompt": "1", "id": "\ud800"}, "valid Unicode"),
        ([1], "must be a JSON object"),
    ],
)
def test_a_record_that_cannot_be_asked_is_refused_with_its_place(
    tmp_path: Path, record: object, message: str
) -> None:
    path = written(tmp_path / "a.jsonl", {"prompt": "fine"}, record)
    with pytest.raises(NgramSpecError, match=message) as caught:
        load_workloads([path], 9)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_the_groups_of_a_workload_ask_each_prompt_once_where_one_request_is_open() -> None:
    workload = Workload("w", tuple(prompt(letter) for letter in "abcdefg"))
    assert [block_ids(workload, group, 3, 1) for group in range(3)] == ["adg", "be", "cf"]


def test_a_block_keeps_all_clients_busy_first_with_its_own_prompts() -> None:
    workload = Workload("w", tuple(prompt(letter) for letter in "abcdefg"))
    assert block_ids(workload, 1, 3, 2) == "beac"
    assert block_ids(workload, 0, 3, 5) == "adgbcefadg"
