"""Starts real vLLM engines for the tests of this folder, one at a time, in this process."""

import os
from collections.abc import Iterator

import pytest

# Read when vLLM is imported: one process, one thread, a small cache, nothing from the network.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
    OMP_NUM_THREADS="1",
    NUMBA_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
)

from engine import BASELINE, Answer, Engine, EngineConfig
from requests_of_tests import REQUESTS


class Engines:
    """Hands out an engine by its configuration and ends the one before, as vLLM has one per process."""

    def __init__(self) -> None:
        self._config: EngineConfig | None = None
        self._engine: Engine | None = None
        self._baseline: dict[str, Answer] = {}

    def get(self, config: EngineConfig) -> Engine:
        if self._config != config or self._engine is None:
            self.close()
            self._config, self._engine = config, Engine(config)
        return self._engine

    def baseline(self) -> dict[str, Answer]:
        """What vLLM without speculation answers to every request of these tests, each alone."""
        if not self._baseline:
            engine = self.get(BASELINE)
            self._baseline = {name: engine.alone(request) for name, request in REQUESTS.items()}
        return self._baseline

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._config = self._engine = None


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    handed_out = Engines()
    yield handed_out
    handed_out.close()


@pytest.fixture(scope="session")
def baseline(engines: Engines) -> dict[str, Answer]:
    return engines.baseline()
