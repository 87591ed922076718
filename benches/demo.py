"""Shows a real model in real vLLM answering faster, with the same tokens, because ngram-spec drafted for it.

    make demo                          the small model of the tests
    make demo ARGS="--model FOLDER"    another one (a folder, or a name that vLLM can fetch)

Two engines answer the same chats one after another, greedily: vLLM as it is, and vLLM with the proposer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from arm import Measured
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = {"rag": "RAG", "summarization": "summarization", "code_edit": "code edit"}
OFF = "vLLM without speculation"
ON = "vLLM with ngram-spec"
HEADINGS = (
    "tokens/s",
    "speed-up",
    "ms/token",
    "speed-up",
    "tokens/step",
    "acceptance rate",
    "outputs identical",
)
# Wide enough that the table is not folded where it is piped.
TABLE_WIDTH = 100

SMALL_MODELS_COPY_MORE = """\
Read this as the mechanism at work, not as the gain to expect: a small model copies and repeats more than a \
large one, so more of its tokens can be drafted. `ngram-spec replay` shows the gain on recorded answers, and \
on your own: give it their file."""
OUTPUTS_DIFFER = """\
An output differs. In exact arithmetic speculation changes no greedy output; where two tokens are nearly \
tied, the rounding of a batch of another shape can tip the choice: in bfloat16 often, in float32 hardly."""

console = Console(stderr=True)


class ArmError(Exception):
    """An arm did not come to its end."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder or name (default: the small model of the tests)")
    parser.add_argument("--max-tokens", type=int, default=128, help="per answer (default: %(default)s)")
    parser.add_argument(
        "--num-speculative-tokens", type=int, default=16, help="draft tokens per step (default: %(default)s)"
    )
    parser.add_argument("--draft-cost", type=float, default=0.05, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what was measured to a file")
    options = parser.parse_args()

    has_gpu = nvidia_gpu_works()
    model = options.model or small_model()
    device = ["--dtype", "auto"] if has_gpu else ["--dtype", "float32", "--enforce-eager"]
    common = ["--model", str(model), "--max-tokens", str(options.max_tokens), *device]
    drafting = ["--num-speculative-tokens", str(options.num_speculative_tokens)]
    drafting += ["--draft-cost", str(options.draft_cost)]
    chats = packaged_chats()
    say(f"model {model}, {'GPU' if has_gpu else 'CPU, float32'}, greedy, one chat at a time")
    try:
        off = run_arm(OFF, common, chats)
        on = run_arm(ON, [*common, *drafting], chats)
    except ArmError as error:
        console.print(f"[red]{error}", highlight=False)
        return 1
    report(off, on)
    if options.json:
        arms = {"off": off, "on": on}
        options.json.write_text(json.dumps({arm: [vars(m) for m in result] for arm, result in arms.items()}))
    return 0


def nvidia_gpu_works() -> bool:
    command = shutil.which("nvidia-smi")
    return command is not None and subprocess.run([command, "-L"], capture_output=True).returncode == 0


def small_model() -> Path:
    say("the small model")
    program = ROOT / "tests" / "small_model.py"
    done = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def packaged_chats() -> list[tuple[str, list[dict[str, str]]]]:
    """The chats of the recordings that ship with the package, named WORKLOAD/ID."""
    chats = []
    for workload in WORKLOADS:
        lines = files("ngram_spec").joinpath(f"recordings/{workload}.jsonl").read_text("utf-8").splitlines()
        for record in map(json.loads, lines):
            chats.append((f"{workload}/{record['id']}", record["messages"]))
    return chats


def run_arm(name: str, arguments: Sequence[str], chats: Sequence[tuple[str, Any]]) -> list[Measured]:
    """Run one arm in a process of its own, show how far it is, and return what it measured.

    Raises:
        ArmError: it failed; the message has the end of its log and the log's path.
    """
    folder = Path(tempfile.mkdtemp(prefix="ngram-spec-demo-"))
    chats_file, result_file, log_file = folder / "chats.json", folder / "result.jsonl", folder / "vllm.log"
    chats_file.write_text(json.dumps(chats), encoding="utf-8")
    result_file.touch()
    command = [sys.executable, str(ROOT / "benches" / "arm.py"), *arguments]
    command += ["--chats", str(chats_file), "--result", str(result_file)]
    say(f"{name}: loads the model, answers {len(chats)} chats; its log is {log_file}")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        log_file.open("w") as log,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=arm_environment()) as process,
    ):
        task = progress.add_task(f"{name}: starting", total=len(chats))
        while process.poll() is None:
            num_answers = result_file.read_bytes().count(b"\n")
            progress.update(task, completed=num_answers, description=name if num_answers else None)
            time.sleep(0.2)
        progress.update(task, completed=result_file.read_bytes().count(b"\n"), description=name)
    if process.returncode:
        tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-15:])
        raise ArmError(f"{tail}\n\n{name}: exit code {process.returncode}; the whole log: {log_file}")
    measured = [Measured(**json.loads(line)) for line in result_file.read_text("utf-8").splitlines()]
    shutil.rmtree(folder)
    return measured


def arm_environment() -> dict[str, str]:
    return {"TOKENIZERS_PARALLELISM": "false", **os.environ}


def report(off: Sequence[Measured], on: Sequence[Measured]) -> None:
    table = Table(
        title="vLLM without -> with ngram-spec", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("workload", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    pairs = list(zip(off, on, strict=True))
    for workload, title in WORKLOADS.items():
        table.add_row(title, *figures([pair for pair in pairs if pair[0].name.startswith(f"{workload}/")]))
    table.add_section()
    table.add_row("all", *figures(pairs))
    # The table is what the command is for, so it alone goes to standard output.
    Console(width=max(console.width, TABLE_WIDTH)).print(table)
    say(
        "tokens/s over whole answers, the prompt's prefill included; ms/token from the first token on; "
        "tokens/step over all target steps after the first token, bonus tokens and undrafted steps included."
    )
    if any(a.token_ids != b.token_ids for a, b in pairs):
        say(OUTPUTS_DIFFER)
    say(SMALL_MODELS_COPY_MORE)


def figures(pairs: Sequence[tuple[Measured, Measured]]) -> list[str]:
    off, on = ([pair[side] for pair in pairs] for side in (0, 1))
    rates = [tokens_per_second(arm) for arm in (off, on)]
    times = [seconds_per_token(arm) for arm in (off, on)]
    num_decoded = sum(len(answer.token_ids) - 1 for answer in on)
    num_drafted = sum(answer.num_draft_tokens for answer in on)
    num_same = sum(a.token_ids == b.token_ids for a, b in pairs)
    return [
        " -> ".join(f"{rate:.1f}" for rate in rates),
        f"{rates[1] / rates[0]:.2f} x",
        " -> ".join(f"{1000 * seconds:.1f}" for seconds in times),
        f"{times[0] / times[1]:.2f} x",
        f"{num_decoded / max(1, sum(answer.num_target_steps for answer in on)):.2f}",
        f"{sum(answer.num_accepted_tokens for answer in on) / max(1, num_drafted):.0%}",
        f"{num_same} of {len(pairs)}",
    ]


def tokens_per_second(arm: Sequence[Measured]) -> float:
    seconds = sum(answer.prefill_seconds + answer.decode_seconds for answer in arm)
    return sum(len(answer.token_ids) for answer in arm) / seconds


def seconds_per_token(arm: Sequence[Measured]) -> float:
    num_decoded = sum(len(answer.token_ids) - 1 for answer in arm)
    return sum(answer.decode_seconds for answer in arm) / max(1, num_decoded)


def say(what: str) -> None:
    console.print(f"[dim]\\[demo][/] {what}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
