"""Which keys a query sees, and which experts a batch touches: counts behind masks, windows and routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.ops.types import Floats, Ints, least

if TYPE_CHECKING:
    from flopwise.facts.architecture import Attend


def attended_pairs(item: Attend, query: Ints, context: Ints) -> Floats:
    """(query, key) pairs that the mask lets through in one sequence: the last `query` of `context` positions ask.

    Causal: the query at position p sees p + 1 keys; a window caps that at w, a chunk restarts it every c positions, a
    selection caps it at the number of keys chosen.

    Source: counting; for query = context = S it is S (S + 1) / 2, which papers round to S**2 / 2.
    Assumes: a window of a bidirectional layer is centred and never cut off by the ends of the sequence.
    """
    if item.cross or not item.causal:
        return 1.0 * query * (least(context, item.window) if item.window and not item.cross else context)
    first = context - query
    if item.chunk is not None:
        return _chunked_sum(context, item.chunk) - _chunked_sum(first, item.chunk)
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


def seen_tokens(item: Attend, context: Ints, query: Ints = 1) -> Ints:
    """Cached tokens that the last `query` queries of a sequence read together: all, or what their windows reach.

    Source: counting. Assumes: chunks are reached as windows are; selections of different queries do not overlap.
    """
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
