"""The way to a decision in five questions, each answered by one run."""

from collections.abc import Callable, Iterable, Sequence

from ngram_spec.bench.figures import memory_differences
from ngram_spec.bench.recommend import NOTHING_SHOWN, peak_difference
from ngram_spec.bench.records import OFF, Settings
from ngram_spec.bench.summary import Cell, ChecklistItem, Measures, Recommendation
from ngram_spec.bench.verdict import counted, percent


def checklist(
    settings: Settings, cells: Sequence[Cell], recommendations: Sequence[Recommendation]
) -> tuple[ChecklistItem, ...]:
    """Return the five questions with their answers."""
    answers = {
        "What is the goal, and what is the baseline?": _goal_and_baseline(settings, cells),
        "Does the method fit the workload?": _per_workload(settings, cells, _drafting_of),
        "What are acceptance and latency at the highest concurrency?": _at_highest(settings, cells),
        "What becomes of throughput and memory?": _per_workload(settings, cells, _gain_of),
        "What is to be kept?": _kept(recommendations),
    }
    return tuple(ChecklistItem(question=question, answer=answer) for question, answer in answers.items())


def _goal_and_baseline(settings: Settings, cells: Sequence[Cell]) -> str:
    goal = f"The goal is {settings.goal}." if settings.goal else "No goal was given: throughput decides."
    offs = [cell for cell in cells if cell.arm == OFF]
    if not offs:
        return f"{goal} There is no baseline: arm {OFF} was not measured."
    speeds = "; ".join(
        f"{workload}: {_listed(cell for cell in offs if cell.workload == workload)}"
        for workload in settings.workloads
    )
    flags = " ".join(settings.common_flags)
    engine = f"the engine with {flags} and no speculation" if flags else "the engine as it is by default"
    blocks = counted(sum(cell.measures.num_blocks for cell in offs), "block")
    starts = counted(max(cell.measures.num_starts for cell in offs), "start")
    return f"{goal} The baseline is {engine}, {starts}, {blocks}: {speeds}."


def _listed(cells: Iterable[Cell]) -> str:
    return ", ".join(
        f"{cell.measures.throughput:.1f} tokens/s at concurrency {cell.concurrency}" for cell in cells
    )


def _per_workload(
    settings: Settings, cells: Sequence[Cell], say: Callable[[Sequence[Cell], Sequence[Cell]], str]
) -> str:
    """Say something of each speculative arm on each workload, over all its concurrencies, beside arm off."""
    sentences = []
    for workload in settings.workloads:
        here = [cell for cell in cells if cell.workload == workload]
        offs = [cell for cell in here if cell.arm == OFF]
        for arm in settings.arms:
            ours = [cell for cell in here if cell.arm == arm.name]
            if arm.is_speculative and ours:
                sentences.append(f"{arm.name} on {workload}: {say(ours, offs)}.")
    return " ".join(sentences) or "No speculative arm was measured."


def _drafting_of(ours: Sequence[Cell], _offs: Sequence[Cell]) -> str:
    first = ours[0]
    drafting = first.measures.drafting
    if drafting is None:
        return "the server does not count drafts"
    if drafting.acceptance_rate is None:
        return "nothing was drafted"
    return (
        f"{drafting.tokens_per_step:.2f} tokens per step at concurrency {first.concurrency}, with drafts in "
        f"{drafting.coverage:.1%} of the steps and {drafting.acceptance_rate:.1%} of their tokens accepted"
    )


def _at_highest(settings: Settings, cells: Sequence[Cell]) -> str:
    highest = max((cell.concurrency for cell in cells), default=0)
    there = [cell for cell in cells if cell.concurrency == highest]
    return _per_workload(settings, there, _latency_of)


def _latency_of(ours: Sequence[Cell], offs: Sequence[Cell]) -> str:
    (cell,) = ours
    drafting = cell.measures.drafting
    rate = None if drafting is None else drafting.acceptance_rate
    accepted = f"{rate:.1%} of the draft tokens accepted, " if rate is not None else ""
    off = f" ({_latencies(offs[0].measures)} with {OFF})" if offs else ""
    return f"{accepted}{_latencies(cell.measures)} at concurrency {cell.concurrency}{off}"


def _latencies(measures: Measures) -> str:
    parts = [
        f"{name} p95 {values.p95:.1f} ms"
        for name, values in (("TTFT", measures.ttft_ms), ("TPOT", measures.tpot_ms))
        if values is not None
    ]
    return ", ".join(parts) or "no latency"


def _gain_of(ours: Sequence[Cell], offs: Sequence[Cell]) -> str:
    speeds = ", ".join(
        f"{percent(cell.speedup.estimate)} at concurrency {cell.concurrency}"
        if cell.speedup is not None and cell.verdict != "invalid"
        else f"nothing valid at concurrency {cell.concurrency}"
        for cell in ours
    )
    process_bytes = peak_difference(ours, offs, lambda measures: measures.process_bytes)
    gpu_bytes = peak_difference(ours, offs, lambda measures: measures.gpu_bytes)
    return "; ".join((f"tokens per second {speeds}", *memory_differences(process_bytes, gpu_bytes)))


def _kept(recommendations: Sequence[Recommendation]) -> str:
    return " ".join(f"{one.workload}: {_to_keep(one)}." for one in recommendations)


def _to_keep(recommendation: Recommendation) -> str:
    if recommendation.arm is not None:
        return f"{recommendation.arm}, {recommendation.headline}"
    word = "no verdict"
    if recommendation.has_verdict:
        undecided = recommendation.headline == NOTHING_SHOWN
        word = "leave speculation off, or measure more" if undecided else "leave speculation off"
    return f"{word} ({recommendation.headline})"
