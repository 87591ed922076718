"""What is compared: ways to serve the model, each with flags and environment variables of its own.

`off` is the engine as it is, and what all others are judged against. `off-v1` is the engine without drafts in
the mode that a drafter forces on it, which splits the cost of that mode from the gain of the drafts.
"""

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.records import OFF, OFF_V1, Arm
from ngram_spec.vllm_plugin import DEFAULT_NUM_SPECULATIVE_TOKENS, METHOD

NGRAM, SUFFIX = "ngram", "suffix"
SPECULATIVE_CONFIG = "--speculative-config"
# As vLLM's own documentation has them.
NGRAM_CONFIG = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
# Without its memory of earlier answers: a run asks the same prompts again at each concurrency, and that
# memory would know the answers by heart, as it would not in real traffic.
SUFFIX_CONFIG = {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0}
# As method "custom_class" has it: see `VllmConfig.use_v2_model_runner` and `async_scheduling` in vLLM 0.32.0.
V1_FLAGS = ("--no-async-scheduling",)
V1_ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
NAMES = (OFF, OFF_V1, NGRAM, SUFFIX, METHOD)


def make_arms(
    names: Sequence[str],
    extra: Mapping[str, str],
    *,
    num_speculative_tokens: int = DEFAULT_NUM_SPECULATIVE_TOKENS,
    draft_cost: object = None,
) -> tuple[Arm, ...]:
    """Return the arms of these names, then those of `extra`: --speculative-config as JSON, by arm.

    `num_speculative_tokens` and `draft_cost` are those of arm ngram_spec.

    Raises:
        NgramSpecError: a name is unknown or given twice, arm off is missing, a configuration is no JSON
            object, or arm suffix lacks its package.
    """
    ours: dict[str, Any] = {"method": METHOD, "num_speculative_tokens": num_speculative_tokens}
    if draft_cost is not None:
        ours["draft_cost"] = draft_cost
    known = {NGRAM: NGRAM_CONFIG, SUFFIX: SUFFIX_CONFIG, METHOD: ours}
    arms = []
    for name in names:
        if name == OFF:
            arms.append(Arm(name=OFF))
        elif name == OFF_V1:
            arms.append(Arm(name=OFF_V1, flags=V1_FLAGS, environment=V1_ENVIRONMENT))
        elif name in known:
            arms.append(speculative_arm(name, known[name]))
        else:
            raise NgramSpecError(
                f"an arm must be one of {', '.join(NAMES)}, got {name!r}; give others as --arm NAME='{{...}}'"
            )
    for name, text in extra.items():
        if name in (OFF, OFF_V1):
            raise NgramSpecError(
                f"--arm must not be named {name}, which drafts nothing: all others are judged against it; "
                "give another name"
            )
        arms.append(speculative_arm(name, _parsed(name, text)))
    _check_names([arm.name for arm in arms])
    return tuple(arms)


def speculative_arm(name: str, config: Mapping[str, Any]) -> Arm:
    """Return the arm that drafts with this --speculative-config.

    Raises:
        NgramSpecError: its method needs a package that is not installed.
    """
    if config.get("method") == SUFFIX and importlib.util.find_spec("arctic_inference") is None:
        raise NgramSpecError(
            f"arm {name} must have the package arctic-inference, which is not installed: "
            "pip install arctic-inference, or leave the arm out"
        )
    return Arm(name=name, flags=(SPECULATIVE_CONFIG, json.dumps(config)), is_speculative=True)


def drafter_of(arm: Arm) -> dict[str, Any]:
    """Return the arm's --speculative-config, empty where it has none."""
    if SPECULATIVE_CONFIG not in arm.flags:
        return {}
    config: dict[str, Any] = json.loads(arm.flags[arm.flags.index(SPECULATIVE_CONFIG) + 1])
    return config


def flags_with_metrics(arm: Arm, port: int) -> tuple[tuple[str, ...], int | None]:
    """Return the arm's flags so that its drafter can be read at `port`, and the port at which it can.

    None stands for a drafter that is not ours, which has nothing to read.
    """
    config = drafter_of(arm)
    if config.get("method") != METHOD:
        return arm.flags, None
    config.setdefault("metrics_port", port)
    flags = list(arm.flags)
    flags[flags.index(SPECULATIVE_CONFIG) + 1] = json.dumps(config)
    return tuple(flags), config["metrics_port"]


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NgramSpecError(
            f"--arm {name} must be JSON as of --speculative-config, got {text!r} ({error})"
        ) from error
    if not isinstance(config, dict):
        raise NgramSpecError(f"--arm {name} must be a JSON object as of --speculative-config, got {text!r}")
    return config


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        # Logs and lines of tables are named by them.
        if re.fullmatch(r"[\w.-]{1,64}", name) is None:
            raise NgramSpecError(
                f"an arm's name must be 1 to 64 letters, digits, '.', '_' and '-', got {name!r}"
            )
        if names.count(name) > 1:
            raise NgramSpecError(f"arms must have different names, got {name!r} twice")
    if OFF not in names:
        raise NgramSpecError(
            f"arm {OFF} must be among the arms, got {', '.join(names)}: all others are judged against it"
        )
    if len(names) < 2:
        raise NgramSpecError(f"there must be an arm beside {OFF} to compare with it, got none")
