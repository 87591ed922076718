"""Draft tokens for speculative decoding, looked up in the context with a suffix automaton."""

from importlib.metadata import version

from ngram_spec._core import (
    AcceptanceModel,
    CostCurve,
    Draft,
    Drafter,
    DrafterPool,
    NgramSpecError,
)

__all__ = [
    "AcceptanceModel",
    "CostCurve",
    "Draft",
    "Drafter",
    "DrafterPool",
    "NgramSpecError",
]
__version__ = version("ngram-spec")
