"""How much a run measures, and where it is kept, where the user does not say."""

from dataclasses import dataclass
from pathlib import Path

OUT = Path("ngram-spec-bench")
QUICK_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEMPERATURE = 0.0
# The share of a speed-up to which it is to be known.
PRECISION = 0.03
# In seconds. A large model is read from a slow disk, and its graphs are captured.
START_TIMEOUT = 1800.0
REQUEST_TIMEOUT = 120.0
BUDGET = 900.0


@dataclass(frozen=True)
class Sizes:
    """What a run asks at which loads; each number can be given instead, but for the groups."""

    concurrencies: tuple[int, ...]
    max_tokens: int
    # Of each workload.
    num_prompts: int
    num_groups: int
    # Starts of each arm; None: as precision and budget say.
    max_rounds: int | None


FULL = Sizes((1, 8, 64), max_tokens=256, num_prompts=16, num_groups=4, max_rounds=None)
# Two cores answer some twenty tokens a second of the smallest models.
FULL_ON_CPU = Sizes((1, 4), max_tokens=128, num_prompts=8, num_groups=4, max_rounds=None)
# On two cores with nothing else to do some ten minutes.
QUICK = Sizes((1, 2), max_tokens=48, num_prompts=4, num_groups=2, max_rounds=2)
