"""Runs `ngram-spec replay` on small recordings, and adds up the counts of the JSON that it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from ngram_spec import cli

RECORDS: list[dict[str, Any]] = [
    {
        "id": "one",
        "prompt_token_ids": [*range(1, 20)],
        "output_token_ids": [3, 4, 5, 6, 7, 8, 9, 10, 99, 11, 12],
    },
    {"id": "two", "prompt_token_ids": [5, 6, 7] * 10, "output_token_ids": [5, 6, 7, 5, 6, 7, 5, 6, 7]},
]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command line that must fail, and return its one sentence."""
    assert cli.main(["replay", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ngram-spec replay: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def run(*arguments: object) -> dict[str, Any]:
    """Run a command line that must succeed, and return the JSON that it wrote last."""
    assert cli.main(["replay", *map(str, arguments)]) == 0
    document: dict[str, Any] = json.loads(Path(str(arguments[-1])).read_text())
    return document


def sums(result: dict[str, Any]) -> list[int]:
    names = ("num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens")
    return [sum(response[name] for response in result["responses"]) for name in (*names, "drafter_ns")]


def modelled_speedup(result: dict[str, Any], cost: float) -> float:
    steps, _, drafted, _, tokens, _ = sums(result)
    return tokens / (steps + cost * drafted)
