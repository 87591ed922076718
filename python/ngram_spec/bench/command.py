"""The command `ngram-spec bench`: checks what it is given before anything starts, measures, reports."""

import argparse
import importlib.util
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.modelled_options import CONCURRENCIES, add_modelled_options
from ngram_spec.bench.modes import check_options
from ngram_spec.bench.sizes import (
    BUDGET,
    FULL,
    FULL_ON_CPU,
    OUT,
    PRECISION,
    QUICK_MODEL,
    REQUEST_TIMEOUT,
    START_TIMEOUT,
    TEMPERATURE,
)
from ngram_spec.vllm_plugin import DEFAULT_NUM_SPECULATIVE_TOKENS

if TYPE_CHECKING:
    from ngram_spec.bench.records import Run
    from ngram_spec.bench.summary import Summary

DESCRIPTION = """\
Measure whether speculation pays on this server, for this traffic, at this load. Servers of vLLM are started
one after another, without speculation and with it, in mirrored order, and asked the same prompts; or servers
that run already are asked in turn. Ctrl-C loses nothing: the same command goes on."""
EPILOG = """\
prompts: JSON lines as for `ngram-spec replay`: messages (OpenAI roles) or prompt, and no output needed.
What follows -- is given to every server: flags of `vllm serve`.

exit codes: 0 a verdict, "off" too; 1 none, as when servers failed; 2 what you can mend; 130 interrupted

examples:
  ngram-spec bench --quick                       a small model and small prompts: does it work here?
  ngram-spec bench --model Qwen/Qwen3-8B chat.jsonl -- --max-model-len 8192
                                                 your model, your prompts
  ngram-spec bench --model Qwen/Qwen3-8B --arm eagle='{"method": "eagle3", "model": "...",
      "num_speculative_tokens": 3}' chat.jsonl    another drafter beside it
  ngram-spec bench --url off=http://a:8000 --url ngram_spec=http://b:8000 chat.jsonl
                                                 two servers that run
  ngram-spec bench --report ngram-spec-bench     the report of an earlier run again
  ngram-spec bench --modelled chat.jsonl         no server and no GPU: recorded answers and a cost curve"""

# By the name that is imported: what `pip install 'ngram-spec[bench]'` brings.
EXTRAS = ("aiohttp", "jinja2", "matplotlib", "prometheus_client", "psutil", "pydantic", "pynvml")
PIPED_WIDTH = 100
WITHOUT_OFF_V1 = (
    "arm off-v1 is left out: for the CPU vLLM has one model runner and no async scheduling, so it would be "
    "off once more"
)


def add_bench_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "bench",
        help="measure whether speculation pays on this server, for this traffic, at this load",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="prompts, a workload for each file (default: the recordings that ship with ngram-spec)",
    )
    where = command.add_argument_group("what is served")
    where.add_argument(
        "--model", metavar="M", help=f"as of `vllm serve`; needed but with --quick, which takes {QUICK_MODEL}"
    )
    where.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="measure a server that runs, as arm NAME; give `off` and others, or one URL alone",
    )
    where.add_argument(
        "--arms",
        metavar="A,B",
        help="what to compare: off, off-v1 (no drafts, but the engine as drafts need it), ngram and suffix "
        "(vLLM's own), ngram_spec (default: all but suffix, and off-v1 only where it differs from off)",
    )
    where.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="compare with this --speculative-config too",
    )
    where.add_argument(
        "--num-speculative-tokens",
        type=int,
        metavar="N",
        help=f"most draft tokens per step of arm ngram_spec (default: {DEFAULT_NUM_SPECULATIVE_TOKENS})",
    )
    where.add_argument(
        "--draft-cost", metavar="C", help='of arm ngram_spec: a number, "h100", or a file (default: its own)'
    )
    how = command.add_argument_group("how it is asked")
    how.add_argument(
        "--concurrency",
        metavar="1,8",
        help=f"requests open at a time (default: {_listed(FULL.concurrencies)}, "
        f"{_listed(FULL_ON_CPU.concurrencies)} on a CPU, {_listed(CONCURRENCIES)} with --modelled)",
    )
    how.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"per answer (default: {FULL.max_tokens}, {FULL_ON_CPU.max_tokens} on a CPU)",
    )
    how.add_argument(
        "--num-prompts",
        type=int,
        metavar="N",
        help=f"of each file, evenly spaced (default: {FULL.num_prompts}, {FULL_ON_CPU.num_prompts} on a CPU)",
    )
    how.add_argument("--temperature", type=float, metavar="T", help=f"(default: {TEMPERATURE:g})")
    how.add_argument(
        "--goal", metavar="G", help="what matters instead of tokens per second, such as tpot_p95=30ms"
    )
    long = command.add_argument_group("how long")
    long.add_argument(
        "--quick", action="store_true", help="off and ngram_spec, few short answers, two starts of each"
    )
    long.add_argument(
        "--precision",
        type=float,
        metavar="P",
        help=f"enough where all speed-ups are known to this share (default: {PRECISION:g})",
    )
    long.add_argument(
        "--budget",
        metavar="TIME",
        help=f"no more rounds that would end later; two are always measured (default: {_minutes(BUDGET)})",
    )
    long.add_argument("--rounds", type=int, metavar="N", help="most starts of each arm (default: no limit)")
    long.add_argument(
        "--start-timeout",
        metavar="TIME",
        help=f"a server that is not ready then has failed (default: {_minutes(START_TIMEOUT)})",
    )
    long.add_argument(
        "--request-timeout",
        metavar="TIME",
        help=f"a request that gets nothing for so long has failed (default: {_minutes(REQUEST_TIMEOUT)})",
    )
    out = command.add_argument_group("where to")
    out.add_argument("--out", type=Path, metavar="DIR", help=f"measurements and report (default: {OUT})")
    out.add_argument("--report", type=Path, metavar="DIR", help="only report what DIR holds; measure nothing")
    add_modelled_options(command)


def split_server_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of `ngram-spec bench` and, apart, what follows `--`, which is for the servers."""
    arguments = list(arguments)
    if arguments[:1] != ["bench"] or "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def run_bench(options: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Measure, or only report, and return the exit code; `server_flags` are what `--` separated.

    Raises:
        NgramSpecError: what the user can mend.
    """
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise NgramSpecError(
            f"the bench needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'ngram-spec[bench]'"
        )
    check_options(options, server_flags)
    if options.modelled:
        return report_modelled(options)
    if options.report is not None:
        return report(options.report, options.goal)
    from rich.console import Console

    from ngram_spec.bench.plan import make_plan
    from ngram_spec.bench.progress import RunProgress
    from ngram_spec.bench.run import measure_all
    from ngram_spec.bench.server import is_cpu_build

    plan = make_plan(options, server_flags)
    console = Console(stderr=True)
    progress = RunProgress(console)
    if plan.settings.urls is None and not options.arms and not options.quick and is_cpu_build():
        progress.say(WITHOUT_OFF_V1)
    try:
        with _ended_by_signals():
            measure_all(plan, progress)
    except KeyboardInterrupt:
        console.print(
            f"interrupted; what was measured is in {plan.folder}: the same command goes on, and "
            f"ngram-spec bench --report {plan.folder} shows it",
            soft_wrap=True,
            highlight=False,
        )
        raise
    return report(plan.folder)


def report(folder: Path, goal: str | None = None) -> int:
    """Print, and write into the folder, the report of the run that it holds, judged by another goal if given.

    Returns 0 if there is a verdict on any speculative arm, else 1.
    """
    from ngram_spec.bench.records import read_run
    from ngram_spec.bench.summarize import summarize

    run = read_run(folder)
    if goal is not None:
        run = run.model_copy(update={"settings": run.settings.model_copy(update={"goal": goal})})
    return _show(summarize(run), run, folder)


def report_modelled(options: argparse.Namespace) -> int:
    """Print and write the report of a run that is modelled; it leaves that of a live run beside it alone."""
    from ngram_spec.bench.modelled import modelled_settings, run_modelled

    summary = run_modelled(options.files, options.tokenizer, modelled_settings(options))
    folder = options.out or OUT
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NgramSpecError(f"--out must be a folder, got {folder} ({error.strerror})") from error
    return _show(summary, None, folder)


def _show(summary: "Summary", run: "Run | None", folder: Path) -> int:
    from rich.console import Console

    from ngram_spec.bench.page import write_page
    from ngram_spec.bench.report import report_file, write_json
    from ngram_spec.bench.tables import print_summary

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    document = folder / report_file(summary)
    page = document.with_suffix(".html")
    # First the files: printing ends with whoever reads it, as in `| head`.
    try:
        write_json(document, summary)
        write_page(page, run, summary)
    finally:
        print_summary(summary, console)
    console.print(f"\nreport: {page} and {document}", soft_wrap=True, highlight=False, markup=False)
    return 0 if any(recommendation.has_verdict for recommendation in summary.recommendations) else 1


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the signals that end a process do what Ctrl-C does: servers are stopped on the way out."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # One that is ignored, as with nohup, stays ignored.
    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g}m"
