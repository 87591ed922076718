from collections.abc import Mapping, Sequence
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

__all__ = ["AcceptanceModel", "CostCurve", "Draft", "Drafter", "DrafterPool", "NgramSpecError"]

_TokenIds = npt.NDArray[np.integer[Any]] | Sequence[int]

class NgramSpecError(ValueError): ...

@final
class AcceptanceModel:
    def __new__(cls, prior: Mapping[str, float] | None = None, *, learn: bool = False) -> Self: ...
    @staticmethod
    def feature_names() -> list[str]: ...
    def weights(self) -> dict[str, float]: ...

@final
class CostCurve:
    def __new__(cls, points: Sequence[tuple[int, float]]) -> Self: ...
    @staticmethod
    def h100() -> CostCurve: ...
    def step_time(self, num_tokens: int) -> float: ...

@final
class Draft:
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def probabilities(self) -> list[float]: ...
    @property
    def match_len(self) -> int: ...
    def __len__(self) -> int: ...

@final
class Drafter:
    def __new__(
        cls,
        prompt: _TokenIds,
        *,
        max_draft_tokens: int = 16,
        draft_cost: float | CostCurve = 0.05,
        min_match_len: int = 1,
        eos_token_ids: Sequence[int] = (),
        acceptance: AcceptanceModel | None = None,
    ) -> Self: ...
    def extend(self, token_ids: _TokenIds) -> None: ...
    def draft(self, max_draft_tokens: int | None = None) -> Draft: ...
    def candidates(self, max_draft_tokens: int) -> list[list[tuple[int, list[float]]]]: ...
    @property
    def num_bytes(self) -> int: ...
    def __len__(self) -> int: ...

@final
class DrafterPool:
    def __new__(
        cls,
        *,
        max_bytes: int = 1073741824,
        max_context_len: int | None = None,
        vocab_size: int | None = None,
        max_draft_tokens: int = 16,
        draft_cost: float | CostCurve = 0.05,
        min_match_len: int = 1,
        eos_token_ids: Sequence[int] = (),
        acceptance: AcceptanceModel | None = None,
    ) -> Self: ...
    def propose(
        self,
        token_ids: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.integer[Any]] | Sequence[int],
        num_sampled: npt.NDArray[np.integer[Any]] | Sequence[int] | Sequence[Sequence[int]] | None = None,
        max_draft_tokens: int | npt.NDArray[np.integer[Any]] | Sequence[int] | None = None,
    ) -> list[list[int]]: ...
    def take_fault(self) -> tuple[str, str] | None: ...
    def stats(self) -> dict[str, int]: ...
