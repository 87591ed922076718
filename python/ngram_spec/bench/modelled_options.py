"""The options of `ngram-spec bench --modelled`, and which of the others go with them."""

import argparse
from collections.abc import Sequence

from ngram_spec._core import NgramSpecError

DEFAULT_COST_CURVE = "h100"
CONCURRENCIES = (1, 4, 16, 64)
# The low end of what vllm-project/vllm#29184 measured: n-gram drafts with async scheduling are 20 to 39 %
# faster than without. A verdict that leaves it out would say "on" where a server says "off".
METHOD_OVERHEAD = 0.2
# What is only of servers, by the name of the option.
OF_SERVERS = (
    "model",
    "url",
    "arms",
    "arm",
    "draft_cost",
    "goal",
    "max_tokens",
    "num_prompts",
    "temperature",
    "quick",
    "precision",
    "budget",
    "rounds",
    "start_timeout",
    "request_timeout",
    "report",
)
OF_MODELLED = ("cost_curve", "method_overhead", "step_ms", "tokenizer")


def add_modelled_options(command: argparse.ArgumentParser) -> None:
    """Add the group of options to `ngram-spec bench`."""
    group = command.add_argument_group("without a server and without a GPU")
    group.add_argument(
        "--modelled",
        action="store_true",
        help="measure nothing: replay recorded answers with the real drafter, and take the time of a step "
        "from a cost curve",
    )
    group.add_argument(
        "--cost-curve",
        metavar="C",
        help='"h100", which is itself modelled, or a JSON file as benches/cost_curve.py measures it '
        f"(default: {DEFAULT_COST_CURVE})",
    )
    group.add_argument(
        "--method-overhead",
        type=float,
        metavar="SHARE",
        help="what losing async scheduling costs each step with drafting on, as a share of a step without "
        f"drafts (default: {METHOD_OVERHEAD:g})",
    )
    group.add_argument(
        "--step-ms",
        type=float,
        metavar="MS",
        help="time of a step of one request without drafts, to have seconds (default: time in such steps)",
    )
    group.add_argument("--tokenizer", metavar="T", help="of the recordings, as for `ngram-spec replay`")


def check_no_modelled_options(options: argparse.Namespace) -> None:
    """Raise NgramSpecError where an option of modelled mode stands without --modelled."""
    given = _given(options, OF_MODELLED)
    if given:
        raise NgramSpecError(f"{given} must be given with --modelled: without it, time is measured")


def check_only_modelled_options(options: argparse.Namespace, server_flags: Sequence[str]) -> None:
    """Raise NgramSpecError where --modelled stands beside an option that is of servers."""
    given = _given(options, OF_SERVERS) or ("flags behind --" if server_flags else "")
    if given:
        raise NgramSpecError(f"{given} must not be given with --modelled, which starts and asks no server")


def _given(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Return the first of these options that was given, as it is written; an empty text if none was."""
    # Not given: None, False, or an empty list; but 0 is a number that was given.
    given = [
        name for name in names if (value := getattr(options, name)) not in ([], None) and value is not False
    ]
    return "".join(f"--{name.replace('_', '-')}" for name in given[:1])
