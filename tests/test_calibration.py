"""Calibration by hand: which decile a probability falls in, and what the expected error adds up to."""

import math

import pytest
from ngram_spec.calibration import Calibration


def test_the_expected_error_weighs_each_decile_by_its_tokens() -> None:
    calibration = Calibration()
    # Four tokens at 0.9, three accepted: off by 0.15. One at 0.25, rejected: off by 0.25.
    calibration.observe([0.9, 0.9, 0.9], num_accepted=3)
    calibration.observe([0.9], num_accepted=0)
    calibration.observe([0.25], num_accepted=0)
    assert calibration.num_tokens == [0, 0, 1, 0, 0, 0, 0, 0, 0, 4]
    assert calibration.share_accepted(9) == 0.75
    assert calibration.mean_predicted(9) == pytest.approx(0.9)
    assert calibration.share_accepted(2) == 0
    assert math.isclose(calibration.expected_error, (4 * 0.15 + 1 * 0.25) / 5)


def test_predictions_that_come_true_in_each_decile_have_no_error() -> None:
    calibration = Calibration()
    for num_accepted in (1, 1, 1, 0):
        calibration.observe([0.75], num_accepted=num_accepted)
    for num_accepted in (1, 0):
        calibration.observe([0.5], num_accepted=num_accepted)
    assert calibration.expected_error == 0


def test_too_high_and_too_low_do_not_make_up_for_each_other_across_deciles() -> None:
    calibration = Calibration()
    calibration.observe([0.25], num_accepted=1)
    calibration.observe([0.75], num_accepted=0)
    assert calibration.expected_error == 0.75


@pytest.mark.parametrize(
    ("probability", "decile"), [(0.0, 0), (0.0999, 0), (0.1, 1), (0.5, 5), (0.999, 9), (1.0, 9)]
)
def test_a_decile_begins_with_its_lower_end_and_the_last_one_holds_1(probability: float, decile: int) -> None:
    calibration = Calibration()
    calibration.observe([probability], num_accepted=1)
    assert calibration.num_tokens.index(1) == decile


def test_the_json_has_the_sums_from_which_all_else_follows() -> None:
    calibration = Calibration()
    calibration.observe([0.75, 0.5], num_accepted=1)
    document = calibration.to_json()
    accepted, predicted = document["num_accepted"], document["predicted_sum"]
    gaps = [abs(have - said) for have, said in zip(accepted, predicted, strict=True)]
    assert document["expected_calibration_error"] == sum(gaps) / sum(document["num_tokens"]) == 0.375


def test_nothing_observed_is_no_error() -> None:
    assert Calibration().expected_error == 0
