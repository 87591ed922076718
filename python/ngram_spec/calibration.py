"""Calibration: how many of the draft tokens that were given a probability were then accepted."""

from collections.abc import Sequence
from typing import Any

NUM_DECILES = 10


class Calibration:
    """Counts draft tokens by decile of the probability that was predicted for them, tenths from 0 to 1.

    >>> calibration = Calibration()
    >>> calibration.observe([0.95, 0.75, 0.72], num_accepted=2)
    >>> calibration.num_tokens[7], calibration.share_accepted(7)
    (2, 0.5)
    """

    def __init__(self) -> None:
        self.num_tokens = [0] * NUM_DECILES
        self.num_accepted = [0] * NUM_DECILES
        self.predicted_sum = [0.0] * NUM_DECILES

    def observe(self, probabilities: Sequence[float], *, num_accepted: int) -> None:
        """Count the tokens of one draft whose fate is known: the accepted and the first rejected one."""
        for index, probability in enumerate(probabilities):
            decile = min(int(probability * NUM_DECILES), NUM_DECILES - 1)
            self.num_tokens[decile] += 1
            self.num_accepted[decile] += index < num_accepted
            self.predicted_sum[decile] += probability

    def mean_predicted(self, decile: int) -> float:
        """Return the mean predicted probability of a decile that has tokens."""
        return self.predicted_sum[decile] / self.num_tokens[decile]

    def share_accepted(self, decile: int) -> float:
        """Return the share that was accepted of a decile that has tokens."""
        return self.num_accepted[decile] / self.num_tokens[decile]

    @property
    def expected_error(self) -> float:
        """Expected calibration error: mean over tokens of |share accepted - mean predicted| of the decile.

        Equal-width bins, as in Guo et al., On Calibration of Modern Neural Networks (2017). 0 without tokens.
        """
        pairs = zip(self.num_accepted, self.predicted_sum, strict=True)
        gap = sum(abs(num_accepted - predicted) for num_accepted, predicted in pairs)
        return gap / max(1, sum(self.num_tokens))

    def to_json(self) -> dict[str, Any]:
        """Return the sums of each decile, lowest first, and the expected calibration error."""
        return {
            "num_tokens": self.num_tokens,
            "num_accepted": self.num_accepted,
            "predicted_sum": self.predicted_sum,
            "expected_calibration_error": self.expected_error,
        }
