"""Teaches vLLM the short form of the options, which needs neither the proposer's path nor a second flag.

    vllm serve MODEL --speculative-config '{"method": "ngram_spec", "num_speculative_tokens": 16, ...}'

vLLM calls `register`, an entry point of the group `vllm.general_plugins`, in each of its processes before it
builds its configuration. The names of methods are fixed in vLLM, so `EngineArgs.create_speculative_config` is
wrapped (as read in vLLM 0.22.0 to 0.33.0, `engine/arg_utils.py`), and the short form rewritten into the one
that vLLM knows: method `custom_class`, with the options in `--additional-config`.
"""

import functools
import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ngram_spec._core import NgramSpecError
from ngram_spec.vllm_options import OPTIONS, checked_max_draft_tokens, options_in, read_options
from ngram_spec.vllm_version import MEND, loaded_version, refuse_old

METHOD = "ngram_spec"
PROPOSER = "ngram_spec.vllm.NgramSpecProposer"
DEFAULT_NUM_SPECULATIVE_TOKENS = 16
PLACE = 'the options of method "ngram_spec" in --speculative-config'

# Only loggers below "vllm" reach the handlers that vLLM sets up.
logger = logging.getLogger("vllm.ngram_spec")


def register() -> None:
    """Wrap the function of vLLM that reads `--speculative-config`, once per process; raise nothing."""
    try:
        # Loaded already wherever a configuration is built, with all that it imports.
        engine_args: Any = importlib.import_module("vllm.engine.arg_utils").EngineArgs
        create: Callable[..., Any] = engine_args.create_speculative_config
        if not hasattr(create, "of_ngram_spec"):
            engine_args.create_speculative_config = _with_short_form(create)
    except Exception as error:
        logger.warning(
            "ngram-spec: vLLM %s has no EngineArgs.create_speculative_config to teach the short form "
            '(%s: %s): give "method": "custom_class" and "model": "%s", with options in --additional-config; '
            "or %s",
            loaded_version(),
            type(error).__name__,
            error,
            PROPOSER,
            MEND,
        )


def _with_short_form(create: Callable[..., Any]) -> Callable[..., Any]:
    # What vLLM itself takes in --speculative-config, to tell its keys from misspelled ones of ours.
    speculative_config = getattr(create, "__globals__", {}).get("SpeculativeConfig")
    keys_of_vllm = frozenset(getattr(speculative_config, "__dataclass_fields__", ()))

    @functools.wraps(create)
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        target_model = kwargs.get("target_model_config", args[0] if args else None)
        rewrite(self, target_model, keys_of_vllm)
        return create(self, *args, **kwargs)

    create_speculative_config.of_ngram_spec = True  # type: ignore[attr-defined]
    return create_speculative_config


def rewrite(engine_args: Any, target_model: Any, keys_of_vllm: frozenset[str]) -> None:
    """Turn the short form in `engine_args` into method `custom_class`; leave any other method alone.

    Raises:
        NgramSpecError: an option is unknown, cannot have its value, or is given twice with different values;
            or vLLM is too old for method custom_class.
    """
    speculative = getattr(engine_args, "speculative_config", None)
    method_flag = getattr(engine_args, "spec_method", None)
    given = dict(speculative) if isinstance(speculative, Mapping) else {}
    if METHOD not in (str(given.get("method")).replace("-", "_"), str(method_flag).replace("-", "_")):
        return
    given = {str(key).replace("-", "_"): value for key, value in given.items()}  # as vLLM does
    if method_flag is not None and "method" in given:
        return  # vLLM refuses the two together
    refuse_old(loaded_version())  # before vLLM does, which would speak of a method that nobody gave
    given.pop("method", None)
    for flag, key in (("spec_model", "model"), ("spec_tokens", "num_speculative_tokens")):
        if getattr(engine_args, flag, None) is not None:
            _check_same(key, given, getattr(engine_args, flag), f"--{flag.replace('_', '-')}")
            given[key] = getattr(engine_args, flag)
    if given.pop("model", PROPOSER) != PROPOSER:
        raise NgramSpecError(
            f'method "ngram_spec" has no draft model: leave "model" out of --speculative-config, got '
            f"{_value(engine_args, 'model')!r}"
        )
    max_draft_tokens = checked_max_draft_tokens(
        given.pop("num_speculative_tokens", DEFAULT_NUM_SPECULATIVE_TOKENS)
    )
    kept = {key: given.pop(key) for key in list(given) if key in keys_of_vllm - OPTIONS.keys()}
    derived = _derived(target_model, max_draft_tokens)
    read_options(given, derived, PLACE, also_known=("num_speculative_tokens",))

    additional = getattr(engine_args, "additional_config", None)
    if additional and not isinstance(additional, Mapping):
        raise NgramSpecError(f"--additional-config must be an object, got {additional!r}")
    also_given = options_in(additional)
    for key, value in also_given.items():
        _check_same(key, given, value, "--additional-config")
    engine_args.additional_config = {**(additional or {}), METHOD: {**also_given, **given}}
    engine_args.speculative_config = {
        **kept,
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": max_draft_tokens,
    }
    for flag in ("spec_method", "spec_model", "spec_tokens"):
        if hasattr(engine_args, flag):
            setattr(engine_args, flag, None)


def _check_same(key: str, given: Mapping[str, Any], other: object, other_place: str) -> None:
    if key in given and given[key] != other:
        raise NgramSpecError(
            f"{key} must be given once, got {given[key]!r} in --speculative-config and {other!r} in "
            f"{other_place}: leave one out"
        )


def _derived(target_model: Any, max_draft_tokens: int) -> dict[str, int]:
    derived = {"max_draft_tokens": max_draft_tokens}
    if target_model is not None:
        derived["max_context_len"] = int(target_model.max_model_len)
        derived["vocab_size"] = int(target_model.get_vocab_size())
    return derived


def _value(engine_args: Any, key: str) -> object:
    flag = getattr(engine_args, f"spec_{key}", None)
    return flag if flag is not None else engine_args.speculative_config.get(key)
