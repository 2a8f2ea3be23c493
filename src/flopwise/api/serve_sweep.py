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
    from flopwise.serving.job import ServeEstimate
    from flopwise.serving.load_curve import SweepPoint

AXES = ("concurrency", "batch", "tp")


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
    from flopwise.serving.load_curve import load_curve

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

    def estimate_at(value: int) -> tuple[ServeEstimate, int]:
        answer = serve(found, facts=facts, **_at(how, axis, value))
        return answer.estimate, answer.replicas

    points, saturation = load_curve(axis, values, first.estimate, first.replicas, estimate_at)
    return ServeSweep(
        axis=axis,
        points=points,
        saturation=saturation,
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
