"""Runs with known figures in a store, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recorded import run_named

from flopwise.records.measured import Measured, run_figures
from flopwise.records.model import Event, Expectation, ExpectedFigure, Sample
from flopwise.records.store import open_store

START = 1.7e9


def expectation(terms: Mapping[str, float], **figures: float) -> Expectation:
    """Figures with an interval of 20 % to either side."""
    return Expectation(
        figures={name: ExpectedFigure(metric=name, value=v, low=0.8 * v, high=1.2 * v) for name, v in figures.items()},
        terms=dict(terms), question="flopwise train x", version="0",
    )  # fmt: skip


def stored(
    store: Path, series: Mapping[str, list[float]], events: list[Event] | None = None, *, name: str = "run", **how: Any
) -> Measured:
    """A run of these values, a step a second, as it is measured; `metric@device` for those of one accelerator."""
    opened = open_store(store)
    run = run_named(name, **how)
    opened.add_run(run)
    samples = [
        Sample(key.partition("@")[0], START + step, value, step, key.partition("@")[2])
        for key, values in series.items()
        for step, value in enumerate(values, start=1)
    ]
    opened.append(run.run_id, samples, events or [])
    opened.set_status(run.run_id, "finished", START + 1000)
    return run_figures(opened, opened.run(run.run_id))
