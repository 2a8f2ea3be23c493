"""The curve of latency against throughput: one point a load, and where more load stops paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flopwise.ops.degrees import heads_and_experts
from flopwise.serving.job import ServeEstimate

SATURATED_FRAC = 0.9
"""Share of the highest throughput of an accelerator at which a deployment counts as saturated."""
NODE_GPUS = 8
"""Accelerators of a node: tensor parallelism is swept this far by default."""
MOST_LOAD = 4096
"""Requests in flight beyond which no engine's curve goes by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One load, or one tensor-parallel degree. Seconds; tokens (inputs, for encoders) per second."""

    value: int
    fits: bool
    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float | None
    mfu_frac: float
    roofline_frac: float  # what a step takes at datasheet rates, over what it takes
    bound: str
    usd_per_million_output_tokens: float | None


def load_curve(
    axis: str,
    values: Sequence[int] | None,
    first: ServeEstimate,
    replicas: int,
    estimate_at: Callable[[int], tuple[ServeEstimate, int]],
) -> tuple[tuple[SweepPoint, ...], SweepPoint | None]:
    """The points along `axis`, and the first whose accelerators deliver `SATURATED_FRAC` of the most.

    `values` None: powers of two, as far as the memory of `first` or its heads allow. `estimate_at` gives the estimate
    of one replica at a value, and how many replicas there are.
    """
    along = values or _default_values(axis, first, replicas)
    points = tuple(_sweep_point(value, *estimate_at(value)) for value in along)
    running = [point for point in points if point.fits]
    most = max((point.tokens_per_s_per_gpu for point in running), default=0.0)
    return points, next((point for point in running if point.tokens_per_s_per_gpu >= SATURATED_FRAC * most), None)


def _sweep_point(value: int, estimate: ServeEstimate, replicas: int) -> SweepPoint:
    """The point of an estimate of one replica, of which there are `replicas`."""
    tokens, tpot = estimate.output_tokens_per_s, estimate.tpot_s
    rate = estimate.requests_per_s if tokens is None else tokens.value
    same = ("e2e_s", "mfu_frac", "bound", "usd_per_million_output_tokens")
    return SweepPoint(
        value=value,
        fits=estimate.max_concurrency >= 1,
        ttft_s=estimate.ttft_s.value,
        tpot_s=None if tpot is None else tpot.value,
        tokens_per_s=rate * replicas,
        tokens_per_s_per_gpu=rate / estimate.num_gpus,
        tokens_per_s_per_user=None if tpot is None else 1 / tpot.value,
        roofline_frac=min(1.0, estimate.lower_bound_s / sum(seconds for _, seconds in estimate.breakdown)),
        **{name: getattr(estimate, name) for name in same},
    )


def _default_values(axis: str, estimate: ServeEstimate, replicas: int) -> tuple[int, ...]:
    """Powers of two: loads as far as memory holds and as many as it holds, or degrees that divide the heads."""
    if axis == "tp":
        job = estimate.job
        heads, _ = heads_and_experts(job.model)
        degrees = _powers_of_two(max(NODE_GPUS, int(job.layout.tp)))
        return tuple(degree for degree in degrees if heads is None or heads % degree == 0)
    most = max(1, min(estimate.max_concurrency * replicas, MOST_LOAD))
    return tuple(sorted({*_powers_of_two(most), most}))


def _powers_of_two(most: int) -> list[int]:
    return [2**power for power in range(max(1, most).bit_length())]
