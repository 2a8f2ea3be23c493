"""What techniques make of requests before they run: prompts that are cached in part, answers that come in rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.errors import SpecError
from flopwise.serving.sim.trace import Column, RequestTrace
from flopwise.serving.technique_runner import cached_tokens

if TYPE_CHECKING:
    from flopwise.serving.sim.engine import ReplicaLimits

SEED = 0
"""Of the draws: the rounds of a request depend on its place in the trace alone."""


def rounds(output: Column, acceptance: float, proposals: int) -> Column:
    """Steps after which each answer of `output` tokens is whole; shape of `output`.

    The first token comes with the prompt. Each further step brings the proposals up to the first that is refused and
    one token of the target's own; what the last step brings beyond the answer is thrown away.

    Source: Leviathan et al. 2023 (arXiv:2211.17192) section 3.1, drawn instead of taken at its mean.
    Assumes: proposals are accepted independently with one probability.
    """
    rng = np.random.default_rng(SEED)
    left, steps = np.asarray(output) - 1, np.ones(len(output), dtype=np.int64)
    rows = np.flatnonzero(left > 0)
    longest = np.log(acceptance) if acceptance > 0 else -np.inf
    while rows.size:
        if acceptance >= 1:
            accepted = np.full(rows.size, proposals, dtype=np.int64)
        else:  # accepted proposals before the first refusal: geometric, up to all of them
            drawn = np.log1p(-rng.random(rows.size)) / longest
            accepted = np.minimum(drawn, proposals).astype(np.int64)
        left[rows] -= accepted + 1
        steps[rows] += 1
        rows = rows[left[rows] > 0]
    return steps


def assisted_requests(trace: RequestTrace, limits: ReplicaLimits) -> tuple[RequestTrace, Column]:
    """(the requests as replicas see them, tokens of each prompt that are cached already).

    Raises:
        SpecError: shared tokens or hits for requests that say themselves what they share.
    """
    hits = np.zeros(len(trace), dtype=np.int64)
    if (limits.shared_tokens or limits.hit_frac) and np.any(trace.prefix >= 0):
        raise SpecError(
            "the requests have prefixes of their own (--prefixes, or a trace's column prefix); leave --shared-prefix "
            "and --prefix-hit out"
        )
    if limits.shared_tokens:
        shared = np.minimum(limits.shared_tokens, trace.prompt)
        trace = replace(trace, prefix=np.zeros_like(hits), prefix_tokens=shared)
    if limits.hit_frac:
        hits = np.asarray(cached_tokens(trace.prompt, hit_frac=limits.hit_frac)).astype(np.int64)
    if limits.proposals:
        trace = replace(trace, output=rounds(trace.output, limits.acceptance, limits.proposals))
    return trace, hits
