"""One server of one arm while it runs: asked, watched, and asked how near a tie was."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.arms import flags_with_metrics
from ngram_spec.bench.load import (
    Endpoint,
    LoadError,
    ask_all,
    find_counting,
    logprob_gap,
    prompt_token_ids,
)
from ngram_spec.bench.outputs import Divergence
from ngram_spec.bench.records import Answer, Arm, Block, NearTieProbe, Settings, Start
from ngram_spec.bench.scrape import Counts, Gpus, Sampler, device, engine_version, kv_cache_tokens, models
from ngram_spec.bench.server import HOST, Server, ServerError, free_port, is_cpu_build, started_server
from ngram_spec.bench.workloads import Prompt, Workload

NUM_WARM_UP_TOKENS = 32
# A connection breaks a moment before its server is gone.
DYING_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """What one block measures, whatever the arm."""

    workload: str
    concurrency: int
    group: int


@dataclass(frozen=True)
class Served:
    """A server that is ready and warm; `server` is None where it ran before."""

    start: Start
    endpoint: Endpoint
    gpus: Gpus
    server: Server | None = None
    drafter_url: str | None = None

    def measure(self, place: Place, prompts: Sequence[Prompt]) -> Block:
        """Return the prompts' answers at the place's concurrency, and what was counted and taken meanwhile.

        Raises:
            ServerError, LoadError: the server is gone, or answers with errors only.
        """
        url = self.endpoint.url
        counts, joules = Counts(url, self.drafter_url), self.gpus.joules()
        sampler = Sampler(url, None if self.server is None else self.server.process.pid, self.gpus)
        with sampler.running():
            seconds, answers = self._ask(prompts, place.concurrency)
        joules_after = self.gpus.joules()
        used = None if joules is None or joules_after is None else joules_after - joules
        return Block(
            start=self.start.number,
            arm=self.start.arm,
            round=self.start.round,
            workload=place.workload,
            concurrency=place.concurrency,
            group=place.group,
            seconds=seconds,
            answers=tuple(answers),
            counters=counts.growth(sum(answer.num_output_tokens for answer in answers)),
            resources=sampler.resources(used),
        )

    def _ask(self, prompts: Sequence[Prompt], concurrency: int) -> tuple[float, list[Answer]]:
        with _with_log_of(self.server):
            seconds, answers = ask_all(self.endpoint, prompts, concurrency)
        if self.server is not None:
            self.server.check_alive()
        return seconds, answers

    def probe(
        self, divergences: Iterable[Divergence], prompts: Mapping[tuple[str, str], Prompt]
    ) -> Iterator[NearTieProbe]:
        """Yield how close the two best tokens are at each of the places, by this server.

        Raises:
            ServerError, LoadError: it does not answer. What it was not asked is asked another time.
        """
        for divergence in divergences:
            prompt = prompts[divergence.workload, divergence.prompt_id]
            same = divergence.same_token_ids
            with _with_log_of(self.server):
                prompt_ids = prompt_token_ids(self.endpoint, prompt)
                gap = None if prompt_ids is None else logprob_gap(self.endpoint, [*prompt_ids, *same])
            yield NearTieProbe(
                workload=divergence.workload,
                prompt_id=divergence.prompt_id,
                num_same_tokens=len(same),
                logprob_gap=gap,
            )


@contextmanager
def _with_log_of(server: Server | None) -> Iterator[None]:
    """Have what goes wrong with a server that was started here end with its log, and cost its arm alone.

    Raises:
        ServerError: instead of NgramSpecError and LoadError, where there is such a server.
    """
    try:
        yield
    except (LoadError, NgramSpecError) as error:
        if server is None:
            raise
        server.check_alive(DYING_SECONDS)
        raise ServerError(str(error), server.log_path) from error


@contextmanager
def start(
    arm: Arm,
    settings: Settings,
    endpoint: Endpoint,
    *,
    number: int,
    round_number: int,
    log_path: Path,
    start_timeout: float,
    warm_up: Sequence[Prompt],
) -> Iterator[Served]:
    """Start a server of this arm, warm it up and yield it; end it behind the block of code.

    Raises:
        ServerError: it does not start, or does not answer so that tokens can be counted.
        NgramSpecError: no server can be started here.
    """
    gpus = Gpus.visible()
    flags, metrics_port = flags_with_metrics(arm, free_port())
    with started_server(
        settings.model,
        (*settings.common_flags, *flags),
        arm.environment,
        log_path=log_path,
        start_timeout=start_timeout,
    ) as server:
        begun = Start(
            number=number,
            arm=arm.name,
            round=round_number,
            command=server.command,
            engine_version=engine_version(server.url),
            seconds_to_ready=server.seconds_to_ready,
            kv_cache_tokens=kv_cache_tokens(server.url),
            device=device(gpus, is_cpu_build()),
        )
        drafter_url = None if metrics_port is None else f"http://{HOST}:{metrics_port}"
        with _with_log_of(server):
            # Not always the model's path: flags can give it another name.
            served_name = models(server.url, endpoint.headers)[0]
            endpoint = _warmed_up(replace(endpoint, url=server.url, model=served_name), warm_up)
        yield Served(begun, endpoint, gpus, server, drafter_url)


def attach(
    arm: Arm, endpoint: Endpoint, *, number: int, round_number: int, warm_up: Sequence[Prompt]
) -> Served:
    """Return a server that runs already, warmed up.

    Raises:
        NgramSpecError, LoadError: it does not answer, or not so that tokens can be counted.
    """
    try:
        model = endpoint.model or models(endpoint.url, endpoint.headers)[0]
    except NgramSpecError as error:  # it did answer when the run began
        raise LoadError(str(error)) from error
    endpoint = replace(endpoint, model=model)
    begun = Start(
        number=number,
        arm=arm.name,
        round=round_number,
        command=(),
        engine_version=engine_version(endpoint.url),
        seconds_to_ready=0.0,
        kv_cache_tokens=kv_cache_tokens(endpoint.url),
    )
    # Its GPUs may be another machine's, or shared with the other arm's server.
    return Served(begun, _warmed_up(endpoint, warm_up), Gpus())


def warm_up_prompts(workloads: Sequence[Workload], concurrency: int) -> list[Prompt]:
    """Return prompts like those of the first workload, with another start: none is in a cache later."""
    prompts = workloads[0].block(0, 1, concurrency)[:concurrency]
    return [_with_other_start(prompt, number) for number, prompt in enumerate(prompts)]


def _with_other_start(prompt: Prompt, number: int) -> Prompt:
    if "prompt" in prompt.body:
        return replace(prompt, body={"prompt": f"{number}. {prompt.body['prompt']}"})
    first, *others = prompt.body["messages"]
    changed = {**first, "content": f"{number}. {first['content']}"}
    return replace(prompt, body={"messages": [changed, *others]})


def _warmed_up(endpoint: Endpoint, prompts: Sequence[Prompt]) -> Endpoint:
    """Ask the server for short answers, all together: its first steps set up what later ones reuse."""
    endpoint = replace(endpoint, counted_by=find_counting(endpoint, prompts[0]))
    ask_all(replace(endpoint, max_tokens=min(NUM_WARM_UP_TOKENS, endpoint.max_tokens)), prompts, len(prompts))
    return endpoint
