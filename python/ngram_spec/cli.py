"""The command line `ngram-spec`: its commands and what their options mean."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ngram_spec import NgramSpecError, __version__
from ngram_spec.bench.command import add_bench_parser, run_bench, split_server_flags
from ngram_spec.doctor import run_doctor
from ngram_spec.replay import REPORTED_DRAFT_COSTS, ReplaySettings
from ngram_spec.replay_command import run_replay
from ngram_spec.tables import SHOWN_DRAFT_COST

REPLAY_DESCRIPTION = """\
Replay recorded responses and report what drafting would have saved on them. No model runs: the first
output token is kept, then every step drafts, accepts while the draft equals the recording, and adds
the bonus token."""
REPLAY_EPILOG = """\
recordings: one JSON object a line, with messages (OpenAI roles) or prompt (text), and output (the
recorded answer); or with prompt_token_ids and output_token_ids. Messages are rendered as ChatML.

examples:
  ngram-spec replay                              the recordings that ship with ngram-spec
  ngram-spec replay --baseline chat.jsonl        your own, beside vLLM's ngram with its defaults
  ngram-spec replay --baseline --plot speed.svg chat.jsonl
                                                 modelled speed-up against cost, as a picture
  ngram-spec replay --json before.json chat.jsonl
  ngram-spec replay --prior mine.json --against before.json chat.jsonl
                                                 whether a change made a difference"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0, 1 where the doctor found a problem or a bench came to no verdict, 2 for what the user can mend, 130 if
    interrupted.
    """
    _prepare_output()
    for argument in sys.argv[1:] if argv is None else argv:
        if not _is_unicode(argument):  # it could not be written into a report
            print(f"ngram-spec: error: arguments must be UTF-8 text, got {argument!r}", file=sys.stderr)
            return 2
    arguments, server_flags = split_server_flags(sys.argv[1:] if argv is None else argv)
    options = command_line().parse_args(arguments)
    try:
        code = _run(options, server_flags)
        sys.stdout.flush()
        return code
    except NgramSpecError as error:
        print(f"ngram-spec {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        # Python would try once more to print what is left, on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 1  # whoever read it has enough
        # One of a file has its name.
        place = error.filename or "cannot write to standard output"
        print(f"ngram-spec {options.command}: error: {place}: {error.strerror}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, server_flags: Sequence[str]) -> int:
    if options.command == "bench":
        return run_bench(options, server_flags)
    if options.command == "doctor":
        return run_doctor()
    run_replay(options)
    return 0


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _prepare_output() -> None:
    """Have output that is closed go nowhere, and what a terminal's encoding lacks be a question mark."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (to the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def command_line() -> argparse.ArgumentParser:
    """Return the parser of all commands; the one chosen is `command` of what it parses."""
    parser = argparse.ArgumentParser(
        prog="ngram-spec",
        description="Drafts for speculative decoding, looked up in the context with a suffix automaton.",
    )
    parser.add_argument("--version", action="version", version=f"ngram-spec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "replay",
        help="replay recorded responses: acceptance, tokens per step, modelled speed-up",
        description=REPLAY_DESCRIPTION,
        epilog=REPLAY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = ReplaySettings()
    command.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="recordings (default: those that ship with ngram-spec)",
    )
    command.add_argument(
        "--tokenizer",
        metavar="T",
        help="'ids' (as recorded), 'qwen', or the path of a tokenizer.json (default: ids where all records "
        "of the file have them, otherwise qwen)",
    )
    command.add_argument(
        "--max-draft-tokens",
        type=int,
        default=defaults.max_draft_tokens,
        metavar="N",
        help="most draft tokens in one step (default: %(default)s)",
    )
    costs = ", ".join(f"{cost:g}" for cost in REPORTED_DRAFT_COSTS)
    command.add_argument(
        "--draft-cost",
        type=float,
        metavar="C",
        help="draft as if one more verified token cost C target steps, and judge these drafts at every cost "
        f"(default: each of {costs}, and judge its drafts at this cost; figures other than the speed-up are "
        f"those of {SHOWN_DRAFT_COST:g})",
    )
    command.add_argument(
        "--min-match-len",
        type=int,
        default=defaults.min_match_len,
        metavar="N",
        help="draft only behind a match of at least so many tokens (default: %(default)s)",
    )
    command.add_argument(
        "--prior",
        type=Path,
        metavar="FILE",
        help="what the acceptance model starts from, as a JSON object (default: built in)",
    )
    command.add_argument(
        "--learn",
        action=argparse.BooleanOptionalAction,
        default=defaults.learn,
        help="learn acceptance from what is accepted and rejected, through all responses of a file in order "
        f"(default: {'on' if defaults.learn else 'off'})",
    )
    command.add_argument(
        "--baseline",
        action="store_true",
        help="also replay prompt lookup as vLLM's ngram method does it with its defaults (prompt_lookup_min "
        "and prompt_lookup_max 5) and N draft tokens, and compare with it record by record",
    )
    command.add_argument(
        "--against",
        type=Path,
        metavar="EARLIER",
        help="compare record by record with what --json wrote earlier of the same recordings",
    )
    command.add_argument(
        "--calibration",
        action="store_true",
        help="also print how many of the draft tokens were accepted, by decile of the predicted probability",
    )
    command.add_argument(
        "--ablate",
        action="store_true",
        help="also replay without each feature of the acceptance model in turn, its weight set to 0",
    )
    command.add_argument(
        "--plot",
        type=Path,
        metavar="OUT",
        help="draw modelled speed-up against cost as .png or .svg, a panel for each recording",
    )
    command.add_argument(
        "--json", type=Path, metavar="OUT", help="write settings and results, response by response"
    )
    add_bench_parser(commands)
    commands.add_parser(
        "doctor",
        help="whether drafts will reach the vLLM that is installed here, at what cost, with which flags",
        description="Say in plain sentences whether drafts will reach the vLLM of this environment, what "
        "they cost there, and with which flags to start it.",
        epilog="exit codes: 0 no problem, 1 a problem that keeps drafting from working, 2 wrong usage",
    )
    return parser
