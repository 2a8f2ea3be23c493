"""Layouts with something in host memory: where nothing fits without, and where copying is quicker than recomputing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from flopwise.search.layout_search import LayoutSearch, TimedLayouts
from flopwise.search.nodes import NodeKind
from flopwise.training.layout import Layout
from flopwise.training.memory import host_bytes
from flopwise.training.stage_memory import moved_bytes
from flopwise.training.stages import mode_index
from flopwise.training.step import passes_transfer_s

ACTIVATIONS = ("activations",)
OFFLOADS = (
    (ACTIVATIONS, ("optimizer",), ("optimizer", "activations")),
    (("optimizer", "parameters"), ("optimizer", "parameters", "activations")),
)
"""What may live in host memory; the second row only where nothing of the first fits."""


def with_offload(search: LayoutSearch, parts: tuple[str, ...]) -> LayoutSearch:
    """The same search with `parts` in host memory; parameters are offloaded in shards (ZeRO 3) only."""
    families, table, moved = search.space.families, search.memory, None
    if "parameters" in parts:
        sharded = (replace(family, zeros=tuple(z for z in family.zeros if z == 3)) for family in families)
        families = tuple(family for family in sharded if family.zeros)
    space = replace(search.space, families=families, offload=parts)
    if "activations" in parts and space.inner.tp.size:
        moved = moved_bytes(table, space.inner, space.degrees, Layout(offload_activations=True))
    away = replace(search, space=space, moved_bytes=moved).with_memory()
    return replace(away, host_bytes=away.bytes_by_family(lambda layout: host_bytes(table, layout)))


def without_recompute(search: LayoutSearch) -> LayoutSearch:
    """The same search with its candidates that compute nothing again."""
    families = tuple(replace(f, recomputes=f.recomputes[:1]) for f in search.space.families)
    return replace(
        search,
        space=replace(search.space, families=families),
        allocated_bytes=tuple(each[:, :, :1] for each in search.allocated_bytes),
        host_bytes=tuple(each[:, :, :1] for each in search.host_bytes),
    )


def without_pipelines(search: LayoutSearch) -> LayoutSearch:
    """The same search with its candidates of one pipeline stage: those of which activations are copied to the host.

    Source: Megatron Bridge, CPU offloading: that of activations, layer by layer, needs a pipeline of 1.
    """
    whole = [np.flatnonzero(search.space.degrees[family.degree_index] == 1) for family in search.space.families]
    kept = [(i, meshes) for i, meshes in enumerate(whole) if meshes.size]
    families = tuple(search.space.families[i].take(meshes) for i, meshes in kept)
    memory = tuple(search.allocated_bytes[i][..., meshes] for i, meshes in kept)
    return replace(search, space=replace(search.space, families=families), allocated_bytes=memory)


@dataclass(slots=True)
class Offloads:
    """A search with what may be offloaded: spaces and their memory are evaluated once, for all kinds of node."""

    search: LayoutSearch
    known: dict[tuple[str, ...], LayoutSearch] = field(default_factory=dict)
    plain: LayoutSearch | None = None  # what copied activations are instead of

    def at(self, parts: tuple[str, ...]) -> LayoutSearch:
        """The search with `parts` in host memory."""
        if parts not in self.known:
            self.known[parts] = with_offload(self.single if "activations" in parts else self.search, parts)
        return self.known[parts]

    @property
    def single(self) -> LayoutSearch:
        """The search without pipelines."""
        if self.plain is None:
            self.plain = without_pipelines(self.search)
        return self.plain

    def worth_trying(
        self, node: NodeKind, result: TimedLayouts, clock: Callable[..., TimedLayouts]
    ) -> Iterator[tuple[LayoutSearch, TimedLayouts]]:
        """What `clock` finds for the searches with something in host memory that may be worth it on `node`.

        `result`: without anything there. Where something fits, activations are copied if that takes less time than to
        compute them again, as the best do for room; where nothing fits, whatever lets something fit.
        """
        if not node.host_bytes or not node.cluster.rates.pcie_bytes_per_s:
            return
        if result.fitting:
            away = self.at(ACTIVATIONS)
            if copying_is_quicker(self.search, away, result):
                instead = without_recompute(away)
                yield instead, clock(instead, after=result, unless=without_recompute(self.single))
            return
        for row in OFFLOADS:
            fitting = 0
            for away in map(self.at, row):
                result = clock(away, after=result)
                fitting += result.fitting
                yield away, result
            if fitting:
                return


def copying_is_quicker(search: LayoutSearch, away: LayoutSearch, result: TimedLayouts) -> bool:
    """Whether any run of `result` that computes activations again would copy them in less time than that takes.

    Source: `passes_transfer_s` against the recompute line of the step. Assumes: runs that recompute nothing have room.
    """
    table, moved = result.table, away.moved_bytes
    if table is None or moved is None or not result.rows.size:
        return False
    inner, degree, layout = search.space.at_rows(result.rows)
    stage = table.stage_parts[:, :, degree, inner]
    again = np.take_along_axis(stage[2], mode_index(layout, table.partials)[None], 0)[0]
    copied = passes_transfer_s(0.0, moved[0, degree, inner], table.rates, stage[0, 0], stage[1, 0], 1.0)
    return bool(np.any(copied < again))
