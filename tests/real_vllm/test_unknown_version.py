"""A vLLM of unknown version is probed from within its own worker, and drafts."""

import pytest

# Before vLLM is imported: engine sets the environment that vLLM reads then.
from engine import Engine, EngineConfig
from ngram_spec import vllm as adapter
from requests_of_tests import DOZEN

# The warnings are of vLLM's own libraries.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_a_version_that_is_not_known_is_probed_where_it_runs_and_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm = pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    monkeypatch.setattr(vllm, "__version__", "99.0.0")
    warnings: list[str] = []
    # Taken here, since vLLM sets up its log anew when it starts, and drops the handler of a test.
    monkeypatch.setattr(adapter.logger, "warning", lambda text, *values: warnings.append(text % values))
    engine = Engine(EngineConfig())
    try:
        (warning,) = [text for text in warnings if "vLLM 99.0.0 is not known" in text]
        assert "but fits" in warning
        assert "at gpu_model_runner.py:" in warning
        with engine.events() as events:
            engine.alone(next(iter(DOZEN.values())))
        assert events.num_accepted_tokens > 0
    finally:
        engine.close()
