"""The proposer fits every version of vLLM that was read, and looks before it goes on with any other.

`vllm_versions.json` holds what stands in each version, as `record_vllm.py` read it. The model runner is a
stand-in here, a file whose module has the name of vLLM's; in tests/real_vllm the real one is probed.
"""

import ast
import importlib.metadata
import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ngram_spec import NgramSpecError, vllm_metrics
from ngram_spec.vllm import NgramSpecProposer, _is_output_rank
from ngram_spec.vllm_options import MAX_SPEC_LEN
from ngram_spec.vllm_plugin import METHOD
from ngram_spec.vllm_version import KNOWN_VLLM, OLDEST_MINOR, WORDS, calls_of_propose
from record_vllm import CONFIG, GPU_RUNNER, RECORDS, installed, read, record, version_of

RECORDED: dict[str, dict[str, Any]] = json.loads(RECORDS.read_text(encoding="utf-8"))
PERIODIC = [1, 2, 3, 4, 5] * 6
# Values for what the proposer reads of vllm_config, by the class of vLLM that has it.
VALUES: dict[str, dict[str, Any]] = {
    "SpeculativeConfig": {
        "num_speculative_tokens": 8,
        "num_speculative_tokens_per_batch_size": [(1, 8, 5)],
    },
    "ModelConfig": {
        "enable_prompt_embeds": False,
        "get_vocab_size": lambda: 50,
        "hf_config": SimpleNamespace(eos_token_id=40),
        "hf_text_config": SimpleNamespace(eos_token_id=41),
        "max_model_len": 96,
        "try_get_generation_config": lambda: {"eos_token_id": 42},
    },
    "ParallelConfig": {
        "data_parallel_index": 0,
        "distributed_executor_backend": "mp",
        "prefill_context_parallel_size": 1,
        "rank": 2,
        "tensor_parallel_size": 2,
    },
}
THE_CALL = (
    "self.drafter.propose(sampled_token_ids, self.batch.num_tokens_no_spec, self.batch.token_ids_cpu, "
    "slot_mappings=slot_mappings)"
)
RUNNER = """
class GPUModelRunner:
    def __init__(self, vllm_config, proposer):
        self.drafter = proposer(vllm_config)

    def propose_draft_token_ids(self, sampled_token_ids, slot_mappings):
        if self.method == "ngram":
            return self.drafter.propose(self.num_spec_tokens, sampled_token_ids, self.batch.token_ids_cpu)
        elif self.method == "custom_class":
            return {call}
"""


@pytest.fixture(autouse=True)
def _as_if_no_test_before_had_imported_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its log is kept from the root logger, where caplog listens, and its CPU build is warned of.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.delitem(sys.modules, "vllm.v1.sample.rejection_sampler", raising=False)


@pytest.fixture
def made_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., NgramSpecProposer]:
    """Has a model runner with this source, in a vLLM of this version, make the proposer."""

    def make(source: str, version: str, config: Any = None, then: str | None = None) -> NgramSpecProposer:
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
        file = tmp_path / "gpu_model_runner.py"
        file.write_text(source)
        spec = importlib.util.spec_from_file_location("vllm.v1.worker.gpu_model_runner", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if then is not None:
            file.write_text(then)
        drafter = module.GPUModelRunner(config or config_of("0.32.0"), NgramSpecProposer).drafter
        assert isinstance(drafter, NgramSpecProposer)
        return drafter

    return make


def config_of(version: str, **parallel: Any) -> SimpleNamespace:
    """A vllm_config with the fields of that version that the proposer reads, and no others."""
    fields = RECORDED[version]["vllm_config"]
    parts = {
        name: SimpleNamespace(**{field: values[field] for field in fields[name]})
        for name, values in VALUES.items()
    }
    vars(parts["ParallelConfig"]).update(parallel)
    of_config = {
        "additional_config": {"ngram_spec": {"draft_cost": 0.01}},
        "model_config": parts["ModelConfig"],
        "parallel_config": parts["ParallelConfig"],
        "speculative_config": parts["SpeculativeConfig"],
    }
    return SimpleNamespace(**{field: of_config[field] for field in fields["VllmConfig"]})


def arguments() -> dict[str, Any]:
    """What vLLM passes to `propose`, by the name that it has there, for one row."""
    token_ids = np.zeros((4, 96), dtype=np.int32)
    token_ids[0, : len(PERIODIC)] = PERIODIC
    num_tokens = np.array([len(PERIODIC), 0, 0, 0], dtype=np.int32)
    return {
        "sampled_token_ids": [[5]],
        "num_tokens_no_spec": num_tokens,
        "token_ids_cpu": token_ids,
        "slot_mappings": {"layers.0": object()},
    }


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_the_known_versions_are_those_that_were_read_and_the_first_has_the_method() -> None:
    assert list(RECORDED) == list(KNOWN_VLLM)
    assert KNOWN_VLLM[0] == "{}.{}.0".format(*OLDEST_MINOR)


@pytest.mark.skipif(installed() is None, reason="needs vLLM: `make test` installs it")
def test_what_was_read_of_the_installed_vllm_is_what_stands_there() -> None:
    package = installed()
    assert package is not None
    version = version_of(package)
    assert version in RECORDED, "run tests/record_vllm.py, and see whether what is new fits"
    assert record(package) == RECORDED[version]


@pytest.mark.parametrize("version", RECORDED)
def test_the_proposer_answers_the_call_of_each_version_from_its_config(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version + "+cpu"))
    facts, passed = RECORDED[version], arguments()
    assert facts["constructor"] == ["vllm_config"]
    proposer = NgramSpecProposer(config_of(version))
    drafts = proposer.propose(
        *(passed[name] for name in facts["propose_positional"]),
        **{name: passed[name] for name in facts["propose_keywords"]},
    )
    has_schedule = "num_speculative_tokens_per_batch_size" in facts["vllm_config"]["SpeculativeConfig"]
    assert drafts == [[1, 2, 3, 4, 5, 1, 2, 3][: 5 if has_schedule else 8]]
    assert proposer.num_faults == 0
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("version", RECORDED)
def test_what_else_each_version_asks_for_is_there(version: str) -> None:
    facts = RECORDED[version]
    assert "load_model" in facts["needed_methods"]
    assert all(callable(getattr(NgramSpecProposer, method)) for method in facts["needed_methods"])
    assert facts["max_spec_len"] == MAX_SPEC_LEN
    # As the plugin reads and rewrites them; a method of vLLM with our name would be out of reach.
    assert facts["create_speculative_config"][:2] == ["self", "target_model_config"]
    assert facts["spec_flags"] == ["spec_method", "spec_model", "spec_tokens"]
    assert "custom_class" in facts["methods"]
    assert METHOD not in facts["methods"]
    assert importlib.metadata.entry_points(group=facts["plugin_group"], name=METHOD)
    # Of two stages with two by two ranks each, the first of the last stage answers.
    assert facts["drafts_are_those_of"] == ["output_rank"]
    sizes = dict.fromkeys(facts["output_rank_follows_from"], 2)
    assert [rank for rank in range(8) if _is_output_rank(SimpleNamespace(rank=rank, **sizes))] == [0, 4]


def test_the_proposer_reads_of_the_config_what_is_recorded_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {
        "model_config": "ModelConfig",
        "parallel_config": "ParallelConfig",
        "speculative_config": "SpeculativeConfig",
    }
    names_read: dict[str, set[str]] = {name: set() for name in ("VllmConfig", *parts.values())}

    class Watched:
        def __init__(self, name: str, values: SimpleNamespace) -> None:
            self.of_watched = (name, values)

        def __getattr__(self, field: str) -> Any:
            name, values = self.of_watched
            names_read[name].add(field)
            value = getattr(values, field)
            return Watched(parts[field], value) if field in parts else value

    config = config_of("0.32.0")
    config.additional_config = {"ngram_spec": {"metrics_port": 9100}}
    monkeypatch.setattr(vllm_metrics, "serve", lambda *arguments: None)
    NgramSpecProposer(Watched("VllmConfig", config))
    assert names_read == {place.partition(" ")[2]: set(fields) for place, fields in CONFIG.items()}


@pytest.mark.parametrize("version", ["0.22.1", "0.33.0+cpu", "0.27.1+cu129"])
def test_a_known_version_is_not_probed(
    version: str, made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made_by(RUNNER.format(call="self.drafter.propose(self.requests)"), version)
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("version", ["0.34.0", "0.33.1", "0.33.0rc1", "1.0.0+cpu", "dev", "0.1.dev1+g1a2b3c"])
def test_an_unknown_version_that_fits_runs_with_one_warning_that_says_what_was_probed(
    version: str, made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    modules = set(sys.modules)
    proposer = made_by(RUNNER.format(call=THE_CALL), version)
    assert proposer.propose(*list(arguments().values())[:3]) == [[1, 2, 3, 4, 5]]
    (warning,) = warnings_in(caplog)
    for words in (
        version,
        "0.22.0 to 0.33.0",
        "fits",
        "propose(sampled_token_ids, ",
        "gpu_model_runner.py:10",
    ):
        assert words in warning
    assert set(sys.modules) - modules <= {"vllm"}


def test_of_several_ranks_one_warns(made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    for rank in range(4):
        made_by(
            RUNNER.format(call=THE_CALL), "0.34.0", config_of("0.32.0", rank=rank, tensor_parallel_size=4)
        )
    assert len(warnings_in(caplog)) == 1


@pytest.mark.parametrize(
    "call",
    [
        "cast(Any, self.drafter).propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)",
        "self.speculator.propose(valid_sampled_tokens, batch.num_tokens[:n], np.asarray(token_ids), n)",
        "x.propose(token_ids_cpu=tokens, sampled_token_ids=sampled, num_tokens_no_spec=num_tokens, new=1)",
        "x.propose(sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu, self.requests)",
    ],
)
def test_names_and_additions_that_cost_nothing_are_no_reason_to_stop(
    call: str, made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made_by(RUNNER.format(call=call), "0.34.0")
    assert "fits" in warnings_in(caplog)[0]


@pytest.mark.parametrize(
    "call",
    [
        "self.drafter.propose(self.requests)",
        "self.drafter.propose(requests=self.requests, slot_mappings=slot_mappings)",
        "self.drafter.propose(self.requests, sampled_token_ids, self.batch.token_ids_cpu)",
        "self.drafter.propose(n, sampled_token_ids, self.batch.num_tokens_no_spec, self.batch.token_ids_cpu)",
        "self.drafter.propose(sampled_token_ids, self.batch.token_ids_cpu, self.batch.num_tokens_no_spec)",
        "self.drafter.propose(sampled_token_ids, self.batch.num_tokens_no_spec, token_ids=self.token_ids)",
    ],
)
def test_an_unknown_version_whose_call_has_changed_stops_with_what_was_found_and_the_mend(
    call: str, made_by: Callable[..., Any]
) -> None:
    with pytest.raises(NgramSpecError) as refusal:
        made_by(RUNNER.format(call=call), "0.34.0")
    found = ast.unparse(ast.parse(call)).removeprefix("self.drafter.")
    for words in (
        "propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, ...)",
        f"found in vLLM 0.34.0 {found} at gpu_model_runner.py:10",
        "pip install vllm==0.33.0",
        "pip install --upgrade ngram-spec",
    ):
        assert words in str(refusal.value)


def test_a_runner_that_no_longer_tells_custom_classes_apart_is_judged_by_all_its_calls(
    made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    without = RUNNER.replace('elif self.method == "custom_class":', "else:")
    made_by(without.format(call=THE_CALL), "0.34.0")
    assert "fits" in warnings_in(caplog)[0]
    # Other methods, asked about and ruled out, are not the custom class.
    ruled_out = without.replace('self.method == "ngram"', 'self.method != "custom_class"')
    made_by(ruled_out.format(call=THE_CALL), "0.34.0")
    assert "fits" in warnings_in(caplog)[1]
    with pytest.raises(NgramSpecError, match=r"found in vLLM 0\.34\.0 propose\("):
        made_by(without.format(call="self.speculator.propose(batch, attn_metadata, hidden_states)"), "0.34.0")


@pytest.mark.parametrize(
    ("source", "then", "told"),
    [
        (RUNNER.format(call="self.drafter.propose(*self.arguments())"), None, "no call"),
        (RUNNER.format(call="self.drafter.propose(sampled_token_ids, **arguments)"), None, "no call"),
        (RUNNER.partition("    def propose")[0], None, "no call"),
        (RUNNER.format(call=THE_CALL), "a.propose( this is no Python", "SyntaxError"),
    ],
    ids=["starred", "starred twice", "no call", "a source that is another's"],
)
def test_a_vllm_that_cannot_be_probed_runs_with_a_warning(
    source: str, then: str | None, told: str, made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    proposer = made_by(source, "0.34.0", then=then)
    assert proposer.propose(*list(arguments().values())[:3]) == [[1, 2, 3, 4, 5]]
    (warning,) = warnings_in(caplog)
    for words in ("0.34.0", "could not be probed", told, "going on"):
        assert words in warning


def test_without_any_vllm_on_the_stack_it_goes_on_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    NgramSpecProposer(config_of("0.32.0"))
    (warning,) = warnings_in(caplog)
    assert "of unknown version" in warning
    assert "could not be probed" in warning


def test_a_config_without_a_field_that_is_needed_stops_with_its_name(made_by: Callable[..., Any]) -> None:
    config = config_of("0.32.0")
    del config.model_config.max_model_len
    with pytest.raises(NgramSpecError, match=r"must have model_config\.max_model_len, .* vLLM 0\.34\.0"):
        made_by(RUNNER.format(call=THE_CALL), "0.34.0", config)


def test_a_vllm_that_verifies_fewer_tokens_than_were_asked_for_stops_with_both_numbers(
    made_by: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for limit in (7, 8):
        module = SimpleNamespace(MAX_SPEC_LEN=limit)
        monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", module)
        monkeypatch.setattr("ngram_spec.vllm.sampling_is_broken", lambda: False)  # asks the real module
        if limit == 7:
            with pytest.raises(NgramSpecError, match=r"at most 7 in vLLM 0\.34\.0, got 8 .*lower it"):
                made_by(RUNNER.format(call=THE_CALL), "0.34.0")
        else:
            made_by(RUNNER.format(call=THE_CALL), "0.34.0")
    assert "MAX_SPEC_LEN 8" in warnings_in(caplog)[0]


@pytest.mark.parametrize("version", ["0.21.0", "0.21.0+cpu", "0.9.2"])
def test_a_version_of_vllm_without_custom_class_is_refused(version: str, made_by: Callable[..., Any]) -> None:
    with pytest.raises(NgramSpecError) as refusal:
        made_by(RUNNER.format(call=THE_CALL), version)
    assert f"found {version}: it has no custom_class; upgrade vLLM" in str(refusal.value)


@pytest.mark.skipif(installed() is None, reason="needs vLLM: `make test` installs it")
def test_the_call_of_the_installed_vllm_fits_as_if_its_version_were_unknown(
    made_by: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    package = installed()
    assert package is not None
    made_by(RUNNER.format(call="None"), "99.0.0", then=read(package, GPU_RUNNER))
    (warning,) = warnings_in(caplog)
    assert "fits" in warning
    for name in WORDS:
        assert name in warning


def test_the_calls_found_are_those_for_custom_classes() -> None:
    def lines(calls: Sequence[ast.Call]) -> list[int]:
        return [call.lineno for call in calls]

    assert lines(calls_of_propose(RUNNER.format(call=THE_CALL))) == [10]
    among = RUNNER.replace('== "custom_class"', 'in ("suffix", "custom_class") and x')
    assert lines(calls_of_propose(among.format(call=THE_CALL))) == [10]
    assert lines(calls_of_propose(RUNNER.replace("custom_class", "y").format(call=THE_CALL))) == [8, 10]
