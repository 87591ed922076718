"""Which block comes next: the arms in mirrored order, again until the answer is clear or the budget is spent.

Each round starts a server of every arm: off, x, y in even rounds and y, x, off in odd ones, so that a machine
that drifts slows all arms alike. Within a start all places are measured, always in the same order. Where the
servers run already, all arms measure one place before the next one comes.
"""

import fcntl
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ngram_spec._core import NgramSpecError
from ngram_spec.bench import served
from ngram_spec.bench.load import Endpoint, LoadError
from ngram_spec.bench.outputs import Divergence, OffOutputs
from ngram_spec.bench.progress import RunProgress, duration
from ngram_spec.bench.records import (
    OFF,
    RUN_FILE,
    AnyRecord,
    Arm,
    Block,
    Failure,
    Run,
    Settings,
    append_record,
    as_run,
    end_last_line,
    read_run,
)
from ngram_spec.bench.scrape import read_metrics
from ngram_spec.bench.served import Place, Served
from ngram_spec.bench.server import ServerError
from ngram_spec.bench.summarize import summarize
from ngram_spec.bench.workloads import Workload


@dataclass(frozen=True)
class Plan:
    """What to measure, and when to stop."""

    settings: Settings
    workloads: Sequence[Workload]
    folder: Path
    # The URL is each server's own, and so is an empty model.
    endpoint: Endpoint
    # So many starts of each arm at most; None: as the others say.
    max_rounds: int | None
    # No more rounds where they would end after so many seconds. Two are always measured.
    budget: float
    # No more rounds where each interval's half width is at most this share of its speed-up.
    precision: float
    start_timeout: float


def measure_all(plan: Plan, progress: RunProgress) -> Run:
    """Measure what the plan says and the folder does not hold yet, and return all that it then holds.

    Raises:
        NgramSpecError: the folder holds a run with other settings, or the servers cannot be measured.
    """
    with _alone_in(plan.folder), progress.shown():
        bench = _Bench(plan, progress, begin_or_resume(plan.folder, plan.settings))
        for number in itertools.count():
            bench.measure_round(number)
            if bench.is_enough(number):
                break
        bench.probe_the_rest(number)
    return bench.run


def begin_or_resume(folder: Path, settings: Settings) -> Run:
    """Return what the folder holds of a run with these settings, which begins here where it holds none.

    Raises:
        NgramSpecError: it holds a run with others, or cannot be written.
    """
    path = folder / RUN_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not path.stat().st_size:
            append_record(folder, settings)
    except OSError as error:
        raise NgramSpecError(_cannot_write(folder, error)) from error
    run = read_run(folder)
    for name in Settings.model_fields:
        earlier, now = getattr(run.settings, name), getattr(settings, name)
        if earlier != now:
            raise NgramSpecError(
                f"{folder} holds a run with other settings: {name} was {_shown(earlier)} and is now "
                f"{_shown(now)}; give the same to go on with it, or another --out to begin anew"
            )
    # Not before it is known that the file is this run's.
    try:
        end_last_line(folder)
    except OSError as error:
        raise NgramSpecError(_cannot_write(folder, error)) from error
    return run


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder while the block of code runs: two would measure each block twice.

    Raises:
        NgramSpecError: another run is there, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / RUN_FILE).open("ab")
    except OSError as error:
        raise NgramSpecError(_cannot_write(folder, error)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NgramSpecError(
                f"{folder}: only one ngram-spec bench may measure into a folder, and another one does; wait "
                "until it has ended, or give another --out"
            ) from error
        except OSError:
            pass  # a network disk without locks
        yield


def _cannot_write(folder: Path, error: OSError) -> str:
    return f"{folder}: cannot write the run there: {error.strerror}; give --out"


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


class _Bench:
    """A run as far as it is measured."""

    def __init__(self, plan: Plan, progress: RunProgress, run: Run) -> None:
        self.plan, self.progress = plan, progress
        settings = plan.settings
        self.arms = settings.arms
        self.workloads = {workload.name: workload for workload in plan.workloads}
        self.places = [
            Place(workload, concurrency, group)
            for workload in self.workloads
            for concurrency in settings.concurrencies
            for group in range(settings.num_groups)
        ]
        self.warm_up = served.warm_up_prompts(plan.workloads, max(settings.concurrencies))
        self._records: list[AnyRecord] = [settings, *run.starts, *run.blocks]
        self._records += [*run.near_tie_probes, *run.failures]
        self._num_starts = len(run.starts)
        self._measured = {_key(block) for block in run.blocks}
        self._failed: set[str] = set()
        self._without_metrics: set[str] = set()
        self._began_at = time.monotonic()
        # When each round of this session began.
        self._rounds_began_at: list[float] = []

    @property
    def run(self) -> Run:
        return as_run(self._records, str(self.plan.folder / RUN_FILE))

    def measure_round(self, number: int) -> None:
        """Measure what of one round is not measured yet."""
        self._rounds_began_at.append(time.monotonic())
        self._show_left(number)
        arms = [arm for arm in self.arms[:: -1 if number % 2 else 1] if arm.name not in self._failed]
        if self.plan.settings.urls is None:
            for arm in arms:
                if self._places_left(arm, number) and OFF not in self._failed:
                    self._measure_start(arm, number)
        elif any(self._places_left(arm, number) for arm in arms):
            self._measure_attached(arms, number)

    def _places_left(self, arm: Arm, number: int) -> list[Place]:
        if arm.name in self._failed:
            return []
        return [place for place in self.places if (arm.name, number, place) not in self._measured]

    def _show_left(self, number: int) -> None:
        """Tell how many blocks are left of this round and of the one that mirrors it."""
        rounds = [number] if number % 2 or number + 1 == self.plan.max_rounds else [number, number + 1]
        self.progress.left(sum(len(self._places_left(arm, one)) for arm in self.arms for one in rounds))

    def _measure_start(self, arm: Arm, number: int) -> None:
        with self._failing(arm, number), self._started(arm, number) as server:
            for place in self._places_left(arm, number):
                self._measure_block(server, place)
            if arm.name == OFF:
                self._probe(server)
        self._show_left(number)

    def _measure_attached(self, arms: Sequence[Arm], number: int) -> None:
        servers: dict[str, Served] = {}
        for arm in arms:
            with self._failing(arm, number):
                servers[arm.name] = self._attached(arm, number)
        for place in self.places:
            for arm in arms:
                if OFF not in self._failed and place in self._places_left(arm, number):
                    with self._failing(arm, number):
                        self._measure_block(servers[arm.name], place)
        if OFF in servers and OFF not in self._failed:
            with self._failing(next(arm for arm in arms if arm.name == OFF), number):
                self._probe(servers[OFF])

    @contextmanager
    def _started(self, arm: Arm, number: int) -> Iterator[Served]:
        self.progress.starting(arm.name, number)
        with served.start(
            arm,
            self.plan.settings,
            self.plan.endpoint,
            number=self._num_starts,
            round_number=number,
            log_path=self.plan.folder / "logs" / f"{self._num_starts:02}-{arm.name}.log",
            start_timeout=self.plan.start_timeout,
            warm_up=self.warm_up,
        ) as server:
            self._begun(server)
            yield server

    def _attached(self, arm: Arm, number: int) -> Served:
        assert self.plan.settings.urls is not None
        self.progress.starting(arm.name, number)
        server = served.attach(
            arm,
            replace(self.plan.endpoint, url=self.plan.settings.urls[arm.name]),
            number=self._num_starts,
            round_number=number,
            warm_up=self.warm_up,
        )
        self._begun(server)
        return server

    def _begun(self, server: Served) -> None:
        self._keep(server.start)
        self._num_starts += 1
        arm = server.start.arm
        if arm not in self._without_metrics and read_metrics(server.endpoint.url) is None:
            self._without_metrics.add(arm)
            self.progress.say(
                f"warning: {arm}: nothing to read at {server.endpoint.url}/metrics, so what was drafted and "
                "accepted, and the KV cache, stay unknown",
                style="yellow",
            )

    def _measure_block(self, server: Served, place: Place) -> None:
        shown = f"{place.workload} at concurrency {place.concurrency}"
        self.progress.measuring(f"round {server.start.round + 1}: {server.start.arm}, {shown}")
        prompts = self.workloads[place.workload].block(
            place.group, self.plan.settings.num_groups, place.concurrency
        )
        block = server.measure(place, prompts)
        self._keep(block)
        self._measured.add(_key(block))
        self.progress.block_done()
        self._show_left(block.round)

    @contextmanager
    def _failing(self, arm: Arm, number: int) -> Iterator[None]:
        """Note down the failure of an arm, and go on without it for the rest of this session."""
        try:
            yield
        except (ServerError, LoadError) as error:
            self._failed.add(arm.name)
            reason = error.reason if isinstance(error, ServerError) else str(error)
            self._keep(Failure(arm=arm.name, round=number, reason=reason))
            self.progress.say(f"{arm.name} failed: {error}", style="red")

    def _keep(self, record: AnyRecord) -> None:
        try:
            append_record(self.plan.folder, record)
        except OSError as error:
            raise NgramSpecError(
                f"{self.plan.folder / RUN_FILE}: cannot write what was measured: {error.strerror}; what it "
                "holds stays, and once there is room the same command goes on"
            ) from error
        self._records.append(record)

    def _probe(self, server: Served) -> None:
        """Have arm off say how near the ties were at which other arms left its answers."""
        prompts = {
            (workload.name, prompt.prompt_id): prompt
            for workload in self.plan.workloads
            for prompt in workload.prompts
        }
        self.progress.measuring(f"asking {OFF} how near the ties were where answers differ")
        for probe in server.probe(self._unprobed(), prompts):
            self._keep(probe)

    def _unprobed(self) -> list[Divergence]:
        if self.plan.settings.temperature > 0:
            return []  # answers that are drawn differ anyway
        run = self.run
        others = [block for block in run.blocks if block.arm != OFF]
        return OffOutputs(run.blocks, run.near_tie_probes).unprobed(others)

    def probe_the_rest(self, number: int) -> None:
        """Start arm off once more, or attach to it, where places are left that no later start has probed."""
        if OFF in self._failed or not self._unprobed():
            return
        off = next(arm for arm in self.arms if arm.name == OFF)
        with self._failing(off, number):
            if self.plan.settings.urls is not None:
                self._probe(self._attached(off, number))
            else:
                with self._started(off, number) as server:
                    self._probe(server)

    def is_enough(self, number: int) -> bool:
        """Return whether no round needs to follow this one."""
        num_measured = number + 1
        if self.plan.max_rounds is not None and num_measured >= self.plan.max_rounds:
            return True
        others = {arm.name for arm in self.arms if arm.name != OFF} - self._failed
        if OFF in self._failed or not others:
            return True
        if num_measured % 2:
            return False
        if self._is_precise():
            return True
        now = time.monotonic()
        seconds_of_two = now - self._rounds_began_at[-2]
        if now - self._began_at + seconds_of_two > self.plan.budget:
            self.progress.say(
                f"two more rounds would take about {duration(seconds_of_two)} and pass the budget of "
                f"{duration(self.plan.budget)}; the same command measures on"
            )
            return True
        return False

    def _is_precise(self) -> bool:
        return all(
            interval.high - interval.low <= 2 * self.plan.precision * interval.estimate
            for cell in summarize(self.run).cells
            if (interval := cell.judged_speedup) is not None
        )


def _key(block: Block) -> tuple[str, int, Place]:
    return block.arm, block.round, Place(block.workload, block.concurrency, block.group)
