"""The command `ngram-spec replay`: checks what it is given, replays, then prints, writes and draws."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ngram_spec import AcceptanceModel, NgramSpecError, __version__
from ngram_spec.ablation import Ablation, ablation, settings_without_each_feature
from ngram_spec.calibration import Calibration
from ngram_spec.paired import MIN_RECORDS, PairedDifference, paired_differences
from ngram_spec.plot import PLOTTED_DRAFT_COSTS, check_plottable, write_plot
from ngram_spec.recordings import (
    Response,
    TokenizedResponse,
    choose_tokenizer,
    load_responses,
    packaged_recordings,
)
from ngram_spec.replay import REPORTED_DRAFT_COSTS, DrafterFactory, ReplayCounts, ReplaySettings, replay
from ngram_spec.results import (
    BASELINE,
    DRAFTER,
    DrafterResult,
    FileResult,
    ResponseResult,
    by_drafter,
    check_same_records,
    read_results,
)
from ngram_spec.tables import SHOWN_DRAFT_COST, ablation_table, calibration_table, figures_table, paired_table

# Wide enough that a table piped into a file or a pager is neither folded nor cut.
PIPED_WIDTH = 160
MIN_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Arm:
    """One drafter, told one cost; each recording has a factory of its own."""

    drafter: str
    draft_cost: float | None
    make_factory: Callable[[], DrafterFactory]


@dataclass(frozen=True, slots=True)
class Recording:
    """One file in token ids, with the responses they are of."""

    name: str
    tokenizer: str
    responses: Sequence[tuple[Response, TokenizedResponse]]


def run_replay(options: argparse.Namespace) -> None:
    """Replay the named recordings, print the tables, write the JSON and draw the picture.

    Raises:
        NgramSpecError: an option or a file is not as it must be; found before anything is replayed.
    """
    settings = ReplaySettings(
        max_draft_tokens=options.max_draft_tokens,
        min_match_len=options.min_match_len,
        prior=None if options.prior is None else _read_prior(options.prior),
        learn=options.learn,
    )
    ablated = settings_without_each_feature(settings) if options.ablate else {}
    arms = list(_arms(settings, ablated, options))
    for arm in arms:
        arm.make_factory()  # refuses what is out of range
    earlier = {} if options.against is None else read_results(options.against)
    for path, what in ((options.json, "results"), (options.plot, "plot")):
        if path is not None:
            _check_no_input(path, what, options)
            _check_writable(path, what)
    if options.plot is not None:
        check_plottable(options.plot)
    # A file that is named twice is replayed once: results are told apart by the file's name.
    files: Sequence[Traversable] = list(dict.fromkeys(options.files)) or packaged_recordings()
    loaded = [(_shown_name(file, files), load_responses(file)) for file in files]
    with _progress() as progress:
        recordings = [_tokenize(name, responses, options.tokenizer, progress) for name, responses in loaded]
        if options.against is not None:
            for recording in recordings:
                check_same_records(_unplayed(recording), earlier, options.against)
        results = [_replay(recording, arm, progress) for recording in recordings for arm in arms]
    groups = by_drafter(results)
    differences: list[PairedDifference] = []
    ablations: list[Ablation] = []
    for name in (recording.name for recording in recordings):
        ours = groups[name, DRAFTER]
        if options.baseline:
            differences += paired_differences(ours, groups[name, BASELINE], BASELINE)
        if options.against is not None:
            differences += paired_differences(ours, earlier[name, DRAFTER], str(options.against))
        ablations += [ablation(ours, groups[name, _without(feature)], feature) for feature in ablated]
    whole = [group for group in groups.values() if group.drafter in (DRAFTER, BASELINE)]
    told, drawn = _told(options.draft_cost)
    setting = _setting(settings, recordings)
    if options.json is not None:
        document = {
            "ngram_spec": __version__,
            "settings": asdict(settings) | {"draft_cost": options.draft_cost},
            "results": [result.to_json() for result in results],
            "paired_differences": [difference.to_json() for difference in differences],
            "ablations": [ablation.to_json() for ablation in ablations],
        }
        _write_json(options.json, document)
    if options.plot is not None:
        write_plot(options.plot, whole, f"{setting}\n{drawn}")
    # Last, since printing ends with whoever reads it, as in `| head`.
    _print(whole, (setting, told), options.calibration, differences, ablations)


def _arms(
    settings: ReplaySettings, ablated: Mapping[str, ReplaySettings], options: argparse.Namespace
) -> Iterator[Arm]:
    """Yield what is replayed on each recording: the drafter at each cost it is told, then the others."""
    told = REPORTED_DRAFT_COSTS if options.draft_cost is None else (options.draft_cost,)
    drawn = PLOTTED_DRAFT_COSTS if options.draft_cost is None and options.plot is not None else ()
    for cost in dict.fromkeys((*told, *drawn)):
        yield Arm(DRAFTER, cost, replace(settings, draft_cost=cost).drafter_factory)
    if options.baseline:
        yield Arm(BASELINE, None, settings.prompt_lookup_factory)
    for feature, without in ablated.items():
        for cost in told:
            yield Arm(_without(feature), cost, replace(without, draft_cost=cost).drafter_factory)


def _without(feature: str) -> str:
    return f"{DRAFTER} without {feature}"


def _tokenize(
    name: str, responses: Sequence[Response], tokenizer_name: str | None, progress: Progress
) -> Recording:
    tokenizer = choose_tokenizer(tokenizer_name, responses)
    tokenized = []
    task = progress.add_task(f"tokenizing {name}", total=len(responses))
    for response in responses:
        tokenized.append((response, response.tokenize(tokenizer)))
        progress.advance(task)
    progress.remove_task(task)
    return Recording(name, "ids" if tokenizer is None else tokenizer.name, tokenized)


def _replay(recording: Recording, arm: Arm, progress: Progress) -> FileResult:
    make_drafter = arm.make_factory()
    calibration = Calibration()
    results = []
    told = "" if arm.draft_cost is None else f" at {arm.draft_cost:g}"
    task = progress.add_task(
        f"replaying {recording.name}, {arm.drafter}{told}", total=len(recording.responses)
    )
    for response, ids in recording.responses:
        counts = replay(ids, make_drafter, calibration)
        results.append(_response_result(response, ids, counts))
        progress.advance(task)
    progress.remove_task(task)
    return FileResult(recording.name, recording.tokenizer, arm.drafter, arm.draft_cost, results, calibration)


def _unplayed(recording: Recording) -> FileResult:
    """Return the recording's responses as a result, to be told from those of an earlier one."""
    results = [
        _response_result(response, ids, ReplayCounts(num_output_tokens=len(ids.output_token_ids) - 1))
        for response, ids in recording.responses
    ]
    return FileResult(recording.name, recording.tokenizer, DRAFTER, None, results)


def _response_result(response: Response, ids: TokenizedResponse, counts: ReplayCounts) -> ResponseResult:
    return ResponseResult(response.record_id, response.turn, len(ids.prompt_token_ids), counts)


def _shown_name(file: Traversable, files: Sequence[Traversable]) -> str:
    """Return the file's name, or its whole path where another file has the same name."""
    return file.name if [other.name for other in files].count(file.name) == 1 else str(file)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _setting(settings: ReplaySettings, recordings: Sequence[Recording]) -> str:
    """Return one line that says with which settings was replayed, but for the draft_cost."""
    tokenizers = ", ".join(dict.fromkeys(recording.tokenizer for recording in recordings))
    learning = ", learning" if settings.learn else ""
    return (
        f"max_draft_tokens {settings.max_draft_tokens}, min_match_len {settings.min_match_len}, "
        f"own context only{learning}, tokenizer {tokenizers}"
    )


def _told(draft_cost: float | None) -> tuple[str, str]:
    """Return which draft_cost the drafter was told, as the table says it and as the picture does."""
    if draft_cost is None:
        table = f"draft_cost set to c in each speed column, to {SHOWN_DRAFT_COST:g} in the others"
        return table, "draft_cost set to each cost"
    return f"draft_cost {draft_cost:g} in all columns", f"draft_cost {draft_cost:g} at all costs"


def _print(
    results: Sequence[DrafterResult],
    notes: Sequence[str],
    calibration: bool,
    differences: Sequence[PairedDifference],
    ablations: Sequence[Ablation],
) -> None:
    console = Console(highlight=False)
    # A narrow terminal breaks lines, which is better than figures that are cut.
    console.width = max(console.width, MIN_WIDTH) if sys.stdout.isatty() else PIPED_WIDTH

    def say(line: str) -> None:
        # Not folded: a terminal breaks a long line better than in the middle of a path.
        console.print(line, soft_wrap=True, markup=False)

    console.print(figures_table(results))
    say("")
    for note in notes:
        say(note)
    say("speed at c: modelled speed-up over decoding without drafts,")
    say("output tokens / sum over steps of (1 + c x draft tokens)")
    if calibration:
        say("\nCalibration: probabilities of the draft tokens up to the first rejected one\n")
        console.print(calibration_table(result for result in results if result.drafter == DRAFTER))
    for versus in dict.fromkeys(difference.versus for difference in differences):
        rows = [row for row in differences if row.versus == versus]
        enough = [row for row in rows if row.speedup.num_records >= MIN_RECORDS]
        if enough:
            say(f"\nSpeed-up / that of {versus}, same records, resampled\n")
            console.print(paired_table(enough))
        few = ", ".join(dict.fromkeys(row.file for row in rows if row not in enough))
        if few:
            say(f"\nfewer than {MIN_RECORDS} records, so no paired comparison with {versus}:\n{few}")
    if ablations:
        say("\nChange of the speed-up without a feature of the acceptance model\n")
        console.print(ablation_table(ablations))


def _read_prior(path: Path) -> dict[str, Any]:
    try:
        prior = json.loads(path.read_bytes())
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot read the prior: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise NgramSpecError(
            f"{path}:{error.lineno}: the prior must be a JSON object: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise NgramSpecError(
            f"{path}: the prior must be UTF-8 text, got byte {error.object[error.start]:#04x}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise NgramSpecError(f"{path}: the prior must be a JSON object: {error}") from error
    if not isinstance(prior, dict):
        raise NgramSpecError(f"{path}: the prior must be a JSON object, got {type(prior).__name__}")
    try:
        AcceptanceModel(prior)
    except (NgramSpecError, TypeError) as error:
        raise NgramSpecError(f"{path}: {error}") from error
    return prior


def _check_writable(path: Path, what: str) -> None:
    """Raise unless OUT can be written; what it holds stays, so that a replay that fails loses nothing."""
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise NgramSpecError(
            f"{path}: cannot write the {what}: {error.strerror}; give a file in a folder that exists and may "
            "be written"
        ) from error
    if not existed:
        path.unlink()


def _check_no_input(path: Path, what: str, options: argparse.Namespace) -> None:
    for source in (*options.files, options.prior):
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise NgramSpecError(f"{path}: the {what} would replace an input; name another file")


def _write_json(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot write the results: {error.strerror}") from error
