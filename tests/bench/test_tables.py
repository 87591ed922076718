"""The report on a terminal: the verdict first, each figure in its row, nothing cut off or obeyed."""

import io
import re

import pytest
from ngram_spec.bench.figures import MODELLED, extra_memory, headline, load, number, size
from ngram_spec.bench.summary import Summary
from ngram_spec.bench.tables import REPORT_WIDTH, print_summary
from rich.console import Console
from summaries import SPEC, bare_measures, cell, interval, measures, recommendation, summary

SPEEDS, DRAFTS = "Speed / Latency in ms", "Drafts / Memory at its peak / Outputs"


def printed(of: Summary, width: int | None = None) -> str:
    file = io.StringIO()
    print_summary(of, Console(file=file, width=width))
    return file.getvalue()


def rows(text: str, title: str) -> dict[tuple[str, str, str], list[str]]:
    """The rows of one table: what stands in each, by workload, concurrency and arm."""
    found = {}
    workload = concurrency = ""
    table = text.split(f"\n{title}\n")[1].split("─\n", 1)[1].split("\n\n")[0]
    for line in table.splitlines():
        if not line.startswith(" "):
            workload = line.strip()
            continue
        arm, *words = line.split()
        # The second line of a verdict that was folded.
        if not words:
            continue
        # The concurrency stands in its first row only, left of all figures.
        if re.match(r" +\S+ +\d+ ", line[:20]):
            concurrency, *words = words
        found[workload, concurrency, arm] = words
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (3.333, "3.33"), (9.996, "10.0"), (71.84, "71.8"), (99.96, "100"), (1234.5, "1,234")],
)
def test_a_number_has_three_digits_or_all_of_its_whole_ones(value: float, text: str) -> None:
    assert number(value) == text


def test_sizes_and_loads_are_written_in_units_that_suit_them() -> None:
    assert (size(171_966_464), size(5 * 2**30), size(None)) == ("164 MiB", "5.00 GiB", "-")
    assert (load(23.04), load(1.55)) == ("23", "1.6")


def test_memory_that_is_about_the_same_is_not_called_less() -> None:
    one = recommendation("rag", SPEC, None).model_copy(update={"extra_process_bytes": -1000})
    assert extra_memory(one) == "Memory against off: +0 MiB of main memory, +0 MiB of GPU memory"
    nearly = one.model_copy(update={"extra_process_bytes": -800_000, "extra_gpu_bytes": 800_000})
    assert extra_memory(nearly) == "Memory against off: -1 MiB of main memory, +1 MiB of GPU memory"
    less = one.model_copy(update={"extra_process_bytes": -(3 * 2**20), "extra_gpu_bytes": None})
    assert extra_memory(less) == "Memory against off: -3 MiB of main memory"


def test_the_verdict_is_printed_before_any_figure() -> None:
    text = printed(summary())
    assert text.startswith("Speculation pays on 2 of 3 workloads\n")
    verdicts = (
        text.index("\ncode edit: on up to about concurrency 45\n"),
        text.index("\nrag: on up to about concurrency 23\n"),
    )
    assert max(*verdicts, text.index("\nchat: off\n")) < text.index(SPEEDS)
    for recommended in summary().recommendations:
        for reason in recommended.reasons:
            assert reason in text
    assert "+164 MiB of main memory" in text


@pytest.mark.parametrize(
    ("arms", "sentence"),
    [
        ([SPEC, SPEC], "Speculation pays on all 2 workloads"),
        ([SPEC, None], "Speculation pays on 1 of 2 workloads"),
        ([None, None], "Speculation is not shown to pay on any workload here"),
        ([SPEC], "Speculation pays on work-0"),
        ([None], "Speculation is not shown to pay on work-0"),
        ([], "This run has no verdict"),
    ],
)
def test_the_headline_counts_workloads_that_have_an_arm(arms: list[str | None], sentence: str) -> None:
    recommendations = tuple(recommendation(f"work-{place}", arm, None) for place, arm in enumerate(arms))
    assert headline(summary().model_copy(update={"recommendations": recommendations})) == sentence


def test_workloads_without_a_verdict_are_not_among_those_on_which_speculation_was_not_shown_to_pay() -> None:
    def of(*have_verdicts: bool) -> str:
        recommendations = tuple(
            recommendation(f"work-{place}", None, None).model_copy(update={"has_verdict": has_verdict})
            for place, has_verdict in enumerate(have_verdicts)
        )
        return headline(summary().model_copy(update={"recommendations": recommendations}))

    assert of(False) == of(False, False) == "This run has no verdict"
    assert of(False, True) == "Speculation is not shown to pay on work-1"
    assert of(False, True, True) == "Speculation is not shown to pay on any workload with a verdict"


def test_flags_stand_on_one_line_however_long_they_are() -> None:
    flags = f'--speculative-config \'{{"method": "ngram_spec", "prior": "{"x" * 200}"}}\''
    recommended = recommendation("rag", SPEC, None).model_copy(update={"flags": flags})
    text = printed(summary(workloads=["rag"]).model_copy(update={"recommendations": (recommended,)}))
    assert f"\n    {flags}\n" in text


def test_each_cell_has_its_row_with_its_figures() -> None:
    of = summary()
    text = printed(of)
    speed, drafts = rows(text, SPEEDS), rows(text, DRAFTS)
    assert len(speed) == len(drafts) == len(of.cells) == 60
    fast = next(one for one in of.cells if (one.workload, one.concurrency, one.arm) == ("rag", 4, SPEC))
    assert fast.speedup is not None
    assert fast.measures.itl_ms is not None
    assert fast.measures.chunk_gap_ms is not None
    first = speed["rag", "4", SPEC]
    assert first[:4] == [
        f"{fast.speedup.estimate:.2f}",
        f"{fast.speedup.low:.2f}",
        "to",
        f"{fast.speedup.high:.2f}",
    ]
    assert float(first[4]) == pytest.approx(fast.measures.throughput, abs=0.5)
    expected = [
        fast.measures.itl_ms.p50,
        fast.measures.itl_ms.p95,
        fast.measures.chunk_gap_ms.p50,
        fast.measures.chunk_gap_ms.p95,
        fast.measures.ttft_ms.p50 if fast.measures.ttft_ms else None,
        fast.measures.tpot_ms.p50 if fast.measures.tpot_ms else None,
    ]
    assert [float(word) for word in first[5:11]] == pytest.approx(expected, rel=0.005)
    assert first[11:] == ["on"]
    assert fast.measures.drafting is not None
    assert drafts["rag", "4", SPEC][:3] == [
        f"{fast.measures.drafting.acceptance_rate:.1%}",
        f"{fast.measures.drafting.tokens_per_step:.2f}",
        f"{fast.measures.drafting.coverage:.1%}",
    ]
    assert drafts["rag", "4", SPEC][-4:] == ["38", "of", "40", "2"]


def test_a_cell_that_is_invalid_shows_no_speed_up_and_why() -> None:
    text = printed(summary())
    broken = rows(text, SPEEDS)["rag", "16", "suffix"]
    assert broken[:2] == ["-", "-"]
    assert broken[-1] == "invalid"
    assert "\n  - rag at 16, suffix: varied output: 31 of 40 answers repeat one token\n" in text


def test_a_check_that_fails_alike_at_several_loads_is_one_sentence() -> None:
    cells = [cell(SPEC, "rag", concurrency, 1.2, "invalid") for concurrency in (1, 4, 16)]
    text = printed(summary(workloads=["rag"]).model_copy(update={"cells": tuple(cells)}))
    assert text.count("answers repeat one token") == 1
    assert f"rag at 1, 4, 16, {SPEC}: varied output" in text


def test_the_checklist_and_the_warnings_follow() -> None:
    of = summary()
    text = " ".join(printed(of).split())
    for item in of.checklist:
        assert f"{item.question} {item.answer}" in text
    for warning in of.warnings:
        assert warning in text


@pytest.mark.parametrize("width", [None, 60, 100, 180])
def test_nothing_is_wider_than_100_columns_and_no_number_is_cut_off(width: int | None) -> None:
    lines = printed(summary(), width).splitlines()
    limit = max(REPORT_WIDTH, width or 0)
    assert all(len(line) <= limit for line in lines if "--speculative-config" not in line)
    assert not any("…" in line for line in lines)


def test_figures_that_nobody_knows_have_no_column() -> None:
    of = summary(workloads=["rag"], concurrencies=[8])
    bare = [one.model_copy(update={"measures": bare_measures(50.0)}) for one in of.cells]
    text = printed(of.model_copy(update={"cells": tuple(bare), "device": None, "engine_version": None}))
    for heading in ("ITL", "TTFT", "acceptance", "coverage", "GPU", "KV cache"):
        assert heading in printed(of).split("\nSpeed")[1]
        assert heading not in text.split("\nSpeed")[1].split("Checklist")[0]
    assert "vLLM 0.32.0" in printed(of)
    assert "vLLM" not in text
    assert rows(text, "Speed")["rag", "8", SPEC][-2:] == ["50.0", "on"]


def test_whether_a_goal_is_met_stands_beside_the_verdict() -> None:
    cells = [
        cell(SPEC, "rag", 1, 1.5).model_copy(update={"meets_goal": True}),
        cell(SPEC, "rag", 4, 0.7).model_copy(update={"meets_goal": False}),
        cell(SPEC, "rag", 16, 1.5, "invalid").model_copy(update={"meets_goal": True}),
    ]
    text = printed(summary(workloads=["rag"]).model_copy(update={"cells": tuple(cells)}))
    assert " on, meets the goal" in text
    assert " off, misses" in text
    assert rows(text, SPEEDS)["rag", "16", SPEC][-1] == "invalid"


def test_a_run_without_a_cell_is_printed_without_tables() -> None:
    text = printed(summary().model_copy(update={"cells": (), "recommendations": ()}))
    assert text.startswith("This run has no verdict\n")
    assert "workload" not in text


def test_a_modelled_summary_says_so_first() -> None:
    text = printed(summary().model_copy(update={"is_modelled": True}))
    assert text.startswith(f"{MODELLED}\n")
    assert "\nSpeculation would pay on 2 of 3 workloads\n" in text
    assert "odelled" not in printed(summary())


def test_names_from_outside_neither_steer_the_terminal_nor_its_markup() -> None:
    hostile = "[bold]x[/] \x1b[31mred\x07 \u202eback"
    of = summary(workloads=[hostile], concurrencies=[1])
    text = printed(of.model_copy(update={"warnings": (hostile,)}))
    assert "[bold]x[/] ?[31mred? ?back" in text
    assert not set("\x1b\x07\u202e") & set(text)


def test_the_interval_of_a_speed_up_is_not_rounded_to_one_number() -> None:
    close = cell(SPEC, "rag", 1, 1.02).model_copy(update={"speedup": interval(1.02, 0.021)})
    text = printed(summary(workloads=["rag"]).model_copy(update={"cells": (close,)}))
    assert rows(text, SPEEDS)["rag", "1", SPEC][:4] == ["1.02", "1.00", "to", "1.04"]


def test_figures_of_a_faster_arm_are_better() -> None:
    """The made-up figures are what the other tests rest on."""
    slow, fast = measures(SPEC, 1.0, 4), measures(SPEC, 2.0, 4)
    assert fast.throughput == pytest.approx(2 * slow.throughput)
    assert fast.itl_ms is not None
    assert slow.itl_ms is not None
    assert fast.itl_ms.p50 == pytest.approx(slow.itl_ms.p50 / 2)
