"""Ablation: what each feature of the acceptance model is worth, replayed with its weight at 0."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from ngram_spec._core import AcceptanceModel
from ngram_spec.replay import REPORTED_DRAFT_COSTS, ReplaySettings
from ngram_spec.results import DrafterResult


@dataclass(frozen=True, slots=True)
class Ablation:
    """The relative change of the modelled speed-up on one file without one feature, at each reported cost."""

    file: str
    feature: str
    changes: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the ablation as JSON values."""
        costs = (str(cost) for cost in REPORTED_DRAFT_COSTS)
        return asdict(self) | {"changes": dict(zip(costs, self.changes, strict=True))}


def settings_without_each_feature(settings: ReplaySettings) -> dict[str, ReplaySettings]:
    """Return, by feature of the acceptance model, the settings with the weight of this feature at 0.

    With `learn`, the weight starts at 0 and is learned anew.
    """
    model = AcceptanceModel(settings.prior)
    weights = model.weights()
    return {name: replace(settings, prior=weights | {name: 0.0}) for name in model.feature_names()}


def ablation(whole: DrafterResult, without: DrafterResult, feature: str) -> Ablation:
    """Return how the modelled speed-up changes from the whole model to the one without the feature."""
    pairs = ((whole.modelled_speedup(cost), without.modelled_speedup(cost)) for cost in REPORTED_DRAFT_COSTS)
    # A file without a step has no speed-up that could change.
    changes = tuple(changed / speedup - 1 if speedup else 0.0 for speedup, changed in pairs)
    return Ablation(whole.file, feature, changes)
