"""The options of the vLLM proposer do what they say, and a bad one stops at start."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from ngram_spec import AcceptanceModel, NgramSpecError
from ngram_spec.vllm import NUM_STEPS_PER_LOOK, NgramSpecProposer
from stand_in import PERIODIC, on_rank, propose, vllm_config
from stand_in import log_reaches_caplog as log_reaches_caplog


def test_a_draft_ends_at_an_end_of_sequence_id() -> None:
    for config in (
        vllm_config(eos_token_id=4),
        vllm_config(eos_token_id=[4, 7]),
        vllm_config(try_get_generation_config=lambda: {"eos_token_id": [9, 4]}),
        vllm_config({"eos_token_ids": [4]}, eos_token_id=2),
    ):
        assert propose(NgramSpecProposer(config), [PERIODIC]) == [[1, 2, 3, 4]]


def test_an_unreadable_generation_config_leaves_the_ids_of_the_model_config() -> None:
    def unreadable() -> dict[str, Any]:
        raise OSError("no such file")

    proposer = NgramSpecProposer(vllm_config(eos_token_id=4, try_get_generation_config=unreadable))
    assert propose(proposer, [PERIODIC]) == [[1, 2, 3, 4]]


def test_disabled_it_answers_empty_drafts() -> None:
    proposer = NgramSpecProposer(vllm_config({"enabled": False}))
    assert propose(proposer, [PERIODIC, PERIODIC]) == [[], []]
    assert propose(proposer, []) == []


def test_ranks_that_must_draft_alike_take_no_switch_file() -> None:
    with pytest.raises(NgramSpecError, match=r"switch_file.*external_launcher.*got 'off'"):
        NgramSpecProposer(on_rank(0, "external_launcher", {"switch_file": "off"}))


def test_drafting_is_off_while_the_switch_file_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "off"
    proposer = NgramSpecProposer(vllm_config({"switch_file": str(switch)}))

    def drafted(num_steps: int = NUM_STEPS_PER_LOOK) -> list[bool]:
        return [bool(propose(proposer, [PERIODIC])[0]) for _ in range(num_steps)]

    assert all(drafted())
    switch.touch()
    assert not any(drafted())
    assert proposer.stats()["is_drafting"] == 0
    switch.unlink()
    assert all(drafted())
    assert "switched off" in caplog.text
    assert "switched on" in caplog.text


def test_a_switch_file_that_cannot_be_looked_for_is_not_there(tmp_path: Path) -> None:
    # As in a directory that may not be searched: the system refuses the question, with another error.
    proposer = NgramSpecProposer(vllm_config({"switch_file": str(tmp_path / ("x" * 5000))}))
    assert propose(proposer, [PERIODIC])[0]
    assert proposer.num_faults == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"draft_cots": 0.1}, ["draft_cots", "0.1", "did you mean draft_cost?", "min_match_len"]),
        ({"max_draft_tokens": 4}, ["max_draft_tokens", "4", "num_speculative_tokens"]),
        ({"vocab_size": 4}, ["vocab_size", "4"]),
        ({"max_bytes": 0}, ["max_bytes", "0", "whole number of bytes"]),
        ({"max_bytes": "1GiB"}, ["max_bytes", "1GiB", "whole number of bytes"]),
        ({"max_bytes": 1.5}, ["max_bytes", "1.5"]),
        ({"max_bytes": 10**30}, ["max_bytes"]),
        ({"draft_cost": -1}, ["draft_cost", "-1", "a number,"]),
        ({"draft_cost": "cheap"}, ["draft_cost", "cheap"]),
        ({"draft_cost": True}, ["draft_cost", "True"]),
        ({"draft_cost": [[1, 1.0], [2]]}, ["draft_cost", "[[1, 1.0], [2]]"]),
        ({"draft_cost": []}, ["draft_cost", "[]"]),
        ({"min_match_len": 0}, ["min_match_len", "0"]),
        ({"eos_token_ids": 2}, ["eos_token_ids", "2", "a list of token ids"]),
        ({"eos_token_ids": [-2]}, ["eos_token_ids", "-2"]),
        ({"eos_token_ids": [True]}, ["eos_token_ids", "True", "a list of token ids"]),
        ({"eos_token_ids": {}}, ["eos_token_ids", "{}", "a list of token ids"]),
        ({"switch_file": "a\0b"}, ["switch_file", "the path of a file"]),
        ({"metrics_host": ""}, ["metrics_host", "the address"]),
        ({"draft_cost": "no/such/file.json"}, ["draft_cost", "no/such/file.json", '"h100"', "JSON file"]),
        ({"prior": {"never": [0.5]}}, ["prior", "never", "weights by feature name"]),
        ({"prior": {"nevr": 0.5}}, ["prior", "nevr", "bias, once, twice"]),
        ({"learn": "on"}, ["learn", "on", "true or false"]),
        ({"metrics_port": 70000}, ["metrics_port", "70000", "65535"]),
        ({"metrics_port": "9090"}, ["metrics_port", "9090"]),
        ({"metrics_host": 1}, ["metrics_host", "1"]),
        ({"switch_file": ""}, ["switch_file", "path of a file"]),
        ({"prior": 3}, ["prior", "3"]),
        ({"enabled": "yes"}, ["enabled", "yes", "true or false"]),
        ({"enabled": 1}, ["enabled", "1", "true or false"]),
        ("fast", ["must be an object", "fast"]),
    ],
)
def test_a_bad_option_stops_at_start_with_key_value_and_mend(options: object, told: list[str]) -> None:
    with pytest.raises(NgramSpecError) as refusal:
        NgramSpecProposer(vllm_config(options))
    message = str(refusal.value)
    assert "--additional-config" in message
    for words in told:
        assert words in message


def test_draft_cost_may_be_the_curve_of_an_h100_or_that_of_a_file(tmp_path: Path) -> None:
    steep = tmp_path / "steep.json"
    steep.write_text("[[1, 1.0], [2, 1.9], [16, 9.0]]")
    lens = {
        cost: len(propose(NgramSpecProposer(vllm_config({"draft_cost": cost})), [PERIODIC])[0])
        for cost in ("h100", str(steep))
    }
    assert lens["h100"] == 8
    assert lens[str(steep)] < 8


def test_what_is_accepted_is_learned_unless_it_is_told_not_to() -> None:
    weights = {}
    for learn in (True, False, None):
        proposer = NgramSpecProposer(vllm_config({} if learn is None else {"learn": learn}))
        row = list(PERIODIC)
        for token_id in [7, 8, 9, 1, 2, 3, 7, 9] * 4:  # not what was drafted
            propose(proposer, [row])
            row.append(token_id)
        weights[learn] = proposer.acceptance.weights()
    assert weights[False] == AcceptanceModel().weights()
    assert weights[True] == weights[None] != weights[False]


def test_a_prior_takes_the_place_of_the_shipped_weights() -> None:
    hopeless = NgramSpecProposer(vllm_config({"prior": {"bias": -9.0}, "learn": False}))
    assert propose(hopeless, [PERIODIC]) == [[]]


def test_a_misspelled_section_is_refused_and_those_of_others_are_not() -> None:
    config = vllm_config()
    config.additional_config = {"gdn_prefill_backend": "auto"}
    NgramSpecProposer(config)
    config.additional_config = {"ngram-spec": {"draft_cost": 0.1}}
    with pytest.raises(NgramSpecError, match="ngram-spec"):
        NgramSpecProposer(config)


def test_more_speculative_tokens_than_vllm_can_verify_are_refused_at_start() -> None:
    with pytest.raises(NgramSpecError, match="at most 128, got 129"):
        NgramSpecProposer(vllm_config(num_speculative_tokens=129))


def test_good_options_are_taken_and_the_effective_settings_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {
        "enabled": True,
        "max_bytes": 2**20,
        "draft_cost": [[1, 1.0], [64, 1.5]],
        "min_match_len": 2,
        "eos_token_ids": [3],
    }
    with caplog.at_level(logging.INFO, logger="vllm.ngram_spec"):
        proposer = NgramSpecProposer(vllm_config(json.loads(json.dumps(options))))
        for _ in range(3):
            assert propose(proposer, [PERIODIC]) == [[1, 2, 3]]
    settings = [record.getMessage() for record in caplog.records if "with enabled" in record.getMessage()]
    assert len(settings) == 1
    for words in (
        "draft_cost = [[1, 1.0], [64, 1.5]]",
        "min_match_len = 2",
        "max_draft_tokens = 8",
        "max_context_len = 96",
        "eos_token_ids = [3]",
        "Model Runner V1",
        "async scheduling",
    ):
        assert words in settings[0]
