"""The short form on vLLM's own command line, up to the configuration that a server would start with."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

# Before vLLM is imported: engine sets the environment that vLLM reads then.
from engine import MAX_MODEL_LEN
from ngram_spec import NgramSpecError
from ngram_spec.vllm_plugin import PROPOSER
from small_model import small_model

# The warnings are of vLLM's own libraries.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def config_of(speculative: Mapping[str, Any], *arguments: str) -> Any:
    """What `vllm serve` makes of these arguments."""
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    common = ["--model", str(small_model()), "--max-model-len", str(MAX_MODEL_LEN)]
    flags = [*common, "--speculative-config", json.dumps(speculative), *arguments]
    return AsyncEngineArgs.from_cli_args(parser.parse_args(flags)).create_engine_config()


def test_the_command_line_takes_it_with_the_options_beside_the_method() -> None:
    options = {"draft_cost": "h100", "learn": False, "metrics_port": 9101}
    config = config_of({"method": "ngram_spec", "num_speculative_tokens": 32, **options})
    speculative = config.speculative_config
    assert (speculative.method, speculative.num_speculative_tokens) == ("custom_class", 32)
    assert speculative.model == PROPOSER
    assert config.additional_config == {"ngram_spec": options}


def test_it_refuses_a_misspelled_option_before_anything_is_loaded() -> None:
    with pytest.raises(NgramSpecError, match=r"draft_cots = 0\.1: did you mean draft_cost\?"):
        config_of({"method": "ngram_spec", "draft_cots": 0.1})


def test_it_refuses_an_option_that_is_given_twice_with_two_values() -> None:
    also = json.dumps({"ngram_spec": {"draft_cost": 0.2}})
    with pytest.raises(
        NgramSpecError, match=r"draft_cost must be given once, got 0\.1 .* 0\.2 .* leave one out"
    ):
        config_of({"method": "ngram_spec", "draft_cost": 0.1}, "--additional-config", also)


def test_methods_of_vllm_itself_still_work() -> None:
    config = config_of({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})
    assert config.speculative_config.method == "ngram"
    assert config.additional_config == {}
