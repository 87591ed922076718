"""From the options of `ngram-spec bench` to what is measured; what is wrong with them is found here."""

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence

from ngram_spec import NgramSpecError, __version__
from ngram_spec.bench.arms import NGRAM, make_arms
from ngram_spec.bench.goal import parse_goal
from ngram_spec.bench.load import Endpoint
from ngram_spec.bench.records import OFF, OFF_V1, Arm, Settings
from ngram_spec.bench.run import Plan
from ngram_spec.bench.scrape import models
from ngram_spec.bench.server import flag_name, is_cpu_build, serve_command, with_default_flags
from ngram_spec.bench.sizes import (
    BUDGET,
    FULL,
    FULL_ON_CPU,
    OUT,
    PRECISION,
    QUICK,
    QUICK_MODEL,
    REQUEST_TIMEOUT,
    START_TIMEOUT,
    TEMPERATURE,
    Sizes,
)
from ngram_spec.bench.workloads import Workload, load_workloads
from ngram_spec.vllm_options import MAX_SPEC_LEN, read_options
from ngram_spec.vllm_plugin import DEFAULT_NUM_SPECULATIVE_TOKENS, METHOD

# The only arm where one server is measured.
ONLY_ARM = "server"
SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}
# Each request that is open is a connection, and a block has two of them for each.
MAX_CONCURRENCY = 4096
# Flags that hold a secret, with the variable that says the same: a report shows flags, and no such variable.
SECRETS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}


def make_plan(options: argparse.Namespace, server_flags: Sequence[str]) -> Plan:
    """Return what the options say is to be measured.

    Raises:
        NgramSpecError: an option, a file or a server is not as it must be.
    """
    _check_numbers(options)
    headers = _headers()
    urls = _urls(options.url)
    sizes = QUICK if options.quick else FULL_ON_CPU if urls is None and is_cpu_build() else FULL
    workloads = load_workloads(options.files, options.num_prompts or sizes.num_prompts)
    if urls is None:
        model, arms = _model(options), _arms(options)
        _check_no_secrets(server_flags)
        serve_command(model)  # refuses where vLLM is not installed
        common_flags = with_default_flags(server_flags)
    else:
        model, arms, common_flags = _model_at(urls, options.model, headers), _arms_at(urls), ()
    settings = _settings(options, sizes, workloads, urls, model, arms, common_flags)
    endpoint = Endpoint(
        url="",
        model="" if urls is None else options.model or "",
        headers=headers,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        timeout=_seconds("--request-timeout", options.request_timeout, REQUEST_TIMEOUT),
    )
    return Plan(
        settings=settings,
        workloads=workloads,
        folder=options.out or OUT,
        endpoint=endpoint,
        max_rounds=options.rounds or sizes.max_rounds,
        budget=_seconds("--budget", options.budget, BUDGET),
        precision=PRECISION if options.precision is None else options.precision,
        start_timeout=_seconds("--start-timeout", options.start_timeout, START_TIMEOUT),
    )


def _settings(
    options: argparse.Namespace,
    sizes: Sizes,
    workloads: Sequence[Workload],
    urls: dict[str, str] | None,
    model: str,
    arms: tuple[Arm, ...],
    common_flags: tuple[str, ...],
) -> Settings:
    return Settings(
        ngram_spec_version=__version__,
        model=model,
        urls=urls,
        arms=arms,
        common_flags=common_flags,
        workloads={one.name: tuple(prompt.prompt_id for prompt in one.prompts) for one in workloads},
        workload_digests={one.name: one.digest for one in workloads},
        prompt_compression={one.name: one.prompt_compression for one in workloads},
        concurrencies=parse_concurrencies(options.concurrency)
        if options.concurrency is not None
        else sizes.concurrencies,
        max_tokens=options.max_tokens or sizes.max_tokens,
        temperature=TEMPERATURE if options.temperature is None else options.temperature,
        goal=None if options.goal is None else parse_goal(options.goal).text,
        num_groups=min(sizes.num_groups, *(len(one.prompts) for one in workloads)),
    )


def _check_numbers(options: argparse.Namespace) -> None:
    for name in ("max_tokens", "num_prompts", "rounds"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise NgramSpecError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if options.precision is not None and not 0 < options.precision < 1:
        raise NgramSpecError(
            "--precision must be a share of the speed-up between 0 and 1, such as 0.03, got "
            f"{options.precision:g}"
        )
    if options.temperature is not None and not 0 <= options.temperature < math.inf:
        raise NgramSpecError(f"--temperature must be at least 0, got {options.temperature:g}")


def _check_no_secrets(server_flags: Sequence[str]) -> None:
    for flag in server_flags:
        name = flag_name(flag)
        if flag.startswith("--") and name in SECRETS:
            raise NgramSpecError(
                f"--{name} must not stand behind --, since a report shows the flags of the servers: set "
                f"{SECRETS[name]} in the environment instead"
            )


def _model(options: argparse.Namespace) -> str:
    if options.model is not None:
        model: str = options.model
        return model
    if options.quick:
        return QUICK_MODEL
    raise NgramSpecError(
        "--model M must be given, or --url NAME=URL for servers that run already; with --quick alone a small "
        "model is taken"
    )


def _arms(options: argparse.Namespace) -> tuple[Arm, ...]:
    """Return the arms whose servers are started here."""
    draft_cost = None if options.draft_cost is None else _draft_cost(options.draft_cost)
    num_speculative_tokens = max_draft_tokens(options.num_speculative_tokens)
    if options.arms is not None:
        names = [name.strip() for name in options.arms.split(",")]
    elif options.quick:
        names = [OFF, METHOD]
    else:
        # On the CPU vLLM has one model runner, without async scheduling: off-v1 would be off once more.
        names = [OFF, *([] if is_cpu_build() else [OFF_V1]), NGRAM, METHOD]
    extra: dict[str, str] = {}
    for given in options.arm:
        name, is_named, config = given.partition("=")
        if not is_named or name in extra:
            raise NgramSpecError(f"--arm must be NAME=JSON, each name once, got {given!r}")
        extra[name] = config
    return make_arms(names, extra, num_speculative_tokens=num_speculative_tokens, draft_cost=draft_cost)


def max_draft_tokens(given: int | None) -> int:
    """Return what --num-speculative-tokens says.

    Raises:
        NgramSpecError: vLLM cannot verify so many at once.
    """
    number = DEFAULT_NUM_SPECULATIVE_TOKENS if given is None else given
    if not 1 <= number <= MAX_SPEC_LEN:
        raise NgramSpecError(f"--num-speculative-tokens must be from 1 to {MAX_SPEC_LEN}, got {number}")
    return number


def _draft_cost(given: str) -> object:
    """Return the cost as the proposer takes it, a number or a text."""
    try:
        cost = json.loads(given)
    except (ValueError, RecursionError):
        cost = given
    read_options({"draft_cost": cost}, {}, "--draft-cost")
    return cost


def _urls(given: Sequence[str]) -> dict[str, str] | None:
    """Return the servers that run already by arm, None where there are none."""
    urls: dict[str, str] = {}
    for text in given:
        match = re.fullmatch(r"(?:([\w.-]+)=)?(https?://[^/\s]+)(?:/v1)?/?", text)
        if match is None:
            raise NgramSpecError(f"--url must be NAME=URL with the root of a server, got {text!r}")
        name = match[1] or ONLY_ARM
        if name in urls:
            raise NgramSpecError(f"--url must name each arm once, got {name!r} twice: give --url NAME=URL")
        if match[2] in urls.values():
            raise NgramSpecError(f"--url must name each server once, got {match[2]} twice")
        urls[name] = match[2]
    if len(urls) > 1 and OFF not in urls:
        raise NgramSpecError(
            f"--url must be given for arm {OFF} too, since all others are judged against it, got "
            f"{', '.join(urls)}"
        )
    return urls or None


def _arms_at(urls: Mapping[str, str]) -> tuple[Arm, ...]:
    """Return an arm for each server that runs already; of a single one nobody says whether it drafts."""
    without = (OFF, OFF_V1, ONLY_ARM)
    names = sorted(urls, key=lambda name: name != OFF)
    return tuple(Arm(name=name, is_speculative=name not in without) for name in names)


def _model_at(urls: Mapping[str, str], model: str | None, headers: Mapping[str, str]) -> str:
    """Return the model that is asked for; servers that run can serve several."""
    served = {name: models(url, headers) for name, url in urls.items()}
    for name, names in served.items():
        if model is not None and model not in names:
            raise NgramSpecError(
                f"--model must be one that {urls[name]} serves ({', '.join(names)}), got {model!r}"
            )
    return model or served.get(OFF, next(iter(served.values())))[0]


def _headers() -> dict[str, str]:
    # vLLM reads the same variable, so servers that are started here ask for this key.
    key = os.environ.get(SECRETS["api-key"])
    if key and not re.fullmatch("[!-~]+", key):  # the key itself is not to be told
        raise NgramSpecError(f"{SECRETS['api-key']} must be printable ASCII without blanks, and is not")
    return {"Authorization": f"Bearer {key}"} if key else {}


def parse_concurrencies(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,8,64, rising.

    Raises:
        NgramSpecError: it is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    # A number of more digits is none of them, and Python refuses to read one of thousands.
    numbers = {int(part) for part in parts if re.fullmatch("[0-9]{1,9}", part)}
    if len(numbers) < len(set(parts)) or not all(1 <= number <= MAX_CONCURRENCY for number in numbers):
        raise NgramSpecError(
            f"--concurrency must be whole numbers from 1 to {MAX_CONCURRENCY}, such as 1,8,64, got {text!r}"
        )
    return tuple(sorted(numbers))


def _seconds(option: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text)
    if match is None or not 0 < float(match[1]) < math.inf:
        raise NgramSpecError(f"{option} must be a time such as 90s, 15m or 1h, got {text!r}")
    return float(match[1]) * SECONDS_PER_UNIT[match[2]]
