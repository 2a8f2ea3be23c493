"""Layouts with something in host memory: where nothing fits without, and where copying is quicker than recomputing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.search.training import Searched, Timed, evaluated
from flopwise.training.layout import Layout
from flopwise.training.memory import allocated_and_states, host_bytes
from flopwise.training.offload import passes_transfer_s
from flopwise.training.offloaded_activations import moved_bytes
from flopwise.training.stages import mode_index

if TYPE_CHECKING:
    from flopwise.search.nodes import NodeKind

ACTIVATIONS = ("activations",)
OFFLOADS = (
    (ACTIVATIONS, ("optimizer",), ("optimizer", "activations")),
    (("optimizer", "parameters"), ("optimizer", "parameters", "activations")),
)
"""What may live in host memory; the second row only where nothing of the first fits."""


def offloaded(job: Searched, parts: tuple[str, ...]) -> Searched:
    """The same job with `parts` in host memory."""
    space, table = job.space.offloaded(parts), job.memory
    moved = None
    if "activations" in parts and space.inner.tp.size:
        moved = moved_bytes(table, space.inner, space.degrees, Layout(offload_activations=True))
    return replace(
        job,
        space=space,
        allocated_bytes=evaluated(space, lambda layout: allocated_and_states(table, layout)[0]),
        host_bytes=evaluated(space, lambda layout: host_bytes(table, layout)),
        moved_bytes=moved,
    )


def without_recompute(job: Searched) -> Searched:
    """The same job with its candidates that compute nothing again."""
    families = tuple(replace(f, recomputes=f.recomputes[:1]) for f in job.space.families)
    return replace(
        job,
        space=replace(job.space, families=families),
        allocated_bytes=tuple(each[:, :, :1] for each in job.allocated_bytes),
        host_bytes=tuple(each[:, :, :1] for each in job.host_bytes),
    )


def without_pipelines(job: Searched) -> Searched:
    """The same job with its candidates of one pipeline stage: those of which activations are copied to the host.

    Source: Megatron Bridge, CPU offloading: that of activations, layer by layer, needs a pipeline of 1.
    """
    whole = [np.flatnonzero(job.space.degrees[family.degree_index] == 1) for family in job.space.families]
    kept = [(i, meshes) for i, meshes in enumerate(whole) if meshes.size]
    families = tuple(job.space.families[i].take(meshes) for i, meshes in kept)
    return replace(
        job,
        space=replace(job.space, families=families),
        allocated_bytes=tuple(job.allocated_bytes[i][..., meshes] for i, meshes in kept),
    )


@dataclass(slots=True)
class Offloads:
    """A job with what may be offloaded of it: spaces and their memory are evaluated once, for all kinds of node."""

    job: Searched
    known: dict[tuple[str, ...], Searched] = field(default_factory=dict)
    plain: Searched | None = None  # what copied activations are instead of

    def at(self, parts: tuple[str, ...]) -> Searched:
        """The job with `parts` in host memory."""
        if parts not in self.known:
            self.known[parts] = offloaded(self.single if "activations" in parts else self.job, parts)
        return self.known[parts]

    @property
    def single(self) -> Searched:
        """The job without pipelines."""
        if self.plain is None:
            self.plain = without_pipelines(self.job)
        return self.plain

    def worth_trying(
        self, node: NodeKind, result: Timed, clock: Callable[..., Timed]
    ) -> Iterator[tuple[Searched, Timed]]:
        """What `clock` finds for the jobs with something in host memory that may be worth it on `node`.

        `result`: without anything there. Where something fits, activations are copied if that takes less time than to
        compute them again, as the best do for room; where nothing fits, whatever lets something fit.
        """
        if not node.host_bytes or not node.cluster.rates.pcie_bytes_per_s:
            return
        if result.fitting:
            job = self.at(ACTIVATIONS)
            if copying_is_quicker(self.job, job, result):
                instead = without_recompute(job)
                yield instead, clock(instead, after=result, unless=without_recompute(self.single))
            return
        for row in OFFLOADS:
            fitting = 0
            for job in map(self.at, row):
                result = clock(job, after=result)
                fitting += result.fitting
                yield job, result
            if fitting:
                return


def copying_is_quicker(job: Searched, away: Searched, result: Timed) -> bool:
    """Whether any run of `result` that computes activations again would copy them in less time than that takes.

    Source: `passes_transfer_s` against the recompute line of the step. Assumes: runs that recompute nothing have room.
    """
    table, moved = result.table, away.moved_bytes
    if table is None or moved is None or not result.rows.size:
        return False
    inner, degree, layout = job.space.at_rows(result.rows)
    stage = table.stage_parts[:, :, degree, inner]
    again = np.take_along_axis(stage[2], mode_index(layout, table.partials)[None], 0)[0]
    copied = passes_transfer_s(0.0, moved[0, degree, inner], table.rates, stage[0, 0], stage[1, 0], 1.0)
    return bool(np.any(copied < again))
