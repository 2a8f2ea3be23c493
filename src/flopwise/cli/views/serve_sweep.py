"""A sweep of serving: the latency-throughput curve as table, chart and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import questions
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.api.serve_sweep import ServeSweep
    from flopwise.serving.load_curve import SweepPoint

ALONG = {"concurrency": "requests in flight", "batch": "fixed batch", "tp": "tensor-parallel degree"}
TITLES = {"concurrency": "in flight", "batch": "batch", "tp": "tp"}


def document(answer: ServeSweep) -> dict[str, Any]:
    """The sweep as the JSON that scripts rely on."""
    job = answer.first.estimate.job
    return {
        "model": job.model.name,
        "gpu": job.cluster.accelerator.name,
        "axis": answer.axis,
        "points": answer.points,
        "saturation": None if answer.saturation is None else answer.saturation.value,
        "max_concurrency": answer.most_in_flight,
        "settings": dict(answer.first.settings),
        "assumptions": list(answer.assumptions),
    }


def blocks(answer: ServeSweep, paper: Screen) -> Iterator[str]:
    """The sweep as people read it."""
    job = answer.first.estimate.job
    yield heading(f"Serving {job.model.name} on {job.cluster.accelerator.name}, by {ALONG[answer.axis]}", paper)
    yield pairs([row for row in answer.first.settings if row[0] != "requests" or answer.axis == "tp"], paper)
    yield table(
        [
            f">{TITLES[answer.axis]}", ">TTFT", ">TPOT", ">request", ">tokens/s", ">per GPU", ">per user", ">MFU",
            ">of roofline", "bound", ">$/M output",
        ],
        [_row(p) for p in answer.points],
        paper,
        spare=(">of roofline", ">MFU", ">request", ">per GPU"),
    )  # fmt: skip
    yield _curve(answer, paper)
    yield _said(answer)
    yield questions.assumption_list(answer.assumptions)


def _row(p: SweepPoint) -> list[str]:
    if not p.fits:
        return [f"{p.value:,}", "no fit", *["-"] * 9]
    return [
        f"{p.value:,}",
        units.format_seconds(p.ttft_s),
        "-" if p.tpot_s is None else units.format_seconds(p.tpot_s),
        units.format_seconds(p.e2e_s),
        f"{p.tokens_per_s:,.0f}",
        f"{p.tokens_per_s_per_gpu:,.0f}",
        "-" if p.tokens_per_s_per_user is None else f"{p.tokens_per_s_per_user:,.1f}",
        units.format_percent(p.mfu_frac),
        units.format_percent(p.roofline_frac),
        p.bound,
        "-" if p.usd_per_million_output_tokens is None else f"{p.usd_per_million_output_tokens:,.3g}",
    ]


def _curve(answer: ServeSweep, paper: Screen) -> str:
    """Throughput of an accelerator against what a user sees: up and to the right is better."""
    running = [p for p in answer.points if p.fits]
    if any(p.tokens_per_s_per_user is None for p in running):
        points = [(p.e2e_s, p.tokens_per_s_per_gpu) for p in running]
        across = Axis("latency", units.format_seconds, log=True)
    else:
        points = [(p.tokens_per_s_per_user or 0.0, p.tokens_per_s_per_gpu) for p in running]
        across = Axis("tokens/s of a user", "{:,.0f}".format)
    return chart([Series("", points, line=True)], across, Axis("tokens/s of an accelerator", "{:,.0f}".format), paper)


def _said(answer: ServeSweep) -> str:
    """What the curve comes to, in a sentence."""
    at = answer.saturation
    if at is None:
        return "Nothing along this axis fits the memory."
    name = {"concurrency": "requests in flight", "batch": "requests a batch", "tp": "ranks"}[answer.axis]
    if answer.axis == "tp":
        best = max((p for p in answer.points if p.fits), key=lambda p: p.tokens_per_s_per_gpu)
        return f"An accelerator delivers most at tp {best.value:,}: {best.tokens_per_s_per_gpu:,.0f} tokens/s."
    share = units.format_percent(at.tokens_per_s_per_gpu / max(p.tokens_per_s_per_gpu for p in answer.points if p.fits))
    return (
        f"Saturated from {at.value:,} {name} on: {share} of the highest throughput, bound by {at.bound}; "
        f"memory holds {answer.most_in_flight:,}."
    )
