"""The report on a terminal: the verdict first, then the figures, then what stands against them."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from ngram_spec.bench.figures import (
    LATENCY,
    MODELLED,
    SPEED,
    Column,
    by_workload,
    extra_memory,
    failed_checks,
    headline,
    load,
    setting,
    shown_columns,
    verdict,
)
from ngram_spec.bench.summary import Recommendation, Summary
from ngram_spec.tables import narrow_table

# What the tables need, and what they take where a pipe has no width of its own.
REPORT_WIDTH = 100
STYLES = {"on": "green", "invalid": "red", "baseline": "dim"}


def print_summary(summary: Summary, console: Console) -> None:
    """Print the whole summary. No number is cut off where the console is too narrow; lines then wrap."""
    printer = _Printer(console)
    if summary.is_modelled:
        printer.say(MODELLED, style="bold")
        printer.say()
    printer.say(headline(summary), style="bold")
    printer.say(setting(summary))
    for recommendation in summary.recommendations:
        _print_recommendation(recommendation, printer)

    if summary.cells:
        _print_figures(summary, printer)
    printer.section("Checks that failed", failed_checks(summary.cells))
    printer.section("Checklist", [f"{item.question} {item.answer}" for item in summary.checklist])
    printer.section("Warnings", summary.warnings)


def _print_recommendation(recommendation: Recommendation, printer: "_Printer") -> None:
    printer.title(f"{recommendation.workload}: {recommendation.headline}")
    if recommendation.arm is not None:
        printer.item(f"arm {recommendation.arm}")
    if recommendation.break_even_concurrency is not None:
        printer.item(f"breaks even at about {load(recommendation.break_even_concurrency)} requests at once")
    for reason in recommendation.reasons:
        printer.item(reason)
    memory = extra_memory(recommendation)
    if memory is not None:
        printer.item(memory)
    if recommendation.flags:
        printer.item("paste behind vllm serve MODEL:")
        printer.paste(recommendation.flags)


def _print_figures(summary: Summary, printer: "_Printer") -> None:
    columns = shown_columns(summary)
    speed = [column for column in columns if column.group in (SPEED, LATENCY)]
    others = [column for column in columns if column not in speed]
    for shown in filter(None, (speed, others)):
        printer.title(" / ".join(dict.fromkeys(column.group for column in shown)))
        printer.show(_cells_table(summary, shown, verdict_too=shown is speed))
    printer.say()
    for column in columns:
        if column.meaning:
            printer.item(f"{column.heading}: {column.meaning}")


def _cells_table(summary: Summary, columns: Sequence[Column], *, verdict_too: bool) -> Table:
    headings = [column.heading.replace(" ", "\n").replace("/", "/\n") for column in columns]
    table = narrow_table("workload", "at", *headings, *([" verdict"] if verdict_too else []))
    if verdict_too:
        table.columns[-1].justify = "left"
        table.columns[-1].no_wrap = False
    for workload, cells in by_workload(summary.cells).items():
        table.add_row(_plain(workload), style="bold")
        shown = None
        for cell in cells:
            figures = [column.text(cell) for column in columns]
            concurrency = "" if cell.concurrency == shown else str(cell.concurrency)
            # Without the space in front of it the word would touch the number to its left.
            last = [Text(f" {verdict(cell)}", STYLES.get(cell.verdict, ""))] if verdict_too else []
            table.add_row(Padding(_plain(cell.arm), (0, 0, 0, 2)), concurrency, *figures, *last)
            shown = cell.concurrency
    return table


class _Printer:
    """Prints text as it is: no markup, no colour of numbers, nothing that steers the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._options = console.options.update(width=max(console.width, REPORT_WIDTH), highlight=False)

    def say(self, text: str = "", style: str = "") -> None:
        self.show(_plain(text, style))

    def title(self, text: str) -> None:
        self.say()
        self.say(text, style="bold")

    def item(self, text: str) -> None:
        """Print a line of a list; what does not fit stands below it, indented like it."""
        row = Table.grid()
        row.add_row("  - ", _plain(text))
        self.show(row)

    def section(self, title: str, items: Iterable[str]) -> None:
        items = list(items)
        if items:
            self.title(title)
            for item in items:
                self.item(item)

    def paste(self, text: str) -> None:
        # Not folded: the terminal wraps it, and it is pasted as one line.
        self._console.print(_plain(f"    {text}"), highlight=False, soft_wrap=True)

    def show(self, what: Table | Text) -> None:
        # Rendered here, because the console prints nothing wider than itself.
        segments = Segments(self._console.render(what, self._options))
        self._console.print(segments, crop=False, end="")


def _plain(text: str, style: str = "") -> Text:
    # Names and errors are from outside: an escape sequence in one must not reach the terminal.
    return Text("".join(letter if letter.isprintable() else "?" for letter in text), style)
