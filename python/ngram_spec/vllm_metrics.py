"""Serves the proposer's counters to Prometheus, from the worker that drafts.

vLLM's own /metrics cannot show them: its workers do not share the API server's registry.
"""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

# Names in `stats()`, names at /metrics (counters get "_total" behind them), and what they say.
COUNTERS = {
    "num_steps": ("steps", "steps in which vLLM asked for drafts"),
    "num_sampled_rows": ("rows", "rows that sampled in those steps"),
    "num_drafts": ("drafts", "rows that were given a draft"),
    "num_draft_tokens": ("draft_tokens", "draft tokens given"),
    "num_accepted_tokens": ("accepted_tokens", "draft tokens that the target model accepted"),
    "num_emitted_tokens": ("emitted_tokens", "tokens sampled, bonus tokens included"),
    "num_indexed_tokens": ("indexed_tokens", "tokens put into an index"),
    "num_new_rows": ("new_rows", "rows that were indexed from their start"),
    "num_evictions": ("evictions", "indexes dropped to stay within max_bytes"),
    "num_unindexed_rows": ("unindexed_rows", "rows without a draft for want of memory"),
    "num_invalid_rows": (
        "invalid_rows",
        "rows without a draft for a negative id or more tokens than the limit",
    ),
    "num_row_faults": ("row_faults", "rows without a draft because drafting failed for them alone"),
    "num_stood_down_rows": ("stood_down_rows", "rows without a draft because it had failed three times"),
    "num_faults": ("faults", "steps in which drafting failed, for one row or for all"),
}
GAUGES = {
    "num_bytes": ("index_bytes", "bytes of all indexes"),
    "num_entries": ("entries", "requests that have an index"),
    "has_stood_down": ("stood_down", "1 after so many faults that drafting ended for good"),
    "is_drafting": ("drafting", "0 while drafting is switched off"),
}
SECONDS = ("drafter_seconds", "time spent in drafting")

# Only loggers below "vllm" reach the handlers that vLLM sets up.
logger = logging.getLogger("vllm.ngram_spec")


def serve(proposer: Any, host: str, port: int) -> None:
    """Serve `proposer.stats()` at http://HOST:PORT/metrics until the proposer is gone; raise nothing.

    A port that is in use, or a missing prometheus_client, costs the metrics and a warning.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        # A registry of its own: vLLM's is shared among processes through files, and has other names.
        registry = CollectorRegistry()
        registry.register(_Collector(proposer.stats))
        server, thread = start_http_server(port, host, registry)
    except Exception as error:
        logger.warning("ngram-spec: no metrics at %s:%d: %s: %s", host, port, type(error).__name__, error)
        return
    # Another engine in this process may want the port after this one.
    ending = weakref.finalize(proposer, _stop, server, thread)
    ending.atexit = False  # the thread is a daemon: no worker waits for it at its end
    logger.info("ngram-spec: metrics at http://%s:%d/metrics", host, port)


def summary(stats: Mapping[str, float]) -> str:
    """Return in one line what the counters say so far: for the log, and so without any token.

    after 1000 steps: 1000 rows, 2.96 tokens per row and step, coverage 54.7%, acceptance rate 71.8%,
    15 us per step, 3.1 MiB of indexes, 0 evictions, 0 faults
    """
    value = dict.fromkeys(("num_drafts", "num_draft_tokens", "num_bytes", "num_evictions"), 0) | dict(stats)

    def ratio(part: str, whole: str) -> float:
        return value[part] / max(value[whole], 1)

    return (
        f"after {value['num_steps']} steps: {value['num_sampled_rows']} rows, "
        f"{ratio('num_emitted_tokens', 'num_sampled_rows'):.2f} tokens per row and step, "
        f"coverage {ratio('num_drafts', 'num_sampled_rows'):.1%}, "
        f"acceptance rate {ratio('num_accepted_tokens', 'num_draft_tokens'):.1%}, "
        f"{ratio('drafter_ns', 'num_steps') / 1000:.0f} us per step, "
        f"{value['num_bytes'] / 2**20:.1f} MiB of indexes, "
        f"{value['num_evictions']} evictions, {value['num_faults']} faults"
    )


def _stop(server: Any, thread: Any) -> None:
    server.shutdown()
    server.server_close()
    thread.join(timeout=1)


class _Collector:
    """What prometheus_client asks at every scrape; keeps no engine alive."""

    def __init__(self, stats: Callable[[], Mapping[str, float]]) -> None:
        assert isinstance(stats, MethodType)
        self._stats = weakref.WeakMethod(stats)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        if (stats := self._stats()) is None:
            return
        values = stats()
        for name, (shown, help_text) in COUNTERS.items():
            if name in values:
                yield CounterMetricFamily(f"ngram_spec_{shown}", help_text, value=values[name])
        for name, (shown, help_text) in GAUGES.items():
            if name in values:
                yield GaugeMetricFamily(f"ngram_spec_{shown}", help_text, value=values[name])
        shown, help_text = SECONDS
        yield CounterMetricFamily(f"ngram_spec_{shown}", help_text, value=values["drafter_ns"] / 1e9)
