"""The options of `ngram-spec bench --modelled` alone, and what holds where they are not given."""

import argparse

DEFAULT_COST_CURVE = "h100"
CONCURRENCIES = (1, 4, 16, 64)
# The low end of what vllm-project/vllm#29184 measured: n-gram drafts with async scheduling are 20 to 39 %
# faster than without. A verdict that leaves it out would say "on" where a server says "off".
METHOD_OVERHEAD = 0.2


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
