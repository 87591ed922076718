"""Lets the CPU build of vLLM sample as its GPU build does, where it cannot by itself."""

import pytest
from ngram_spec.vllm import sampling_is_broken


def mend_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets vLLM's CPU build sample at the temperature asked for, where it loses it under any speculation.

    For a started engine: its worker puts the kernels of the CPU build in place.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(
        x: torch.Tensor,
        cu_num_tokens: torch.Tensor,
        num_tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> torch.Tensor:
        repeats = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return torch.where(x == replace_from, torch.full_like(x, replace_to), x).repeat_interleave(repeats)

    if sampling_is_broken():
        monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand)
    assert not sampling_is_broken()
