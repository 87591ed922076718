"""The page as people see it, in a real browser without a network: on a phone and a desk, light and dark."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ngram_spec.bench.page import write_page
from ngram_spec.bench.records import OFF, Arm
from ngram_spec.bench.summary import Cell, Summary
from summaries import ARMS, SPEEDUPS, bare_measures, run, summary

# Set where a missing browser must fail and not skip.
REQUIRED = "NGRAM_SPEC_REQUIRE_BROWSER"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MEND = "apt-get install chromium, and pip install playwright, to test the page in a browser"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(MEND)
    with sync_playwright() as playwright:
        # Without a sandbox, since tests run as root in containers; it opens nothing but our own file.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def long_named() -> Summary:
    """Many arms and loads, and names that nobody would like to lay out."""
    arms = [Arm(name=f"ngram-spec with draft_cost 0.0{place}", is_speculative=True) for place in range(8)]
    SPEEDUPS.update({arm.name: (1.1 + 0.1 * place, 0.1) for place, arm in enumerate(arms)})
    return summary(
        ["w" * 70 + "<script>alert(1)</script>"], [2**power for power in range(9)], [ARMS[0], *arms]
    )


def unknown() -> Summary:
    of = summary(workloads=["rag"], concurrencies=[8])
    cells = [one.model_copy(update={"measures": bare_measures(50.0)}) for one in of.cells]
    return of.model_copy(update={"cells": tuple(cells), "warnings": ()})


SUMMARIES: dict[str, Callable[[], Summary]] = {
    "usual": summary,
    "long names": long_named,
    "one load": lambda: summary(workloads=["rag"], concurrencies=[8]),
    "unknown": unknown,
    "modelled": lambda: summary(workloads=["rag", "chat"]).model_copy(update={"is_modelled": True}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    def file(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            of = SUMMARIES[name]()
            write_page(path, None if of.is_modelled else run(of), of)
        return path

    return file


@pytest.fixture
def opened(browser: Any, files: Callable[[str], Path]) -> Iterator[Callable[..., Any]]:
    """Opens pages; afterwards none of them may have asked for anything, or said anything on the console."""
    contexts: list[Any] = []
    asked: list[str] = []
    said: list[str] = []

    def open_page(name: str, viewport: dict[str, int] = DESK, scheme: str = "light") -> Any:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        path = files(name)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(path.as_uri())
        asked.remove(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert asked == []
    assert said == []


@pytest.mark.parametrize("name", SUMMARIES)
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_opens_alone_and_never_scrolls_sideways(
    opened: Callable[..., Any], name: str, viewport: dict[str, int]
) -> None:
    page = opened(name, viewport)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    # What is wider than the screen scrolls within its own box, and the box itself is on the screen.
    for box in page.locator(".scroll:visible, pre:visible, .chart:visible, .verdict:visible").all():
        place = box.bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= viewport["width"]


def test_a_wide_table_scrolls_within_its_box_and_keeps_the_names_of_its_rows(
    opened: Callable[..., Any],
) -> None:
    page = opened("usual", PHONE)
    box = page.get_by_role("region", name="All figures")
    assert box.evaluate("box => box.scrollWidth > 2 * box.clientWidth")
    first = box.locator("tbody th[scope=row]").first
    before = first.bounding_box()
    box.evaluate("box => { box.scrollLeft = 400 }")
    assert first.bounding_box() == before


@pytest.mark.parametrize("name", ["usual", "one load", "modelled"])
def test_the_verdict_is_on_the_first_screen_of_a_phone(opened: Callable[..., Any], name: str) -> None:
    page = opened(name, PHONE)
    of = SUMMARIES[name]()
    said = [page.locator("h1"), *page.locator(".glance b").all(), page.locator(".headline").first]
    if of.is_modelled:
        said.append(page.get_by_text("Modelled, not measured"))
    for one in said:
        place = one.bounding_box()
        assert place is not None
        assert 0 <= place["y"] < place["y"] + place["height"] <= PHONE["height"]
    headlines = [one.headline.lower() for one in of.recommendations]
    assert [text.lower() for text in page.locator(".headline").all_inner_texts()] == headlines
    if len(headlines) > 1:
        assert [text.lower() for text in page.locator(".glance b").all_inner_texts()] == headlines


# Of each text on the page: its colour, what is behind it, and what it says. Text in a picture has a halo of
# the colour of its box.
READ_COLOURS = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = numbers(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const read = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const colour = element.closest("svg") ? style.fill : style.color;
    read.push([text, numbers(colour).slice(0, 3), behind(element).slice(0, 3)]);
  }
  return read;
}"""
# Of each mark of an arm in a chart: the colour in which it is filled or, where it is hollow, drawn.
READ_MARKS = """() => [...document.querySelectorAll(
  ".chart > svg use:is([style*='--arm-'], [style*='--plain'])"
)].map(mark => {
  const style = getComputedStyle(mark), surface = getComputedStyle(mark.closest(".chart")).backgroundColor;
  const colour = style.fill === surface ? style.stroke : style.fill;
  return [colour, surface].map(text => text.match(/[\\d.]+/g).map(Number).slice(0, 3));
})"""


def luminance(colour: list[float]) -> float:
    """As WCAG 2 defines it."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_as_it_is_defined() -> None:
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([119, 119, 119], [255, 255, 255]) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["usual", "long names"])
def test_every_text_and_every_mark_stands_out(opened: Callable[..., Any], name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    unfold(page)
    read = page.evaluate(READ_COLOURS)
    assert len(read) > 500
    faint = [
        (text, contrast(colour, behind)) for text, colour, behind in read if contrast(colour, behind) < 4.5
    ]
    assert faint == []
    backgrounds = [luminance(behind) for _, _, behind in read]
    assert (max(backgrounds) < 0.1) if scheme == "dark" else (min(backgrounds) > 0.8)
    marks = page.evaluate(READ_MARKS)
    assert len(marks) > 100
    assert min(contrast(colour, surface) for colour, surface in marks) >= 3
    assert len({tuple(colour) for colour, _ in marks}) >= 4


def test_each_arm_has_a_colour_and_a_mark_of_its_own(opened: Callable[..., Any]) -> None:
    page = opened("usual")
    drawn = page.locator(".marks symbol").evaluate_all(
        "all => all.map(one => [...one.querySelectorAll('path')].map(path => path.getAttribute('d')).join())"
    )
    assert len(set(drawn)) == len(ARMS)


@pytest.mark.parametrize("name", ["usual", "long names", "one load", "modelled"])
def test_every_chart_is_seen_has_words_and_no_labels_that_overlap(
    opened: Callable[..., Any], name: str
) -> None:
    page = opened(name, PHONE)
    unfold(page)
    of = SUMMARIES[name]()
    pictures = page.get_by_role("img").all()
    workloads, loads = len(of.settings.workloads), len(of.settings.concurrencies)
    num_drafting = len({one.workload for one in of.cells if one.measures.drafting})
    assert len(pictures) == workloads * (1 + loads) + num_drafting
    for picture in pictures:
        place = picture.bounding_box()
        assert place is not None
        assert place["width"] > 280
        assert place["height"] > 150
        words = picture.get_attribute("aria-label")
        assert words is not None
        assert len(re.findall(r"\d+\.\d+", words)) >= 4
        boxes = picture.locator("text").evaluate_all(
            "all => all.map(text => [text.textContent, text.getBoundingClientRect().toJSON()])"
        )
        assert len(boxes) >= 2
        for index, (text, box) in enumerate(boxes):
            assert box["left"] >= place["x"] - 1, text
            assert box["right"] <= place["x"] + place["width"] + 1, text
            for other, its_box in boxes[index + 1 :]:
                assert not overlap(box, its_box), (words[:60], text, other)


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    """By more than the empty rim of a line of text."""
    width = min(one["right"], other["right"]) - max(one["left"], other["left"])
    height = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
    return width > 1 and height > 4


# What each column has to show, read from the summary in another way than the page does.
RAW: dict[str, Callable[[Cell], float | None]] = {
    "speed-up": lambda cell: cell.speedup.estimate if cell.speedup and cell.verdict != "invalid" else None,
    "tokens/s": lambda cell: cell.measures.throughput,
    "ITL p50": lambda cell: cell.measures.itl_ms.p50 if cell.measures.itl_ms else None,
    "ITL p95": lambda cell: cell.measures.itl_ms.p95 if cell.measures.itl_ms else None,
    "chunk gap p50": lambda cell: cell.measures.chunk_gap_ms.p50 if cell.measures.chunk_gap_ms else None,
    "chunk gap p95": lambda cell: cell.measures.chunk_gap_ms.p95 if cell.measures.chunk_gap_ms else None,
    "TTFT p50": lambda cell: cell.measures.ttft_ms.p50 if cell.measures.ttft_ms else None,
    "TPOT p50": lambda cell: cell.measures.tpot_ms.p50 if cell.measures.tpot_ms else None,
    "acceptance rate": lambda cell: (
        cell.measures.drafting.acceptance_rate if cell.measures.drafting else None
    ),
    "tokens/step": lambda cell: cell.measures.drafting.tokens_per_step if cell.measures.drafting else None,
    "coverage": lambda cell: cell.measures.drafting.coverage if cell.measures.drafting else None,
    "process GiB": lambda cell: cell.measures.process_bytes / 2**30 if cell.measures.process_bytes else None,
    "GPU GiB": lambda cell: cell.measures.gpu_bytes / 2**30 if cell.measures.gpu_bytes else None,
    "KV cache used": lambda cell: cell.measures.kv_cache_usage,
    "near-ties": lambda cell: cell.num_near_ties,
}


def test_the_numbers_shown_are_those_of_the_summary(opened: Callable[..., Any]) -> None:
    page = opened("usual")
    of = summary()
    table = page.get_by_role("region", name="All figures")
    headings = table.locator("thead tr:last-child th").all_inner_texts()
    assert headings[:2] == ["arm", "verdict"]
    assert set(RAW) <= set(headings)
    rows = table.locator("tbody tr:not(.group)").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    shown = iter(rows)
    for workload in of.settings.workloads:
        for concurrency in of.settings.concurrencies:
            for cell in of.cells:
                if (cell.workload, cell.concurrency) == (workload, concurrency):
                    texts = dict(zip(headings, next(shown), strict=True))
                    assert texts["arm"] == f"{cell.arm} at {concurrency}"
                    assert texts["verdict"] == cell.verdict
                    for heading, of_cell in RAW.items():
                        assert equal(texts[heading], of_cell(cell)), (texts["arm"], heading, texts[heading])
                    if cell.speedup and cell.verdict != "invalid":
                        told = f"{cell.speedup.low:.2f} to {cell.speedup.high:.2f}"
                        assert texts["95% interval"] == told
    assert next(shown, None) is None


def equal(text: str, value: float | None) -> bool:
    """Whether the text is the value, rounded to as many digits as the text has."""
    if value is None or text == "-":
        return value is None and text == "-"
    percent = text.endswith("%")
    digits = text.rstrip("%").replace(",", "")
    num_decimals = len(digits.partition(".")[2])
    return abs(float(digits) - value * (100 if percent else 1)) <= 0.5001 * 10.0**-num_decimals


def test_a_text_is_equal_to_what_it_rounds_and_to_nothing_else() -> None:
    assert equal("1,234", 1234.4)
    assert equal("38.6%", 0.3856)
    assert not equal("38.6%", 0.3866)
    assert not equal("-", 0.0)
    assert not equal("0.00", None)


def test_memory_is_drawn_in_proportion(opened: Callable[..., Any]) -> None:
    page = opened("usual")
    table = page.get_by_role("region", name="Memory of each arm")
    widths = {
        row.locator("th").inner_text(): row.locator(".bar").first.bounding_box()["width"]
        for row in table.locator("tbody tr").all()
    }
    assert widths.keys() == {arm.name for arm in ARMS}
    bytes_of = {one.arm: one.measures.process_bytes or 0 for one in summary().cells}
    for arm, width in widths.items():
        assert width / widths["suffix"] == pytest.approx(bytes_of[arm] / bytes_of["suffix"], abs=0.01)
    assert widths[OFF] < widths["suffix"]


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
