"""Text that only repeats itself: it is drafted as well as no real text, so no speed on it counts."""

import re
import zlib
from collections.abc import Sequence

from ngram_spec.bench.records import Answer

# What a model is caught in is a token, a sentence of some twenty to fifty, or a paragraph.
MAX_PERIOD = 512
MIN_REPEATS = 4
# So many tokens, or this share of the answer: the end of a table or of a list is neither.
MIN_LOOP_LEN = 64
MIN_LOOP_SHARE = 0.5

_PIECES = re.compile(r"\w+|\s+|[^\w\s]")


def loop_len(tokens: Sequence[object]) -> int:
    """Return how many tokens at the end are the same few again and again, 0 where they are not.

    The last token may be another one, since an answer may yet end itself.

    >>> loop_len([9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    12
    >>> loop_len([9, 8, 7, 6, 5, 4, 3, 3, 3, 3])
    0
    """
    longest = 0
    for end in (len(tokens), len(tokens) - 1):
        for period in range(1, MAX_PERIOD + 1):
            start = end - period
            while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
                start -= 1
            length = end - start
            is_long = length >= MIN_LOOP_LEN or length >= MIN_LOOP_SHARE * len(tokens)
            if start >= 0 and is_long and length >= MIN_REPEATS * period:
                longest = max(longest, length)
    return longest


def loop_share(answer: Answer) -> float:
    """Return the share of the answer that is a loop at its end, by words where there are no token ids."""
    tokens: Sequence[object] = answer.token_ids or _PIECES.findall(answer.text)
    return loop_len(tokens) / len(tokens) if tokens else 0.0


def compression(text: str) -> float:
    """Return by how much zlib makes the text smaller: about 2 for prose, 3 to 6 for code, 100 for a loop."""
    content = text.encode(errors="replace")
    return len(content) / len(zlib.compress(content))
