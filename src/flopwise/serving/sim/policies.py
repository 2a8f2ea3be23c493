"""Who goes first and who goes where: scheduling policies and balancers, one row each.

A policy gives every request a key; the smallest goes first, and among equal keys who came first. A balancer says which
replica a request is sent to; the rule itself stands in the compiled core.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import UnknownNameError
from flopwise.serving.sim.trace import Column, RequestTrace

LATEST = np.iinfo(np.int64).max

POLICIES: dict[str, Callable[[RequestTrace], Column]] = {
    "fcfs": lambda trace: np.zeros(len(trace), dtype=np.int64),  # first come, first served
    "priority": lambda trace: trace.priority,
    # The least mean wait of all orders (Smith 1956); needs to know how long answers become.
    "shortest": lambda trace: trace.prompt + trace.output,
    "shortest-prompt": lambda trace: trace.prompt,
    # Requests without a deadline last (Liu and Layland 1973).
    "deadline": lambda trace: np.where(trace.deadline_ps < 0, LATEST, trace.deadline_ps),
}
"""Keys of requests, by name."""
BALANCERS: dict[str, str] = {
    "round-robin": "one after another",
    "least-loaded": "the fewest requests that wait or run",
    "least-tokens": "the fewest tokens of prompts and answers that wait or run",
    "prefix-aware": "the replica that last had the prefix, unless it has far more load than the least loaded",
}
"""Names and what they do; `ROUND_ROBIN` and the others are their places."""
ROUND_ROBIN, LEAST_LOADED, LEAST_TOKENS, PREFIX_AWARE = range(4)
BEHIND_REQUESTS = 64
"""A prefix is left behind where its replica has so many more requests than the least loaded, and half as many again.

Source: the thresholds (64, 1.5) of the cache-aware policy of SGLang's router.
"""


def policy_named(policy: str) -> Callable[[RequestTrace], Column]:
    """The keys of a policy. Raises: UnknownNameError: no such policy."""
    if policy not in POLICIES:
        raise UnknownNameError("policy", policy, POLICIES, f"allowed: {', '.join(POLICIES)}")
    return POLICIES[policy]


def ranks(trace: RequestTrace, policy: str) -> tuple[Column, Column]:
    """The requests in the order of a policy, and the place of each of them in it.

    Raises: UnknownNameError: no such policy.
    """
    key_of, rows = policy_named(policy), np.arange(len(trace))
    if policy == "fcfs":
        return rows, rows
    by_rank, rank = order(key_of(trace)), np.empty_like(rows)
    rank[by_rank] = rows
    return by_rank, rank


def order(key: Column) -> Column:
    """Rows by key, and by row where keys are equal.

    By 16 bits after the other, the lowest first: numpy sorts numbers that short by counting instead of comparing. Of
    long keys by their first 32 bits, and by all of them only those few that begin alike.
    """
    above = (key - key.min(initial=LATEST)).view(np.uint64)  # what is too large for int64 is right without its sign
    long = int(above.max(initial=0)).bit_length() - FIRST_BITS
    if long <= 0:
        return _by_digits(above)
    begins = above >> np.uint64(long)
    rows = _by_digits(begins)
    alike = begins[rows[1:]] == begins[rows[:-1]]
    if 8 * np.count_nonzero(alike) > len(key):
        return _by_digits(above)
    places = np.flatnonzero(np.r_[False, alike] | np.r_[alike, False])
    rows[places] = rows[places][np.lexsort((rows[places], above[rows[places]]))]
    return rows


FIRST_BITS = 32
"""Bits by which keys are put in order at first."""


def _by_digits(above: NDArray[np.uint64]) -> Column:
    if not above.any():
        return np.arange(len(above))
    rows = np.argsort(above.astype(np.uint16), kind="stable")
    while (above := above >> np.uint64(16)).any():
        rows = rows[np.argsort(above.astype(np.uint16)[rows], kind="stable")]
    return rows
