"""The drafter's twin: the longest match's most frequent continuation, looked up by brute force."""

from collections.abc import Sequence


def naive_draft(context: Sequence[int], max_draft_tokens: int) -> list[int]:
    """Return the draft of a drafter for which every token pays, for contexts of at most 32 tokens.

    (In longer ones the automaton does not count every suffix.)
    """
    tokens = list(context)
    for _ in range(max_draft_tokens):
        token = next_token(list(context), tokens)
        if token is None:
            break
        tokens.append(token)
    return tokens[len(context) :]


def next_token(context: list[int], tokens: list[int]) -> int | None:
    """Return what followed the longest suffix of `tokens` in `context` most often, the last if equal."""
    for length in range(len(tokens), 0, -1):
        counts: dict[int, int] = {}
        best = None
        for end in range(length, len(context)):
            if context[end - length : end] == tokens[-length:]:
                counts[context[end]] = counts.get(context[end], 0) + 1
                if best is None or counts[context[end]] >= counts[best]:
                    best = context[end]
        if best is not None:
            return best
    return None
