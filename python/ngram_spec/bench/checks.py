"""What must hold before an arm's figures count. A cell with a check that failed is invalid, however fast."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ngram_spec.bench.intervals import pairs_of
from ngram_spec.bench.loops import loop_share
from ngram_spec.bench.measures import good_answers
from ngram_spec.bench.outputs import Likeness, OffOutputs
from ngram_spec.bench.records import OFF, Arm, Block, Settings
from ngram_spec.bench.summary import Check

NO_ERRORS = "no errors"
SAME_OUTPUTS = "same outputs"
NO_LOOPS = "no loops"
REAL_WORKLOAD = "real workload"
ENOUGH_OUTPUT = "enough output"
SAME_LENGTH = "same length"
DRAFTS_MADE = "drafts made"
VALID_BASELINE = "valid baseline"

# Of all output tokens. Small models end some answers in a loop by themselves.
MAX_LOOP_SHARE = 0.2
# By so much of all output tokens may an arm loop more than arm off does; it matters where outputs are drawn.
MAX_EXTRA_LOOP_SHARE = 0.1
MIN_OUTPUT_TOKENS = 256
# Of the total number of output tokens: at temperature 0 near-ties change lengths, above it chance does.
MAX_LENGTH_DIFFERENCE = 0.1
MAX_DRAWN_LENGTH_DIFFERENCE = 0.25
# Real prompts have a median of 2 to 3 and none above 7; one text again and again has tens.
MAX_PROMPT_COMPRESSION = 10.0
# Short answers are often equal, such as "yes" or the name of a class; long ones are not.
MIN_DISTINCT_LEN = 32
MIN_DISTINCT_PROMPTS = 4
MIN_DISTINCT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class OutputCounts:
    """How many answers of a cell are those of arm off; `others` names prompts whose answers are wrong."""

    num_compared: int
    num_same: int
    num_near_ties: int
    num_unstable: int
    others: tuple[str, ...]


def compare_outputs(blocks: Iterable[Block], off_outputs: OffOutputs) -> OutputCounts:
    """Return how the answers of these blocks compare with those of arm off."""
    counts: Counter[Likeness] = Counter()
    others: dict[str, None] = {}
    for block in blocks:
        for answer in good_answers([block]):
            likeness = off_outputs.likeness(block.workload, answer)
            if likeness is not None:
                counts[likeness] += 1
            if likeness is Likeness.DIFFERENT:
                others[answer.prompt_id] = None
    return OutputCounts(
        num_compared=counts.total(),
        num_same=counts[Likeness.SAME],
        num_near_ties=counts[Likeness.NEAR_TIE],
        num_unstable=counts[Likeness.UNSTABLE],
        others=tuple(others),
    )


def check_blocks(
    settings: Settings, arm: Arm, blocks: Sequence[Block], off_blocks: Sequence[Block], outputs: OutputCounts
) -> tuple[Check, ...]:
    """Return all checks of the blocks of one cell; `off_blocks` are those of arm off in the same place."""
    checks = [_no_errors(blocks), _no_loops(blocks, off_blocks), _real_workload(settings, blocks)]
    checks.append(_enough_output(blocks))
    if arm.name != OFF:
        checks += [_same_outputs(settings, outputs), _same_length(settings, blocks, off_blocks)]
    if arm.is_speculative:
        checks.append(_drafts_made(blocks))
    return tuple(checks)


def valid_baseline(off_checks: Iterable[Check]) -> Check:
    """Return the check that arm off, over which the ratios are, is itself valid in this place."""
    failed = [f"{check.name}: {check.detail}" for check in off_checks if not check.is_passed]
    return Check(
        name=VALID_BASELINE,
        is_passed=not failed,
        detail=f"arm {OFF} failed a check: {'; '.join(failed)}" if failed else f"arm {OFF} passed its checks",
    )


def _no_errors(blocks: Sequence[Block]) -> Check:
    answers = [answer for block in blocks for answer in block.answers]
    errors = [answer.error for answer in answers if answer.error is not None]
    detail = f"{len(errors)} of {len(answers)} requests failed"
    return Check(
        name=NO_ERRORS,
        is_passed=not errors,
        detail=f"{detail}, first with: {errors[0]}" if errors else detail,
    )


def _same_outputs(settings: Settings, outputs: OutputCounts) -> Check:
    if settings.temperature > 0:
        detail = f"not compared, since outputs are drawn at temperature {settings.temperature:g}"
        return Check(name=SAME_OUTPUTS, is_passed=True, detail=detail)
    if not outputs.num_compared:
        detail = f"not compared: arm {OFF} has answered none of these prompts"
        return Check(name=SAME_OUTPUTS, is_passed=True, detail=detail)
    detail = f"{outputs.num_same} of {outputs.num_compared} answers are those of arm {OFF}"
    if outputs.num_near_ties:
        detail += f", {outputs.num_near_ties} leave them at a near-tie"
    if outputs.num_unstable:
        detail += f", {outputs.num_unstable} differ where arm {OFF} differs from itself"
    if outputs.others:
        num_different = outputs.num_compared - outputs.num_same - outputs.num_near_ties - outputs.num_unstable
        detail += f", {num_different} differ without a near-tie, first to the prompt {outputs.others[0]}"
    return Check(name=SAME_OUTPUTS, is_passed=not outputs.others, detail=detail)


def _no_loops(blocks: Sequence[Block], off_blocks: Sequence[Block]) -> Check:
    share, off_share = _loop_share(blocks), _loop_share(off_blocks)
    detail = f"{share:.1%} of the output tokens are a few tokens repeated to the answer's end"
    if not off_blocks:
        return Check(name=NO_LOOPS, is_passed=share <= MAX_LOOP_SHARE, detail=detail)
    return Check(
        name=NO_LOOPS,
        is_passed=share <= min(MAX_LOOP_SHARE, off_share + MAX_EXTRA_LOOP_SHARE),
        detail=f"{detail} ({off_share:.1%} with arm {OFF})",
    )


def _loop_share(blocks: Sequence[Block]) -> float:
    answers = good_answers(blocks)
    num_tokens = sum(answer.num_output_tokens for answer in answers)
    num_in_loops = sum(loop_share(answer) * answer.num_output_tokens for answer in answers)
    return num_in_loops / num_tokens if num_tokens else 0.0


def _real_workload(settings: Settings, blocks: Sequence[Block]) -> Check:
    """Prompts that repeat themselves, and different prompts with one answer, are no traffic.

    Random words cannot be told from words here.
    """
    ratio = max((settings.prompt_compression.get(block.workload, 0.0) for block in blocks), default=0.0)
    if ratio > MAX_PROMPT_COMPRESSION:
        detail = f"the prompts repeat themselves: zlib makes them {ratio:.0f} times smaller"
        return Check(name=REAL_WORKLOAD, is_passed=False, detail=detail)
    long_answers = {
        answer.prompt_id: answer.token_ids or answer.text
        for answer in good_answers(blocks)
        if answer.num_output_tokens >= MIN_DISTINCT_LEN
    }
    num_prompts, num_distinct = len(long_answers), len(set(long_answers.values()))
    return Check(
        name=REAL_WORKLOAD,
        is_passed=num_prompts < MIN_DISTINCT_PROMPTS or num_distinct >= MIN_DISTINCT_SHARE * num_prompts,
        detail=f"{num_distinct} different answers to {num_prompts} prompts with an answer of "
        f"{MIN_DISTINCT_LEN} tokens or more",
    )


def _enough_output(blocks: Sequence[Block]) -> Check:
    num_tokens = sum(answer.num_output_tokens for answer in good_answers(blocks))
    return Check(
        name=ENOUGH_OUTPUT,
        is_passed=num_tokens >= MIN_OUTPUT_TOKENS,
        detail=f"{num_tokens} output tokens, of at least {MIN_OUTPUT_TOKENS}",
    )


def _same_length(settings: Settings, blocks: Sequence[Block], off_blocks: Sequence[Block]) -> Check:
    pairs = pairs_of(blocks, off_blocks)
    if not pairs:
        detail = f"not compared: no block has its pair with arm {OFF}"
        return Check(name=SAME_LENGTH, is_passed=True, detail=detail)
    num_tokens = sum(answer.num_output_tokens for answer in good_answers(ours for ours, _ in pairs))
    num_off_tokens = sum(answer.num_output_tokens for answer in good_answers(offs for _, offs in pairs))
    limit = MAX_DRAWN_LENGTH_DIFFERENCE if settings.temperature > 0 else MAX_LENGTH_DIFFERENCE
    return Check(
        name=SAME_LENGTH,
        is_passed=abs(num_tokens - num_off_tokens) <= limit * num_off_tokens,
        detail=f"{num_tokens} output tokens, and {num_off_tokens} with arm {OFF} to the same requests",
    )


def _drafts_made(blocks: Sequence[Block]) -> Check:
    known = [block.counters.num_drafts for block in blocks if block.counters.num_drafts is not None]
    if not known:
        detail = "cannot be told: the server has no counters of drafts"
        return Check(name=DRAFTS_MADE, is_passed=True, detail=detail)
    return Check(name=DRAFTS_MADE, is_passed=sum(known) > 0, detail=f"{sum(known)} drafts")
