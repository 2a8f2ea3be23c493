"""Serving at one load after another: the curve of latency against throughput, and where more load stops paying."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.api.serve import ServeAnswer, serve
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.spec import SourceSpec

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.facts.architecture import Model

AXES = ("concurrency", "batch", "tp")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSweep:
    """The points of a sweep, and the first whose accelerators deliver `SATURATED_FRAC` of the most."""

    axis: str
    points: tuple[SweepPoint, ...]
    saturation: SweepPoint | None
    most_in_flight: int  # that memory holds, of the last replica swept
    first: ServeAnswer
    assumptions: tuple[str, ...]


def serve_sweep(
    model: Model | str, axis: str, *, values: tuple[int, ...] | None = None, facts: Path | None = None, **how: Any
) -> ServeSweep:
    """Estimates along `axis`: "concurrency" (requests in flight), "batch" (fixed batches) or "tp".

    `values` None: powers of two as far as memory holds (for tp: that divide the heads, within a node of eight). All
    other keywords as `flopwise.serve`.

    Raises:
        UnknownNameError: no such axis.
        SpecError: a value that cannot be, or an axis whose value is fixed as well.
    """
    if axis not in AXES:
        raise UnknownNameError("sweep", axis, AXES, f"allowed: {', '.join(AXES)}")
    if how.get("rate") is not None:
        raise SpecError("a sweep fixes the requests in flight; leave the rate out")
    if axis != "tp" and how.get("concurrency") is not None:
        raise SpecError(f"--sweep {axis} sets the requests in flight itself; leave the concurrency out")
    how["static"] = axis == "batch" or bool(how.get("static"))
    family, offline = how.get("assume_family"), bool(how.get("offline"))
    found = SourceSpec(facts=facts, assume_family=family, offline=offline).layered(model)
    first = serve(found, facts=facts, **how)
    along = values or (_degrees(first) if axis == "tp" else _loads(first))
    answers = [(value, serve(found, facts=facts, **_at(how, axis, value))) for value in along]
    points = tuple(_point(value, answer) for value, answer in answers)
    running = [p for p in points if p.fits]
    most = max((p.tokens_per_s_per_gpu for p in running), default=0.0)
    saturated = next((p for p in running if p.tokens_per_s_per_gpu >= SATURATED_FRAC * most), None)
    return ServeSweep(
        axis=axis,
        points=points,
        saturation=saturated,
        most_in_flight=first.estimate.max_concurrency * first.replicas,
        first=first,
        assumptions=first.assumptions,
    )


def _at(how: dict[str, Any], axis: str, value: int) -> dict[str, Any]:
    """The keywords of one point; a deployment's own degree is replaced."""
    if axis != "tp":
        return how | {"concurrency": value}
    deployment = how.get("deployment")
    rest = {k: v for k, v in how.items() if k not in {"deployment", "tp", "gpus"}}
    return rest | ({"tp": value} if deployment is None else {"deployment": replace(deployment, tp=value)})


def _powers(most: int) -> list[int]:
    return [2**k for k in range(max(1, most).bit_length())]


def _loads(first: ServeAnswer) -> tuple[int, ...]:
    """Requests in flight: powers of two, and as many as memory holds."""
    most = max(1, min(first.estimate.max_concurrency * first.replicas, MOST_LOAD))
    return tuple(sorted({*_powers(most), most}))


def _degrees(first: ServeAnswer) -> tuple[int, ...]:
    """Tensor-parallel degrees that divide the heads, inside one node."""
    from flopwise.ops.degrees import heads_and_experts

    job = first.estimate.job
    heads, _ = heads_and_experts(job.model)
    most = max(NODE_GPUS, int(job.layout.tp))
    return tuple(d for d in _powers(most) if heads is None or heads % d == 0)


def _point(value: int, answer: ServeAnswer) -> SweepPoint:
    found, replicas = answer.estimate, answer.replicas
    tokens = found.output_tokens_per_s
    rate = found.requests_per_s if tokens is None else tokens.value
    return SweepPoint(
        value=value,
        fits=answer.fits,
        ttft_s=found.ttft_s.value,
        tpot_s=None if found.tpot_s is None else found.tpot_s.value,
        e2e_s=found.e2e_s,
        tokens_per_s=rate * replicas,
        tokens_per_s_per_gpu=rate / found.num_gpus,
        tokens_per_s_per_user=None if found.tpot_s is None else 1 / found.tpot_s.value,
        mfu_frac=found.mfu_frac,
        roofline_frac=min(1.0, found.lower_bound_s / sum(seconds for _, seconds in found.breakdown)),
        bound=found.bound,
        usd_per_million_output_tokens=found.usd_per_million_output_tokens,
    )
