"""The picture: written in both formats with all that it must say, and refused in words where it cannot be."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ngram_spec import NgramSpecError
from ngram_spec.plot import PLOTTED_DRAFT_COSTS, check_plottable, write_plot
from ngram_spec.replay import REPORTED_DRAFT_COSTS, ReplayCounts
from ngram_spec.results import BASELINE, DRAFTER, DrafterResult, FileResult, ResponseResult

SVG = "{http://www.w3.org/2000/svg}"


def results(num_files: int) -> list[DrafterResult]:
    """A drafter that drafts less where it costs more, and a baseline that knows no cost."""

    def one(file: str, drafter: str, draft_cost: float | None, num_draft_tokens: int) -> FileResult:
        counts = ReplayCounts(num_steps=50, num_draft_tokens=num_draft_tokens, num_output_tokens=100)
        return FileResult(file, "ids", drafter, draft_cost, [ResponseResult("a", None, 7, counts)])

    groups = []
    for file in (f"{number}.jsonl" for number in range(num_files)):
        told = [one(file, DRAFTER, cost, round(4 / cost)) for cost in PLOTTED_DRAFT_COSTS]
        groups += [DrafterResult(told), DrafterResult([one(file, BASELINE, None, 300)])]
    return groups


def test_the_reported_costs_are_among_the_plotted_ones() -> None:
    assert set(REPORTED_DRAFT_COSTS) < set(PLOTTED_DRAFT_COSTS)


def test_a_png_is_written_and_grows_with_its_panels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sizes = []
    for num_files in (1, 5):
        path = tmp_path / f"{num_files}.png"
        write_plot(path, results(num_files), "a caption")
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        # Width and height stand in the header.
        sizes.append([int.from_bytes(content[start : start + 4], "big") for start in (16, 20)])
        assert len(content) > 20_000
    assert all(big > small > 300 for small, big in zip(*sizes, strict=True))


def test_an_svg_has_a_curve_for_each_drafter_and_a_mark_for_each_cost(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    write_plot(path, results(2), "a caption")
    root = ET.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    for colour in ("#0072b2", "#d55e00"):
        marks = [mark for mark in root.iter(f"{SVG}use") if f"fill: {colour}" in mark.get("style", "")]
        assert len(marks) == 2 * len(PLOTTED_DRAFT_COSTS)
    # matplotlib draws text as shapes, and says in a comment which text it is.
    drawn = path.read_text()
    for text in (DRAFTER, BASELINE, "off", "0.jsonl", "1.jsonl", "0.05", "a caption"):
        assert f"<!-- {text} -->" in drawn


def test_a_drafter_alone_is_drawn_without_a_baseline(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    write_plot(path, [group for group in results(1) if group.drafter == DRAFTER], "a caption")
    drawn = path.read_text()
    assert f"<!-- {DRAFTER} -->" in drawn
    assert BASELINE not in drawn


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "plot.jsonl"])
def test_another_format_is_refused(name: str) -> None:
    with pytest.raises(NgramSpecError, match=r"a plot must be a \.png or \.svg"):
        check_plottable(Path(name))


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NgramSpecError, match=r"pip install 'ngram-spec\[plot\]'"):
        check_plottable(Path("plot.png"))


def test_a_plot_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(NgramSpecError, match="cannot write the plot: No such file or directory"):
        write_plot(tmp_path / "no" / "plot.png", results(1), "a caption")
