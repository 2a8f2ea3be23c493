"""The whole run of a training job: on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import questions
from flopwise.cli.render import Screen, heading, pairs

if TYPE_CHECKING:
    from flopwise.api.train import TrainAnswer


def document(answer: TrainAnswer) -> dict[str, Any] | None:
    """The run as JSON; nothing without a length."""
    run, rules = answer.estimate.run, answer.rules
    if run is None:
        return None
    return {
        "tokens": run.tokens,
        "steps": run.steps,
        "seconds": run.seconds,
        "gpu_hours": run.gpu_hours,
        "goodput_frac": run.goodput_frac,
        "cost_usd": run.cost_usd,
        "energy_joules": run.energy_joules,
        "breakdown": [{"name": name, "seconds": seconds} for name, seconds in run.breakdown],
        "checkpoint_bytes": run.checkpoint_bytes,
        "checkpoint_write_s": run.checkpoint_write_s,
        "checkpoint_bytes_per_s": run.checkpoint_bytes_per_s,
        "checkpoint_interval_s": run.checkpoint_interval_s,
        "mtbf_s": run.mtbf_s,
        "interruptions": run.interruptions,
        "compute_optimal_tokens": None if rules is None else rules.compute_optimal_tokens,
        "critical_batch_tokens": None if rules is None else rules.critical_batch_tokens,
        "notes": [] if rules is None else list(rules.notes),
    }


def blocks(answer: TrainAnswer, paper: Screen) -> Iterator[str]:
    """The run as people read it."""
    run = answer.estimate.run
    assert run is not None
    yield heading(f"The run: {units.format_count(run.tokens)} tokens in {run.steps:,.0f} steps", paper)
    yield pairs(_figures(answer), paper)
    yield questions.shares(run.breakdown, units.format_seconds, paper)
    if answer.rules is not None:
        yield "\n".join(f"  - {note}" for note in answer.rules.notes)


def _figures(answer: TrainAnswer) -> list[tuple[str, Any]]:
    run, band = answer.estimate.run, answer.estimate.band
    assert run is not None
    low, high = run.seconds / band.high, run.seconds / band.low
    size, write = units.format_bytes(run.checkpoint_bytes), units.format_seconds(run.checkpoint_write_s)
    every = units.format_seconds(run.checkpoint_interval_s)
    return [
        ("time", f"{units.format_seconds(run.seconds)} ({units.format_seconds(low)} to {units.format_seconds(high)})"),
        ("accelerator-hours", f"{run.gpu_hours:,.0f}" if run.gpu_hours >= 100 else f"{run.gpu_hours:,.3g}"),
        ("goodput", f"{units.format_percent(run.goodput_frac)} of the time makes progress"),
        ("interruptions", f"{run.interruptions:,.3g}, one each {units.format_seconds(run.mtbf_s)}"),
        ("checkpoint", f"{size} every {every}, written in {write} at {units.format_rate(run.checkpoint_bytes_per_s)}"),
        ("cost", questions.price(run.cost_usd)),
        ("energy", questions.energy(run.energy_joules)),
    ]
