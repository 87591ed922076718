"""Every command of docs/ is run here as it stands there, on a real server with the small model.

Not run: `docker`, which needs a container engine. The flags that it gives to the image are given to vLLM's
own parser instead; what the extra layer of the image does, `pip install`, is done in a fresh environment.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from documented import DOCS, Command, Server, Shell, commands
from ngram_spec.vllm_options import OPTIONS
from test_short_form import config_of

# The warnings are of vLLM's own libraries.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

ROOT = DOCS.parent
SERVE = [command for command in commands("flags") if "vllm serve" in command.text]
OBSERVED, *OBSERVATIONS = commands("see-that-it-works")
SWITCHES = [command for command in commands("turn-it-off") if "ngram-spec.off" in command.text]
REFUSED = commands("what-speculation-refuses")
OFFLINE = commands("what-to-expect")
# Run by test_bench.py, with fewer and shorter answers.
LIVE_BENCH = [command for command in commands("turn-it-off") if "ngram-spec bench" in command.text]
INSTALLS = [command for command in commands("container") if not command.text.startswith("docker")]
CONTAINERS = [command for command in commands("container") if command.text.startswith("docker")]
UPGRADES = commands("upgrading")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    recordings = files("ngram_spec") / "recordings"
    lines = [
        line
        for name in ("rag", "summarization", "code_edit")
        for line in (recordings / f"{name}.jsonl").read_text("utf-8").splitlines()[:2]
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join(lines) + "\n")
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of see-that-it-works.md, which the pages on switching and on refusals go on with."""
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    with Server(Shell(tmp_path_factory.mktemp("observed")), OBSERVED) as server:
        yield server


def test_no_command_is_left_out() -> None:
    of_a_server = [*SERVE, OBSERVED, *OBSERVATIONS, *SWITCHES, *REFUSED]
    of_the_shell = [*OFFLINE, *LIVE_BENCH, *INSTALLS, *UPGRADES]
    everything = [command for page in DOCS.glob("*.md") for command in commands(page.stem)]
    assert {command for command in everything if command not in CONTAINERS} == {*of_a_server, *of_the_shell}
    assert len(CONTAINERS) == 2


@pytest.mark.parametrize("command", SERVE[:-1], ids=["a number", "a curve", "the long form"])
def test_a_server_starts_with_the_flags_and_drafts(command: Command, shell: Shell) -> None:
    with Server(shell, command) as server:
        assert server.copy()
        assert server.num_draft_tokens() > 0


def test_a_misspelled_option_stops_the_server_at_its_start(shell: Shell) -> None:
    process = shell.start(SERVE[-1].text)
    output, _ = process.communicate(timeout=200)
    assert process.returncode != 0
    SERVE[-1].assert_shown_output_is_in(output)


def test_one_can_see_that_it_works(observed: Server) -> None:
    doctor, chat, of_vllm, own = OBSERVATIONS
    assert "ngram-spec in vLLM" in observed.log
    observed.shell.run(doctor)
    answer = json.loads(observed.shell.run(chat))
    assert answer["choices"][0]["message"]["content"]
    counters = observed.shell.run(of_vllm)
    assert re.search(r"num_draft_tokens_total\{.*\} [1-9]", counters)
    shown = observed.shell.run(own)
    assert re.search(r"ngram_spec_drafts_total [1-9]", shown)
    table = (DOCS / "see-that-it-works.md").read_text("utf-8").split("| metric |")[1].split("\n\n")[0]
    for name in re.findall(r"[a-z_]{5,}", "".join(re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE))):
        assert f"ngram_spec_{name}" in shown, name


def test_the_switch_turns_drafting_off_and_on_in_a_running_server(observed: Server) -> None:
    off, on = SWITCHES

    def drafts_at_last(wanted: bool) -> bool:
        for _ in range(150):  # an answer takes some 4 steps, and the file is looked for every 256
            before = observed.num_draft_tokens()
            observed.copy()
            if (observed.num_draft_tokens() > before) == wanted:
                return True
        return False

    assert drafts_at_last(True)
    observed.shell.run(off)
    assert drafts_at_last(False)
    assert "drafting is switched off" in observed.log
    observed.shell.run(on)
    assert drafts_at_last(True)


def test_what_speculation_refuses_is_refused_and_the_server_goes_on(observed: Server) -> None:
    (command,) = REFUSED
    observed.shell.run(command)
    with_bias = command.text.replace('"min_p": 0.1', '"logit_bias": {"5": 1}')
    observed.shell.run(replace(command, text=with_bias))
    assert observed.copy()


def test_the_offline_estimates_run(shell: Shell) -> None:
    for command in OFFLINE:
        assert shell.run(command)


def test_a_wheel_is_built_installed_and_upgraded_in_an_environment_without_vllm(shell: Shell) -> None:
    (build,) = INSTALLS
    wheels, venv = shell.folder / "dist", shell.folder / "venv"
    in_the_clone = f"cd {shlex.quote(str(ROOT))} && {build.text.replace('dist', str(wheels))}"
    shell.run(replace(build, text=in_the_clone), {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    fresh = {"PATH": f"{venv}/bin{os.pathsep}/usr/bin:/bin", "PIP_FIND_LINKS": str(wheels), "PYTHONPATH": ""}
    install, doctor = UPGRADES
    shell.run(install, fresh)
    assert "vLLM is not installed" in " ".join(shell.run(doctor, fresh).split())


def test_the_flags_for_the_container_are_those_of_vllm() -> None:
    command = next(command for command in CONTAINERS if "docker run" in command.text)
    arguments = [argument for argument in shlex.split(command.text) if argument.strip()]
    behind_the_image = arguments[arguments.index("vllm-ngram-spec") + 1 :]
    flags = dict(zip(behind_the_image[::2], behind_the_image[1::2], strict=True))
    assert flags.keys() == {"--model", "--speculative-config"}
    options = json.loads(flags["--speculative-config"])
    config = config_of(options)
    assert config.additional_config["ngram_spec"] == {key: options[key] for key in options if key in OPTIONS}
    page = (DOCS / "container.md").read_text("utf-8")
    images = re.findall(r"^FROM vllm/vllm-openai:v(\S+)$", page, flags=re.MULTILINE)
    assert len(set(images)) == 1
