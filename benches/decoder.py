"""A decoder of a real model's shape with random weights, in plain torch: verifies drafts against a KV cache.

It is there to be timed: what a step costs depends on shapes, not on what the weights have learned. Its tokens
mean nothing, and nothing is ever accepted by them.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

# Token ids, rows and slots, one of each for every token.
Inputs = tuple[Any, Any, Any]

ROPE_BASE = 500_000.0
NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder with grouped-query attention and a gated feed-forward layer.

    `num_distinct_layers` have weights and caches of their own and take turns. One layer's weights are larger
    than a GPU's caches, so a step takes as long as with all of them, in a fraction of the memory.
    """

    num_layers: int
    num_distinct_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int


PRESETS = {
    "1b": Shape(16, 4, 2048, 32, 8, 64, 8192, 128_256),  # Llama 3.2 1B
    "8b": Shape(32, 4, 4096, 32, 8, 128, 14_336, 128_256),  # Llama 3.1 8B
    "32b": Shape(64, 4, 5120, 40, 8, 128, 27_648, 152_064),  # Qwen2.5 32B
}


class Decoder:
    """The weights, and a cache of `max_len` tokens for each of `num_rows` rows."""

    def __init__(
        self, shape: Shape, num_rows: int, max_len: int, *, device: str, dtype: Any, seed: int = 0
    ) -> None:
        self.shape, self.num_rows, self.max_len, self.device = shape, num_rows, max_len, device
        generator = torch.Generator(device).manual_seed(seed)

        def weight(num_out: int, num_in: int) -> Any:
            # So scaled, activations keep their size from layer to layer.
            drawn = torch.randn(num_out, num_in, generator=generator, device=device, dtype=torch.float32)
            return (drawn / math.sqrt(num_in)).to(dtype)

        heads_dim, kv_dim = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.embedding = weight(shape.vocab, shape.hidden)
        self.head = weight(shape.vocab, shape.hidden)
        self.norm = torch.ones(shape.hidden, device=device, dtype=dtype)
        self.layers = [
            {
                "qkv": weight(heads_dim + 2 * kv_dim, shape.hidden),
                "out": weight(shape.hidden, heads_dim),
                "gate_up": weight(2 * shape.ffn, shape.hidden),
                "down": weight(shape.hidden, shape.ffn),
            }
            for _ in range(shape.num_distinct_layers)
        ]
        cache = (2, num_rows, max_len, shape.num_kv_heads, shape.head_dim)
        # Keys and values. What nobody has written is noise, as it is stale text in an engine.
        self.caches = [
            torch.randn(cache, generator=generator, device=device).to(dtype)
            for _ in range(shape.num_distinct_layers)
        ]
        frequencies = ROPE_BASE ** -(torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim)
        angles = torch.outer(torch.arange(max_len, device=device), frequencies)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, token_ids: Any, rows: Any, slots: Any, context_len: int, num_slots: int) -> Any:
        """Return the logits of each token, `[num_tokens, vocab]`, and leave its key and value in the caches.

        Token `i` stands in row `rows[i]` at position `context_len + slots[i]`, its slot below `num_slots`; it
        sees the row's first `context_len` tokens, the slots before it and itself. A row's slots begin at 0
        and have no gaps. Rows may have different numbers of them; a token given twice changes nothing.
        """
        shape = self.shape
        end = context_len + num_slots
        positions = context_len + slots
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        mask = causal_lower_right(num_slots, end)
        num_heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        sizes = [number * shape.head_dim for number in num_heads]
        x = functional.embedding(token_ids, self.embedding)
        for number in range(shape.num_layers):
            layer = self.layers[number % shape.num_distinct_layers]
            keys, values = self.caches[number % shape.num_distinct_layers]
            query, key, value = (
                part.unflatten(1, (-1, shape.head_dim))
                for part in functional.linear(self._normed(x), layer["qkv"]).split(sizes, dim=1)
            )
            keys[rows, positions] = _rotated(key, cos, sin)
            values[rows, positions] = value
            # Rows with fewer tokens leave slots empty: what stands in them is computed in vain and not read.
            queries = query.new_zeros(self.num_rows, num_slots, shape.num_heads, shape.head_dim)
            queries[rows, slots] = _rotated(query, cos, sin)
            attended = functional.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys[:, :end].transpose(1, 2),
                values[:, :end].transpose(1, 2),
                attn_mask=mask,
                enable_gqa=True,
            )
            x = x + functional.linear(attended.transpose(1, 2)[rows, slots].flatten(1), layer["out"])
            gate, up = functional.linear(self._normed(x), layer["gate_up"]).chunk(2, dim=1)
            x = x + functional.linear(functional.silu(gate) * up, layer["down"])
        return functional.linear(self._normed(x), self.head)

    def _normed(self, x: Any) -> Any:
        return functional.rms_norm(x, (self.shape.hidden,), self.norm, NORM_EPSILON)


def _rotated(heads: Any, cos: Any, sin: Any) -> Any:
    left, right = heads.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def flattened(verified: list[list[int]], num_tokens: int, *, device: str) -> Inputs:
    """Return token ids, rows and slots of what the rows verify; the last one fills up to `num_tokens`."""
    triples = [(token_id, row, slot) for row, ids in enumerate(verified) for slot, token_id in enumerate(ids)]
    triples += [triples[-1]] * (num_tokens - len(triples))
    token_ids, rows, slots = torch.tensor(triples, device=device).unbind(dim=1)
    return token_ids, rows, slots
