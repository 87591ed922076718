"""Gives the benches real text as token ids: named recordings, or the sources of Python's own library.

    python benches/text.py OUT [RECORDING...]

writes them to OUT as little-endian int32, for the bench in Rust.
"""

import argparse
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from ngram_spec.recordings import QwenTokenizer, load_responses

NUM_TOKENS = 800_000


def text_tokens(recordings: Sequence[Path] = ()) -> npt.NDArray[np.int32]:
    """Return `NUM_TOKENS` token ids of running text, repeated from the start where it is shorter."""
    tokenizer = QwenTokenizer()
    token_ids: list[int] = []
    for text in _texts(recordings):
        token_ids += tokenizer.encode(text)
        if len(token_ids) >= NUM_TOKENS:
            break
    return np.resize(np.array(token_ids, dtype=np.int32), NUM_TOKENS)


def _texts(recordings: Sequence[Path]) -> Iterable[str]:
    if not recordings:
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        yield from (source.read_text(encoding="utf-8", errors="replace") for source in sources)
    for file in recordings:
        # Of a dialogue that is replayed turn by turn, the last turn has all of it.
        yield from ((r.context or "") + (r.output or "") for r in load_responses(file) if r.turn is None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("recordings", nargs="*", type=Path)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text_tokens(options.recordings).astype("<i4").tofile(options.out)
