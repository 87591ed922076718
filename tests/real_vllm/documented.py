"""The commands of the documents, with the output shown for each, and a shell that runs them as they stand."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ngram_spec.bench.scrape import read_metrics
from ngram_spec.bench.server import ServerError, end_server, free_port, wait_until_ready
from small_model import small_model

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
# What a machine without a GPU needs, and a small model; greedy answers are exact in float32.
FLAGS = "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 8"
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
START_SECONDS = 400


@dataclass(frozen=True)
class Command:
    """One command line of a page, and the output that the page shows for it, where it shows any."""

    page: str
    text: str
    output: str

    def assert_shown_output_is_in(self, output: str) -> None:
        """What is shown between dots must come in this order."""
        place = 0
        for part in filter(None, map(str.strip, self.output.split("..."))):
            place = output.find(part, place)
            assert place >= 0, f"{self.page}: {part!r} is not in the output of {self.text!r}:\n{output}"


def commands(page: str) -> list[Command]:
    """The commands of `docs/PAGE.md`, in its order: they begin with `$`, what follows is their output."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    found = []
    for block in re.findall(r"^ *```console\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL):
        for entry in re.split(r"^ *\$ ", block, flags=re.MULTILINE)[1:]:
            lines = entry.splitlines(keepends=True)
            num_lines = next(n for n in range(1, len(lines) + 1) if _is_whole("".join(lines[:n])))
            found.append(Command(page, "".join(lines[:num_lines]), "".join(lines[num_lines:])))
    return found


def _is_whole(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False  # a quotation goes on
    return not text.endswith("\\\n")


def _is_installed(distribution: str) -> bool:
    return any(True for _ in metadata.distributions(name=distribution))


class Shell:
    """Runs commands in `folder`, with the model, ports and files of a test in place of those shown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.metrics_port = free_port(), free_port()
        self.switch_file = folder / "ngram-spec.off"
        if importlib.util.find_spec("vllm") and not _is_installed("vllm"):
            # vLLM's command line asks for the version of a distribution "vllm", and takes from it that it
            # is built for the CPU; the CPU build itself is called "vllm-cpu".
            version = f"{metadata.version('vllm-cpu')}+cpu"
            stub = folder / f"site/vllm-{version}.dist-info/METADATA"
            stub.parent.mkdir(parents=True)
            stub.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(folder / "site"), "PATH": path}

    def filled_in(self, text: str) -> str:
        for shown, real in {
            "MODEL": str(small_model()),
            "localhost:8000": f"localhost:{self.port}",
            "9400": str(self.metrics_port),
            "/tmp/ngram-spec.off": str(self.switch_file),
        }.items():
            text = text.replace(shown, real)
        return text

    def run(self, command: Command, environment: Mapping[str, str] | None = None) -> str:
        """Return what the command printed; it must succeed and print what the page shows."""
        done = self.start(command.text, environment)
        output, _ = done.communicate(timeout=START_SECONDS)
        assert done.returncode == 0, f"{command.text}\n{output}"
        command.assert_shown_output_is_in(output)
        return output

    def start(self, text: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", self.filled_in(text)],
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


class Server:
    """A `vllm serve` of a page, with the flags that it needs here behind its own."""

    def __init__(self, shell: Shell, command: Command) -> None:
        self.shell, self.log_path = shell, shell.folder / "serve.log"
        text = f"exec {command.text.rstrip()}" if command.text.startswith("vllm") else command.text.rstrip()
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", shell.filled_in(f"{text} --port {shell.port} {FLAGS}")],
                cwd=shell.folder,
                env=shell.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        return f"http://localhost:{self.shell.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", errors="replace")

    def __enter__(self) -> "Server":
        try:
            wait_until_ready(self.process, self.url, self.log_path, START_SECONDS)
        except ServerError:
            end_server(self.process)
            raise
        return self

    def __exit__(self, *args: object) -> None:
        end_server(self.process)

    def copy(self) -> str:
        """Ask for an answer that copies from its prompt."""
        body = {
            "model": str(small_model()),
            "temperature": 0,
            "max_tokens": 24,
            "messages": [
                {"role": "user", "content": "Repeat: one two three four, one two three four, one two"}
            ],
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])

    def num_draft_tokens(self) -> int:
        samples = read_metrics(self.url)
        assert samples is not None
        return int(sum(value for _, value in samples.get("vllm:spec_decode_num_draft_tokens_total", ())))
