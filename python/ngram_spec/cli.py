"""The command `ngram-spec`: what its options mean, and what it prints."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ngram_spec import AcceptanceModel, NgramSpecError, __version__
from ngram_spec.recordings import Response, choose_tokenizer, load_responses, packaged_recordings
from ngram_spec.replay import (
    REPORTED_DRAFT_COSTS,
    DrafterFactory,
    FileResult,
    ReplaySettings,
    ResponseResult,
    replay,
)

DRAFTER = "ngram-spec"
BASELINE = "vLLM ngram 5,5"
# Wide enough that a table piped into a file or a pager is neither folded nor cut.
PIPED_WIDTH = 160

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
  ngram-spec replay --draft-cost 0.2 --json result.json chat.jsonl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for what the user can mend, 130 if interrupted."""
    options = _parser().parse_args(argv)
    try:
        run_replay(options)
    except NgramSpecError as error:
        print(f"ngram-spec {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def run_replay(options: argparse.Namespace) -> None:
    """Replay the named recordings, print the table and write the JSON.

    Raises:
        NgramSpecError: an option, a recording, the prior or OUT is not as it must be; found before any work.
    """
    settings = ReplaySettings(
        max_draft_tokens=options.max_draft_tokens,
        draft_cost=options.draft_cost,
        min_match_len=options.min_match_len,
        prior=None if options.prior is None else _read_prior(options.prior),
    )
    drafters = {DRAFTER: settings.drafter_factory()}
    if options.baseline:
        drafters[BASELINE] = settings.prompt_lookup_factory()
    if options.json is not None:
        _check_writable(options.json)
    files: Sequence[Traversable] = options.files or packaged_recordings()
    recordings = [(_shown_name(file, files), load_responses(file)) for file in files]
    results: list[FileResult] = []
    with _progress() as progress:
        for name, responses in recordings:
            results.extend(_replay_file(name, responses, options.tokenizer, drafters, progress))
    _print_results(results, settings)
    if options.json is not None:
        _write_json(options.json, settings, results)


def _parser() -> argparse.ArgumentParser:
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
    command.add_argument(
        "--draft-cost",
        type=float,
        default=defaults.draft_cost,
        metavar="C",
        help="cost of one more verified token, in target steps: about 0.01 on an idle GPU, 0.05 under "
        "moderate load, 0.2 on a busy one (default: %(default)s)",
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
        help="acceptance probabilities as a JSON object (default: built in)",
    )
    command.add_argument(
        "--baseline",
        action="store_true",
        help="also replay prompt lookup as vLLM's ngram method does it with its defaults (prompt_lookup_min "
        "and prompt_lookup_max 5) and N draft tokens",
    )
    command.add_argument(
        "--json", type=Path, metavar="OUT", help="write settings and results, response by response"
    )
    return parser


def _replay_file(
    name: str,
    responses: Sequence[Response],
    tokenizer_name: str | None,
    drafters: Mapping[str, DrafterFactory],
    progress: Progress,
) -> list[FileResult]:
    tokenizer = choose_tokenizer(tokenizer_name, responses)
    task = progress.add_task(f"tokenizing {name}", total=len(responses))
    tokenized = []
    for response in responses:
        tokenized.append(response.tokenize(tokenizer))
        progress.advance(task)
    results = []
    for drafter, make_drafter in drafters.items():
        progress.update(task, description=f"replaying {name}, {drafter}", completed=0)
        replayed = []
        for response, ids in zip(responses, tokenized, strict=True):
            counts = replay(ids, make_drafter)
            replayed.append(
                ResponseResult(response.record_id, response.turn, len(ids.prompt_token_ids), counts)
            )
            progress.advance(task)
        results.append(FileResult(name, "ids" if tokenizer is None else tokenizer.name, drafter, replayed))
    progress.remove_task(task)
    return results


def _shown_name(file: Traversable, files: Sequence[Traversable]) -> str:
    """Return the file's name, or its whole path where another file has the same name."""
    return file.name if [other.name for other in files].count(file.name) == 1 else str(file)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print_results(results: Sequence[FileResult], settings: ReplaySettings) -> None:
    # One cell of space between columns, and the baseline below its drafter: fits a terminal of 80 columns.
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("recording", overflow="fold")
    costs = (f"speed\nc={cost:g}" for cost in REPORTED_DRAFT_COSTS)
    for heading in ("tokens/\nstep", "accepted", "drafted/\nstep", "coverage", *costs, "us/\nstep"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        total = result.total
        table.add_row(
            result.file if result.drafter == DRAFTER else f"  {result.drafter}",
            f"{total.tokens_per_step:.2f}",
            f"{total.acceptance_rate:.1%}",
            f"{total.draft_tokens_per_step:.2f}",
            f"{total.coverage:.1%}",
            *(f"{total.modelled_speedup(cost):.2f}" for cost in REPORTED_DRAFT_COSTS),
            f"{total.drafter_us_per_step:.1f}",
        )
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    console.print(table)
    tokenizers = ", ".join(dict.fromkeys(result.tokenizer for result in results))
    # Lines of their own, since a terminal would break one long line in the middle of a word.
    for line in (
        f"\nmax_draft_tokens {settings.max_draft_tokens}, draft_cost {settings.draft_cost:g}, "
        f"min_match_len {settings.min_match_len}, own context only, tokenizer {tokenizers}",
        "speed at c: modelled speed-up over decoding without drafts,",
        "output tokens / sum over steps of (1 + c x draft tokens)",
    ):
        console.print(line, soft_wrap=True)


def _read_prior(path: Path) -> dict[str, Any]:
    try:
        prior = json.loads(path.read_bytes())
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot read the prior: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise NgramSpecError(
            f"{path}:{error.lineno}: the prior must be a JSON object: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise NgramSpecError(
            f"{path}: the prior must be UTF-8 text, got byte {error.object[error.start]:#04x}"
        ) from error
    if not isinstance(prior, dict):
        raise NgramSpecError(f"{path}: the prior must be a JSON object, got {type(prior).__name__}")
    try:
        AcceptanceModel(prior)
    except (NgramSpecError, TypeError) as error:
        raise NgramSpecError(f"{path}: {error}") from error
    return prior


def _check_writable(path: Path) -> None:
    """Raise unless OUT can be written; what it holds stays, so that a replay that fails loses nothing."""
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise NgramSpecError(
            f"{path}: cannot write the results: {error.strerror}; give --json a file in a folder that exists "
            "and may be written"
        ) from error
    if not existed:
        path.unlink()


def _write_json(path: Path, settings: ReplaySettings, results: Sequence[FileResult]) -> None:
    document = {
        "ngram_spec": __version__,
        "settings": asdict(settings),
        "results": [result.to_json() for result in results],
    }
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot write the results: {error.strerror}") from error
