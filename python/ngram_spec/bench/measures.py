"""From the blocks of one arm, workload and concurrency to the figures of a report.

Latencies are of answers without an error; errors are counted beside them.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ngram_spec.bench.records import Answer, Block, Start
from ngram_spec.bench.summary import Drafting, Histogram, Measures, Percentiles

MS_PER_SECOND = 1000.0
# Ten bins for each power of ten from 0.1 ms to 100 s; the same for all, so that histograms can be compared.
HISTOGRAM_EDGES_MS = tuple(float(edge) for edge in 10.0 ** (np.arange(-10, 51) / 10))

FloatArray = npt.NDArray[np.float64]
T = TypeVar("T")


def measure(blocks: Sequence[Block], starts: Iterable[Start] = ()) -> Measures:
    """Return the figures of these blocks, which are all of one arm, and of its starts among `starts`."""
    answers = good_answers(blocks)
    num_requests = sum(len(block.answers) for block in blocks)
    num_output_tokens = sum(answer.num_output_tokens for answer in answers)
    numbers = {block.start for block in blocks}
    cache_sizes = (start.kv_cache_tokens for start in starts if start.number in numbers)
    itl_ms = _concatenated(token_intervals_ms(answer) for answer in answers)
    return Measures(
        num_starts=len(numbers),
        num_blocks=len(blocks),
        num_requests=num_requests,
        num_errors=num_requests - len(answers),
        num_output_tokens=num_output_tokens,
        throughput=num_output_tokens / sum(block.seconds for block in blocks),
        itl_ms=percentiles(itl_ms),
        chunk_gap_ms=percentiles(_concatenated(chunk_gaps_ms(answer) for answer in answers)),
        ttft_ms=percentiles(_milliseconds(ttft(answer) for answer in answers)),
        tpot_ms=percentiles(_milliseconds(tpot(answer) for answer in answers)),
        latency_ms=percentiles(_milliseconds(answer.finished_at - answer.sent_at for answer in answers)),
        itl_histogram=log_histogram(itl_ms),
        drafting=drafting(blocks),
        process_bytes=max(_known(block.resources.process_bytes for block in blocks), default=None),
        gpu_bytes=max(_known(block.resources.gpu_bytes for block in blocks), default=None),
        kv_cache_usage=max(_known(block.resources.kv_cache_usage for block in blocks), default=None),
        kv_cache_tokens=min(_known(cache_sizes), default=None),
        joules_per_token=_joules_per_token(blocks),
    )


def good_answers(blocks: Iterable[Block]) -> list[Answer]:
    """Return the blocks' answers without an error."""
    return [answer for block in blocks for answer in block.answers if answer.error is None]


def token_intervals_ms(answer: Answer) -> FloatArray:
    """Return the inter-token latencies: one for each output token but the first.

    A chunk of m tokens that comes after a gap is m intervals of gap / m. What the first chunk brings beside
    its first token took no time after it: 0 each. So the sum is the time from the first token to the last,
    however the stream was cut.
    """
    if not answer.chunk_times:
        return np.empty(0)
    first_num_tokens, *num_tokens = answer.chunk_num_tokens
    gaps = chunk_gaps_ms(answer)
    return np.concatenate([np.zeros(first_num_tokens - 1), np.repeat(gaps / num_tokens, num_tokens)])


def chunk_gaps_ms(answer: Answer) -> FloatArray:
    """Return the times between two chunks of the stream, whatever number of tokens they brought."""
    return np.diff(np.array(answer.chunk_times)) * MS_PER_SECOND


def ttft(answer: Answer) -> float | None:
    """Return the seconds to the first token; None for an answer without tokens."""
    return answer.chunk_times[0] - answer.sent_at if answer.chunk_times else None


def tpot(answer: Answer) -> float | None:
    """Return the seconds per output token behind the first; None where there is no second token."""
    if not answer.chunk_times or answer.num_output_tokens < 2:
        return None
    return (answer.finished_at - answer.chunk_times[0]) / (answer.num_output_tokens - 1)


def percentiles(values: FloatArray) -> Percentiles | None:
    """Return mean and percentiles; None without values."""
    if not values.size:
        return None
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return Percentiles(mean=float(values.mean()), p50=p50, p95=p95, p99=p99)


def log_histogram(values_ms: FloatArray) -> Histogram | None:
    """Return the counts on the logarithmic scale that all share; what is beyond an end counts at that end."""
    if not values_ms.size:
        return None
    inside = np.clip(values_ms, HISTOGRAM_EDGES_MS[0], HISTOGRAM_EDGES_MS[-1])
    counts, _ = np.histogram(inside, HISTOGRAM_EDGES_MS)
    return Histogram(edges=HISTOGRAM_EDGES_MS, counts=tuple(int(count) for count in counts))


def drafting(blocks: Iterable[Block]) -> Drafting | None:
    """Return what was drafted, by the server's counters; None where no block has them.

    Every step of a row emits its accepted tokens and one more, so there were as many steps as there are
    output tokens that no draft brought. The step in which the prompt is read counts too. vLLM also counts
    as accepted what it then cuts off behind a stop, so that may be too few: there were no fewer than drafts,
    with the step of each prompt, which has none, and no fewer than chunks.
    """
    counted = [block for block in blocks if block.counters.num_drafts is not None]
    if not counted:
        return None
    counters = [block.counters for block in counted]
    num_drafts = sum(_known(one.num_drafts for one in counters))
    num_draft_tokens = sum(_known(one.num_draft_tokens for one in counters))
    num_accepted_tokens = sum(_known(one.num_accepted_tokens for one in counters))
    num_output_tokens = sum(_num_output_tokens(block) for block in counted)
    chunked = [answer for block in counted for answer in block.answers if answer.chunk_times]
    num_row_steps = max(
        num_output_tokens - num_accepted_tokens,
        num_drafts + len(chunked),
        sum(len(answer.chunk_times) for answer in chunked),
    )
    if not num_row_steps:
        return None
    by_position = map(sum, zip_longest(*(one.num_accepted_by_position for one in counters), fillvalue=0))
    num_drafter_steps = sum(_known(one.num_drafter_steps for one in counters))
    drafter_seconds = sum(_known(one.drafter_seconds for one in counters))
    return drafting_of(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        num_output_tokens=num_output_tokens,
        num_row_steps=num_row_steps,
        num_accepted_by_position=by_position,
        drafter_us_per_step=1e6 * drafter_seconds / num_drafter_steps if num_drafter_steps else None,
    )


def drafting_of(
    *,
    num_drafts: int,
    num_draft_tokens: int,
    num_accepted_tokens: int,
    num_output_tokens: int,
    num_row_steps: int,
    num_accepted_by_position: Iterable[int],
    drafter_us_per_step: float | None,
) -> Drafting:
    """Return the counts with the rates that follow from them; at least one step was made."""
    return Drafting(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        num_row_steps=num_row_steps,
        acceptance_rate=num_accepted_tokens / num_draft_tokens if num_draft_tokens else None,
        tokens_per_step=num_output_tokens / num_row_steps,
        coverage=num_drafts / num_row_steps,
        mean_acceptance_length=1 + num_accepted_tokens / num_drafts if num_drafts else None,
        accepted_by_position=tuple(number / num_drafts for number in num_accepted_by_position)
        if num_drafts
        else (),
        drafter_us_per_step=drafter_us_per_step,
    )


def _num_output_tokens(block: Block) -> int:
    """By the server's counter where it has one, since its other counters include answers that failed."""
    counted = block.counters.num_output_tokens
    return sum(answer.num_output_tokens for answer in block.answers) if counted is None else counted


def _joules_per_token(blocks: Iterable[Block]) -> float | None:
    metered = [block for block in blocks if block.resources.energy_joules is not None]
    num_tokens = sum(answer.num_output_tokens for answer in good_answers(metered))
    joules = sum(_known(block.resources.energy_joules for block in metered))
    return joules / num_tokens if num_tokens else None


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _milliseconds(seconds: Iterable[float | None]) -> FloatArray:
    return np.array(_known(seconds), dtype=np.float64) * MS_PER_SECOND


def _concatenated(arrays: Iterable[FloatArray]) -> FloatArray:
    return np.concatenate([np.empty(0), *arrays])
