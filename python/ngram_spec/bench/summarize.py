"""From a run as it is on disk to all that a report shows; the same run always gives the same summary."""

from collections import defaultdict
from collections.abc import Sequence

from ngram_spec.bench.checklist import checklist
from ngram_spec.bench.checks import OutputCounts, check_blocks, compare_outputs, valid_baseline
from ngram_spec.bench.goal import Goal, goal_outcome, parse_goal
from ngram_spec.bench.intervals import pairs_of, ratio_interval, throughput, time_per_token
from ngram_spec.bench.measures import measure
from ngram_spec.bench.outputs import OffOutputs
from ngram_spec.bench.recommend import recommend
from ngram_spec.bench.records import OFF, OFF_V1, Arm, Block, Run
from ngram_spec.bench.summary import Cell, Check, Summary
from ngram_spec.bench.verdict import judge
from ngram_spec.bench.warn import warnings_of

# Workload and concurrency.
Place = tuple[str, int]


def summarize(run: Run) -> Summary:
    """Return the run, measured, checked and judged.

    Raises:
        NgramSpecError: the settings' goal is none.
    """
    settings = run.settings
    goal = parse_goal(settings.goal) if settings.goal else None
    off_outputs = OffOutputs(run.blocks, run.near_tie_probes)
    by_place: dict[Place, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in run.blocks:
        by_place[block.workload, block.concurrency][block.arm].append(block)
    cells = [
        cell
        for workload in settings.workloads
        for concurrency in settings.concurrencies
        for cell in _cells(run, by_place[workload, concurrency], off_outputs, goal)
    ]
    recommendations = [
        recommend(settings, workload, [cell for cell in cells if cell.workload == workload])
        for workload in settings.workloads
    ]
    return Summary(
        settings=settings,
        engine_version=next((start.engine_version for start in run.starts if start.engine_version), None),
        device=next((start.device for start in run.starts if start.device), None),
        cells=tuple(cells),
        recommendations=tuple(recommendations),
        checklist=checklist(settings, cells, recommendations),
        warnings=warnings_of(run, cells),
    )


def _cells(
    run: Run, by_arm: dict[str, list[Block]], off_outputs: OffOutputs, goal: Goal | None
) -> list[Cell]:
    """Return the cells of one workload at one concurrency, in the order of the arms."""
    arms = [arm for arm in run.settings.arms if arm.name in by_arm]
    offs = by_arm.get(OFF, [])
    outputs = {arm.name: compare_outputs(by_arm[arm.name], off_outputs) for arm in arms}
    checks = {
        arm.name: check_blocks(run.settings, arm, by_arm[arm.name], offs, outputs[arm.name]) for arm in arms
    }
    if OFF in checks:
        baseline = valid_baseline(checks[OFF])
        checks |= {name: (*its, baseline) for name, its in checks.items() if name != OFF}
    is_v1_valid = all(check.is_passed for check in checks.get(OFF_V1, ()))
    v1s = by_arm.get(OFF_V1, []) if is_v1_valid else []
    return [
        _cell(run, arm, by_arm[arm.name], offs, v1s, checks[arm.name], outputs[arm.name], goal)
        for arm in arms
    ]


def _cell(
    run: Run,
    arm: Arm,
    blocks: Sequence[Block],
    offs: Sequence[Block],
    v1s: Sequence[Block],
    checks: tuple[Check, ...],
    outputs: OutputCounts,
    goal: Goal | None,
) -> Cell:
    is_other = arm.name != OFF
    measures = measure(blocks, run.starts)
    pairs = pairs_of(blocks, offs) if is_other else []
    speedup = ratio_interval(pairs, throughput)
    over_v1 = ratio_interval(pairs_of(blocks, v1s), throughput) if arm.is_speculative else None
    outcome = goal_outcome(goal, blocks) if goal else None
    verdict, reason = judge(
        arm.name,
        checks=checks,
        drafting=measures.drafting,
        speedup=speedup,
        speedup_over_off_v1=over_v1,
        goal=outcome,
        off_goal=goal_outcome(goal, offs) if goal and offs and is_other else None,
        is_better=goal is not None and goal.is_better(pairs),
    )
    # Outputs that are drawn at random are not compared, and none are where arm off has no answers.
    is_compared = is_other and not run.settings.temperature and outputs.num_compared > 0
    return Cell(
        workload=blocks[0].workload,
        concurrency=blocks[0].concurrency,
        arm=arm.name,
        measures=measures,
        speedup=speedup,
        speedup_over_off_v1=over_v1,
        tpot_ratio=ratio_interval(pairs, time_per_token),
        checks=checks,
        num_same_outputs=outputs.num_same if is_compared else None,
        num_near_ties=outputs.num_near_ties if is_compared else None,
        num_unstable_outputs=outputs.num_unstable if is_compared else None,
        meets_goal=outcome.is_met if outcome else None,
        verdict=verdict,
        reason=reason,
    )
