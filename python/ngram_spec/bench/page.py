"""The report as one HTML file that needs nothing else: no network, no script, no font of its own."""

import itertools
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ngram_spec._core import NgramSpecError
from ngram_spec.bench import figures
from ngram_spec.bench.charts import Chart, acceptance_chart, latency_chart, speedup_chart
from ngram_spec.bench.drawing import legend_mark, looks
from ngram_spec.bench.records import RUN_FILE, Run
from ngram_spec.bench.report import report_file
from ngram_spec.bench.summary import Cell, Measures, Recommendation, Summary


@dataclass(frozen=True)
class LatencyCharts:
    """The charts of one workload: at the lowest and the highest load, and those between, to be unfolded."""

    workload: str
    ends: list[Chart]
    between: dict[int, Chart]


@dataclass(frozen=True)
class Bar:
    """One bar: its length is the share of the longest, in percent."""

    text: str
    percent: float


@dataclass(frozen=True)
class Memory:
    """What each arm takes over all of its cells, of the kinds of memory that are known."""

    headings: list[str]
    rows: dict[str, list[Bar]]


def write_page(path: Path, run: Run | None, summary: Summary) -> None:
    """Write the page; `run` is None where nothing was measured.

    Raises:
        NgramSpecError: the file cannot be written.
    """
    try:
        path.write_text(render_page(run, summary), encoding="utf-8")
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot write the page: {error.strerror}") from error


def render_page(run: Run | None, summary: Summary) -> str:
    """Return the page as HTML."""
    # Names of models, arms and prompts and the words of errors are from outside: all is escaped.
    environment = Environment(
        loader=PackageLoader("ngram_spec.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["command"] = shlex.join
    workloads = figures.by_workload(summary.cells)
    arms = looks(summary.settings.arms)
    columns = figures.shown_columns(summary)
    groups = itertools.groupby(columns, key=lambda column: column.group)
    return environment.get_template("page.html").render(
        summary=summary,
        settings=summary.settings,
        run=run,
        figures=figures,
        workloads=workloads,
        columns=columns,
        groups=[(name, len(list(members))) for name, members in groups],
        hidden=[column for column in figures.COLUMNS if column not in columns],
        marks=[legend_mark(look, f"mark-{place}") for place, look in enumerate(arms.values())],
        places={arm: place for place, arm in enumerate(arms)},
        speedups=_present(speedup_chart(summary, workload) for workload in workloads),
        latencies=[
            charts
            for workload, cells in workloads.items()
            if (charts := _latency_charts(summary, workload, cells)).ends
        ],
        acceptances=_present(acceptance_chart(summary, workload) for workload in workloads),
        memory=_memory(summary),
        tone=_tone,
        num_sound=sum(all(check.is_passed for check in cell.checks) for cell in summary.cells),
        commands=_commands(run),
        run_file=RUN_FILE,
        report_file=report_file(summary),
    )


def _present(charts: Iterable[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


def _latency_charts(summary: Summary, workload: str, cells: list[Cell]) -> LatencyCharts:
    loads = sorted({cell.concurrency for cell in cells})
    drawn = {concurrency: latency_chart(summary, workload, concurrency) for concurrency in loads}
    charts = {concurrency: chart for concurrency, chart in drawn.items() if chart is not None}
    ends = [charts.pop(concurrency) for concurrency in dict.fromkeys((*[*charts][:1], *[*charts][-1:]))]
    return LatencyCharts(workload, ends, charts)


def _memory(summary: Summary) -> Memory:
    kinds: list[
        tuple[str, Callable[[Measures], int | None], Callable[..., int], Callable[[int | None], str]]
    ] = [
        ("peak of main memory", lambda measures: measures.process_bytes, max, figures.size),
        ("peak of GPU memory", lambda measures: measures.gpu_bytes, max, figures.size),
        # Room is no peak: what can be relied on is what the poorest start had.
        ("least room in the KV cache, tokens", lambda measures: measures.kv_cache_tokens, min, figures.count),
    ]
    memory = Memory([], {arm: [] for arm in figures.arm_names(summary)})
    for heading, of, pick, write in kinds:
        values = {arm: pick(_known(summary, arm, of), default=0) for arm in memory.rows}
        longest = max(values.values(), default=0)
        if longest:
            memory.headings.append(heading)
            for arm, value in values.items():
                memory.rows[arm].append(Bar(write(value or None), 100 * value / longest))
    return memory


def _known(summary: Summary, arm: str, of: Callable[[Measures], int | None]) -> list[int]:
    return [value for cell in summary.cells if cell.arm == arm and (value := of(cell.measures)) is not None]


def _tone(recommendation: Recommendation, summary: Summary) -> str:
    """Return how a verdict looks: `on`, `off`, or `invalid` where nothing of the workload counts."""
    if recommendation.arm is not None:
        return "on"
    verdicts = {cell.verdict for cell in summary.cells if cell.workload == recommendation.workload}
    return "invalid" if verdicts - {"baseline"} == {"invalid"} else "off"


def _commands(run: Run | None) -> dict[str, str]:
    """Return the command that started each arm's server, with the environment in front."""
    if run is None:
        return {}
    environments = {
        arm.name: " ".join(f"{name}={shlex.quote(value)} " for name, value in arm.environment.items())
        for arm in run.settings.arms
    }
    return {
        start.arm: environments.get(start.arm, "") + shlex.join(start.command)
        for start in run.starts
        if start.command
    }
