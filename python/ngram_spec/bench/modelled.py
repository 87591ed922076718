"""What a live run would show, modelled from recordings and a cost curve: no engine and no GPU are needed.

The drafter is real, and so are the answers; the time of a step is what the cost curve gives for the tokens
that it verifies. Arm off takes the curve's time for one token in each row. Arm ngram_spec also pays
`method_overhead`, a share of that, for what method custom_class takes from vLLM (async scheduling and Model
Runner V1). What a curve cannot know, the report says among its warnings.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from ngram_spec import __version__
from ngram_spec._core import CostCurve, NgramSpecError
from ngram_spec.bench.arms import make_arms
from ngram_spec.bench.closed_loop import AnswerCounts, LoopCounts, replay_closed_loop
from ngram_spec.bench.intervals import interval_of
from ngram_spec.bench.measures import MS_PER_SECOND, drafting_of, percentiles
from ngram_spec.bench.modelled_options import CONCURRENCIES, DEFAULT_COST_CURVE, METHOD_OVERHEAD
from ngram_spec.bench.plan import max_draft_tokens, parse_concurrencies
from ngram_spec.bench.recommend import recommend
from ngram_spec.bench.records import OFF, Settings
from ngram_spec.bench.summary import Cell, Drafting, Interval, Measures, Summary, Word
from ngram_spec.bench.verdict import against, counted, word_by_interval
from ngram_spec.bench.workloads import workload_name
from ngram_spec.recordings import (
    TokenizedResponse,
    choose_tokenizer,
    load_responses,
    packaged_recordings,
)
from ngram_spec.replay import ReplaySettings
from ngram_spec.vllm_options import read_options
from ngram_spec.vllm_plugin import METHOD

# Of a step, in any unit: far beyond them sums are no numbers any more.
MIN_TIME, MAX_TIME = 1e-9, 1e9
# The interval widens with Student's t as records get fewer, but one alone has none.
MIN_RECORDS = 2
SMALL_MODEL = (
    "The recordings that ship with ngram-spec are of a model of 135M parameters, which copies and repeats "
    "more than a large one: name recordings of your own."
)

Recordings = Mapping[str, Sequence[tuple[str, TokenizedResponse]]]
"""By the name of the recording: its answers, each with the id of its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledSettings:
    """What is assumed of the engine, and how the drafter is set.

    `cost_curve` is "h100" or the path of a JSON file. `step_ms` is the time of a step of one row without
    drafts; without it, times are in such steps.
    """

    cost_curve: str = DEFAULT_COST_CURVE
    concurrencies: tuple[int, ...] = CONCURRENCIES
    method_overhead: float = METHOD_OVERHEAD
    step_ms: float | None = None
    drafter: ReplaySettings = ReplaySettings()  # noqa: RUF009 (it is a value)

    def curve(self) -> CostCurve:
        """Return the curve itself.

        Raises:
            NgramSpecError: it cannot be read, or is none.
        """
        curve = read_options({"draft_cost": self.cost_curve}, {}, "--cost-curve").pool["draft_cost"]
        assert isinstance(curve, CostCurve)  # of text, nothing else comes
        most = max(self.concurrencies) * (1 + self.drafter.max_draft_tokens)
        for num_tokens in (1, most):
            if not MIN_TIME <= (time := curve.step_time(num_tokens)) <= MAX_TIME:
                raise NgramSpecError(
                    f"--cost-curve must give times from {MIN_TIME:g} to {MAX_TIME:g}, got {time:g} for a "
                    f"step of {num_tokens} tokens"
                )
        return curve

    def check(self) -> None:
        """Raise NgramSpecError for a number that cannot be."""
        if not 0 <= self.method_overhead <= MAX_TIME:
            raise NgramSpecError(
                f"--method-overhead must be a share of a step, from 0, got {self.method_overhead:g}"
            )
        if self.step_ms is not None and not MIN_TIME <= self.step_ms <= MAX_TIME:
            raise NgramSpecError(
                f"--step-ms must be a time from {MIN_TIME:g} to {MAX_TIME:g}, got {self.step_ms:g}"
            )
        if min(self.concurrencies, default=0) < 1:
            raise NgramSpecError(f"concurrencies must be at least 1, got {self.concurrencies}")


@dataclass(frozen=True, slots=True)
class _Place:
    """One recording at one concurrency, replayed."""

    workload: str
    concurrency: int
    record_ids: tuple[str, ...]
    loop: LoopCounts
    # Of arm off: so long takes a step.
    off_step: float
    # What the method costs in each step.
    overhead: float
    # Seconds that a unit of the curve's time stands for.
    seconds: float
    has_seconds: bool

    def time(self, counts: AnswerCounts) -> float:
        """Return the engine's time for an answer with drafts: its part of each step."""
        return counts.time + self.overhead * counts.num_steps / self.concurrency

    def off_time(self, counts: AnswerCounts) -> float:
        return self.off_step * counts.num_output_tokens / self.concurrency


def modelled_settings(options: argparse.Namespace) -> ModelledSettings:
    """Return the settings that the options of `ngram-spec bench --modelled` ask for.

    Raises:
        NgramSpecError: an option is not as it must be.
    """
    concurrencies = CONCURRENCIES if options.concurrency is None else parse_concurrencies(options.concurrency)
    overhead = METHOD_OVERHEAD if options.method_overhead is None else options.method_overhead
    return ModelledSettings(
        cost_curve=options.cost_curve or DEFAULT_COST_CURVE,
        concurrencies=concurrencies,
        method_overhead=overhead,
        step_ms=options.step_ms,
        drafter=ReplaySettings(max_draft_tokens=max_draft_tokens(options.num_speculative_tokens)),
    )


def run_modelled(
    files: Sequence[Traversable], tokenizer_name: str | None, settings: ModelledSettings
) -> Summary:
    """Return the modelled summary of these recordings, without a file of those that ship with the package.

    Raises:
        NgramSpecError: a setting cannot be, or a file or the curve cannot be read.
    """
    settings.check()
    settings.curve()
    is_packaged = not files
    files = list(dict.fromkeys(files)) or packaged_recordings()
    recordings = {}
    for file in files:
        responses = load_responses(file)
        tokenizer = choose_tokenizer(tokenizer_name, responses)
        answers = [(response.record_id, response.tokenize(tokenizer)) for response in responses]
        recordings[workload_name(file, files)] = answers
    summary = modelled_summary(recordings, settings)
    if not is_packaged:
        return summary
    return summary.model_copy(update={"warnings": (SMALL_MODEL, *summary.warnings)})


def modelled_summary(recordings: Recordings, settings: ModelledSettings) -> Summary:
    """Return the summary of a run that was never made; its verdicts hold if the curve and the overhead do.

    Raises:
        NgramSpecError: a setting cannot be, or the curve cannot be read.
    """
    settings.check()
    curve = settings.curve()
    arms = make_arms(
        (OFF, METHOD),
        {},
        num_speculative_tokens=settings.drafter.max_draft_tokens,
        draft_cost=settings.cost_curve,
    )
    run_settings = Settings(
        ngram_spec_version=__version__,
        model="recorded answers",
        arms=arms,
        workloads={
            name: tuple(dict.fromkeys(record_id for record_id, _ in answers))
            for name, answers in recordings.items()
        },
        workload_digests={},
        concurrencies=settings.concurrencies,
        max_tokens=max(len(one.output_token_ids) for answers in recordings.values() for _, one in answers),
        num_groups=1,
    )
    cells = [cell for place in _replayed(recordings, curve, settings) for cell in _cells(place, settings)]
    return Summary(
        settings=run_settings,
        engine_version=None,
        device=f"cost curve {settings.cost_curve}",
        cells=tuple(cells),
        recommendations=tuple(
            recommend(run_settings, name, [cell for cell in cells if cell.workload == name])
            for name in recordings
        ),
        checklist=(),
        warnings=_warnings(recordings, settings),
        is_modelled=True,
    )


def _replayed(recordings: Recordings, curve: CostCurve, settings: ModelledSettings) -> Iterator[_Place]:
    console = Console(stderr=True)
    places = [(name, concurrency) for name in recordings for concurrency in settings.concurrencies]
    progress = track(places, "replaying", console=console, transient=True, disable=not console.is_terminal)
    for name, concurrency in progress:
        record_ids, responses = zip(*recordings[name], strict=True)
        loop = replay_closed_loop(
            responses,
            concurrency,
            curve,
            lambda verified: curve.step_time(sum(map(len, verified))),
            settings.drafter,
        )
        off_step = curve.step_time(concurrency)
        seconds = 1.0 if settings.step_ms is None else settings.step_ms / MS_PER_SECOND
        yield _Place(
            name,
            concurrency,
            record_ids,
            loop,
            off_step,
            overhead=settings.method_overhead * off_step,
            seconds=seconds / curve.step_time(1),
            has_seconds=settings.step_ms is not None,
        )


def _cells(place: _Place, settings: ModelledSettings) -> list[Cell]:
    answers = [counts for counts in place.loop.answers if counts.num_steps]
    if not answers:
        return []
    speedup = _speedup(place)
    verdict, reason = _judge(place, speedup, settings)
    common: dict[str, Any] = {
        "workload": place.workload,
        "concurrency": place.concurrency,
        "speedup_over_off_v1": None,
        "checks": (),
        "num_same_outputs": None,
        "num_near_ties": None,
        "meets_goal": None,
    }
    return [
        Cell(
            **common,
            arm=OFF,
            measures=_measures(place, answers, None),
            speedup=None,
            tpot_ratio=None,
            verdict="baseline",
            reason="What all others are compared with.",
        ),
        Cell(
            **common,
            arm=METHOD,
            measures=_measures(place, answers, _drafting(place)),
            speedup=speedup,
            tpot_ratio=_inverse(speedup),
            verdict=verdict,
            reason=reason,
        ),
    ]


def _speedup(place: _Place) -> Interval:
    """Return the ratio of throughputs; whole records are resampled, each with its part of the steps."""
    sums: dict[str, tuple[float, ...]] = defaultdict(lambda: (0.0,) * 4)
    for record_id, counts in zip(place.record_ids, place.loop.answers, strict=True):
        if counts.num_steps:
            num_tokens = counts.num_output_tokens
            four = (num_tokens, place.time(counts), num_tokens, place.off_time(counts))
            sums[record_id] = tuple(map(sum, zip(sums[record_id], four, strict=True)))
    return interval_of({(0, number): four for number, four in enumerate(sums.values())})


def _inverse(ratio: Interval) -> Interval:
    """Return the ratio of times per token; since the batch is always full, that of throughputs inverted."""
    return ratio.model_copy(
        update={"estimate": 1 / ratio.estimate, "low": 1 / ratio.high, "high": 1 / ratio.low}
    )


def _judge(place: _Place, speedup: Interval, settings: ModelledSettings) -> tuple[Word, str]:
    word = word_by_interval(speedup)
    total = place.loop.total
    # What the steps that were saved leave to be spent in each of those that were not.
    bearable = (place.off_time(total) - total.time) * place.concurrency / (total.num_steps * place.off_step)
    basis = counted(speedup.num_pairs, "record")
    sentences = [f"Modelled tokens per second: {against(speedup, OFF)}, {basis}."]
    if bearable > 0:
        sentences.append(
            f"It pays while the method costs less than {bearable:.0%} of a step without drafts "
            f"({settings.method_overhead:.0%} is assumed)."
        )
    else:
        sentences.append("The drafts would not pay if the method cost nothing.")
    if speedup.num_pairs < MIN_RECORDS:
        word = "no measurable difference"
        sentences.append("One record says nothing about another: name a file with more.")
    return word, " ".join(sentences)


def _measures(place: _Place, answers: Sequence[AnswerCounts], drafting: Drafting | None) -> Measures:
    time_of = place.off_time if drafting is None else place.time
    num_tokens = sum(counts.num_output_tokens for counts in answers)
    time = sum(time_of(counts) for counts in answers) * place.seconds
    # An answer has its row to itself for as many times its part of the engine as there are rows.
    tpot = [time_of(counts) * place.concurrency / counts.num_output_tokens for counts in answers]
    milliseconds = np.array(tpot) * place.seconds * MS_PER_SECOND
    return Measures(
        num_starts=0,
        num_blocks=0,
        num_requests=len(answers) * place.loop.num_repetitions,
        num_errors=0,
        num_output_tokens=num_tokens,
        throughput=num_tokens / time,
        itl_ms=None,
        chunk_gap_ms=None,
        ttft_ms=None,
        tpot_ms=percentiles(milliseconds) if place.has_seconds else None,
        latency_ms=None,
        itl_histogram=None,
        drafting=drafting,
        process_bytes=None,
        gpu_bytes=None,
        kv_cache_usage=None,
        kv_cache_tokens=None,
        joules_per_token=None,
    )


def _drafting(place: _Place) -> Drafting:
    loop, total = place.loop, place.loop.total
    return drafting_of(
        num_drafts=total.num_drafts,
        num_draft_tokens=total.num_draft_tokens,
        num_accepted_tokens=total.num_accepted_tokens,
        num_output_tokens=total.num_output_tokens,
        num_row_steps=total.num_steps,
        num_accepted_by_position=loop.num_accepted_by_position,
        drafter_us_per_step=loop.pool_ns / 1000 / loop.num_pool_calls,
    )


def _warnings(recordings: Recordings, settings: ModelledSettings) -> tuple[str, ...]:
    warnings = []
    if settings.step_ms is None:
        warnings.append(
            "The unit of time is a step of one row without drafts: read tokens/s as tokens in that time. "
            "Give --step-ms for seconds."
        )
    warnings.append(
        f"Each step with method {METHOD} is taken to cost {settings.method_overhead:.0%} of a step without "
        "drafts, for the loss of async scheduling (--method-overhead). For n-gram drafts 20 to 39 % were "
        "measured (vllm-project/vllm#29184), and it is less where a step takes longer: ngram-spec bench "
        "measures yours."
    )
    if settings.cost_curve == DEFAULT_COST_CURVE:
        warnings.append(
            "The curve h100 itself is modelled, from memory bandwidth and arithmetic, and not measured: "
            "benches/cost_curve.py measures one, for --cost-curve."
        )
    warnings.append(
        "A curve knows how many tokens a step verifies, not how long their contexts are. Reading prompts, "
        "scheduling and preemption are left out, and the batch is always full."
    )
    few = [
        f"{name} ({counted(len(answers), 'answer')})"
        for name, answers in recordings.items()
        if len(answers) < max(settings.concurrencies)
    ]
    if few:
        warnings.append(f"Where rows outnumber answers, several replay the same one: {', '.join(few)}.")
    return tuple(warnings)
