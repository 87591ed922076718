"""What a server and its machine tell beside the answers: counters, the KV cache, memory, energy.

What cannot be read is None, and is no error: a server behind a proxy has no /metrics, a CPU has no driver.
"""

import json
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pynvml
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.records import Counters, Resources
from ngram_spec.bench.server import fetch, process_tree

SAMPLE_SECONDS = 1.0
# vLLM counts a step a moment after it has sent what the step brought.
SETTLE_SECONDS = 1.0
SETTLE_POLL_SECONDS = 0.02
MILLIJOULES_PER_JOULE = 1000.0

# By vLLM's name (0.32.0, `v1/metrics/loggers.py` and `v1/spec_decode/metrics.py`), the field of `Counters`.
VLLM_COUNTERS = {
    "vllm:generation_tokens_total": "num_output_tokens",
    "vllm:spec_decode_num_drafts_total": "num_drafts",
    "vllm:spec_decode_num_draft_tokens_total": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "num_accepted_tokens",
    "vllm:num_preemptions_total": "num_preemptions",
}
ACCEPTED_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG = "vllm:cache_config_info"
DRAFTER_COUNTERS = {
    "ngram_spec_drafter_seconds_total": "drafter_seconds",
    "ngram_spec_steps_total": "num_drafter_steps",
}

# A sample: its labels and its value.
Samples = dict[str, list[tuple[dict[str, str], float]]]


def read_metrics(url: str, prefix: str = "") -> Samples | None:
    """Return the samples at `url` whose names begin so, by name; None where there are none to read."""
    try:
        lines = fetch(f"{url}/metrics").decode().splitlines()
        # Parsing holds the interpreter, while chunks come in that are to be timed.
        text = "".join(f"{line}\n" for line in lines if line.startswith(prefix))
        samples: Samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except Exception:  # nothing answers, or the parser raises, of every kind, for what is no metric
        return None
    return samples


class Counts:
    """The counters of one server, and of its drafter where `drafter_url` has them, at one time."""

    def __init__(self, url: str, drafter_url: str | None) -> None:
        self._urls = (url, drafter_url)
        self._vllm = read_metrics(url)
        self._drafter = None if drafter_url is None else read_metrics(drafter_url)

    @property
    def num_output_tokens(self) -> float | None:
        return _sum(self._vllm, "vllm:generation_tokens_total")

    def growth(self, num_output_tokens: int) -> Counters:
        """Return how far the counters have grown since, once they count so many output tokens more.

        All engines of a server are added up.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        now = Counts(*self._urls)
        while (
            self.num_output_tokens is not None
            and now.num_output_tokens is not None
            and now.num_output_tokens - self.num_output_tokens < num_output_tokens
            and time.monotonic() < deadline
        ):
            time.sleep(SETTLE_POLL_SECONDS)
            now = Counts(*self._urls)
        grown: dict[str, Any] = {}
        for names, before, after in (
            (VLLM_COUNTERS, self._vllm, now._vllm),
            (DRAFTER_COUNTERS, self._drafter, now._drafter),
        ):
            for name, field in names.items():
                grown[field] = _growth(before, after, name)
        start_by_position, end_by_position = _by_position(self._vllm), _by_position(now._vllm)
        by_position = [
            end - start_by_position.get(position, 0) for position, end in sorted(end_by_position.items())
        ]
        is_known = self._vllm is not None and min(by_position, default=0) >= 0
        grown["num_accepted_by_position"] = by_position if is_known else ()
        try:
            return Counters(**grown)
        except ValidationError:  # no counts of anything, such as half a token
            return Counters()


def _growth(before: Samples | None, after: Samples | None, name: str) -> float | None:
    """Return None where it cannot be told: without a first reading it would be all that was ever counted."""
    end = _sum(after, name)
    if before is None or end is None:
        return None
    start = _sum(before, name) or 0  # vLLM makes some counters at their first use
    return None if end < start else end - start  # one that fell is another server's


def _sum(samples: Samples | None, name: str) -> float | None:
    if samples is None or name not in samples:
        return None
    total = sum(value for _, value in samples[name])
    return total if math.isfinite(total) else None


def _by_position(samples: Samples | None) -> dict[int, float]:
    counts: dict[int, float] = {}
    for labels, value in (samples or {}).get(ACCEPTED_BY_POSITION, ()):
        with suppress(KeyError, ValueError):
            position = int(labels["position"])
            counts[position] = counts.get(position, 0) + value
    return counts if all(map(math.isfinite, counts.values())) else {}


def models(url: str, headers: Mapping[str, str]) -> list[str]:
    """Return the names under which a server's models are asked for, the first one first.

    Raises:
        NgramSpecError: it does not tell any.
    """
    try:
        names = [str(model["id"]) for model in json.loads(fetch(f"{url}/v1/models", headers=headers))["data"]]
        "".join(names).encode()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NgramSpecError(
            f"{url} must be the root of a server with the OpenAI API, such as http://localhost:8000, "
            f"but /v1/models there gave: {error}"
        ) from error
    if not names:
        raise NgramSpecError(f"{url}: the server must serve a model, got none at /v1/models")
    return names


def engine_version(url: str) -> str | None:
    """Return the version of vLLM that answers at `url`."""
    try:
        version = str(json.loads(fetch(f"{url}/version"))["version"])
        version.encode()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version


def kv_cache_tokens(url: str) -> int | None:
    """Return how many tokens the KV caches of all engines of a server hold."""
    configs = [labels for labels, _ in (read_metrics(url) or {}).get(CACHE_CONFIG, ())]
    with suppress(ValueError, KeyError):
        return sum(_cache_size(labels) for labels in configs) or None
    return None


def _cache_size(labels: dict[str, str]) -> int:
    if labels.get("kv_cache_size_tokens", "None") != "None":
        return int(labels["kv_cache_size_tokens"])
    return int(labels["num_gpu_blocks"]) * int(labels["block_size"])


class Gpus:
    """NVIDIA GPUs, as their driver tells of them; none by default."""

    def __init__(self, handles: Sequence[Any] = ()) -> None:
        self._handles = handles

    @classmethod
    def visible(cls) -> "Gpus":
        """Return those that a process started here would use; none where there is no driver."""
        try:
            pynvml.nvmlInit()
            indices = list(range(pynvml.nvmlDeviceGetCount()))
            if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
                indices = [int(index) for index in chosen.split(",") if chosen]  # an empty text: none
            return cls([pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices])
        except (pynvml.NVMLError, ValueError):
            return cls()

    @property
    def description(self) -> str | None:
        """How many there are, and the name of the first."""
        if not self._handles:
            return None
        name: str = pynvml.nvmlDeviceGetName(self._handles[0])
        return name if len(self._handles) == 1 else f"{len(self._handles)} x {name}"

    def used_bytes(self) -> int | None:
        """Return the memory in use on all of them, by whomever."""
        return self._sum(lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    def joules(self) -> float | None:
        """Return what all of them have used since their driver was loaded."""
        millijoules = self._sum(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / MILLIJOULES_PER_JOULE

    def _sum(self, read: Callable[[Any], int]) -> int | None:
        if not self._handles:
            return None
        try:
            return sum(read(handle) for handle in self._handles)
        except pynvml.NVMLError:  # a driver that does not tell this
            return None


def device(gpus: Gpus, is_on_cpu: bool) -> str:
    """Return on what the servers that this machine starts run."""
    if not is_on_cpu and gpus.description is not None:
        return gpus.description
    model = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{model}, {psutil.cpu_count()} CPU cores"


class Sampler:
    """Peaks of what a server takes, looked at once a second on a thread of its own."""

    def __init__(self, url: str, pid: int | None, gpus: Gpus) -> None:
        self._url, self._gpus = url, gpus
        # Looked for once: vLLM starts its processes before it is ready, and the search is slow.
        self._processes = [] if pid is None else process_tree(pid)
        self._process_bytes: list[int] = []
        self._gpu_bytes: list[int] = []
        self._kv_cache_usage: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample while the block of code runs, at least once."""
        done = threading.Event()
        thread = threading.Thread(target=self._run, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def resources(self, joules: float | None) -> Resources:
        """Return the peaks."""
        return Resources(
            process_bytes=max(self._process_bytes, default=None),
            gpu_bytes=max(self._gpu_bytes, default=None),
            kv_cache_usage=max(self._kv_cache_usage, default=None),
            energy_joules=joules,
        )

    def _run(self, done: threading.Event) -> None:
        while True:
            self._sample()
            if done.wait(SAMPLE_SECONDS):
                return

    def _sample(self) -> None:
        if size := sum(_resident_bytes(process) for process in self._processes):
            self._process_bytes.append(size)
        if (used := self._gpus.used_bytes()) is not None:
            self._gpu_bytes.append(used)
        samples = read_metrics(self._url, KV_CACHE_USAGE) or {}
        # Each engine of the server has its own.
        self._kv_cache_usage += [
            value for _, value in samples.get(KV_CACHE_USAGE, ()) if 0 <= value < math.inf
        ]


def _resident_bytes(process: psutil.Process) -> int:
    """Memory that several processes share counts in each of them."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
