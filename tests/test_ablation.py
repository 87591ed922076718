"""Ablation: one replay for each feature, with its weight at 0 and all others as they are."""

from collections.abc import Mapping

import pytest
from ngram_spec import ablation
from ngram_spec.ablation import settings_without_each_feature
from ngram_spec.replay import ReplayCounts, ReplaySettings
from ngram_spec.results import DrafterResult, FileResult, ResponseResult


class WeightedModel:
    """An acceptance model of two features, with built-in weights."""

    def __init__(self, prior: Mapping[str, float] | None = None) -> None:
        self.prior = {"bias": -1.0, "match_len": 2.0} if prior is None else prior

    @staticmethod
    def feature_names() -> list[str]:
        return ["bias", "match_len"]

    def weights(self) -> dict[str, float]:
        return {name: self.prior.get(name, 0.0) for name in self.feature_names()}


def test_each_feature_in_turn_has_weight_0_and_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "AcceptanceModel", WeightedModel)
    settings = ReplaySettings(max_draft_tokens=9, learn=True)
    without = settings_without_each_feature(settings)
    assert {name: changed.prior for name, changed in without.items()} == {
        "bias": {"bias": 0.0, "match_len": 2.0},
        "match_len": {"bias": -1.0, "match_len": 0.0},
    }
    assert all(changed.max_draft_tokens == 9 and changed.learn for changed in without.values())


def test_a_prior_of_one_s_own_is_what_is_ablated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "AcceptanceModel", WeightedModel)
    without = settings_without_each_feature(ReplaySettings(prior={"match_len": 5.0}))
    assert without["bias"].prior == {"bias": 0.0, "match_len": 5.0}


def test_the_change_is_relative_to_the_whole_model_at_each_cost() -> None:
    def result(num_steps: int, num_draft_tokens: int) -> DrafterResult:
        counts = ReplayCounts(num_steps=num_steps, num_draft_tokens=num_draft_tokens, num_output_tokens=100)
        return DrafterResult(
            [FileResult("a.jsonl", "ids", "any", 0.05, [ResponseResult("a", None, 7, counts)])]
        )

    changed = ablation.ablation(result(50, 100), result(50, 0), "match_len")
    assert ablation.ablation(result(0, 0), result(0, 0), "bias").changes == (0, 0, 0)
    assert (changed.file, changed.feature) == ("a.jsonl", "match_len")
    assert changed.changes == pytest.approx((0.02, 0.1, 0.4))
    assert changed.to_json()["changes"] == pytest.approx({"0.01": 0.02, "0.05": 0.1, "0.2": 0.4})
