"""How unevenly a router loads experts: the fullest rank, and what a capacity turns away.

Skew is the load of the most popular expert over the mean of all: 1 is balanced, and 1 + MaxVio in the terms of
Wang et al. 2024 (arXiv:2408.15664). Popularity falls off as a power of the rank (Zipf), with the exponent that the skew
implies.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flopwise.ops.types import Array, Floats, Ints

REBALANCED_SPREAD = 0.04
"""Standard deviation of the tokens of a rank over their mean that is left where popular experts have copies, beside
chance. Source: TensorRT-LLM, tech blog 4 (large-scale EP), table 1: 52.0 of 1,024 tokens at EP 32, where chance alone
gives 31.5."""
MEASURED_EXPERTS, MEASURED_SKEW = 256, 11.9
"""Experts of DeepSeek-R1, and tokens of the most popular one over the mean: 10.948 + 1 without a balancer, of a step.
Source: TensorRT-LLM, tech blog 4 (large-scale EP), table 1, by expert slot."""
LOSS_EXPONENT = 0.8
"""Power of the rank with which the popularity of 256 experts falls where only a loss evened out their load in training.

Source: TensorRT-LLM, pull request 19148: what its benchmark of experts draws to look like traces that were observed.
Checks: DeepSeek-R1's experts, which a bias evened out as well, have 0.59 by the most popular one (`MEASURED_SKEW`);
NVIDIA's AIConfigurator draws steeper ones for models without such a bias than for those with one."""
_HALVINGS = 60  # of the exponent's range, to the last bit of a float
_STEEPEST = 64.0  # exponent at which one expert has all but 2**-64 of the tokens

_normal_tail = np.frompyfunc(lambda z: 0.5 * math.erfc(z / math.sqrt(2.0)), 1, 1)


@lru_cache(maxsize=64)
def zipf_exponent(experts: int, skew: float) -> float:
    """The s at which shares of r**-s, r = 1 ... experts, make the first `skew` times their mean.

    Source: definition of the Zipf distribution; the skew falls from `experts` (s infinite) to 1 (s = 0) with s.
    Assumes: 1 <= skew <= experts.
    """
    low, high = 0.0, _STEEPEST
    place = np.arange(1, experts + 1)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if experts / (place**-middle).sum() < skew else (low, middle)
    return 0.5 * (low + high)


def expert_shares(experts: int, skew: float) -> NDArray[np.float64]:
    """Share of all routed tokens that each expert receives, most popular first; shape (experts,), sum 1.

    Source: `zipf_exponent`. Assumes: as there.
    """
    weight = np.arange(1, experts + 1, dtype=np.float64) ** -(zipf_exponent(experts, skew) if skew > 1 else 0.0)
    shares: NDArray[np.float64] = weight / weight.sum()
    return shares


def hottest_rank_load(experts: int, skew: float, ep: Ints) -> Floats:
    """Tokens of the fullest of `ep` ranks over the mean of all; shape of `ep`, from 1 (ep 1) to `skew` (ep = experts).

    The rank with the most popular expert, whose share is p = skew / E, holds E / ep - 1 others, which share 1 - p:
    ep (p + (E / ep - 1) (1 - p) / (E - 1)).

    Source: counting; sampled in tests/ops/test_routing.py, where it is at most 4 % below.
    Assumes: experts lie on ranks in an order that says nothing of their popularity; the rank with the most popular one
    is the fullest.
    """
    if experts <= 1 or skew <= 1:
        return 0.0 * np.asarray(ep) + 1.0
    first = skew / experts
    others = experts / np.asarray(ep) - 1.0
    return np.asarray(ep) * (first + np.maximum(others, 0.0) * (1.0 - first) / (experts - 1.0))


@lru_cache(maxsize=64)
def usual_skew(experts: int, top_k: int, *, steered: bool = True) -> float:
    """Tokens of the most popular of `experts` over the mean of all, while a model answers, where nobody balances them.

    As of 256 experts: measured, where a bias of the selection `steered` the router to even loads in training, else by
    `LOSS_EXPONENT`. Fewer ones are taken as if each were a group of those, and of more the first one has the same
    share, so that a number of ranks has the same fullest one whatever the number of experts: 1.13 times the mean of 4
    ranks, 1.30 of 8, 2.33 of 32 if steered, else 1.27, 1.63 and 3.78. No expert has a token twice.

    Source: TensorRT-LLM, tech blog 4 (large-scale EP), table 1: DeepSeek-R1, machine translation, mean of all layers
    and steps: the fullest of 32 ranks has 2.56 times the mean, chance included; `hottest_rank_load`; `LOSS_EXPONENT`.
    Checks: copies of popular experts made prompts 1.49 times as fast on 32 ranks (LMSYS, large-scale EP, 2025-05), and
    whole runs 1.17 to 1.34 times on 8 (ROCm/ATOM pull request 1210, DeepSeek-V4-Pro, random tokens); counted, the
    fullest of 4 ranks has 1.35 times the mean, in every step alike (aiconfigurator, EXPERT_ROUTING_CAPTURE.md:
    Qwen3.6-35B-A3B, random tokens, chance included).
    Assumes: other models and texts are no more even; Kimi-K3 is (1.07 on 16 ranks, vLLM pull request 50647).
    """
    skew = MEASURED_SKEW
    if not steered:
        skew = MEASURED_EXPERTS / float((np.arange(1, MEASURED_EXPERTS + 1) ** -LOSS_EXPONENT).sum())
    load = hottest_rank_load(MEASURED_EXPERTS, skew, experts)
    return float(np.clip(load, 1.0, experts / top_k))


def mean_maximum(mean: Floats, variance: Floats, n: Ints) -> Floats:
    """Mean of the largest of `n` independent normal numbers that have this mean and variance; shape of the broadcast.

    mean + sigma z, z the (n - 3/8) / (n + 1/4) quantile of the standard normal; the mean itself where n is 1.

    Source: Blom 1958, Statistical estimates and transformed beta-variables, chapter 6 (within 5 % of sigma z).
    Assumes: as stated.
    """
    largest: Floats = mean + np.sqrt(np.maximum(variance, 0.0)) * _largest_normal(n)
    return largest


def _largest_normal(n: Ints) -> Floats:
    """Mean of the largest of `n` standard normal numbers; shape of `n`."""
    sizes: NDArray[np.intp] = np.maximum(np.asarray(n), 1).astype(np.intp)
    largest: Floats = _largest_normals(1 << int(sizes.max(initial=1)).bit_length())[sizes]
    return largest


@lru_cache(maxsize=16)
def _largest_normals(end: int) -> NDArray[np.float64]:
    """The same of 0 (nothing), 1, ... numbers below `end`."""
    from statistics import NormalDist  # noqa: PLC0415 - only models with skewed experts ask

    inverse = NormalDist().inv_cdf
    return np.array([0.0, *(inverse((size - 0.375) / (size + 0.25)) for size in range(1, end))])


@lru_cache(maxsize=64)
def _octaves(experts: int, top_k: int, skew: float) -> tuple[tuple[int, float], ...]:
    """(experts, chance that a token chooses one of them) by popularity: the first, the second, two, four, eight ..."""
    shares, edges = expert_shares(experts, skew), [0, 1]
    while edges[-1] < experts:
        edges.append(min(2 * edges[-1], experts))
    parts = (shares[first:last] for first, last in pairwise(edges))
    return tuple((len(part), min(top_k * float(part.mean()), 1.0)) for part in parts)


def touched_frac(experts: int, top_k: int, tokens: Floats, skew: float = 1.0) -> Floats:
    """Expected share of `experts` that at least one of `tokens` tokens chose; shape of `tokens`.

    The mean of 1 - (1 - p)^tokens, p an expert's chance of being one of a token's: k / E each where all are as popular.
    Where some are more popular than others (`skew`), fewer have a token: p is the same for those of an octave of ranks.

    Source: counting; `expert_shares`; sampled in tests/ops/test_routing.py.
    Assumes: tokens choose independently of each other.
    """
    if skew <= 1:
        return 1.0 - (1.0 - top_k / experts) ** np.asarray(tokens)
    missed: Floats = 0.0
    for count, chance in _octaves(experts, top_k, skew):
        missed = missed + count / experts * (1.0 - chance) ** np.asarray(tokens)
    return 1.0 - missed


def balanced_rank_load(experts: int, skew: float, ep: int, redundant: int) -> float:
    """Tokens of the fullest of `ep` ranks over the mean, with `redundant` copies of popular experts, laid out evenly.

    The experts with most tokens for each copy get one more, one after another; then copies go, the fullest first, to
    the rank with least that has a place.

    Source: DeepSeek, EPLB (replicate_experts, balanced_packing). Assumes: tokens are as the placement expects them, and
    are shared evenly among the copies of an expert.
    """
    shares, copies = expert_shares(experts, skew), np.ones(experts)
    for _ in range(redundant):
        copies[np.argmax(shares / copies)] += 1
    loads = np.sort(np.repeat(shares / copies, copies.astype(int)))[::-1]
    rank, left = np.zeros(ep), np.full(ep, len(loads) // ep)
    for load in loads:
        place = int(np.argmin(np.where(left > 0, rank, np.inf)))
        rank[place] += load
        left[place] -= 1
    return float(rank.max() * ep)


def fullest_copies(experts: int, top_k: int, tokens: Floats, ep: Ints, skew: float = 1.0, redundant: int = 0) -> Floats:
    """Copies of tokens that the fullest of `ep` ranks is sent; shape of the broadcast.

    Tokens choose their experts independently, so that even balanced experts get unequal numbers: of copies a rank has
    about T k / ep with variance T k / ep (1 - 1 / ep). Popular experts (`skew`) come on top, as far as `redundant` ones
    do not make up for them.

    Source: `mean_maximum`, `hottest_rank_load`, `balanced_rank_load`; sampled in tests/ops/test_routing.py.
    Assumes: as there.
    """
    ranks = np.asarray(ep)
    load: Floats = hottest_rank_load(experts, skew, ep)
    spread = REBALANCED_SPREAD if redundant and skew > 1 else 0.0
    if redundant and skew > 1:
        sizes, back = np.unique(ranks, return_inverse=True)
        each = np.array([balanced_rank_load(experts, skew, int(size), redundant) for size in sizes])
        load = each[back].reshape(ranks.shape)
    mean = tokens * top_k / ranks * load
    variance = mean * (1.0 - 1.0 / ranks) + (spread * mean) ** 2
    copies = mean_maximum(mean, variance, ep)
    return np.minimum(copies, 1.0 * tokens * np.minimum(top_k, (experts + redundant) / ranks))


def busiest_rank(
    experts: int, top_k: int, tokens: Floats, ep: Ints, skew: float = 1.0, redundant: int = 0
) -> tuple[Floats, Floats]:
    """(`fullest_copies`, experts with at least one token) of the fullest of `ep` ranks; shape of the broadcast.

    Of touched experts a rank has about h p with variance h p (1 - p), where h = (E + R) / ep of them have a place there
    and p is `touched_frac`, of E + R even ones where any are redundant.

    Source: `mean_maximum`; sampled in tests/ops/test_routing.py. Assumes: as there.
    """
    places = experts + redundant
    local_experts = places / np.asarray(ep)
    copies = fullest_copies(experts, top_k, tokens, ep, skew, redundant)
    touched = touched_frac(places, top_k, tokens, 1.0 if redundant else skew)
    most = np.minimum(
        mean_maximum(local_experts * touched, local_experts * touched * (1.0 - touched), ep), local_experts
    )
    return copies, np.maximum(np.minimum(most, copies), local_experts * touched)


def dropped_frac(experts: int, skew: float, capacity: float, routed: Floats) -> Array:
    """Share of the `routed` copies of tokens that find their expert full; shape of `routed`.

    Each expert takes capacity x routed / E. The number it is sent is about normal with mean m = p routed and variance
    p (1 - p) routed; the expected excess over c is sigma phi(z) - (c - m) (1 - Phi(z)), z = (c - m) / sigma.

    Source: Fedus et al. 2021 (arXiv:2101.03961) equation 3 for the capacity; the excess of a normal variable is
    integration by parts. Sampled in tests/ops/test_routing.py.
    Assumes: copies choose their experts independently of one another.
    """
    sent = np.asarray(routed, dtype=np.float64)[..., None]
    share = expert_shares(experts, skew)
    mean, sigma = sent * share, np.sqrt(np.maximum(sent * share * (1.0 - share), 1e-30))
    room = capacity * sent / experts - mean
    z = room / sigma
    tail = np.asarray(_normal_tail(z), dtype=np.float64)
    excess = sigma * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) - room * tail
    dropped: Array = np.maximum(excess, 0.0).sum(axis=-1) / sent[..., 0]
    return dropped
