"""What the proposer shows to Prometheus."""

import gc
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from ngram_spec import vllm_metrics
from ngram_spec.bench.server import free_port

pytest.importorskip("prometheus_client", reason="vLLM brings it")


ROOT = Path(__file__).resolve().parent.parent


class Proposer:
    """Something with stats."""

    def __init__(self) -> None:
        self.values = {"num_drafts": 3, "num_bytes": 1000, "drafter_ns": 250_000_000, "num_steps": 0}

    def stats(self) -> dict[str, int]:
        return self.values


@pytest.fixture(autouse=True)
def _log_reaches_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM, once imported by another test, keeps its log from the root logger, where caplog listens.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


def metrics(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if line[0] != "#")}


def test_the_counters_are_served_as_they_stand() -> None:
    proposer, port = Proposer(), free_port()
    vllm_metrics.serve(proposer, "127.0.0.1", port)
    assert metrics(port) == {
        "ngram_spec_drafts_total": 3,
        "ngram_spec_steps_total": 0,
        "ngram_spec_index_bytes": 1000,
        "ngram_spec_drafter_seconds_total": 0.25,
    }
    proposer.values["num_drafts"] = 4
    assert metrics(port)["ngram_spec_drafts_total"] == 4


def test_a_port_in_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    first, second, port = Proposer(), Proposer(), free_port()
    vllm_metrics.serve(first, "127.0.0.1", port)
    vllm_metrics.serve(second, "127.0.0.1", port)
    assert f"no metrics at 127.0.0.1:{port}" in caplog.text
    assert metrics(port)


def test_an_engine_that_is_gone_leaves_its_port_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    first, port = Proposer(), free_port()
    vllm_metrics.serve(first, "127.0.0.1", port)
    del first
    gc.collect()
    second = Proposer()
    second.values["num_drafts"] = 9
    vllm_metrics.serve(second, "127.0.0.1", port)
    assert metrics(port)["ngram_spec_drafts_total"] == 9
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_every_counter_of_the_proposer_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from ngram_spec.vllm import NgramSpecProposer

    port = free_port()
    model: Any = SimpleNamespace(max_model_len=96, get_vocab_size=lambda: 50)
    config = SimpleNamespace(
        model_config=model,
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
        additional_config={"ngram_spec": {"metrics_port": port}},
        parallel_config=SimpleNamespace(data_parallel_index=0),
    )
    proposer = NgramSpecProposer(config)
    known = vllm_metrics.COUNTERS.keys() | vllm_metrics.GAUGES.keys() | {"drafter_ns"}
    # num_calls of the pool are num_steps without those that the pool never saw.
    assert proposer.stats().keys() - {"num_calls"} == known
    assert len(metrics(port)) == len(known)


def test_the_dashboard_asks_for_metrics_that_are_served() -> None:
    dashboard = json.loads((ROOT / "benches" / "grafana.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    served = {f"ngram_spec_{name}_total" for name, _ in vllm_metrics.COUNTERS.values()}
    served |= {f"ngram_spec_{name}" for name, _ in vllm_metrics.GAUGES.values()}
    served.add(f"ngram_spec_{vllm_metrics.SECONDS[0]}_total")
    asked = set(re.findall(r"ngram_spec_\w+", " ".join(expressions)))
    assert asked
    assert asked <= served
