"""The short form of the options becomes the one that vLLM knows, tried without vLLM.

`EngineArgs` here is a stand-in with the fields that the rewriting reads; tests/real_vllm runs the engine.
"""

import importlib.metadata
import logging
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from ngram_spec import NgramSpecError
from ngram_spec.vllm_plugin import PROPOSER, register

MODEL = SimpleNamespace(max_model_len=96, get_vocab_size=lambda: 50)


@dataclass
class SpeculativeConfig:
    """Keys that vLLM itself takes."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    num_speculative_tokens_per_batch_size: object = None


@pytest.fixture(autouse=True)
def _log_reaches_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM, once imported by another test, keeps its log from the root logger, where caplog listens.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


@pytest.fixture
def engine_args(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of a vLLM whose plugins are loaded."""

    @dataclass
    class EngineArgs:
        speculative_config: dict[str, Any] | None = None
        additional_config: dict[str, Any] = field(default_factory=dict)
        spec_method: str | None = None
        spec_model: str | None = None
        spec_tokens: int | None = None

        def create_speculative_config(self, target_model_config: Any) -> SpeculativeConfig | None:
            assert target_model_config is MODEL
            return SpeculativeConfig(**self.speculative_config) if self.speculative_config else None

    module = SimpleNamespace(EngineArgs=EngineArgs)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(engine=SimpleNamespace(arg_utils=module)))
    monkeypatch.setitem(sys.modules, "vllm.engine", SimpleNamespace(arg_utils=module))
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    register()
    return EngineArgs


def test_the_short_form_becomes_custom_class_with_the_options_in_additional_config(engine_args: Any) -> None:
    given = {
        "method": "ngram_spec",
        "num_speculative_tokens": 32,
        "draft-cost": 0.1,
        "learn": False,
        "num_speculative_tokens_per_batch_size": [(1, 4, 8)],
    }
    as_given = dict(given)
    args = engine_args(given, {"of_another": 1})
    config = args.create_speculative_config(target_model_config=MODEL)
    assert config == SpeculativeConfig("custom_class", PROPOSER, 32, [(1, 4, 8)])
    assert args.additional_config == {"of_another": 1, "ngram_spec": {"draft_cost": 0.1, "learn": False}}
    assert given == as_given
    # vLLM may build its configuration twice from the same arguments.
    assert args.create_speculative_config(MODEL) == config


def test_without_a_number_of_tokens_it_is_16(engine_args: Any) -> None:
    args = engine_args({"method": "ngram_spec"})
    assert args.create_speculative_config(MODEL).num_speculative_tokens == 16


def test_the_flags_of_their_own_for_method_and_tokens_work_too(engine_args: Any) -> None:
    args = engine_args({"draft_cost": 0.1}, spec_method="ngram_spec", spec_tokens=7)
    assert args.create_speculative_config(MODEL) == SpeculativeConfig("custom_class", PROPOSER, 7)
    assert args.additional_config == {"ngram_spec": {"draft_cost": 0.1}}


@pytest.mark.parametrize(
    "given", [None, {"method": "ngram"}, {"method": "custom_class", "model": PROPOSER}, {"model": "a/draft"}]
)
def test_other_methods_are_left_as_they_are(given: dict[str, Any] | None, engine_args: Any) -> None:
    args = engine_args(given)
    args.create_speculative_config(MODEL)
    assert args == engine_args(given)


def test_registering_again_wraps_nothing_twice(engine_args: Any) -> None:
    wrapped = engine_args.create_speculative_config
    register()
    assert engine_args.create_speculative_config is wrapped


@pytest.mark.parametrize(
    ("given", "additional", "told"),
    [
        ({"draft_cots": 0.1}, {}, ["draft_cots", "0.1", "did you mean draft_cost?"]),
        ({"draft_cost": -1}, {}, ["draft_cost", "-1", "a number,"]),
        ({"max_draft_tokens": 4}, {}, ["max_draft_tokens", "4", "num_speculative_tokens"]),
        ({"num_speculative_tokens": 129}, {}, ["num_speculative_tokens", "at most 128", "129"]),
        ({"num_speculative_tokens": 0}, {}, ["num_speculative_tokens", "positive", "0"]),
        ({"model": "a/draft"}, {}, ["model", "a/draft", "leave"]),
        (
            {"draft_cost": 0.1},
            {"draft_cost": 0.2},
            ["draft_cost", "0.1", "0.2", "--additional-config", "leave one out"],
        ),
    ],
)
def test_a_bad_short_form_stops_at_start_with_key_value_and_mend(
    given: dict[str, Any], additional: dict[str, Any], told: list[str], engine_args: Any
) -> None:
    args = engine_args({"method": "ngram_spec", **given}, {"ngram_spec": additional})
    with pytest.raises(NgramSpecError) as refusal:
        args.create_speculative_config(MODEL)
    assert "--speculative-config" in str(refusal.value)
    for words in told:
        assert words in str(refusal.value)


def test_the_same_option_given_twice_is_taken_once(engine_args: Any) -> None:
    args = engine_args(
        {"method": "ngram_spec", "draft_cost": 0.1}, {"ngram_spec": {"draft_cost": 0.1, "learn": False}}
    )
    args.create_speculative_config(MODEL)
    assert args.additional_config == {"ngram_spec": {"draft_cost": 0.1, "learn": False}}


def test_a_vllm_without_the_hook_is_told_of_in_the_log_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = SimpleNamespace(EngineArgs=type("EngineArgs", (), {}))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.34.0"))
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    register()
    for words in ("vLLM 0.34.0", "custom_class", PROPOSER, "pip install --upgrade ngram-spec"):
        assert words in caplog.text


def test_a_vllm_whose_arguments_have_moved_is_told_of_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", SimpleNamespace())
    register()
    assert "EngineArgs.create_speculative_config" in caplog.text
    assert "AttributeError" in caplog.text


def test_a_vllm_without_custom_class_is_refused_before_it_speaks_of_a_method_nobody_gave(
    engine_args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.21.0", raising=False)
    with pytest.raises(NgramSpecError, match=r"found 0\.21\.0: it has no custom_class; upgrade"):
        engine_args({"method": "ngram_spec"}).create_speculative_config(MODEL)
    assert engine_args({"method": "ngram"}).create_speculative_config(MODEL).method == "ngram"


def test_vllm_finds_the_plugin_which_imports_no_torch_by_itself() -> None:
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="ngram_spec")
    assert found.load() is register
    program = "import sys, ngram_spec.vllm_plugin; print(sys.modules.keys() & {'torch', 'vllm'})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
