"""Times steps that verify drafts, on a GPU, with CUDA graphs as an engine has them; and checks the decoder.

Shapes of a graph are fixed. So the number of tokens is rounded up to sizes like those that vLLM captures, and
every row's context has the same length throughout.
"""

from collections.abc import Sequence
from typing import Any

import torch
from decoder import Decoder, Inputs, Shape, flattened

# A graph with the tensors that it reads and the one that it writes.
Captured = tuple[Inputs, Any, Any]

NUM_WARM_UPS = 3
TINY = Shape(
    num_layers=3,
    num_distinct_layers=3,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn=96,
    vocab=101,
)
# Of the largest logit: what rounding may move, in each type.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}


class SelfCheckError(Exception):
    """What was computed is not what it must be, so its time would mean nothing."""


class GraphedSteps:
    """Steps of one decoder, each shape captured once."""

    def __init__(self, decoder: Decoder, context_len: int) -> None:
        self.decoder, self.context_len = decoder, context_len
        self._captured: dict[tuple[int, int], Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # Of the last step: the target's token behind each one.
        self.choices: Any = None

    def ms(self, verified: Sequence[Sequence[int]]) -> float:
        """Return the milliseconds of one step; a shape that is new is captured before, and not timed."""
        num_tokens = captured_size(sum(map(len, verified)))
        num_slots = captured_size(max(map(len, verified)))
        ids = [[token % self.decoder.shape.vocab for token in row] for row in verified]
        fresh = flattened(ids, num_tokens, device=self.decoder.device)
        captured = self._captured.get((num_tokens, num_slots)) or self._capture(fresh, num_slots)
        inputs, graph, self.choices = captured
        for to, source in zip(inputs, fresh, strict=True):
            to.copy_(source)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    def _capture(self, inputs: Inputs, num_slots: int) -> Captured:
        token_ids, rows, slots = (tensor.clone() for tensor in inputs)
        inputs = token_ids, rows, slots
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_UPS):
                self._step(inputs, num_slots)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            choices = self._step(inputs, num_slots)
        for _ in range(NUM_WARM_UPS):
            graph.replay()
        self._captured[len(inputs[0]), num_slots] = inputs, graph, choices
        return inputs, graph, choices

    def _step(self, inputs: Inputs, num_slots: int) -> Any:
        # The target's own choice at each position is what drafts are compared with, so it is part of a step.
        return self.decoder.forward(*inputs, self.context_len, num_slots).argmax(dim=1)


def captured_size(num_tokens: int) -> int:
    """Return the size of the graph for so many tokens: 1, 2, 4, then multiples of 8, of 16 above 256."""
    if num_tokens <= 4:
        return (1, 1, 2, 4, 4)[num_tokens]
    step = 8 if num_tokens <= 256 else 16
    return -(-num_tokens // step) * step


def check_decoder(device: str, dtype: Any) -> float:
    """Return by how much verifying drafts against the cache differs from one forward pass over everything.

    Three rows hold 5 tokens in the cache and verify 4, 1 and 7 more at once; the same 12 tokens of each go
    through without a cache. Also with what an engine does to shapes: slots left empty, tokens filled up.

    Raises:
        SelfCheckError: it is more than rounding.
    """
    num_rows, context_len, lens = 3, 5, (4, 1, 7)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(TINY.vocab, (num_rows, context_len + max(lens)), generator=generator).tolist()

    def decoder() -> Decoder:
        # Of the same seed, so of the same weights.
        return Decoder(TINY, num_rows, context_len + max(lens), device=device, dtype=dtype)

    whole = flattened(tokens, num_rows * len(tokens[0]), device=device)
    expected = decoder().forward(*whole, 0, len(tokens[0])).unflatten(0, (num_rows, -1))
    verifying = decoder()
    prompts = [row[:context_len] for row in tokens]
    verifying.forward(*flattened(prompts, num_rows * context_len, device=device), 0, context_len)
    drafts = [row[context_len : context_len + length] for row, length in zip(tokens, lens, strict=True)]
    ids, rows, slots = flattened(drafts, captured_size(sum(lens)), device=device)
    found = verifying.forward(ids, rows, slots, context_len, max(lens))
    wanted = expected[rows, context_len + slots]
    difference = float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max())
    if not difference <= TOLERANCES[dtype]:
        raise SelfCheckError(
            f"verifying against the cache must give the logits of a whole forward pass, got a difference of "
            f"{difference:.3g} of the largest, in {dtype} on {device}"
        )
    return difference


def check_graphs() -> None:
    """Check that a graph that is replayed with other tokens chooses as the decoder does without a graph.

    Raises:
        SelfCheckError: it does not.
    """
    first = [[5, 6, 7], [8], [9, 10]]
    second = [[50, 60], [80, 81, 82], [90]]
    decoder = Decoder(TINY, len(first), 16, device="cuda", dtype=torch.bfloat16)
    steps = GraphedSteps(decoder, context_len=5)
    for verified in (first, second, first):
        steps.ms(verified)
        num_tokens = captured_size(sum(map(len, verified)))
        num_slots = captured_size(max(map(len, verified)))
        expected = decoder.forward(*flattened(verified, num_tokens, device="cuda"), 5, num_slots).argmax(
            dim=1
        )
        if not torch.equal(steps.choices, expected):
            raise SelfCheckError("a graph must choose the tokens that the decoder chooses, got others")
