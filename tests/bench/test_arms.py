"""Which arms there are, and what of them is refused before a server starts."""

import importlib.util
import json
from collections.abc import Mapping, Sequence

import pytest
from ngram_spec import NgramSpecError
from ngram_spec.bench.arms import drafter_of, flags_with_metrics, make_arms


def test_arms_are_the_engine_as_it_is_the_engine_as_drafts_need_it_and_the_drafters() -> None:
    off, off_v1, ngram, ours = make_arms(["off", "off-v1", "ngram", "ngram_spec"], {}, draft_cost=0.01)
    assert (off.flags, off.environment, off.is_speculative) == ((), {}, False)
    assert off_v1.flags == ("--no-async-scheduling",)
    assert off_v1.environment == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert not off_v1.is_speculative
    assert drafter_of(ngram)["method"] == "ngram"
    assert ours.flags == (
        "--speculative-config",
        '{"method": "ngram_spec", "num_speculative_tokens": 16, "draft_cost": 0.01}',
    )
    assert ngram.is_speculative
    assert ours.is_speculative


def test_any_speculative_config_is_an_arm() -> None:
    config = {"method": "eagle3", "model": "some/model", "num_speculative_tokens": 3}
    *_, arm = make_arms(["off"], {"eagle": json.dumps(config)})
    assert (arm.name, drafter_of(arm), arm.is_speculative) == ("eagle", config, True)


def test_suffix_has_no_memory_of_answers_that_it_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    _, suffix = make_arms(["off", "suffix"], {})
    assert drafter_of(suffix)["suffix_decoding_max_cached_requests"] == 0


@pytest.mark.parametrize(
    ("names", "extra", "message"),
    [
        (["off", "ngrams"], {}, r"one of off, off-v1, ngram, suffix, ngram_spec, got 'ngrams'"),
        (["ngram"], {}, "arm off must be among the arms, got ngram"),
        (["off"], {}, "there must be an arm beside off"),
        (["off", "ngram", "ngram"], {}, "different names, got 'ngram' twice"),
        (["off", "ngram"], {"ngram": "{}"}, "different names, got 'ngram' twice"),
        (["off"], {"a/b": "{}"}, "letters, digits, '.', '_' and '-', got 'a/b'"),
        (["off"], {"mine": "{method: ngram}"}, r"--arm mine must be JSON .* got '\{method: ngram\}'"),
        (["off"], {"mine": "[1]"}, "--arm mine must be a JSON object"),
        (["off", "suffix"], {}, "pip install arctic-inference"),
        (["off"], {"mine": '{"method": "suffix"}'}, "arm mine must have the package arctic-inference"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(
    monkeypatch: pytest.MonkeyPatch, names: Sequence[str], extra: Mapping[str, str], message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NgramSpecError, match=message):
        make_arms(names, extra)


def test_only_our_drafter_gets_a_port_for_its_metrics_unless_it_has_one() -> None:
    off, ngram, ours, own_port = make_arms(
        ["off", "ngram", "ngram_spec"], {"mine": '{"method": "ngram_spec", "metrics_port": 9000}'}
    )
    assert flags_with_metrics(off, 8000) == (off.flags, None)
    assert flags_with_metrics(ngram, 8000) == (ngram.flags, None)
    flags, port = flags_with_metrics(ours, 8000)
    assert (json.loads(flags[1])["metrics_port"], port) == (8000, 8000)
    assert flags_with_metrics(own_port, 8000) == (own_port.flags, 9000)
