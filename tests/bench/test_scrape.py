"""Counters, memory and energy, as a server, its processes and a driver tell them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from ngram_spec import NgramSpecError
from ngram_spec.bench import scrape
from ngram_spec.bench.records import Counters
from ngram_spec.bench.scrape import Counts, Gpus, Sampler, device, engine_version, kv_cache_tokens, models

# As vLLM 0.32.0 gives them, with two engines (data parallel), and a histogram that is not read.
BEFORE = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 50.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 7.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 1.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 26.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="128",engine="0",kv_cache_size_tokens="23296",num_gpu_blocks="182"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="10"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
"""
AFTER = """\
vllm:generation_tokens_total{engine="0",model_name="m"} 130.0
vllm:generation_tokens_total{engine="1",model_name="m"} 70.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 17.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 3.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 66.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 27.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 4.0
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
ngram_spec_drafter_seconds_total 0.5
ngram_spec_steps_total 40.0
"""


class Pages:
    """What a small server answers, by path; a list is answered item by item, its last one from then on."""

    def __init__(self) -> None:
        self.by_path: dict[str, Any] = {}
        self.url = ""


@pytest.fixture
def pages() -> Iterator[Pages]:
    with served() as pages:
        yield pages


@contextmanager
def served() -> Iterator[Pages]:
    pages = Pages()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = pages.by_path.get(self.path)
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            self.send_response(200 if answer is not None else 404)
            self.end_headers()
            self.wfile.write((answer or "").encode())

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    pages.url = f"http://127.0.0.1:{server.server_port}"
    yield pages
    server.shutdown()
    thread.join()
    server.server_close()


def test_counters_grow_over_all_engines_of_a_server(pages: Pages) -> None:
    pages.by_path["/metrics"] = [BEFORE, AFTER]
    assert Counts(pages.url, None).growth(50) == Counters(
        num_output_tokens=50,
        num_drafts=12,
        num_draft_tokens=40,
        num_accepted_tokens=20,
        num_accepted_by_position=(10, 6, 4),
        num_preemptions=0,
    )


def test_the_drafters_own_counters_are_read_beside_them(pages: Pages) -> None:
    with served() as drafter:
        # It makes none before its first step.
        drafter.by_path["/metrics"] = ["", AFTER]
        pages.by_path["/metrics"] = BEFORE
        grown = Counts(pages.url, drafter.url).growth(0)
    assert (grown.drafter_seconds, grown.num_drafter_steps) == (0.5, 40)
    assert grown.num_output_tokens == 0


def test_what_could_not_be_read_before_has_not_grown_by_all_that_was_ever_counted(pages: Pages) -> None:
    pages.by_path["/metrics"] = [None, AFTER]
    assert Counts(pages.url, None).growth(50) == Counters()
    # With no counter in it, a page is one that could be read.
    pages.by_path["/metrics"] = ["", AFTER]
    grown = Counts(pages.url, None).growth(50)
    assert (grown.num_output_tokens, grown.num_accepted_by_position) == (200, (15, 8, 4))
    with served() as drafter:
        drafter.by_path["/metrics"] = [None, AFTER]
        pages.by_path["/metrics"] = BEFORE
        grown = Counts(pages.url, drafter.url).growth(0)
    assert (grown.drafter_seconds, grown.num_drafter_steps, grown.num_drafts) == (None, None, 0)


def test_the_last_step_is_waited_for(pages: Pages) -> None:
    halfway = AFTER.replace("70.0", "60.0")
    pages.by_path["/metrics"] = [BEFORE, halfway, halfway, AFTER]
    assert Counts(pages.url, None).growth(50).num_output_tokens == 50


def test_tokens_that_never_come_are_not_waited_for_long(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "SETTLE_SECONDS", 0.1)
    pages.by_path["/metrics"] = [BEFORE, AFTER]
    began_at = time.monotonic()
    assert Counts(pages.url, None).growth(51).num_output_tokens == 50
    assert time.monotonic() - began_at < 5


@pytest.mark.parametrize("page", [None, "<html>no metrics</html>", "vllm:generation_tokens_total{ 1"])
def test_what_a_server_does_not_tell_is_unknown(pages: Pages, page: str | None) -> None:
    pages.by_path["/metrics"] = page
    assert Counts(pages.url, pages.url).growth(50) == Counters()
    assert kv_cache_tokens(pages.url) is None
    assert engine_version(pages.url) is None
    with pytest.raises(NgramSpecError, match=r"must be the root of a server with the OpenAI API"):
        models(pages.url, {})


def test_a_server_tells_its_version_its_models_and_the_size_of_its_kv_cache(pages: Pages) -> None:
    pages.by_path = {
        "/version": '{"version": "0.32.0"}',
        "/v1/models": '{"data": [{"id": "base"}, {"id": "lora"}]}',
        "/metrics": BEFORE,
    }
    assert engine_version(pages.url) == "0.32.0"
    assert models(pages.url, {}) == ["base", "lora"]
    assert kv_cache_tokens(pages.url) == 23296 + 160


def test_a_sampler_keeps_the_peaks_of_all_processes_and_engines(pages: Pages) -> None:
    pages.by_path["/metrics"] = BEFORE
    hoard = "kept = bytearray(b'x' * 50_000_000); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", hoard], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone, whole = Sampler(pages.url, child.pid, Gpus()), Sampler(pages.url, os.getpid(), Gpus())
        with alone.running(), whole.running():
            pass
        child.kill()
    sizes = [sampler.resources(None).process_bytes for sampler in (alone, whole)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert 50_000_000 < sizes[0] < sizes[1]
    assert whole.resources(None).kv_cache_usage == 0.75
    assert whole.resources(1.5).energy_joules == 1.5


def test_a_server_elsewhere_has_no_memory_here(pages: Pages) -> None:
    sampler = Sampler(pages.url, None, Gpus())
    with sampler.running():
        pass
    resources = sampler.resources(None)
    assert (resources.process_bytes, resources.gpu_bytes, resources.kv_cache_usage) == (None, None, None)


class FakeDriver:
    """Stands for the driver of two GPUs, which the machines of the tests do not have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.millijoules = [100, 7], [5000, 3000]
        for name, function in {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: "GPU X",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=self.used[handle]),
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.millijoules[handle],
        }.items():
            monkeypatch.setattr(pynvml, name, function)


def test_gpus_are_those_that_a_server_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    both = Gpus.visible()
    assert (both.used_bytes(), both.joules(), device(both, is_on_cpu=False)) == (107, 8.0, "2 x GPU X")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    second = Gpus.visible()
    assert (second.used_bytes(), second.joules(), second.description) == (7, 3.0, "GPU X")
    # For CUDA an empty list hides all.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Gpus.visible().used_bytes() is None


def test_a_driver_that_does_not_tell_energy_costs_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver(monkeypatch)

    def refuse(_handle: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    gpus = Gpus.visible()
    assert (gpus.joules(), gpus.used_bytes()) == (None, 107)


def test_without_a_driver_there_are_no_gpus_and_the_processor_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    gpus = Gpus.visible()
    assert (gpus.used_bytes(), gpus.joules(), gpus.description) == (None, None, None)
    assert device(gpus, is_on_cpu=False).endswith("CPU cores")
