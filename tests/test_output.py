"""Where output goes nowhere, or to a plain or narrow terminal, a command says so or goes on."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MAIN = "import sys; from ngram_spec.cli import main; sys.exit(main())"


def run(
    shell: str, arguments: Sequence[str], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line as bash runs `$RUN ARGUMENTS` with what `shell` puts around it."""
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(
        ["bash", "-c", shell, "bash", *command],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
        timeout=120,
        check=False,
    )


REPLAY = ("replay", "--json", "out.json")
MODELLED = ("bench", "--modelled", "--concurrency", "1", "--out", "out")
WRITTEN = {REPLAY: "out.json", MODELLED: "out/modelled.html"}


@pytest.mark.parametrize("arguments", [REPLAY, MODELLED])
def test_a_full_disk_behind_standard_output_is_an_error_of_one_line(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = run('"$@" > /dev/full', arguments, tmp_path)
    assert result.returncode == 2
    message = f"{arguments[0]}: error: cannot write to standard output: No space left on device"
    assert result.stderr == f"ngram-spec {message}\n"
    assert (tmp_path / WRITTEN[arguments]).stat().st_size > 1000


@pytest.mark.parametrize("arguments", [REPLAY, MODELLED])
@pytest.mark.parametrize("shell", ['"$@" | true', '"$@" | head -1', '"$@" >&-', '"$@" >&- 2>&-'])
def test_what_a_command_writes_is_whole_though_nobody_reads_what_it_prints(
    tmp_path: Path, arguments: tuple[str, ...], shell: str
) -> None:
    result = run(shell, arguments, tmp_path)
    assert result.returncode == 0
    assert result.stderr == ""
    assert (tmp_path / WRITTEN[arguments]).stat().st_size > 1000


@pytest.mark.parametrize("arguments", [REPLAY, MODELLED])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16"])
def test_a_terminal_without_unicode_gets_question_marks(
    tmp_path: Path, arguments: tuple[str, ...], encoding: str
) -> None:
    result = run('"$@"', arguments, tmp_path, PYTHONIOENCODING=encoding)
    assert result.returncode == 0
    assert result.stderr == ""


def test_a_narrow_terminal_gets_every_figure_of_a_replay(tmp_path: Path) -> None:
    result = run('script -qec "stty cols 20; $(printf "%q " "$@")" /dev/null', ("replay",), tmp_path)
    if result.returncode == 127:
        pytest.skip("needs the command script: apt-get install bsdutils")
    assert "tokens/" in result.stdout
    assert "…" not in result.stdout.rpartition("recording ")[2]


@pytest.mark.parametrize("arguments", [("replay", b"\xff.jsonl"), ("bench", "--quick", "--model", b"\xff")])
def test_an_argument_that_no_report_could_hold_is_refused(
    tmp_path: Path, arguments: tuple[str | bytes, ...]
) -> None:
    result = run('"$@"', [os.fsdecode(argument) for argument in arguments], tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("ngram-spec: error: arguments must be UTF-8 text, got '\\udcff")
    assert result.stderr.count("\n") == 1
