"""The report as JSON: every figure that the terminal and the page show, and where the measurements are."""

import json
from pathlib import Path

from ngram_spec._core import NgramSpecError
from ngram_spec.bench.records import RUN_FILE
from ngram_spec.bench.summary import Summary

REPORT_FILE = "report.json"
# A modelled report may stand beside that of a live run.
MODELLED_FILE = "modelled.json"


def report_file(summary: Summary) -> str:
    """Return the name of the file that `write_json` is to write."""
    return MODELLED_FILE if summary.is_modelled else REPORT_FILE


def write_json(path: Path, summary: Summary) -> None:
    """Write the summary, and the name of the file beside it from whose blocks it can be computed again.

    Raises:
        NgramSpecError: the file cannot be written.
    """
    document = {
        "ngram_spec_version": summary.settings.ngram_spec_version,
        # A modelled summary has no measurements.
        "run": None if summary.is_modelled else RUN_FILE,
        "summary": summary.model_dump(mode="json"),
    }
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise NgramSpecError(f"{path}: cannot write the report: {error.strerror}") from error
