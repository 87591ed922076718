"""How far a run is, and about how long it will yet take, on the terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SECONDS_PER_MINUTE = 60


class RunProgress:
    """A bar of blocks on a terminal, and a line for each start of a server anywhere else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None, left="")
        self._num_done = self._num_blocks = 0
        self._began_at = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block of code runs."""
        with self._bar:
            yield

    def left(self, num_blocks: int) -> None:
        """So many blocks are yet to be measured, as far as is known."""
        self._num_blocks = self._num_done + num_blocks
        left = self._time_left() if self._num_done else ""
        self._bar.update(self._task, total=self._num_blocks, completed=self._num_done, left=left)

    def starting(self, arm: str, round_number: int) -> None:
        """A server is about to start."""
        what = f"round {round_number + 1}: starting {arm}"
        self._bar.update(self._task, description=what)
        if not self._console.is_terminal:
            time_left = f", {self._time_left()}" if self._num_done else ""
            self.say(f"{what} ({self._num_done} of {self._num_blocks} blocks measured{time_left})")

    def measuring(self, what: str) -> None:
        """A block is about to be measured."""
        self._bar.update(self._task, description=what)

    def block_done(self) -> None:
        """A block was measured."""
        self._num_done += 1

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _time_left(self) -> str:
        elapsed = time.monotonic() - self._began_at
        # With the starts of servers in it, since each block needs its share of one.
        seconds = elapsed / self._num_done * (self._num_blocks - self._num_done)
        return f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a time in words, roughly.

    >>> duration(42), duration(400)
    ('42 s', '7 min')
    """
    if seconds < 2 * SECONDS_PER_MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / SECONDS_PER_MINUTE:.0f} min"
