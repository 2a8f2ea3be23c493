"""The curve of latency against throughput: one point a load, and where more load stops paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from flopwise.cost.money import usd_per_million_tokens
from flopwise.ops.degrees import heads_and_experts
from flopwise.pictures import Picture, PointPicture
from flopwise.results import Result, attributes, notes
from flopwise.serving.answer import ServeAnswer
from flopwise.serving.job import ServeEstimate
from flopwise.units import format_percent
from flopwise.values import dataclass

AXES = ("concurrency", "batch", "tp")
"""What a sweep goes along."""
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
    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_requests: float | None

    def document(self) -> dict[str, Any]:
        """The point as the JSON that scripts rely on; what does not fit has no speed."""
        figures = {one.name: getattr(self, one.name) for one in fields(self)}
        return figures if self.fits else dict.fromkeys(figures) | {"value": self.value, "fits": False}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServeSweep(Result):
    """The points of a sweep, and the first whose accelerators deliver `SATURATED_FRAC` of the most."""

    axis: str
    points: tuple[SweepPoint, ...]
    saturation: SweepPoint | None
    most_in_flight: int  # that memory holds, of the last replica swept
    first: ServeAnswer
    table = "points"

    @classmethod
    def along(
        cls,
        axis: str,
        values: Sequence[int] | None,
        first: ServeAnswer,
        estimate_at: Callable[[int], tuple[ServeEstimate, int]],
    ) -> ServeSweep:
        """The sweep along `axis`; `values` None: powers of two, as far as the memory of `first` or its heads allow.

        `estimate_at` gives the estimate of one replica at a value, and how many replicas there are.
        """
        along = values or _default_values(axis, first.estimate, first.replicas)
        points = tuple(_sweep_point(value, *estimate_at(value)) for value in along)
        running = [point for point in points if point.fits]
        most = max((point.tokens_per_s_per_gpu for point in running), default=0.0)
        saturation = next((point for point in running if point.tokens_per_s_per_gpu >= SATURATED_FRAC * most), None)
        room = first.estimate.max_concurrency * first.replicas
        return cls(axis=axis, points=points, saturation=saturation, most_in_flight=room, first=first)

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The settings that all points share."""
        differ = ("replicas", "layout") if self.axis == "tp" else ("requests",)
        return tuple(row for row in self.first.settings if row[0] not in differ)

    @property
    def unit(self) -> str:
        """The unit of throughput: inputs of models that answer in one pass, else tokens."""
        return "inputs/s" if self.first.estimate.output_tokens_per_s is None else "tokens/s"

    @property
    def running(self) -> tuple[SweepPoint, ...]:
        """The points that fit the memory."""
        return tuple(p for p in self.points if p.fits)

    @property
    def verdict(self) -> str:
        """The best points of the curve, in a sentence."""
        at = self.saturation
        if at is None:
            return "Nothing along this axis fits the memory."
        best = max(self.running, key=lambda p: p.tokens_per_s_per_gpu)
        if self.axis == "tp":
            return (
                f"Throughput per accelerator is highest at tp {best.value:,}: "
                f"{best.tokens_per_s_per_gpu:,.0f} {self.unit}."
            )
        share = format_percent(at.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu)
        what = "requests in flight" if self.axis == "concurrency" else "requests per batch"
        return (
            f"Saturated from {at.value:,} {what}: {share} of the highest throughput, bound by {at.bound}; "
            f"memory holds {self.most_in_flight:,}."
        )

    def document(self) -> dict[str, Any]:
        """The sweep as the JSON that scripts rely on."""
        return {
            **attributes(self.first.estimate.job, "model=model.name gpu=cluster.accelerator.name"),
            "axis": self.axis,
            "points": [p.document() for p in self.points],
            **attributes(self, "saturation=saturation.value max_concurrency=most_in_flight"),
            **notes(self.first),
        }

    def curve(self) -> tuple[str, tuple[tuple[float, float], ...]]:
        """The name of the users' metric, and (metric, tokens/s per accelerator) of the points that fit.

        Tokens/s of a user, or the latency in seconds where there are none.
        """
        users = [p.tokens_per_s_per_user for p in self.running]
        if None in users:
            return "latency", tuple((p.e2e_s, p.tokens_per_s_per_gpu) for p in self.running)
        seen = zip(users, self.running, strict=True)
        return "tokens/s per user", tuple((user or 0.0, p.tokens_per_s_per_gpu) for user, p in seen)

    def picture(self) -> Picture:
        """Throughput of an accelerator against what a user sees."""
        seen, points = self.curve()
        x = f"{seen}, seconds" if seen == "latency" else seen
        series, y = {self.axis: points}, f"{self.unit} per accelerator"
        return PointPicture(title=self.verdict, x=x, y=y, series=series, lines=(self.axis,))


def _sweep_point(value: int, estimate: ServeEstimate, replicas: int) -> SweepPoint:
    """The point of an estimate of one replica, of which there are `replicas`."""
    tokens, tpot = estimate.output_tokens_per_s, estimate.further_token_s
    rate = estimate.requests_per_s if tokens is None else tokens.value
    hourly, per_s = estimate.usd_per_hour, estimate.requests_per_s
    same = ("e2e_s", "mfu_frac", "bound", "usd_per_million_input_tokens", "usd_per_million_output_tokens")
    return SweepPoint(
        value=value,
        fits=estimate.max_concurrency >= 1,
        ttft_s=estimate.ttft_s.value,
        tpot_s=None if tpot is None else tpot.value,
        tokens_per_s=rate * replicas,
        tokens_per_s_per_gpu=rate / estimate.num_gpus,
        tokens_per_s_per_user=None if tpot is None else 1 / tpot.value,
        roofline_frac=min(1.0, estimate.roofline_frac),
        usd_per_million_requests=None if hourly is None else float(usd_per_million_tokens(hourly, per_s)),
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
