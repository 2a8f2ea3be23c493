"""Replicas on several kinds of nodes with the same devices, timed together: what a step costs is mostly its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from flopwise.facts.architecture import Item
from flopwise.ops.types import Array, Floats
from flopwise.search.replica import DEGREES
from flopwise.serving.iteration import Runner, StepLoad, StepTime
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.steady import Percentile, Steady, closed_loop, full_step_s, open_loop_percentile
from flopwise.serving.techniques import request_work, runner
from flopwise.values import dataclass

T = TypeVar("T", Steady, Percentile)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRunner(Runner):
    """A runner of the rows of several: their kernels are the same, messages go over the links of each.

    `parts`: the rows of each, and its own runner.
    """

    parts: tuple[tuple[slice, Runner], ...] = ()

    def messages_s(self, items: Sequence[Item], load: StepLoad, split: ServingLayout, width: int) -> Floats:
        """As each has them; shape of the rows."""
        return self._each(split, lambda one, rows: one.messages_s(items, _rows(load, rows), _rows(split, rows), width))

    def pipeline_s(self, load: StepLoad, split: ServingLayout, width: int) -> Floats:
        """As each has it; shape of the rows."""
        return self._each(split, lambda one, rows: one.pipeline_s(_rows(load, rows), _rows(split, rows), width))

    def _each(self, split: ServingLayout, seconds: Callable[[Runner, slice], Floats]) -> Floats:
        found = np.empty(np.size(split.tp))
        for rows, one in self.parts:
            found[rows] = seconds(one, rows)
        return found


class JoinedReplicas:
    """Replicas of several jobs that differ in their links and layouts alone; `sizes` of each: sequences in flight."""

    def __init__(self, jobs: Sequence[ServeJob]) -> None:
        machines = [runner(job) for job in jobs]
        ends = np.cumsum([np.size(job.layout.tp) for job in jobs]).tolist()
        self.rows = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        plain = {f.name: getattr(machines[0], f.name) for f in fields(Runner) if f.init}
        self.machine = JoinedRunner(**plain, parts=tuple(zip(self.rows, machines, strict=True)))
        self.layout = ServingLayout(**{
            name: np.concatenate([np.asarray(getattr(job.layout, name)) for job in jobs]) for name in DEGREES
        })  # fmt: skip
        self.work = request_work(jobs[0])

    def closed_loops(self, in_flight: Sequence[Floats]) -> list[Steady]:
        """Each job's replicas with so many in flight: `closed_loop`."""
        return list(self._split(self._closed_loop(in_flight)))

    def open_loops(
        self, in_flight: Sequence[Floats], arrivals_per_s: Sequence[Floats], percentiles: Sequence[str]
    ) -> list[tuple[Steady, dict[str, Percentile]]]:
        """Each job's replicas with as many in flight as arrive, and what the percentiles of requests see."""
        steady, arrivals = self._closed_loop(in_flight), np.concatenate(arrivals_per_s)
        seen = {
            name: list(self._split(open_loop_percentile(self.machine, self.layout, steady, arrivals, *self.work, name)))
            for name in percentiles
        }
        each = self._split(steady)
        return [(one, {name: values[n] for name, values in seen.items()}) for n, one in enumerate(each)]

    def full_steps_s(self, batches: Sequence[Floats]) -> list[Array]:
        """Seconds of each job's steps that use all of their prefill budget while `batches` decode."""
        whole: Array = np.asarray(full_step_s(self.machine, self.layout, np.concatenate(batches), *self.work))
        return [whole[rows] for rows in self.rows]

    def _closed_loop(self, in_flight: Sequence[Floats]) -> Steady:
        return closed_loop(self.machine, self.layout, np.concatenate(in_flight), *self.work)

    def _split(self, columns: T) -> Iterator[T]:
        return (_rows_of(columns, rows) for rows in self.rows)


def _rows(value: Any, rows: slice) -> Any:
    """A load or a layout of only these rows."""
    columns = {f.name: getattr(value, f.name) for f in fields(value)}
    return replace(value, **{name: column[rows] for name, column in columns.items() if np.ndim(column)})


def _rows_of(columns: Any, rows: slice) -> Any:
    """A tuple of columns, or of such tuples, of only these rows; a number stays one."""
    if isinstance(columns, StepTime | Steady | Percentile):
        return type(columns)(*(_rows_of(column, rows) for column in columns))
    column: Array = columns
    return column[rows] if np.ndim(column) else column
