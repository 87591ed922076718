"""What is wrong with a run as a whole, and what it cannot tell."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ngram_spec.bench.checks import DRAFTS_MADE
from ngram_spec.bench.outputs import OffOutputs
from ngram_spec.bench.records import OFF, Run
from ngram_spec.bench.sizes import QUICK_MODEL
from ngram_spec.bench.summary import Cell
from ngram_spec.bench.verdict import MIN_ROUNDS, counted

# From so many intervals on, one that misses the truth is to be expected.
MANY = 10


def warnings_of(run: Run, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the warnings in sentences, those that matter most first."""
    return (*_of_failures(run), *_of_design(run, cells), *_of_load(run), *_of_outputs(run, cells))


def _of_failures(run: Run) -> Iterator[str]:
    for failure in run.failures:
        yield f"Arm {failure.arm} failed in round {failure.round + 1}: {failure.reason}."
    measured = {block.arm for block in run.blocks}
    for arm in run.settings.arms:
        if arm.name not in measured:
            yield f"Arm {arm.name} was not measured."
    versions = sorted({start.engine_version for start in run.starts if start.engine_version})
    if len(versions) > 1:
        yield f"The servers ran different versions of the engine: {', '.join(versions)}."


def _of_design(run: Run, cells: Sequence[Cell]) -> Iterator[str]:
    if run.settings.model.endswith(QUICK_MODEL.partition("/")[2]):
        yield (
            "The model is one to try things out with: it copies and repeats itself more than a large one, so "
            "this is true of it and of this machine, and says little about others."
        )
    if run.settings.urls is not None:
        yield (
            "The servers ran before this run and were not started anew in each round, so the intervals leave "
            "out how much starts differ."
        )
    single = {cell.arm for cell in cells if cell.speedup and cell.speedup.num_rounds < MIN_ROUNDS}
    if single:
        yield (
            f"{', '.join(sorted(single))}: one start beside one of arm {OFF}. How much starts differ is not "
            "known, so nothing is said to be faster or slower; run two rounds or more."
        )
    num_judged = sum(cell.judged_speedup is not None for cell in cells)
    if num_judged >= MANY:
        yield (
            f"An interval misses the truth in about 5 of 100 runs: of the {num_judged} here about "
            f"{num_judged * 0.05:.1f} may, so a single verdict that stands out needs a second run."
        )
    if run.settings.num_groups < 2:
        yield "The prompts were sent in one group, so the intervals leave out how much they matter."


def _of_load(run: Run) -> Iterator[str]:
    preemptions: Counter[str] = Counter()
    for block in run.blocks:
        preemptions[block.arm] += block.counters.num_preemptions or 0
    for workload, concurrencies in _with_shared_prompts(run).items():
        yield (
            f"{workload} has too few prompts for concurrency {', '.join(map(str, sorted(concurrencies)))}: "
            "some were sent in several blocks, so the intervals there leave out how much the choice of "
            "prompts matters; --num-prompts takes more."
        )
    for arm, number in preemptions.items():
        if number:
            yield f"Arm {arm} preempted requests {counted(number, 'time')}: its KV cache was full."


def _with_shared_prompts(run: Run) -> dict[str, set[int]]:
    """Return, by workload, the concurrencies at which one prompt was asked in several groups."""
    groups: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for block in run.blocks:
        for answer in block.answers:
            groups[block.workload, block.concurrency, answer.prompt_id].add(block.group)
    shared: dict[str, set[int]] = defaultdict(set)
    for (workload, concurrency, _), its_groups in groups.items():
        if len(its_groups) > 1:
            shared[workload].add(concurrency)
    return shared


def _of_outputs(run: Run, cells: Sequence[Cell]) -> Iterator[str]:
    if run.settings.temperature > 0:
        yield (
            f"At temperature {run.settings.temperature:g} outputs are drawn at random, so whether they are "
            "right was not compared; run once at temperature 0."
        )
    else:
        off_outputs = OffOutputs(run.blocks)
        for workload, prompt_ids in run.settings.workloads.items():
            unstable = [one for one in prompt_ids if off_outputs.num_answers(workload, one) > 1]
            if unstable:
                yield (
                    f"Arm {OFF} does not always answer alike itself: {len(unstable)} of "
                    f"{counted(len(prompt_ids), 'prompt')} of {workload}."
                )
    unknown = {
        cell.arm
        for cell in cells
        for check in cell.checks
        if check.name == DRAFTS_MADE and cell.measures.drafting is None
    }
    for arm in sorted(unknown):
        yield f"Whether arm {arm} drafted at all is not known: its server has no counters of drafts."
