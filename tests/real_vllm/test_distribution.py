"""Sampled tokens are distributed as the model's own, where drafts are accepted and rejected alike.

The model goes on with a row of words that stand in no order, one of a few after each. Counts of the next four
words over many seeds are held against exact probabilities, which transformers computes from the same
weights. The seeds are fixed, so the outcome is the same in every run; 1 of 1,000 sets of seeds would fail.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
from engine import Engine, EngineConfig, Engines
from sampling import mend_sampling
from small_model import small_model

# The warnings are of vLLM's own libraries.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

NUM_SAMPLES = 400
NUM_TOKENS = 4
SIGNIFICANCE = 1e-3
# A prompt of one whole block and one token more: the block is computed once for all samples.
DRAFTING = EngineConfig(prefix_caching=True, max_num_seqs=64, num_speculative_tokens=2)

Outcome = tuple[int, ...]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    pytest.importorskip("vllm", reason="needs vLLM: `make test` installs it")
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="module")
def words() -> tuple[int, int]:
    from transformers import AutoTokenizer

    yes, no = (AutoTokenizer.from_pretrained(small_model()).encode(word) for word in (" yes", " no"))
    assert len(yes) == len(no) == 1
    return yes[0], no[0]


@pytest.fixture(scope="module")
def prompt(words: tuple[int, int]) -> list[int]:
    return random.Random(0).choices(words, k=33)


def outcome(token_ids: Sequence[int], words: tuple[int, int]) -> Outcome:
    """The words that were sampled, up to the first token that is neither (-1)."""
    taken = []
    for token in token_ids:
        taken.append(token if token in words else -1)
        if taken[-1] == -1:
            break
    return tuple(taken)


@cache
def target_model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(small_model(), dtype=torch.float32)


def probabilities(
    prompt: Sequence[int], words: tuple[int, int], temperature: float, top_k: int | None = None
) -> dict[Outcome, float]:
    """The exact probability of every outcome."""
    import torch

    model = target_model()
    exact: dict[Outcome, float] = {}
    reached: dict[Outcome, float] = {(): 1.0}
    for length in range(NUM_TOKENS):
        prefixes = list(product(words, repeat=length))
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *prefix] for prefix in prefixes])).logits[:, -1]
        logits = logits / temperature
        if top_k is not None:
            logits[logits < logits.topk(top_k).values[:, -1:]] = -torch.inf
        longer = {}
        for prefix, next_token in zip(prefixes, logits.double().softmax(-1), strict=True):
            for word in words:
                longer[*prefix, word] = reached[prefix] * next_token[word].item()
            exact[*prefix, -1] = reached[prefix] - sum(longer[*prefix, word] for word in words)
        reached = longer
    return exact | reached


def chi_square_p(counts: Mapping[Outcome, int], exact: Mapping[Outcome, float]) -> float:
    """How probable counts as far off as these are. Outcomes that are rare count as one."""
    import torch

    total = sum(counts.values())
    common = [outcome for outcome, p in exact.items() if p * total >= 5]
    expected = [exact[outcome] * total for outcome in common]
    observed = [counts.get(outcome, 0) for outcome in common]
    expected.append(total - sum(expected))
    observed.append(total - sum(observed))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    degrees = torch.tensor(len(common) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


def sample(engine: Engine, prompt: list[int], words: tuple[int, int], **params: Any) -> Counter[Outcome]:
    """Counts of the outcomes. Nearly all had a draft behind their first token; many were rejected."""
    from vllm import SamplingParams

    with engine.events() as events:
        outputs = engine.llm.generate(
            [{"prompt_token_ids": prompt}] * NUM_SAMPLES,
            [SamplingParams(seed=seed, max_tokens=NUM_TOKENS, **params) for seed in range(NUM_SAMPLES)],
            use_tqdm=False,
        )
    assert engine.proposer is not None
    rows = [row for step in engine.proposer.steps for row in step if len(row.token_ids) == len(prompt) + 1]
    print(events, f"drafts for {sum(bool(row.draft_token_ids) for row in rows)} of {len(rows)} second tokens")
    assert sum(bool(row.draft_token_ids) for row in rows) > 0.8 * NUM_SAMPLES
    num_rejected_tokens = events.num_draft_tokens - events.num_accepted_tokens
    assert min(events.num_accepted_tokens, num_rejected_tokens) > NUM_SAMPLES / 4
    return Counter(outcome(output.outputs[0].token_ids, words) for output in outputs)


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 1.4, "top_k": 3}], ids=str)
def test_sampled_tokens_follow_the_models_distribution(
    engines: Engines,
    prompt: list[int],
    words: tuple[int, int],
    params: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engines.get(DRAFTING)
    mend_sampling(monkeypatch)
    p = chi_square_p(sample(engine, prompt, words, **params), probabilities(prompt, words, **params))
    print(f"p = {p:.3g}")
    assert p > SIGNIFICANCE


def test_a_target_that_accepts_drafts_a_little_too_often_is_found_out(
    engines: Engines, prompt: list[int], words: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.get(DRAFTING)
    mend_sampling(monkeypatch)
    from vllm.v1.sample import rejection_sampler

    draw = rejection_sampler.generate_uniform_probs
    # A draft token of probability p is accepted where p is at least this: so with min(1, 1.3 p).
    monkeypatch.setattr(rejection_sampler, "generate_uniform_probs", lambda *args: draw(*args) / 1.3)
    p = chi_square_p(sample(engine, prompt, words, temperature=1.0), probabilities(prompt, words, 1.0))
    print(f"p = {p:.3g}")
    assert p < SIGNIFICANCE
