"""The options of the proposer in vLLM: which there are, and what a wrong one is answered with.

They stand under "ngram_spec" in `--additional-config`, or, in the short form, in `--speculative-config`.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngram_spec._core import AcceptanceModel, CostCurve, DrafterPool, NgramSpecError

MAX_SPEC_LEN = 128
OPTIONS_PLACE = 'the "ngram_spec" options of --additional-config'
OPTIONS = {
    "enabled": "true or false",
    "max_bytes": "a positive whole number of bytes",
    "draft_cost": 'a number, "h100", a list of [total tokens of a step, relative step time] points, '
    "or the path of a JSON file that holds such a list",
    "min_match_len": "a positive whole number of tokens",
    "eos_token_ids": "a list of token ids",
    "learn": "true or false",
    "prior": "an object of weights by feature name",
    "switch_file": "the path of a file; while it exists, nothing is drafted",
    "metrics_port": "a port number from 1 to 65535",
    "metrics_host": "the address to serve metrics on",
}
FLAGS = ("enabled", "learn")
OWN_DEFAULTS = {"enabled": True, "learn": True, "metrics_host": "127.0.0.1"}
ENGINE_OPTIONS = {
    "max_draft_tokens": "num_speculative_tokens in --speculative-config",
    "max_context_len": "--max-model-len",
    "vocab_size": "the vocabulary in the model's own config",
}


@dataclass(frozen=True)
class Options:
    """What the proposer runs with: `pool` as DrafterPool takes it, the rest as the user gave it."""

    pool: Mapping[str, Any]
    enabled: bool
    switch_file: Path | None
    metrics_port: int | None
    metrics_host: str


def read_options(
    given: Mapping[str, Any],
    derived: Mapping[str, Any],
    place: str = OPTIONS_PLACE,
    also_known: Sequence[str] = (),
) -> Options:
    """Return `given` checked one by one; `derived` is what the pool gets from the engine's own settings.

    Raises:
        NgramSpecError: an option is unknown or has a value it cannot have; the sentence names the key, the
            value and what it must be, with `place` as where it stands. What else may stand there,
            `also_known`, is told to whoever misspells a key.
    """
    pool: dict[str, Any] = {}
    for key, value in given.items():
        _check_key(key, value, place, (*OPTIONS, *also_known))
        try:
            pool.update(_pool_option(key, value, derived))
        except (TypeError, ValueError, OverflowError, OSError, RecursionError) as error:
            rule = f"{key} must be {OPTIONS[key]}, got {value!r} in {place}"
            raise NgramSpecError(f"{rule} ({error})") from error
    values: dict[str, Any] = {**OWN_DEFAULTS, **given}
    # One model for all rows of the engine: each row alone sees too little to learn from.
    pool["acceptance"] = AcceptanceModel(values.get("prior"), learn=values["learn"])
    return Options(
        pool=pool,
        enabled=values["enabled"],
        switch_file=Path(values["switch_file"]) if "switch_file" in values else None,
        metrics_port=values.get("metrics_port"),
        metrics_host=values["metrics_host"],
    )


def options_in(additional_config: object) -> dict[str, Any]:
    """Return the options, unchecked, that stand in vLLM's additional config."""
    if not isinstance(additional_config, Mapping):
        return {}
    for key in additional_config:
        if key != "ngram_spec" and re.sub(r"[^a-z]", "", str(key).lower()) in ("ngramspec", "ngram"):
            raise NgramSpecError(f'options must stand under "ngram_spec" in --additional-config, got {key!r}')
    given = additional_config.get("ngram_spec", {})
    if not isinstance(given, Mapping):
        raise NgramSpecError(f"{OPTIONS_PLACE} must be an object, got {given!r}")
    return dict(given)


def checked_max_draft_tokens(num_speculative_tokens: object) -> int:
    """Return `num_speculative_tokens` if vLLM can verify so many at once.

    Raises:
        NgramSpecError: it is no whole number from 1 to 128.
    """
    number = num_speculative_tokens
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        rule = "num_speculative_tokens must be a positive whole number"
        raise NgramSpecError(f"{rule}, got {number!r} in --speculative-config")
    if number > MAX_SPEC_LEN:
        raise NgramSpecError(
            f"num_speculative_tokens must be at most {MAX_SPEC_LEN}, got {number} in "
            "--speculative-config: vLLM's rejection sampler takes no more"
        )
    return number


def _check_key(key: str, value: object, place: str, known: Sequence[str]) -> None:
    if key in ENGINE_OPTIONS:
        raise NgramSpecError(
            f"{key} must not be in {place}, got {value!r}: it follows from {ENGINE_OPTIONS[key]}"
        )
    if key not in OPTIONS:
        nearest = difflib.get_close_matches(str(key), known, n=1)
        hint = f": did you mean {nearest[0]}?" if nearest else ""
        raise NgramSpecError(f"{place} must be among {', '.join(known)}, got {key} = {value!r}{hint}")


def _pool_option(key: str, value: Any, derived: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, bool) != (key in FLAGS):  # a bool would pass for the number 0 or 1
        raise TypeError(f"it is of type {type(value).__name__}")
    if key in FLAGS:
        return {}
    if key in ("switch_file", "metrics_host"):
        if not isinstance(value, str) or not value or "\0" in value:
            raise TypeError("it is no text")
        return {}
    if key == "metrics_port":
        if not isinstance(value, int) or not 1 <= value <= 65535:
            raise ValueError("there is no such port")
        return {}
    if key == "prior":
        if not isinstance(value, Mapping):
            raise TypeError(f"it is of type {type(value).__name__}")
        AcceptanceModel(value)
        return {}
    if key == "eos_token_ids" and (not isinstance(value, list | tuple) or bool in map(type, value)):
        raise TypeError("it is no such list")
    if key == "draft_cost" and isinstance(value, str | list | tuple):
        value = _cost_curve(value)
    option = {key: value}
    DrafterPool(**option, **derived)  # with no other option, so that a refusal is this one's
    return option


def _cost_curve(value: Any) -> CostCurve:
    if value == "h100":
        return CostCurve.h100()
    points = json.loads(Path(value).read_text("utf-8")) if isinstance(value, str) else value
    return CostCurve([(tokens, time) for tokens, time in points])
