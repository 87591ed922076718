"""Paired differences: two drafters on the same records, with an interval by resampling whole records."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ngram_spec.replay import REPORTED_DRAFT_COSTS, ReplayCounts
from ngram_spec.results import DrafterResult

NUM_RESAMPLES = 10_000
SEED = 0
PERCENTILES = (2.5, 97.5)
# Where fewer records all agree, resampling them shows no doubt, and there is some: five records agree by
# chance in one of 16 cases, six in one of 32, which is less than 5 %.
MIN_RECORDS = 6
# Bounds the memory of one block of resamples, in record indices.
MAX_BLOCK_LEN = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRatio:
    """The modelled speed-up of one drafter over that of another, and its 95 % interval."""

    ratio: float
    low: float
    high: float
    num_records: int

    @property
    def verdict(self) -> str:
        """What the interval says, in words."""
        if self.num_records < MIN_RECORDS:
            return "too few records"
        if self.low > 1:
            return "better"
        return "worse" if self.high < 1 else "no measurable difference"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How a drafter compares with another one, `versus`, on one file at one cost."""

    versus: str
    file: str
    draft_cost: float
    speedup: SpeedupRatio

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        place = {"versus": self.versus, "file": self.file, "draft_cost": self.draft_cost}
        return place | asdict(self.speedup) | {"verdict": self.speedup.verdict}


def paired_differences(ours: DrafterResult, theirs: DrafterResult, versus: str) -> list[PairedDifference]:
    """Return the difference at each reported cost, between two results on the same records."""
    differences = []
    for draft_cost in REPORTED_DRAFT_COSTS:
        our_counts = ours.at(draft_cost).counts_by_record()
        their_counts = theirs.at(draft_cost).counts_by_record()
        speedup = speedup_ratio(our_counts, their_counts, draft_cost)
        differences.append(PairedDifference(versus, ours.file, draft_cost, speedup))
    return differences


def speedup_ratio(
    ours: Sequence[ReplayCounts], theirs: Sequence[ReplayCounts], draft_cost: float
) -> SpeedupRatio:
    """Return by how much our modelled speed-up at a cost exceeds theirs, with a bootstrap interval.

    Both sequences hold one `ReplayCounts` for each record, in the same order. Each of 10 000 resamples
    draws as many records as there are, with replacement, the same for both drafters; the interval is from the
    percentile 2.5 to 97.5 (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13). The seed is
    fixed, so the same counts give the same interval.

    >>> ours = [ReplayCounts(num_steps=50, num_output_tokens=100)] * 6
    >>> theirs = [ReplayCounts(num_steps=75, num_output_tokens=100)] * 6
    >>> speedup_ratio(ours, theirs, 0.05)
    SpeedupRatio(ratio=1.5, low=1.5, high=1.5, num_records=6)
    """
    # A record of one output token takes no step with any drafter, and leaves nothing to divide by.
    pairs = [(our, their) for our, their in zip(ours, theirs, strict=True) if our.num_steps]
    if not pairs:
        return SpeedupRatio(ratio=1.0, low=1.0, high=1.0, num_records=0)
    sums = np.array([(*_sums(our), *_sums(their)) for our, their in pairs], dtype=np.int64)
    # Whole numbers are resampled and costs applied after, so that equal drafters have a ratio of exactly 1.
    low, high = np.percentile(_ratios(_resampled(sums), draft_cost), PERCENTILES)
    (ratio,) = _ratios(sums.sum(axis=0, keepdims=True), draft_cost)
    return SpeedupRatio(ratio=float(ratio), low=float(low), high=float(high), num_records=len(pairs))


def _sums(counts: ReplayCounts) -> tuple[int, int, int]:
    return counts.num_output_tokens, counts.num_steps, counts.num_draft_tokens


def _resampled(sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sums of each resample, from those of each record."""
    num_records = len(sums)
    generator = np.random.default_rng(SEED)
    block_len = max(1, MAX_BLOCK_LEN // num_records)
    blocks = []
    for start in range(0, NUM_RESAMPLES, block_len):
        size = (min(block_len, NUM_RESAMPLES - start), num_records)
        drawn = generator.integers(num_records, size=size)
        blocks.append(np.stack([column[drawn].sum(axis=1) for column in sums.T], axis=1))
    return np.concatenate(blocks)


def _ratios(sums: npt.NDArray[np.int64], draft_cost: float) -> npt.NDArray[np.float64]:
    our_tokens, our_steps, our_drafted, their_tokens, their_steps, their_drafted = sums.T
    ours = our_tokens / (our_steps + draft_cost * our_drafted)
    theirs = their_tokens / (their_steps + draft_cost * their_drafted)
    ratios: npt.NDArray[np.float64] = ours / theirs
    return ratios
