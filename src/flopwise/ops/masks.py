"""Which keys a query sees, and which experts a batch touches: counts behind masks, windows and routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.ops.types import Floats, Ints, least, most

if TYPE_CHECKING:
    from flopwise.facts.architecture import Attend


def attended_pairs(item: Attend, query: Ints, context: Ints) -> Floats:
    """(query, key) pairs that the mask lets through in one sequence: the last `query` of `context` positions ask.

    Causal: the query at position p sees p + 1 keys; a window caps that at w, a chunk restarts it every c positions, a
    selection caps it at the number of keys chosen. With compression it sees, besides its window (if any), the keys of
    the (p + 1) // r finished groups of r tokens, and a selection caps those.

    Source: counting; for query = context = S it is S (S + 1) / 2, which papers round to S**2 / 2.
    Assumes: a window of a bidirectional layer is centred and never cut off by the ends of the sequence.
    """
    if item.cross or not item.causal:
        return 1.0 * query * (least(context, item.window) if item.window and not item.cross else context)
    first = context - query
    if item.chunk is not None:
        return _chunked_sum(context, item.chunk) - _chunked_sum(first, item.chunk)
    if item.compress:
        pairs = _grouped_sum(context, item.compress, item.select) - _grouped_sum(first, item.compress, item.select)
        if item.window is None:
            return pairs
        return pairs + _capped_sum(context, item.window) - _capped_sum(first, item.window)
    cap = min((c for c in (item.window, item.select) if c is not None), default=None)
    if cap is None:
        return query * (first + 0.5 * (query + 1))
    return _capped_sum(context, cap) - _capped_sum(first, cap)


def _capped_sum(n: Ints, cap: int) -> Floats:
    """min(1, cap) + ... + min(n, cap)."""
    short = least(n, cap)
    return 0.5 * short * (short + 1) + (n - short) * 1.0 * cap


def _chunked_sum(n: Ints, chunk: int) -> Floats:
    """1 + ... + chunk, again and again, over n terms."""
    rest = n % chunk
    return (n // chunk) * (0.5 * chunk * (chunk + 1)) + 0.5 * rest * (rest + 1)


def _grouped_sum(n: Ints, size: int, cap: int | None) -> Floats:
    """min(1 // size, cap) + ... + min(n // size, cap)."""
    short = n if cap is None else least(n, cap * size - 1)  # from cap * size on, the cap holds
    groups = short // size
    total: Floats = 0.5 * size * groups * (groups - 1) + groups * (short % size + 1.0)
    return total if cap is None else total + most(n - short, 0) * 1.0 * cap


def present_keys(item: Attend, context: Ints) -> Ints:
    """Keys that stand beside one another while `context` tokens are attended to, hidden ones included.

    A key a token; with compression one for each finished group, after those of the tokens themselves where the item
    has a window.

    Source: transformers 5.23, DeepSeek V4, which masks them all.
    Assumes: a group that is not full yet is no key.
    """
    if not item.compress:
        return context
    groups = context // item.compress
    return groups if item.window is None else context + groups


def seen_tokens(item: Attend, context: Ints, query: Ints = 1) -> Ints:
    """Cached keys that the last `query` queries of a sequence read together: all, or what their windows reach.

    Source: counting. Assumes: chunks are reached as windows are; selections of different queries do not overlap.
    """
    if item.compress:
        groups = context // item.compress
        seen = groups if item.select is None else least(groups, item.select * query)
        return seen if item.window is None else seen + least(context, item.window + query - 1)
    if item.select is not None:
        return least(context, item.select * query)
    cap = item.window if item.window is not None else item.chunk
    return context if cap is None or item.cross else least(context, cap + query - 1)


def touched_experts(experts: int, top_k: int, tokens: Floats, held: Ints) -> Floats:
    """Distinct experts, of the `held` ones, that at least one of `tokens` tokens chose: expectation, uniform routing.

    held * (1 - (1 - k / E) ** tokens).

    Source: balls into bins, each token choosing k of E without repetition.
    Assumes: the router spreads tokens evenly; a skewed router touches fewer.
    """
    return held * (1.0 - (1.0 - top_k / experts) ** tokens)
