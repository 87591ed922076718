from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.integer[Any]] | Sequence[int]

class NgramSpecError(ValueError): ...

@final
class AcceptanceModel:
    def __init__(
        self, prior: Mapping[str, Sequence[float]] | None = None, *, learn: bool = False
    ) -> None: ...

@final
class CostCurve:
    def __init__(self, points: Sequence[tuple[int, float]]) -> None: ...

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
    def __init__(
        self,
        prompt: TokenIds,
        *,
        max_draft_tokens: int = 16,
        draft_cost: float | CostCurve = 0.05,
        min_match_len: int = 1,
        eos_token_ids: Sequence[int] = (),
        acceptance: AcceptanceModel | None = None,
    ) -> None: ...
    def extend(self, token_ids: TokenIds) -> None: ...
    def draft(self, max_draft_tokens: int | None = None) -> Draft: ...
    @property
    def num_bytes(self) -> int: ...
    def __len__(self) -> int: ...

@final
class DrafterPool:
    def __init__(
        self,
        *,
        max_bytes: int = 2**30,
        max_context_len: int | None = None,
        vocab_size: int | None = None,
        max_draft_tokens: int = 16,
        draft_cost: float | CostCurve = 0.05,
        min_match_len: int = 1,
        eos_token_ids: Sequence[int] = (),
        acceptance: AcceptanceModel | None = None,
    ) -> None: ...
    def propose(
        self,
        token_ids: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.integer[Any]] | Sequence[int],
        num_sampled: npt.NDArray[np.integer[Any]] | Sequence[int] | None = None,
        max_draft_tokens: int | npt.NDArray[np.integer[Any]] | Sequence[int] | None = None,
    ) -> list[list[int]]: ...
    def stats(self) -> dict[str, int]: ...
