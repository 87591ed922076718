"""Starts a vLLM server and ends it: in a process group of its own, its output in a file, nothing left.

    with started_server("Qwen/Qwen3-0.6B", ["--max-model-len", "4096"], log_path=Path("log")) as server:
        ...  # server.url answers

A measured server gets a few flags that it would not have by itself, see `with_default_flags`.
"""

import http.client
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.sizes import START_TIMEOUT

HOST = "127.0.0.1"
STOP_TIMEOUT = 20.0
POLL_SECONDS = 0.2
NUM_LOG_LINES = 25
# Prompts are asked again at each concurrency: with a prefix cache all but the first would get their prefill
# for nothing, and whether a prompt is still cached would depend on the arm.
DEFAULT_FLAGS = ("--no-enable-prefix-caching",)
# In float32 a greedy answer is the same with drafts as without; in bfloat16 a near-tie can flip.
DEFAULT_CPU_FLAGS = ("--enforce-eager", "--dtype", "float32")
DEFAULT_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1"}
# vLLM would take most of the machine's memory; and numba's threads make its `ngram` ten times slower there.
DEFAULT_CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "NUMBA_NUM_THREADS": "1"}

# Of Ctrl-C, of a manager of jobs, and of a terminal that closes.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_BODY_BYTES = 2**26

# Servers are local or named by the user: a proxy of the environment is not meant for them.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """A server did not start, is gone, or does not answer; the message ends with the end of its log.

    `reason` says the same on one line.
    """

    def __init__(self, what: str, log_path: Path) -> None:
        lines = log_path.read_text("utf-8", errors="replace").rstrip().splitlines() or ["(nothing)"]
        start = f"{what}; its output, in {log_path}, ends with:"
        super().__init__("\n".join((start, *lines[-NUM_LOG_LINES:])))
        self.reason = f"{start} {lines[-1].strip()}"


@dataclass(frozen=True)
class Server:
    """A server that runs, started here: `url` is its root, without `/v1`."""

    url: str
    command: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log_path: Path
    seconds_to_ready: float

    def check_alive(self, patience: float = 0.0) -> None:
        """Do nothing if the server still runs after so many seconds.

        Raises:
            ServerError: it has ended.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        if self.process.returncode is not None:
            raise ServerError(f"the server ended with {_exit(self.process)}", self.log_path)


@contextmanager
def started_server(
    model: str,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    log_path: Path,
    start_timeout: float = START_TIMEOUT,
) -> Iterator[Server]:
    """Start `vllm serve MODEL FLAGS` on a free port, yield it when it is ready, end it with all it started.

    `environment` comes on top of that of this process, and both win over `default_environment`.

    Raises:
        NgramSpecError: vLLM is not installed where this Python is, or its log cannot be written.
        ServerError: the server ended before it was ready, or was not ready in `start_timeout` seconds.
    """
    port = free_port()
    command = (*serve_command(model), "--host", HOST, "--port", str(port), *flags)
    defaults = default_environment(model)
    started_at = time.perf_counter()
    process: subprocess.Popen[bytes] | None = None
    try:
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("wb") as log, _uninterrupted():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**defaults, **os.environ, **(environment or {})},
                    # A Ctrl-C at the terminal is for us: we end the server, in order.
                    start_new_session=True,
                )
        except OSError as error:
            raise NgramSpecError(
                f"cannot start the server, or not keep its output in {log_path}: {error.strerror}"
            ) from error
        url = f"http://{HOST}:{port}"
        wait_until_ready(process, url, log_path, start_timeout)
        yield Server(url, command, process, log_path, time.perf_counter() - started_at)
    finally:
        if process is not None:
            end_server(process)


def serve_command(model: str) -> tuple[str, ...]:
    """Return how vLLM's server is started here, up to the model.

    Raises:
        NgramSpecError: vLLM is not installed where this Python is.
    """
    if _version_of("vllm") is not None:
        # Of this Python's environment, which has ngram-spec too.
        places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        if (script := shutil.which("vllm", path=places)) is not None:
            return (script, "serve", model)
    if importlib.util.find_spec("vllm") is not None:
        # vLLM's CPU build has another distribution's name, which its command `vllm` does not find (0.32.0).
        return (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model)
    raise NgramSpecError(
        f"vLLM must be installed where {sys.executable} is: pip install vllm, or measure servers that run "
        "already with --url NAME=URL"
    )


def is_cpu_build() -> bool:
    """Return whether the vLLM that is installed here runs on the CPU."""
    version = _version_of("vllm")
    return "cpu" in version if version is not None else _version_of("vllm-cpu") is not None


def with_default_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return `flags` behind those that a measured server gets by default, but for what `flags` decide."""
    defaults = (*DEFAULT_FLAGS, *(DEFAULT_CPU_FLAGS if is_cpu_build() else ()))
    given = {flag_name(flag) for flag in flags if flag.startswith("--")}
    kept: list[str] = []
    is_kept = False
    for part in defaults:
        if part.startswith("--"):
            is_kept = flag_name(part) not in given
        if is_kept:
            kept.append(part)
    return (*kept, *flags)


def default_environment(model: str) -> dict[str, str]:
    """Return the variables that a measured server gets where the environment does not have them."""
    environment = dict(DEFAULT_ENVIRONMENT)
    if is_cpu_build():
        environment |= DEFAULT_CPU_ENVIRONMENT
    if Path(model).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return environment


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def fetch(url: str, timeout: float = 10.0, headers: Mapping[str, str] | None = None) -> bytes:
    """Return what GET answers within about `timeout` seconds.

    Raises:
        OSError: nothing answered, or an HTTP error (`urllib.error.HTTPError`), or more and more.
    """
    request = urllib.request.Request(url, headers=dict(headers or {}))
    deadline = time.monotonic() + timeout
    body = bytearray()
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            size = response.length  # None where it is not told
            while (size is None or len(body) < size) and (part := response.read1(2**16)):
                body += part
                if len(body) > MAX_BODY_BYTES or time.monotonic() > deadline:
                    raise OSError(f"{url}: the answer did not end after {len(body)} bytes")
            if size is not None and len(body) < size:
                raise OSError(f"{url}: the answer ended after {len(body)} of {size} bytes")
    except (http.client.HTTPException, OverflowError) as error:  # the latter for a port that cannot be
        raise OSError(f"{url}: {error}") from error
    return bytes(body)


def wait_until_ready(
    process: subprocess.Popen[bytes], url: str, log_path: Path, start_timeout: float
) -> None:
    """Return when the server at `url`, which `process` is, answers.

    Raises:
        ServerError: it ends before, or does not answer within `start_timeout` seconds.
    """
    deadline = time.monotonic() + start_timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with {_exit(process)} before it was ready", log_path)
        with suppress(OSError):
            fetch(f"{url}/health")
            return
        time.sleep(POLL_SECONDS)
    raise ServerError(f"the server was not ready after {start_timeout:g} s", log_path)


def end_server(process: subprocess.Popen[bytes]) -> None:
    """End the server with all that it started, by force where it does not end by itself."""
    started: list[psutil.Process] = []
    try:
        started = process_tree(process.pid)
        process.terminate()
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when a second Ctrl-C ends the wait
        with _uninterrupted():
            started = started or process_tree(process.pid)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for child in started:  # one that left the group
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.wait()
            _wait_until_gone(started)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put signals off that would interrupt the block of code: an impatient user sends several."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come on the main thread alone
        return
    kept: list[int] = []
    before = {one: signal.signal(one, lambda number, _frame: kept.append(number)) for one in ENDING_SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    for number in kept[:1]:
        signal.raise_signal(number)


def _wait_until_gone(processes: Sequence[psutil.Process]) -> None:
    """Wait for killed processes to give back their memory, which the next server needs."""
    deadline = time.monotonic() + STOP_TIMEOUT
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    """One that has ended stays in the table until its parent, in a container a slow one, has seen it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def process_tree(pid: int) -> list[psutil.Process]:
    """Return the process and all below it, none where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def flag_name(flag: str) -> str:
    """Return a flag's name as vLLM compares it: without its value, and without the "no" of its opposite."""
    return flag.partition("=")[0].replace("_", "-").removeprefix("--").removeprefix("no-")


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
