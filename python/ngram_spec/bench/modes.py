"""Which options of `ngram-spec bench` go together: one that would be ignored is refused instead."""

import argparse
from collections.abc import Sequence

from ngram_spec._core import NgramSpecError

OF_MODELLED = ("cost_curve", "method_overhead", "step_ms", "tokenizer")
WITH_URL = (
    "files",
    "model",
    "concurrency",
    "max_tokens",
    "num_prompts",
    "temperature",
    "goal",
    "quick",
    "precision",
    "budget",
    "rounds",
    "request_timeout",
    "out",
)
# By the option that asks for it, the first that is given: what else it takes, and why no more.
MODES = {
    "modelled": (
        ("files", "concurrency", "num_speculative_tokens", "out", *OF_MODELLED),
        "which replays recordings and asks no server",
    ),
    "report": (("goal",), "which only shows again what was measured"),
    "url": (WITH_URL, "whose servers run already"),
}


def check_options(options: argparse.Namespace, server_flags: Sequence[str]) -> None:
    """Raise NgramSpecError where an option or a file was given that would be ignored."""
    given = [name for name, value in vars(options).items() if name != "command" and _is_given(value)]
    for mode, (takes, reason) in MODES.items():
        if mode in given:
            ignored = [_shown(name) for name in given if name not in (mode, *takes)]
            ignored += ["flags behind --"] if server_flags else []
            if ignored:
                raise NgramSpecError(f"{ignored[0]} must not be given with {_shown(mode)}, {reason}")
            return
    of_modelled = [_shown(name) for name in given if name in OF_MODELLED]
    if of_modelled:
        raise NgramSpecError(f"{of_modelled[0]} must be given with --modelled: without it, time is measured")


def _is_given(value: object) -> bool:
    """0 is a number that was given."""
    return value not in ([], None) and value is not False


def _shown(name: str) -> str:
    return "a file" if name == "files" else f"--{name.replace('_', '-')}"
