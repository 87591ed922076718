"""The page as a file: whole, in need of nothing else, escaped, with every part of a run."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up_runs import made_up_run
from ngram_spec import NgramSpecError
from ngram_spec.bench.figures import MODELLED
from ngram_spec.bench.page import render_page, write_page
from ngram_spec.bench.records import RUN_FILE, Arm, Failure
from ngram_spec.bench.report import REPORT_FILE, write_json
from ngram_spec.bench.summarize import summarize
from ngram_spec.bench.summary import Summary
from summaries import ARMS, SPEC, bare_measures, cell, recommendation, run, summary

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Fails where tags do not nest, and keeps what the tests ask for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        if "id" in values:
            self.ids.append(values["id"])
        self.links += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        if values.get("role") == "img":
            self.pictures.append(values["aria-label"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element, in line {self.getpos()[0]}"


def page_of(of: Summary) -> str:
    return render_page(None if of.is_modelled else run(of), of)


@pytest.fixture(scope="module")
def page() -> str:
    """Drawing takes seconds, so the tests that only read share one."""
    return page_of(summary())


def test_the_page_is_whole_and_needs_nothing_else(page: str) -> None:
    outline = Outline(page)
    assert page.startswith("<!DOCTYPE html>")
    assert outline.tags["h1"] == 1
    assert not outline.tags.keys() & {"script", "img", "iframe", "object", "embed"}
    assert "@import" not in page
    assert "url(#" in page
    assert not re.search(r"url\((?!#)", page)
    # Beside its own places it names the two files that lie beside it, and nothing to be fetched.
    elsewhere = {link for link in outline.links if not link.startswith("#")}
    assert elsewhere == {RUN_FILE, REPORT_FILE, "data:,"}


def test_no_id_is_given_twice_and_every_place_that_is_named_is_there(page: str) -> None:
    outline = Outline(page)
    assert [name for name, times in Counter(outline.ids).items() if times > 1] == []
    named = {link[1:] for link in outline.links if link.startswith("#")} | set(
        re.findall(r"url\(#(.*?)\)", page)
    )
    assert named <= set(outline.ids)


def test_every_chart_is_there_and_says_in_words_what_it_shows(page: str) -> None:
    of = summary()
    outline = Outline(page)
    for workload in of.settings.workloads:
        (speedups,) = [one for one in outline.pictures if one.startswith(f"Speed-up over off, {workload}.")]
        for one in of.cells:
            if one.workload == workload and one.speedup and one.verdict != "invalid":
                told = f"{one.speedup.estimate:.2f} ({one.speedup.low:.2f} to {one.speedup.high:.2f})"
                assert f"{told} at {one.concurrency}" in speedups
        for concurrency in of.settings.concurrencies:
            title = f"Time per output token, {workload}, {concurrency} at once."
            (latency,) = [one for one in outline.pictures if one.startswith(title)]
            assert latency.count("chunk gap p50") == len(ARMS)
        assert any(
            one.startswith(f"Drafts accepted up to each position, {workload}, 1") for one in outline.pictures
        )
    assert len(outline.pictures) == 3 * (1 + 4 + 1)
    (rag,) = [one for one in outline.pictures if one.startswith("Speed-up over off, rag.")]
    assert "suffix at 16 is invalid." in rag
    assert f"{SPEC} breaks even at about 23 requests at once." in rag


def test_the_legend_says_which_arm_is_invalid_where(page: str) -> None:
    charts = re.findall(r"<figcaption>(.*?)</figcaption>(.*?)</ul>", page, flags=re.DOTALL)
    named = [title for title, legend in charts if "suffix (invalid)" in legend]
    assert named == ["Time per output token, rag, 16 at once"]


def test_colours_are_those_of_the_page_and_no_other(page: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert re.findall(r"#[0-9a-fA-F]{6}\b", drawn) == []
    style = page.split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    used = set(re.findall(r"var\(--([\w-]+)\)", drawn + style))
    for scheme in (light, dark):
        assert used <= set(re.findall(r"--([\w-]+):", scheme))


@pytest.mark.parametrize("place", ["model", "arm", "workload", "prompt", "error", "flags", "check", "url"])
def test_what_comes_from_outside_is_text_and_never_markup(place: str) -> None:
    hostile = "</title></style><script>alert(1)</script><img src=x>\" onload='x' $\\frac{1}{2}$ {{ 7 * 7 }}"
    of = summary(workloads=["rag"], concurrencies=[1, 4])
    measured = run(of)
    match place:
        case "model":
            of = of.model_copy(update={"settings": of.settings.model_copy(update={"model": hostile})})
        case "arm":
            arms = (ARMS[0], Arm(name=hostile, flags=(hostile,), is_speculative=True))
            cells = [cell(arm.name, "rag", at, 1.3) for at in (1, 4) for arm in arms]
            settings = of.settings.model_copy(update={"arms": arms})
            one = recommendation("rag", hostile, 2.0)
            of = of.model_copy(
                update={"settings": settings, "cells": tuple(cells), "recommendations": (one,)}
            )
            measured = run(of)
        case "workload":
            of = summary(workloads=[hostile], concurrencies=[1])
        case "prompt":
            probe = measured.near_tie_probes[0].model_copy(update={"prompt_id": hostile})
            measured = measured.model_copy(update={"near_tie_probes": (probe,)})
        case "error":
            of = of.model_copy(update={"warnings": (hostile,), "device": hostile})
        case "flags":
            one = recommendation("rag", SPEC, None).model_copy(
                update={"flags": hostile, "reasons": (hostile,)}
            )
            of = of.model_copy(update={"recommendations": (one,)})
        case "check":
            broken = cell(SPEC, "rag", 1, 1.2, "invalid")
            checks = tuple(
                check.model_copy(update={"name": hostile, "detail": hostile}) for check in broken.checks
            )
            of = of.model_copy(update={"cells": (broken.model_copy(update={"checks": checks}),)})
        case "url":
            settings = of.settings.model_copy(update={"urls": {"off": hostile}})
            of = of.model_copy(update={"settings": settings})
    page = render_page(measured, of)
    outline = Outline(page)
    assert not outline.tags.keys() & {"script", "img"}
    assert outline.tags["style"] == outline.tags["title"] == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert " onload='x'" not in page
    assert "{{ 7 * 7 }}" in page


def test_no_text_of_a_prompt_or_an_answer_is_on_the_page(page: str) -> None:
    assert run(summary()).blocks[0].answers[0].text == "an answer that no report shows"
    assert "an answer that no report shows" not in page


def test_a_modelled_summary_says_so_at_the_top_and_over_every_chart() -> None:
    of = summary().model_copy(update={"is_modelled": True})
    page = page_of(of)
    assert page.index(MODELLED) < page.index("<h1>")
    assert "Speculation would pay on 2 of 3 workloads" in page
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(captions) == 3 * (1 + 4 + 1)
    assert all(caption.startswith("Modelled: ") for caption in captions)
    assert all(one.startswith("Modelled: ") for one in Outline(page).pictures)
    assert RUN_FILE not in page
    assert "No engine ran, so there was nothing to check." in page


def test_a_measured_summary_does_not_speak_of_a_model(page: str) -> None:
    assert "odelled" not in page.split("</style>")[1]


def test_what_nobody_knows_is_said_and_leaves_no_empty_chart() -> None:
    of = summary(workloads=["rag"], concurrencies=[8])
    unknown = {"num_same_outputs": None, "num_near_ties": None, "speedup": None, "speedup_over_off_v1": None}
    cells = [one.model_copy(update={"measures": bare_measures(50.0), **unknown}) for one in of.cells]
    page = page_of(of.model_copy(update={"cells": tuple(cells), "device": None, "engine_version": None}))
    assert Outline(page).pictures == []
    for sentence in (
        "No arm could be compared with arm off.",
        "No stream was timed.",
        "The server does not tell what was accepted at which position.",
        "What memory each arm takes is not known here.",
        "Not known in this run: speed-up, 95% interval, ITL p50",
    ):
        assert sentence in page


def test_the_room_in_the_kv_cache_is_that_of_the_poorest_start_and_no_peak() -> None:
    of = summary(workloads=["rag"], concurrencies=[1, 4])
    rooms = {1: 400_000, 4: 300_000}
    cells = [
        one.model_copy(
            update={"measures": one.measures.model_copy(update={"kv_cache_tokens": rooms[one.concurrency]})}
        )
        for one in of.cells
    ]
    table = page_of(of.model_copy(update={"cells": tuple(cells)})).split('<table class="memory">')[1]
    table = table.split("</table>")[0]
    headings = re.findall(r'<th scope="col">(.*?)</th>', table)
    assert headings == [
        "arm",
        "peak of main memory",
        "peak of GPU memory",
        "least room in the KV cache, tokens",
    ]
    assert table.count("<td>300,000<") == len(ARMS)
    assert "400,000" not in table


def test_a_run_without_a_cell_still_makes_a_page() -> None:
    empty = summary().model_copy(update={"cells": (), "recommendations": (), "checklist": (), "warnings": ()})
    page = render_page(run(empty).model_copy(update={"starts": (), "blocks": ()}), empty)
    Outline(page)
    assert "This run has no verdict" in page


def test_one_load_alone_is_drawn() -> None:
    pictures = Outline(page_of(summary(workloads=["rag"], concurrencies=[8]))).pictures
    assert len(pictures) == 3


def test_tokens_that_came_together_do_not_stop_the_drawing() -> None:
    of = summary(workloads=["rag"], concurrencies=[1])
    cells = []
    for one in of.cells:
        assert one.measures.itl_ms is not None
        at_once = one.measures.itl_ms.model_copy(update={"p50": 0.0})
        cells.append(one.model_copy(update={"measures": one.measures.model_copy(update={"itl_ms": at_once})}))
    pictures = Outline(page_of(of.model_copy(update={"cells": tuple(cells)}))).pictures
    assert any("time per token p50 0.00 ms" in one for one in pictures)


def test_the_commands_of_the_servers_are_shown_to_be_run_again(page: str) -> None:
    of = summary()
    assert (
        "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve Qwen/Qwen2.5-Coder-32B-Instruct --max-model-len 8192" in page
    )
    assert "--speculative-config &#39;{&#34;method&#34;: &#34;ngram_spec&#34;" in page
    for digest in of.settings.workload_digests.values():
        assert digest in page


def test_a_run_that_was_measured_and_judged_makes_a_page() -> None:
    """The same way as the command goes, from blocks to the page."""
    measured = made_up_run({SPEC: {1: 1.5, 8: 0.8}, "suffix": {1: 1.2, 8: 0.9}}, spread=0.02)
    measured = measured.model_copy(update={"failures": (Failure(arm="suffix", round=1, reason="it <died>"),)})
    judged = summarize(measured)
    page = render_page(measured, judged)
    Outline(page)
    (recommended,) = judged.recommendations
    assert recommended.arm == SPEC
    headline = recommended.headline
    assert f'<p class="headline">{headline[0].upper()}{headline[1:]}</p>' in page
    assert "it &lt;died&gt;" in page


def test_the_json_file_holds_the_whole_summary_and_where_the_measurements_are(tmp_path: Path) -> None:
    of = summary()
    write_json(tmp_path / REPORT_FILE, of)
    document = json.loads((tmp_path / REPORT_FILE).read_text())
    assert Summary.model_validate(document["summary"]) == of
    assert document["run"] == RUN_FILE
    assert document["ngram_spec_version"] == "0.1.0"
    write_json(tmp_path / REPORT_FILE, of.model_copy(update={"is_modelled": True}))
    assert json.loads((tmp_path / REPORT_FILE).read_text())["run"] is None


def test_a_file_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    of = summary(workloads=["rag"], concurrencies=[1])
    with pytest.raises(NgramSpecError, match="cannot write the page: No such file or directory"):
        write_page(tmp_path / "no" / "report.html", None, of)
    with pytest.raises(NgramSpecError, match="cannot write the report: No such file or directory"):
        write_json(tmp_path / "no" / REPORT_FILE, of)
