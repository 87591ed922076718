"""Figures of one cell by hand, and the inter-token latency against its definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import answer, block
from ngram_spec.bench.measures import HISTOGRAM_EDGES_MS, log_histogram, measure, token_intervals_ms
from ngram_spec.bench.records import Block, Counters, Resources, Start

CHUNKS = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 9)), min_size=1, max_size=20).map(
    lambda chunks: [
        (time, num_tokens)
        for (_, num_tokens), time in zip(chunks, sorted(time for time, _ in chunks), strict=True)
    ]
)


def test_tokens_per_step_and_coverage_count_steps_without_a_draft() -> None:
    counters = Counters(
        num_output_tokens=5376, num_drafts=993, num_draft_tokens=4960, num_accepted_tokens=3562
    )
    drafting = measure([block([answer(chunks=[(0.0, 1)])], counters=counters)]).drafting
    assert drafting is not None
    assert drafting.num_row_steps == 993 + 821
    assert f"{drafting.tokens_per_step:.2f}" == "2.96"
    assert f"{drafting.coverage:.1%}" == "54.7%"
    assert drafting.acceptance_rate is not None
    assert f"{drafting.acceptance_rate:.1%}" == "71.8%"
    assert drafting.mean_acceptance_length is not None
    assert f"{drafting.mean_acceptance_length:.2f}" == "4.59"


def test_chunks_of_1_5_1_tokens_have_a_gap_of_10_ms_and_3_33_ms_per_token() -> None:
    measures = measure([block([answer(chunks=[(0.0, 1), (0.010, 5), (0.020, 1)])])])
    assert measures.chunk_gap_ms is not None
    assert measures.itl_ms is not None
    assert measures.chunk_gap_ms.p50 == pytest.approx(10)
    assert measures.itl_ms.mean == pytest.approx(20 / 6)
    assert measures.itl_ms.p50 == pytest.approx(2)
    assert measures.itl_ms.p99 == pytest.approx(10 - 8 * 0.05)


@given(CHUNKS)
def test_inter_token_latencies_are_each_chunk_s_gap_shared_by_its_tokens(
    chunks: list[tuple[float, int]],
) -> None:
    first, *others = chunks
    naive = [0.0] * (first[1] - 1)
    for (before, _), (time, num_tokens) in itertools.pairwise([first, *others]):
        for _ in range(num_tokens):
            naive.append(1000 * (time - before) / num_tokens)
    intervals = token_intervals_ms(answer(chunks=chunks))
    assert intervals == pytest.approx(naive)
    assert len(intervals) == sum(num_tokens for _, num_tokens in chunks) - 1
    assert intervals.sum() == pytest.approx(1000 * (chunks[-1][0] - chunks[0][0]))


@given(CHUNKS)
def test_the_mean_inter_token_latency_does_not_depend_on_how_the_stream_was_cut(
    chunks: list[tuple[float, int]],
) -> None:
    num_tokens = sum(number for _, number in chunks)
    whole = [(chunks[0][0], 1), (chunks[-1][0], max(1, num_tokens - 1))]
    cut, uncut = token_intervals_ms(answer(chunks=chunks)), token_intervals_ms(answer(chunks=whole))
    if num_tokens > 1:
        assert cut.mean() == pytest.approx(uncut.mean())


def test_latencies_are_those_of_answers_without_an_error() -> None:
    good = answer(chunks=[(0.1, 1), (0.3, 4)])
    bad = answer(chunks=[(9.0, 1), (99.0, 4)], error="the connection was reset")
    measures = measure([block([good, bad], seconds=2.0)])
    assert (measures.num_requests, measures.num_errors, measures.num_output_tokens) == (2, 1, 5)
    assert measures.throughput == 2.5
    assert measures.ttft_ms is not None
    assert measures.ttft_ms.mean == pytest.approx(100)
    assert measures.tpot_ms is not None
    assert measures.tpot_ms.p95 == pytest.approx(50)
    assert measures.latency_ms is not None
    assert measures.latency_ms.p99 == pytest.approx(300)


def test_without_a_single_token_there_are_no_latencies_and_the_throughput_is_0() -> None:
    measures = measure([block([answer(error="no such model")])])
    assert (measures.throughput, measures.itl_ms, measures.ttft_ms, measures.latency_ms) == (
        0,
        None,
        None,
        None,
    )
    assert (measures.itl_histogram, measures.drafting) == (None, None)


def test_throughput_is_that_of_all_blocks_and_memory_the_peak_of_any() -> None:
    def of(seconds: float, process_bytes: int | None, usage: float, joules: float) -> Block:
        resources = Resources(process_bytes=process_bytes, kv_cache_usage=usage, energy_joules=joules)
        return block([answer(chunks=[(0.0, 30)])], seconds=seconds, resources=resources)

    measures = measure([of(1.0, 5, 0.25, 30.0), of(2.0, None, 0.5, 60.0)])
    assert measures.throughput == 20
    assert (measures.process_bytes, measures.gpu_bytes, measures.kv_cache_usage) == (5, None, 0.5)
    assert measures.joules_per_token == 1.5


def test_the_size_of_the_kv_cache_is_the_smallest_of_the_arm_s_own_starts() -> None:
    starts = [
        Start(
            number=number,
            arm=arm,
            round=0,
            command=(),
            engine_version=None,
            seconds_to_ready=1.0,
            kv_cache_tokens=size,
        )
        for number, arm, size in ((0, "off", 10), (2, "ngram-spec", 500), (12, "ngram-spec", 400))
    ]
    blocks = [block(round=0), block(round=1)]
    assert measure(blocks, starts).kv_cache_tokens == 400
    assert measure(blocks, starts).num_starts == 2


def test_counters_add_up_over_blocks_and_positions_over_drafts() -> None:
    blocks = [
        block(
            [answer(chunks=[(0.0, 40)])],
            counters=Counters(
                num_drafts=6,
                num_draft_tokens=24,
                num_accepted_tokens=9,
                num_accepted_by_position=(5, 3, 1),
                drafter_seconds=0.001,
                num_drafter_steps=20,
            ),
        ),
        block(
            [answer(chunks=[(0.0, 20)])],
            counters=Counters(
                num_drafts=4,
                num_draft_tokens=16,
                num_accepted_tokens=1,
                num_accepted_by_position=(1,),
                drafter_seconds=0.002,
                num_drafter_steps=40,
            ),
        ),
        # Another block's scrape failed: it counts for nothing here.
        block([answer(chunks=[(0.0, 1000)])]),
    ]
    drafting = measure(blocks).drafting
    assert drafting is not None
    assert (drafting.num_row_steps, drafting.coverage, drafting.acceptance_rate) == (50, 0.2, 0.25)
    assert drafting.accepted_by_position == (0.6, 0.3, 0.1)
    assert drafting.drafter_us_per_step == pytest.approx(50)


def test_accepted_tokens_that_were_cut_behind_a_stop_hide_no_step_that_had_a_draft_or_a_chunk() -> None:
    counters = Counters(num_output_tokens=12, num_drafts=3, num_draft_tokens=48, num_accepted_tokens=40)
    # The prompt's step and three with drafts came in two chunks.
    drafting = measure([block([answer(chunks=[(0.0, 5), (1.0, 7)])], counters=counters)]).drafting
    assert drafting is not None
    assert (drafting.num_row_steps, drafting.coverage, drafting.tokens_per_step) == (4, 0.75, 3)
    # Each step came in a chunk of its own, two of them without a draft.
    chunks = [(float(place), 2) for place in range(6)]
    drafting = measure([block([answer(chunks=chunks)], counters=counters)]).drafting
    assert drafting is not None
    assert (drafting.num_row_steps, drafting.coverage, drafting.tokens_per_step) == (6, 0.5, 2)


def test_an_arm_that_never_drafted_has_no_acceptance_rate_and_one_token_per_step() -> None:
    counters = Counters(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    drafting = measure([block([answer(chunks=[(0.0, 4)])], counters=counters)]).drafting
    assert drafting is not None
    assert (drafting.acceptance_rate, drafting.mean_acceptance_length) == (None, None)
    assert (drafting.coverage, drafting.tokens_per_step) == (0, 1)


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    histogram = log_histogram(np.array(values))
    assert histogram is not None
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert sum(histogram.counts) == len(values)


def test_histogram_bins_have_one_width_on_a_logarithmic_scale() -> None:
    ratios = [right / left for left, right in itertools.pairwise(HISTOGRAM_EDGES_MS)]
    assert ratios == pytest.approx([math.pow(10, 0.1)] * 60)
    histogram = log_histogram(np.array([0.0, 0.11, 10.1, 10.2, 1e9]))
    assert histogram is not None
    counts = histogram.counts
    assert (counts[0], counts[20], counts[-1]) == (2, 2, 1)
