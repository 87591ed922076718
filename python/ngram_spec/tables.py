"""The tables that a replay prints; each fits a terminal of 80 columns."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ngram_spec.ablation import Ablation
from ngram_spec.calibration import NUM_DECILES
from ngram_spec.paired import PairedDifference
from ngram_spec.replay import REPORTED_DRAFT_COSTS
from ngram_spec.results import DRAFTER, DrafterResult

# Where a table shows one cost only, it is a moderate load.
SHOWN_DRAFT_COST = 0.05


def figures_table(results: Sequence[DrafterResult]) -> Table:
    """Return the table of all figures: a row for each drafter, below the first one of its recording."""
    costs = (f"speed\nc={cost:g}" for cost in REPORTED_DRAFT_COSTS)
    table = narrow_table(
        "recording", "tokens/\nstep", "accepted", "drafted/\nstep", "coverage", *costs, "us/\nstep"
    )
    for result in results:
        total = result.at(SHOWN_DRAFT_COST).total
        table.add_row(
            result.file if result.drafter == DRAFTER else f"  {result.drafter}",
            f"{total.tokens_per_step:.2f}",
            f"{total.acceptance_rate:.1%}",
            f"{total.draft_tokens_per_step:.2f}",
            f"{total.coverage:.1%}",
            *(f"{result.modelled_speedup(cost):.2f}" for cost in REPORTED_DRAFT_COSTS),
            f"{total.drafter_us_per_step:.1f}",
        )
    return table


def calibration_table(results: Iterable[DrafterResult]) -> Table:
    """Return the table of deciles that have tokens, and of each file's expected calibration error."""
    table = narrow_table(
        "recording", "predicted", "tokens", "mean\npredicted", "share\naccepted", "accepted -\npredicted"
    )
    for result in results:
        calibration = result.at(SHOWN_DRAFT_COST).calibration
        table.add_row(result.file)
        for decile in range(NUM_DECILES):
            if calibration.num_tokens[decile]:
                predicted, accepted = calibration.mean_predicted(decile), calibration.share_accepted(decile)
                table.add_row(
                    "",
                    f"{decile / NUM_DECILES:.1f} to {(decile + 1) / NUM_DECILES:.1f}",
                    str(calibration.num_tokens[decile]),
                    f"{predicted:.3f}",
                    f"{accepted:.3f}",
                    f"{accepted - predicted:+.3f}",
                )
        num_tokens = str(sum(calibration.num_tokens))
        table.add_row("  expected error", "", num_tokens, "", "", f"{calibration.expected_error:.3f}")
    return table


def paired_table(differences: Iterable[PairedDifference]) -> Table:
    """Return the table of paired differences: a row for each file and cost."""
    table = narrow_table("recording", "c", "records", "ratio", "95 % interval", " verdict")
    table.columns[-1].justify = "left"
    shown = None
    for difference in differences:
        speedup = difference.speedup
        table.add_row(
            "" if difference.file == shown else difference.file,
            f"{difference.draft_cost:g}",
            str(speedup.num_records),
            f"{speedup.ratio:.3f}",
            f"{speedup.low:.3f} to {speedup.high:.3f}",
            f" {speedup.verdict}",
        )
        shown = difference.file
    return table


def ablation_table(ablations: Iterable[Ablation]) -> Table:
    """Return the table of ablations: a row for each feature, below the name of its recording."""
    table = narrow_table("recording", *(f"speed\nc={cost:g}" for cost in REPORTED_DRAFT_COSTS))
    shown = None
    for ablation in ablations:
        if ablation.file != shown:
            table.add_row(ablation.file)
        table.add_row(f"  {ablation.feature}", *(f"{change:+.2%}" for change in ablation.changes))
        shown = ablation.file
    return table


def narrow_table(first: str, *headings: str) -> Table:
    # One cell of space between columns, or two columns' headings would not fit.
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
