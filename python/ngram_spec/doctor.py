"""Says whether drafts will reach vLLM on this machine, what they cost there, and which flags it needs.

The metadata of installed packages is read first. vLLM itself is asked in a process of its own, so that one
that does not start, or takes the interpreter down with it, is a finding like any other.
"""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from ngram_spec import Drafter, NgramSpecError, __version__
from ngram_spec.vllm import BROKEN_SAMPLING, COST_OF_METHOD, sampling_is_broken
from ngram_spec.vllm_plugin import DEFAULT_NUM_SPECULATIVE_TOKENS, METHOD, PROPOSER
from ngram_spec.vllm_version import KNOWN_VLLM, SUPPORTED, refuse_old

PLUGIN_GROUP = "vllm.general_plugins"
PIPED_WIDTH = 100
STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}
INDENT = " " * 8
# Importing vLLM takes torch with it: half a minute on a busy machine.
MAX_SECONDS_OF_VLLM = 300
# What vLLM itself says goes to the same pipe, so its answer is told by how the line begins.
ANSWER = "ngram-spec-doctor:"
SHORT_FORM: dict[str, object] = {
    "method": METHOD,
    "num_speculative_tokens": DEFAULT_NUM_SPECULATIVE_TOKENS,
}
LONG_FORM = SHORT_FORM | {"method": "custom_class", "model": PROPOSER}
COST_OF_GRAPHS = (
    "with full decode CUDA graphs Model Runner V1 rounds its captured batch sizes up to multiples of "
    "num_speculative_tokens + 1, so where that is large a step without drafts is not quite free; "
    '--compilation-config \'{"cudagraph_mode": "PIECEWISE"}\' does no rounding'
)
REFUSED = (
    "with any speculation on, vLLM refuses min_p, logit_bias and custom logits processors: what needs them "
    "needs a server without --speculative-config"
)
WITHOUT_VLLM = (
    "vLLM is not installed in this environment. What works without it: Drafter and DrafterPool in Python, "
    "ngram-spec replay, ngram-spec bench --modelled. To serve, install ngram-spec where vLLM is"
)
OWN_NAME = (
    "`vllm serve` of this build stops with PackageNotFoundError, since it looks up a distribution named vllm "
    "and its own is {name}. LLM(...) and `python -m vllm.entrypoints.openai.api_server --model MODEL` work. "
    "Mend: make the folder vllm-{version}+cpu.dist-info in {folder}, with a file METADATA of three lines: "
    "Metadata-Version: 2.1, Name: vllm, Version: {version}+cpu"
)


@dataclass(frozen=True)
class Finding:
    """One sentence on this environment; a problem keeps drafting from working, a warning does not."""

    level: Literal["ok", "warning", "problem"]
    sentence: str
    # A command line that stands by itself below the sentence, to be copied.
    paste: str = ""


@dataclass(frozen=True)
class VllmFacts:
    """What the vLLM that is installed says of itself once it is loaded."""

    version: str
    device_type: str
    device_name: str
    has_short_form: bool
    loses_sampling: bool


def run_doctor() -> int:
    """Print the findings and the flags to use; return 1 where one of them is a problem, else 0."""
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if sys.stdout.isatty() else PIPED_WIDTH
    console.print(f"ngram-spec {__version__}, Python {platform.python_version()}, {sys.executable}\n")
    levels = []
    for finding in examine():
        lines = textwrap.wrap(
            finding.sentence, width - len(INDENT), break_long_words=False, break_on_hyphens=False
        )
        console.print(Text(f"{finding.level:8}", STYLES[finding.level]) + Text(f"\n{INDENT}".join(lines)))
        if finding.paste:
            console.print(Text(f"\n{finding.paste}\n"))
        levels.append(finding.level)
    return int("problem" in levels)


def examine() -> Iterator[Finding]:
    """Yield what there is to say, in the order in which one thing rests on another."""
    drafts = Drafter([1, 2, 3, 1, 2]).draft(1).token_ids == [3]
    yield Finding("ok", "the drafter drafts") if drafts else Finding("problem", "the drafter drafts nothing")
    is_here = importlib.util.find_spec("vllm") is not None  # finds it without importing it
    other = _vllm_of_another_environment()
    if is_here:
        yield from _of_vllm()
        if other is not None:
            yield Finding("warning", f"the command `vllm` is {other}, which belongs to another environment")
    elif other is not None:
        yield Finding("problem", f"{WITHOUT_VLLM}: `vllm` is {other}, and ngram-spec is not there")
    else:
        yield Finding("warning", WITHOUT_VLLM)
    yield from _of_extras()


def _of_vllm() -> Iterator[Finding]:
    owners = _owners_of_vllm()
    for name, version in owners:
        try:
            refuse_old(version)
        except NgramSpecError as error:
            yield Finding("problem", f"{error} (distribution {name})")
            return
    if len(owners) > 1:
        shown = ", ".join(f"{name} {version}" for name, version in owners)
        mend = "each has overwritten files of the other; uninstall all of them and install one"
        yield Finding("warning", f"several distributions hold the package vllm: {shown}: {mend}")
    if not owners:
        yield Finding(
            "warning",
            "no distribution with a name and a version holds the package vllm, as where its metadata is "
            "damaged: install vLLM again",
        )
    facts = ask_vllm()
    if isinstance(facts, str):
        yield Finding("problem", f"vLLM is installed but does not start: {facts}")
        return
    try:
        refuse_old(facts.version)
    except NgramSpecError as error:
        yield Finding("problem", str(error))
        return
    yield _of_version(facts.version, owners)
    yield _of_device(facts)
    yield from _of_serve(owners)
    yield from _of_plugin(facts)
    yield Finding("warning", COST_OF_METHOD)
    if facts.device_type == "cuda":
        yield Finding("warning", COST_OF_GRAPHS)
    if facts.loses_sampling:
        yield Finding("warning", BROKEN_SAMPLING)
    yield Finding("warning", REFUSED)


def _of_version(version: str, owners: list[tuple[str, str]]) -> Finding:
    of = f" (distribution {owners[0][0]})" if owners else ""
    if version.partition("+")[0] in KNOWN_VLLM:
        return Finding("ok", f"vLLM {version}{of} is one of those that were read ({SUPPORTED})")
    return Finding(
        "warning",
        f"vLLM {version}{of} is not among those that were read ({SUPPORTED}): it is probed when it makes the "
        "proposer, and what surely does not fit stops it there with a sentence",
    )


def _of_device(facts: VllmFacts) -> Finding:
    if not facts.device_type:
        return Finding(
            "problem",
            "this vLLM finds no device that it can run on: on a machine without a GPU it must be a CPU build",
        )
    if facts.device_type == "cpu":
        return Finding(
            "warning",
            "vLLM runs on the CPU here: what works can be tried, but speed on a GPU must be measured on one",
        )
    return Finding("ok", f"vLLM runs on {facts.device_name} ({facts.device_type})")


def _of_serve(owners: list[tuple[str, str]]) -> Iterator[Finding]:
    try:
        is_found = metadata.version("vllm") is not None
    except metadata.PackageNotFoundError:
        is_found = False
    if not is_found and owners:
        name, version = owners[0]
        folder = sysconfig.get_path("purelib")
        yield Finding("warning", OWN_NAME.format(name=name, version=version, folder=folder))


def _of_plugin(facts: VllmFacts) -> Iterator[Finding]:
    allowed = os.environ.get("VLLM_PLUGINS")
    if METHOD not in {entry.name for entry in metadata.entry_points(group=PLUGIN_GROUP)}:
        trouble = (
            f"no entry point {METHOD} of the group {PLUGIN_GROUP} is installed, as where ngram-spec is only "
            "on the path: pip install it"
        )
    # As vLLM reads it: no blanks are taken off.
    elif allowed is not None and METHOD not in allowed.split(","):
        trouble = (
            f"VLLM_PLUGINS={allowed!r} leaves the plugin {METHOD} out: unset it, or add {METHOD} "
            "(commas without blanks)"
        )
    elif not facts.has_short_form:
        trouble = "the plugin did not find its place in this vLLM, and the short form is not understood"
    else:
        yield Finding("ok", "vLLM loads the plugin: start it with", _serve(SHORT_FORM))
        return
    yield Finding("warning", f"{trouble}; until then start vLLM with the long form", _serve(LONG_FORM))


def _serve(speculative_config: dict[str, object]) -> str:
    return f"vllm serve MODEL --speculative-config '{json.dumps(speculative_config)}'"


def _of_extras() -> Iterator[Finding]:
    try:
        requirements = metadata.requires("ngram-spec") or []
    except metadata.PackageNotFoundError:
        yield Finding("warning", "ngram-spec is on the path but not installed: pip install it for its extras")
        return
    missing: dict[str, list[str]] = {}
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if name and extra and not _is_installed(name[0]):
            missing.setdefault(extra[1], []).append(name[0])
    needed_by = {"bench": "ngram-spec bench", "tokenizers": "recordings in text", "plot": "replay --plot"}
    for extra_name, names in missing.items():
        purpose = needed_by.get(extra_name, extra_name)
        mend = f"pip install 'ngram-spec[{extra_name}]'"
        yield Finding("warning", f"{purpose} lacks {', '.join(names)}: {mend}")
    if not missing:
        yield Finding("ok", "all extras are installed")


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _owners_of_vllm() -> list[tuple[str, str]]:
    """Return name and version of each distribution that holds the package vllm, but for damaged ones."""
    owners = []
    for distribution in metadata.distributions():
        if "vllm" in (distribution.read_text("top_level.txt") or "").split():
            fields = distribution.metadata
            name, version = (fields["Name"], fields["Version"]) if fields else (None, None)
            if name and version:
                owners.append((str(name), str(version)))
    return owners


def _vllm_of_another_environment() -> str | None:
    command = shutil.which("vllm")
    scripts = Path(sysconfig.get_path("scripts"))
    return None if command is None or Path(command).parent == scripts else command


def ask_vllm() -> VllmFacts | str:
    """Return what vLLM says of itself, or in one line why it does not."""
    print("asking vLLM itself, which takes some seconds...", file=sys.stderr)
    code = "from ngram_spec.doctor import answer; answer()"
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    try:
        # -P: the folder that one happens to stand in, such as a clone of vLLM, is not where it is installed.
        asked = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=MAX_SECONDS_OF_VLLM,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"importing it took more than {MAX_SECONDS_OF_VLLM} seconds"
    answers = [line for line in asked.stdout.splitlines() if line.startswith(ANSWER)]
    if answers:
        return VllmFacts(**json.loads(answers[-1].removeprefix(ANSWER)))
    errors = asked.stderr.strip().splitlines()
    return errors[-1] if errors else f"its process ended with exit code {asked.returncode}"


def answer() -> None:
    """Import vLLM and print what `ask_vllm` reads; run in a process of its own."""
    import vllm
    import vllm.v1.sample.rejection_sampler
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    engine_args = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    create = getattr(engine_args, "create_speculative_config", None)
    device_type = str(current_platform.device_type or "")
    # The CPU platform gives no name, and one that found no device has none.
    device_name = str(current_platform.get_device_name()) if device_type not in ("", "cpu") else device_type
    replace_kernels = getattr(current_platform, "register_triton_kernel_overrides", None)
    if device_type == "cpu" and replace_kernels is not None:
        # As a worker does before it loads a model: the kernels that lose the parameters are these.
        current_platform.import_kernels()
        replace_kernels()
    facts = VllmFacts(
        version=str(vllm.__version__),
        device_type=device_type,
        device_name=device_name,
        has_short_form=hasattr(create, "of_ngram_spec"),
        loses_sampling=sampling_is_broken(),
    )
    print(ANSWER + json.dumps(asdict(facts)), flush=True)
