"""From what was measured and checked of one cell to one word, and a sentence that says why.

1. A check failed: invalid.
2. Nothing to compare, or one start of each arm, which may be luck: no measurable difference.
3. With a goal: on if the arm met it in every round and arm off in none, and the 95 % interval of the mean of
   the goal's metric shows the arm to be better, since of two arms that are alike one can be below a limit
   twice and the other above it. Off if arm off met it in every round and the arm did not.
4. Else the 95 % interval of the throughput over arm off: above 1 on, below 1 off, with 1 in it no measurable
   difference.
"""

from collections.abc import Sequence

from ngram_spec.bench.goal import GoalOutcome
from ngram_spec.bench.records import OFF, OFF_V1
from ngram_spec.bench.summary import Check, Drafting, Interval, Word

MIN_ROUNDS = 2
# From so high an acceptance rate on, a reader wonders why the arm is not faster.
HIGH_ACCEPTANCE_RATE = 0.5


def judge(
    arm: str,
    *,
    checks: Sequence[Check],
    drafting: Drafting | None,
    speedup: Interval | None,
    speedup_over_off_v1: Interval | None,
    goal: GoalOutcome | None = None,
    off_goal: GoalOutcome | None = None,
    is_better: bool = False,
) -> tuple[Word, str]:
    """Return the verdict on one arm at one workload and concurrency, and its reason in sentences.

    `is_better` is whether the arm beats arm off in what the goal is of, beyond luck.
    """
    failed = [f"{check.name}: {check.detail}" for check in checks if not check.is_passed]
    if failed:
        return "invalid", "; ".join(failed) + "."
    if arm == OFF:
        return "baseline", _goal_sentence(goal, None) or "What all others are compared with."
    if speedup is None:
        return (
            "no measurable difference",
            f"No block has its pair with {OFF}, so there is nothing to compare.",
        )
    speed = speed_sentence(speedup)
    if arm == OFF_V1:
        return "baseline", f"{speed} It has the set-up of the engine that drafts need, and no drafts."
    if speedup.num_rounds < MIN_ROUNDS:
        return "no measurable difference", f"{speed} One start of each arm may be luck: run more rounds."
    by_goal = _word_by_goal(goal, off_goal, is_better)
    word_of_speed = word_by_interval(speedup)
    word = by_goal or word_of_speed
    sentences = [_goal_sentence(goal, off_goal), speed]
    # An arm can miss a goal and be faster: then there is no loss to explain.
    if word != "on" and word_of_speed != "on":
        loses = "loses" if word_of_speed == "off" else "may lose"
        sentences.append(_set_up_sentence(speedup_over_off_v1, loses))
    if word == word_of_speed == "off":
        sentences.append(_acceptance_sentence(drafting))
    return word, " ".join(sentence for sentence in sentences if sentence)


def _word_by_goal(goal: GoalOutcome | None, off_goal: GoalOutcome | None, is_better: bool) -> Word | None:
    if goal is None or off_goal is None:
        return None
    if goal.is_met and off_goal.num_met == 0 and is_better:
        return "on"
    if off_goal.is_met and not goal.is_met:
        return "off"
    return None


def word_by_interval(speedup: Interval) -> Word:
    """Return the word by throughput alone."""
    if speedup.low > 1:
        return "on"
    return "off" if speedup.high < 1 else "no measurable difference"


def speed_sentence(speedup: Interval) -> str:
    """Return the ratio of throughputs as a sentence, with what it rests on.

    >>> print(speed_sentence(Interval(estimate=1.25, low=1.21, high=1.29, num_pairs=12, num_rounds=2)))
    Tokens per second: +25.0% against off (95% interval +21.0% to +29.0%; 12 pairs of blocks, 2 starts).
    """
    basis = f"{counted(speedup.num_pairs, 'pair')} of blocks, {counted(speedup.num_rounds, 'start')}"
    return f"Tokens per second: {against(speedup, OFF)[:-1]}; {basis})."


def against(speedup: Interval, baseline: str) -> str:
    """Return the ratio as a percentage with its interval."""
    low, high = percent(speedup.low), percent(speedup.high)
    return f"{percent(speedup.estimate)} against {baseline} (95% interval {low} to {high})"


def percent(ratio: float) -> str:
    """Return by how much a ratio is above or below 1.

    >>> percent(0.92)
    '-8.0%'
    """
    return f"{ratio - 1:+.1%}"


def counted(number: int, noun: str) -> str:
    """Return the number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _goal_sentence(goal: GoalOutcome | None, off_goal: GoalOutcome | None) -> str:
    if goal is None:
        return ""
    sentence = f"{goal.goal.text} is met in {goal.num_met} of {goal.num_rounds} rounds ({goal.shown})"
    if off_goal is not None:
        sentence += f", with {OFF} in {off_goal.num_met} of {off_goal.num_rounds} ({off_goal.shown})"
    return sentence + "."


def _set_up_sentence(speedup_over_off_v1: Interval | None, loses: str) -> str:
    if speedup_over_off_v1 is None or speedup_over_off_v1.low <= 1:
        return ""
    return (
        f"It is {against(speedup_over_off_v1, OFF_V1)}, which has the set-up of the engine that drafts need, "
        f"and no drafts: the drafts gain, and that set-up {loses} it again."
    )


def _acceptance_sentence(drafting: Drafting | None) -> str:
    if drafting is None or drafting.acceptance_rate is None:
        return ""
    accepted = f"{drafting.acceptance_rate:.1%} of the draft tokens were accepted"
    if drafting.acceptance_rate < HIGH_ACCEPTANCE_RATE:
        return f"{accepted}."
    return f"{accepted}, {drafting.tokens_per_step:.2f} tokens per step: acceptance is not speed."
