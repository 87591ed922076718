"""What the documents show is what happens: examples, tables, commands, options, and the tests they name."""

import ast
import doctest
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ngram_spec import Drafter, DrafterPool, cli
from ngram_spec.replay import REPORTED_DRAFT_COSTS, ReplaySettings
from ngram_spec.vllm_options import ENGINE_OPTIONS, MAX_SPEC_LEN, OPTIONS, OWN_DEFAULTS
from ngram_spec.vllm_plugin import rewrite

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    *("README.md", "DESIGN.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")),
]


def blocks(language: str) -> list[str]:
    """The README's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands(program: str) -> Iterator[list[str]]:
    """The arguments of each command line that starts `program`."""
    for line in "".join(blocks("console")).replace("\\\n", " ").splitlines():
        if line.removeprefix("$ ").startswith(f"{program} "):
            yield shlex.split(line.removeprefix("$ "))[1:]


def table(heading: str) -> dict[str, str]:
    """The first table under a heading: the first word in backticks of each row, and its default."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = section.split("| option | default | meaning |\n")[1].split("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {re.split(r"[ .]", first.strip("`"))[0]: default.strip("`") for first, default, _ in cells}


def signature(documented: type) -> dict[str, object]:
    """The keyword options of a native class and their defaults."""
    definition = ast.parse(f"def f{documented.__text_signature__}: pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args
    return {
        argument.arg: value_of(ast.unparse(default))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    }


def value_of(expression: str) -> object:
    value: object = eval(expression, {"__builtins__": {}})  # such as 2**30
    return value


def serve_arguments(arguments: list[str]) -> dict[str, Any]:
    """The flags of `vllm serve MODEL` as the fields of vLLM's EngineArgs."""
    assert arguments[:2] == ["serve", "MODEL"]
    flags = zip(arguments[2::2], arguments[3::2], strict=True)
    return {flag.removeprefix("--").replace("-", "_"): json.loads(value) for flag, value in flags}


def test_the_python_examples_give_the_output_that_they_show() -> None:
    source = "\n".join(blocks("python"))
    example = doctest.DocTestParser().get_doctest(source, {}, "README.md", "README.md", 0)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_serve_commands_are_one_and_the_proposer_accepts_them() -> None:
    model = SimpleNamespace(max_model_len=2048, get_vocab_size=lambda: 32_000)
    short, long = (serve_arguments(arguments) for arguments in commands("vllm"))
    assert short["speculative_config"]["method"] == "ngram_spec"
    assert short.keys() == {"speculative_config"}
    rewritten = SimpleNamespace(**short)
    rewrite(rewritten, model, frozenset({"method", "model", "num_speculative_tokens"}))
    assert vars(rewritten) == long

    speculative, additional = long["speculative_config"], long["additional_config"]
    assert speculative.keys() == {"method", "model", "num_speculative_tokens"}
    assert speculative["method"] == "custom_class"
    assert speculative["num_speculative_tokens"] <= MAX_SPEC_LEN
    assert additional.keys() == {"ngram_spec"}
    assert additional["ngram_spec"].keys() <= OPTIONS.keys()

    module, name = speculative["model"].rsplit(".", 1)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(**speculative), additional_config=additional, model_config=model
    )
    proposer: Any = getattr(importlib.import_module(module), name)(config)
    assert proposer.enabled


def test_the_options_are_those_of_the_classes_with_their_defaults() -> None:
    options = table("Options")
    of_pool = {name: value_of(default) for name, default in list(options.items())[:8]}
    assert of_pool == signature(DrafterPool)
    first_five = dict(list(of_pool.items())[:5])
    assert first_five == signature(Drafter)


def test_the_options_of_vllm_alone_are_all_there_with_their_defaults() -> None:
    options = table("Options")
    of_vllm = {name: options[name] for name in list(options)[8:]}
    assert of_vllm.keys() == OPTIONS.keys() - signature(DrafterPool).keys()
    written = {
        name: default if isinstance(default, str) else json.dumps(default)
        for name, default in OWN_DEFAULTS.items()
    }
    assert of_vllm == dict.fromkeys(of_vllm, "none") | written


def test_the_options_for_vllm_are_named_and_no_others() -> None:
    (sentence,) = re.findall(r"[Tt]he vLLM options (.*?)\s+stand under", README, flags=re.DOTALL)
    assert re.findall(r"`(\w+)`", sentence) == list(OPTIONS)
    assert ENGINE_OPTIONS.keys() <= table("Options").keys()


def test_the_options_of_the_replay_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["replay", "--help"])
    accepted = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, flags=re.MULTILINE))
    documented = table("Replay")
    assert documented.pop("FILE")
    assert documented.keys() == accepted
    defaults = ReplaySettings()
    assert documented["--max-draft-tokens"] == str(defaults.max_draft_tokens)
    assert documented["--draft-cost"] == f"each of {', '.join(map(str, REPORTED_DRAFT_COSTS))}"
    assert (documented["--learn"] == "on") == defaults.learn
    assert documented["--min-match-len"] == str(defaults.min_match_len)


def test_the_replay_commands_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record = {"prompt_token_ids": [1, 2, 3, 1], "output_token_ids": [2, 3]}
    Path("chat.jsonl").write_text(json.dumps(record))
    replays = [arguments for arguments in commands("ngram-spec") if arguments[0] == "replay"]
    assert len(replays) >= 2
    for arguments in replays:
        assert cli.main(arguments) == 0, arguments
    assert capsys.readouterr().err == ""


def test_the_other_commands_are_parsed() -> None:
    """They are run in real vLLM by `real_vllm/test_bench.py` and `real_vllm/test_docs.py`."""
    others = [arguments for arguments in commands("ngram-spec") if arguments[0] != "replay"]
    assert {arguments[0] for arguments in others} == {"bench"}
    for arguments in others:
        assert cli.command_line().parse_args(arguments).command == "bench"


def test_the_table_of_the_packaged_recordings_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (shown,) = (block for block in blocks("console") if block.startswith("$ ngram-spec replay"))
    command, *expected = shown.splitlines()
    assert cli.main(shlex.split(command)[2:]) == 0
    printed = capsys.readouterr().out.splitlines()

    def without_the_time(lines: list[str]) -> list[list[str]]:
        # The rule below the heading is as long as the widest time.
        rows = [line.split()[: -1 if "%" in line else None] for line in lines]
        return [row for row in rows if not set("".join(row)) <= {"─"}]

    assert without_the_time(expected) == without_the_time(printed)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_and_links_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    folder = (ROOT / document).parent
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, flags=re.MULTILINE)) <= set(targets)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (folder / link.partition("#")[0]).exists()] == []


def test_the_tests_and_files_that_the_design_names_exist() -> None:
    design = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    sources = "".join(
        path.read_text(encoding="utf-8")
        for pattern in ("rust/*/src/*.rs", "rust/*/tests/*.rs", "tests/**/test_*.py")
        for path in ROOT.glob(pattern)
    )
    (guards,) = re.findall(r"\n## Invariants.*?(?=\n## )", design, flags=re.DOTALL)
    names = re.findall(r"`([a-z0-9_]{20,})(?:\.\.\.)?`", guards)
    assert len(names) > 5
    assert [name for name in names if f" {name}" not in sources] == []
    paths = re.findall(r"`((?:rust|tests|python)/[\w./-]+)`", design)
    places = [ROOT, ROOT / "rust" / "ngram-spec"]
    assert [path for path in paths if not any((place / path).exists() for place in places)] == []
