"""All layouts of a training job, as columns; what cannot be is not made, or counted by reason.

A mesh is dp x tp x pp x cp x ep with its micro-batch and, in HSDP, the ranks that share the weights. ZeRO stage,
interleaving and recompute are chosen on it. Meshes that leave the same choices open are a `Family`: its candidates are
the product of choices and meshes, kept on axes of their own, so that what depends on the mesh alone is evaluated once a
mesh and not once a candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.architecture import Model
from flopwise.ops.columns import ascending
from flopwise.ops.types import Ints
from flopwise.training.layout import COLUMNS, ENDS, Inner, Layout, Recipe
from flopwise.training.schedules import INTERLEAVED, NAMES, SCHEDULES, Pipe, runs, schedule_code, schedule_name
from flopwise.training.stages import FULL, Partial, cuts_alike, partials_of
from flopwise.values import dataclass, replace

Column = NDArray[np.int64]
Index = NDArray[np.intp]

MODES = (0, 1, 2)
"""Recompute modes: none, selective, full."""
EVERY = (2, 3, 4)
"""Full recompute of every n-th block only, for these n."""
PARTIALS = tuple(Partial(every=n) for n in EVERY)
"""What step tables of a search have beside recompute of all blocks."""
OFFLOADED = ("optimizer", "parameters", "activations")
"""What may live in host memory."""
CHUNK = 49_152
"""Candidates evaluated at once: the columns of their meshes, a sixth to an eighteenth as long, stay in the cache."""
MAX_INTERLEAVE = 16
"""Virtual stages of a rank that are tried at most: published runs have up to twelve (GPT-3 in MLPerf)."""
MIN_GROUP_GPUS = 4
"""The smallest node within which weights are sharded and beyond which they are replicated (HSDP)."""
ODD_NODES = (6, 12, 36, 72)
"""Devices of nodes and racks whose number is no power of two: groups of HSDP beside the powers."""
MAX_PP = 64
MAX_TP = 16
MAX_EP = 256
MAX_MICRO_BATCH = 32
MAX_MICRO_TOKENS = 131_072
"""Micro-batches of more than `MAX_MICRO_BATCH` sequences are tried up to so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLimits:
    """The limits of the layout by model and job."""

    heads: int
    layers: int
    experts: int
    seq_len: int
    global_batch: int

    @staticmethod
    def of(model: Model, seq_len: int, global_batch: int) -> LayoutLimits:
        """The limits of the stack that generates."""
        stack = model.stacks[0]
        return LayoutLimits(
            heads=stack.fewest_heads or 1,
            layers=stack.num_layers,
            experts=1 if stack.largest_experts is None else stack.largest_experts.experts,
            seq_len=seq_len,
            global_batch=global_batch,
        )


class Turns(NamedTuple):
    """The schedule of micro-batches in a pipeline: virtual stages a rank, and the schedule's code."""

    interleave: int = 1
    schedule: int = 0


class Pipelines(NamedTuple):
    """Schedules that are tried in pipelines: 1F1B, interleaved or not, and `codes`; or those alone.

    `unpiped`, `piped`: ZeRO stages that are tried without a pipeline and in one. `chunks`: virtual stages of a rank
    that are tried, where not all. `needed`: only pipelines are tried. `most`: their largest degree.
    """

    codes: tuple[int, ...] = ()
    interleaved: bool = True
    alone: bool = False
    unpiped: tuple[int, ...] = (0, 1, 2, 3)
    piped: tuple[int, ...] = (0, 1)
    chunks: tuple[int, ...] = ()
    needed: bool = False
    most: int = MAX_PP

    @property
    def virtual(self) -> Iterator[int]:
        """Virtual stages of a rank that 1F1B is tried with beside one."""
        tried = self.chunks or range(2, MAX_INTERLEAVE + 1)
        return (n for n in tried if n > 1 and self.interleaved)

    @staticmethod
    def of(recipe: Recipe, schedule: str | None) -> Pipelines:
        """The schedules that a recipe's stack runs and that may be quicker, or the one asked for; and its ZeRO stages.

        Raises: SpecError: there is no such schedule.
        """
        unpiped, piped = (recipe.zero_stages(piped=in_pipeline) for in_pipeline in (False, True))
        if schedule is None:
            codes = sorted({schedule_code(name) for name in recipe.stack.schedules})
            quicker = (code for code in codes if SCHEDULES[NAMES[code]].splits_backward)  # GPipe never is
            return Pipelines(tuple(quicker), unpiped=unpiped, piped=piped)
        if (name := schedule_name(schedule)) == INTERLEAVED:
            return Pipelines(chunks=tuple(range(2, MAX_INTERLEAVE + 1)), unpiped=unpiped, piped=piped)
        only = () if name == NAMES[0] else (NAMES.index(name),)
        return Pipelines(only, interleaved=False, alone=bool(only), unpiped=unpiped, piped=piped)

    def turns(self, chosen: Iterable[Turns]) -> tuple[Turns, ...]:
        """The turns that are tried on meshes where `chosen` are possible."""
        orders = tuple(chosen)
        orders = orders if self.alone and orders else (Turns(), *orders)
        return tuple(one for one in orders if not self.chunks or one.interleave in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Meshes that leave the same choices open; candidates have the axes (ZeRO stage, turns, recompute, mesh)."""

    inner_index: Index
    degree_index: Index
    dp: Column
    num_gpus: Column
    shard: Column | None  # ranks of a group of HSDP; None: ZeRO shards over all ranks
    zeros: tuple[int, ...]
    turns: tuple[Turns, ...]
    recomputes: tuple[int, ...]

    @property
    def meshes(self) -> int:
        """Number of meshes."""
        return int(self.dp.size)

    @property
    def choices(self) -> int:
        """Candidates of each mesh."""
        return len(self.zeros) * len(self.turns) * len(self.recomputes)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The axes' lengths."""
        return (len(self.zeros), len(self.turns), len(self.recomputes), self.meshes)

    def take(self, meshes: Index | slice) -> Family:
        """The same choices on only these meshes."""
        return replace(
            self, inner_index=self.inner_index[meshes], degree_index=self.degree_index[meshes], dp=self.dp[meshes],
            num_gpus=self.num_gpus[meshes], shard=None if self.shard is None else self.shard[meshes],
        )  # fmt: skip

    def chunks(self, rows: int) -> Iterator[slice]:
        """Slices of the meshes with about `rows` candidates each."""
        step = max(1, rows // self.choices)
        return (slice(start, min(start + step, self.meshes)) for start in range(0, self.meshes, step))

    @classmethod
    def union(cls, families: Sequence[Family]) -> tuple[Family, list[Index]]:
        """One family of all meshes with the choices of all `families`, and the places of the choices of each in it.

        Their recompute modes are the same.
        """
        first = families[0]
        if len(families) == 1:
            return first, [np.arange(first.choices)]
        zeros = sorted({zero for family in families for zero in family.zeros})
        turns = sorted({turn for family in families for turn in family.turns}, key=lambda turn: turn[::-1])
        modes, places = np.arange(len(first.recomputes)), []
        for family in families:
            zero, turn = [zeros.index(one) for one in family.zeros], [turns.index(one) for one in family.turns]
            pairs = np.array(zero)[:, None] * len(turns) + np.array(turn)
            places.append((pairs[..., None] * modes.size + modes).ravel())
        whole = [np.zeros_like(family.dp) if family.shard is None else family.shard for family in families]
        return cls(
            inner_index=np.concatenate([family.inner_index for family in families]),
            degree_index=np.concatenate([family.degree_index for family in families]),
            dp=np.concatenate([family.dp for family in families]),
            num_gpus=np.concatenate([family.num_gpus for family in families]),
            shard=None if all(family.shard is None for family in families) else np.concatenate(whole),
            zeros=tuple(zeros), turns=tuple(turns), recomputes=first.recomputes,
        ), places  # fmt: skip


class FlatColumns(NamedTuple):
    """Columns of a space's families, one after the other: those of a candidate are looked up by place."""

    of_family: Index  # first row, meshes, the first of its meshes and of its choices below
    of_mesh: Index  # inner and degree index, dp, shard
    of_choice: Index  # ZeRO stage, interleave, schedule, recompute

    @classmethod
    def of(cls, families: Sequence[Family], starts: Sequence[int]) -> FlatColumns:
        """The columns of `families`, whose first rows are `starts`."""
        sizes = np.array([(0, 0), *((family.meshes, family.choices) for family in families)])
        of_mesh = (
            np.broadcast_arrays(f.inner_index, f.degree_index, f.dp, 0 if f.shard is None else f.shard)
            for f in families
        )
        of_choice = [(z, *turn, mode) for f in families for z in f.zeros for turn in f.turns for mode in f.recomputes]
        return cls(
            np.stack([np.array(starts, dtype=np.intp), sizes[1:, 0], *sizes.cumsum(axis=0)[:-1].T]),
            np.concatenate([np.empty((4, 0), dtype=np.intp), *of_mesh], axis=1), np.array(of_choice).reshape(-1, 4).T,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Candidates; a row is its number over all families, in their order, each laid out as `Family.shape`.

    Rows from `size` on are the same once more for each of `EVERY`, and for each number of first blocks: full recompute
    of these blocks only.
    """

    inner: Inner
    degrees: Column
    families: tuple[Family, ...]
    like: Layout = Layout()  # of a candidate, all that is no column: what lives in host memory, blocks to recompute
    ruled_out: Counter[str] = field(default_factory=Counter)
    _layouts: dict[int, Layout] = field(default_factory=dict, init=False, repr=False, compare=False)  # by row
    _starts: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _flattened: list[FlatColumns] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def offload(self) -> tuple[str, ...]:
        """The parts that live in host memory."""
        return tuple(part for part in OFFLOADED if getattr(self.like, f"offload_{part}"))

    @property
    def partials(self) -> tuple[Partial, ...]:
        """Recompute of every n-th block among the candidates: as given, or those that are tried."""
        return partials_of(self.like) if self.like.recomputes_some else PARTIALS

    @property
    def size(self) -> int:
        """Number of candidates."""
        return self._edges[-1]

    @property
    def starts(self) -> list[int]:
        """The first row of each family."""
        return self._edges[:-1]

    @property
    def _edges(self) -> list[int]:
        """`starts` and `size`, added up once."""
        if not self._starts:
            self._starts[:] = accumulate((f.meshes * f.choices for f in self.families), initial=0)
        return self._starts

    def columns(self, family: Family) -> Layout:
        """The candidates of a family of this space as one `Layout` whose columns broadcast to its shape."""
        i, inner = family.inner_index, self.inner

        def choice(values: tuple[int, ...], axis: int) -> Column:
            return np.array(values).reshape(-1, *(1,) * (3 - axis))

        schedules = tuple(t.schedule for t in family.turns)
        return self._layout_of(
            dp=family.dp, tp=inner.tp[i], pp=self.degrees[family.degree_index], cp=inner.cp[i], ep=inner.ep[i],
            zero=choice(family.zeros, 0), shard=0 if family.shard is None else family.shard,
            micro_batch=inner.micro_batch[i], interleave=choice(tuple(t.interleave for t in family.turns), 1),
            schedule=choice(schedules, 1) if any(schedules) else 0, recompute=choice(family.recomputes, 2),
        )  # fmt: skip

    def at_rows(self, rows: Index) -> tuple[Index, Index, Layout]:
        """These candidates: where `inner` and `degrees` have them, and their columns, each of the shape of `rows`."""
        some, rows = np.divmod(rows, max(self.size, 1))
        flat, place = self._flat, np.searchsorted(self._edges, rows, side="right") - 1
        first, meshes, mesh_start, choice_start = flat.of_family[:, place]
        choice, mesh = np.divmod(rows - first, meshes)
        inner, degree, dp, shard = flat.of_mesh[:, mesh_start + mesh]
        zero, interleave, schedule, recompute = flat.of_choice[:, choice_start + choice]
        columns = (
            dp, self.inner.tp[inner], self.degrees[degree], self.inner.cp[inner], self.inner.ep[inner], zero, shard,
            self.inner.micro_batch[inner], interleave, schedule, recompute,
            np.array((self.like.recompute_every, *EVERY))[np.where(some > len(EVERY), 0, some)],
            np.where(some > len(EVERY), some - len(EVERY), self.like.recompute_first),
        )  # fmt: skip
        return inner, degree, self._layout_of(**dict(zip(COLUMNS, columns, strict=True)))

    @property
    def _flat(self) -> FlatColumns:
        """The columns of all families in a row, laid out once."""
        if not self._flattened:
            self._flattened.append(FlatColumns.of(self.families, self.starts))
        return self._flattened[0]

    def _layout_of(self, **columns: Any) -> Layout:
        """Candidates of this space."""
        return replace(self.like, **columns)

    def layout(self, row: int) -> Layout:
        """One candidate, in plain numbers."""
        if row not in self._layouts:
            self._layouts[row] = self._layout(row)
        return self._layouts[row]

    def _layout(self, row: int) -> Layout:
        layout = self.at_rows(np.array([row]))[2].at(0)
        if layout.recomputes_some and int(layout.recompute) != FULL:
            raise IndexError(row)
        return layout


def divisors(n: int, most: int) -> Column:
    """Divisors of `n` up to `most`, ascending."""
    low = np.arange(1, int(n**0.5) + 1)
    low = low[n % low == 0]
    column: Column = ascending(np.concatenate([low, n // low]))
    return column[column <= most]


def powers_of_two(most: int) -> Column:
    """1, 2, 4 ... up to `most`."""
    powers: Column = 2 ** np.arange(max(1, int(most)).bit_length())
    return powers


def pipeline_degrees(layers: int, most: int) -> Column:
    """Pipeline degrees up to `most` that are tried: powers of two, and what divides the layers; ascending."""
    return ascending(np.concatenate([powers_of_two(min(most, layers)), divisors(layers, most)]))


def layouts(
    limits: LayoutLimits, inner: Inner, *, most: int, least: int = 1, recomputes: tuple[int, ...] = MODES,
    pipelines: Pipelines | None = None, shard: int | None = None, expert_ranks: Ints | None = None,
) -> Space:  # fmt: skip
    """Every layout of `inner` x pipeline degree x dp x sharding x interleave x recompute on `least` to `most` GPUs.

    Rules: the global batch divides into dp x micro-batch; the `expert_ranks` that hold all experts once (None: tp x ep)
    divide tp x dp x cp; ZeRO only where there are replicas, and in pipelines only the stages that `pipelines` names;
    interleaving only where chunks come out alike (`cuts_alike`) and micro-batches fill the pipeline. Numbers of GPUs
    are what comes of it. `pipelines`: the schedules, degrees and ZeRO stages that are tried; `shard`: only ZeRO 3 over
    groups of exactly so many ranks, whatever the stack has.
    """
    pipelines = pipelines or Pipelines()
    degrees = pipeline_degrees(limits.layers, min(pipelines.most, most))
    replicas = divisors(limits.global_batch, most)
    ruled_out: Counter[str] = Counter()
    ranks = (inner.tp * inner.cp)[:, None] * degrees
    i, d = np.nonzero(ranks <= most)
    gpus = ranks[i, d][:, None] * replicas
    few, allowed = gpus < least, gpus <= most
    pair, r = np.nonzero(allowed & ~few)
    ruled_out[_too_few(gpus[allowed], least)] = int((allowed & few).sum())
    i, d, dp, gpus = i[pair], d[pair], replicas[r], gpus[pair, r]
    batch = limits.global_batch % (dp * inner.micro_batch[i]) == 0
    ruled_out["the global batch does not divide into dp x micro-batch"] = int((~batch).sum())
    of_experts = np.broadcast_to(inner.tp * inner.ep if expert_ranks is None else expert_ranks, inner.ep.shape)
    experts = (dp * (inner.tp * inner.cp)[i]) % of_experts[i] == 0 if limits.experts > 1 else np.ones_like(batch)
    ruled_out["ep does not divide the ranks that share experts"] = int((batch & ~experts).sum())
    kept = np.flatnonzero(batch & experts)
    micros = max(1, ascending(inner.micro_batch).size)  # the fastest axis of `inner`: side by side on a mesh
    order = (i[kept] // micros * len(degrees) + d[kept]) * (len(replicas) + 1) + r[kept]
    kept = kept[np.argsort(order, kind="stable")]
    meshes = Family(
        inner_index=i[kept], degree_index=d[kept], dp=dp[kept], num_gpus=gpus[kept], shard=None, zeros=(), turns=(),
        recomputes=recomputes,
    )  # fmt: skip
    if pipelines.needed:
        piped = degrees[meshes.degree_index] > 1
        ruled_out["no pipeline, which the schedule or interleave asked for needs"] = int((~piped).sum())
        meshes = meshes.take(np.flatnonzero(piped))
    if pipelines.interleaved:
        _count_uneven(limits, inner, degrees, meshes, ruled_out)
    families = tuple(_families(limits, inner, degrees, meshes, pipelines, shard, of_experts))
    return Space(inner=inner, degrees=degrees, families=families, ruled_out=ruled_out)


def _too_few(gpus: Column, least: int) -> str:
    """The reason against layouts of fewer GPUs than asked for; with the most of any, where none has enough."""
    most = int(gpus.max(initial=0))
    return "fewer GPUs than --min-gpus asks for" + (f": {most:,} at most" if most < least else "")


def _count_uneven(limits: LayoutLimits, inner: Inner, degrees: Column, meshes: Family, ruled_out: Counter[str]) -> None:
    """Count the interleaved layouts that are left out, by reason."""
    chunks, pp = np.arange(2, MAX_INTERLEAVE + 1), degrees[meshes.degree_index]
    able = (degrees[:, None] > 1) & (degrees[:, None] * chunks <= limits.layers + ENDS)
    alike = able & cuts_alike(limits.layers, degrees[:, None], chunks)
    fills = limits.global_batch // (meshes.dp * inner.micro_batch[meshes.inner_index]) % pp == 0
    of_mesh = [counts.sum(axis=1)[meshes.degree_index] for counts in (able & ~alike, alike)]
    ruled_out["virtual stages would have different numbers of layers"] = int(of_mesh[0][fills].sum())
    reason = "micro-batches are not a multiple of the pipeline stages, as virtual stages require"
    ruled_out[reason] = int(of_mesh[1][~fills].sum())


def _families(
    limits: LayoutLimits, inner: Inner, degrees: Column, meshes: Family, pipelines: Pipelines, only: int | None,
    expert_ranks: Column,
) -> Iterator[Family]:  # fmt: skip
    """`meshes` by the choices that each leaves open; those of HSDP, once for each size of group, at the end."""
    if pipelines.alone:
        possible = _possible(limits, inner, degrees, meshes, pipelines.codes[0], min(pipelines.chunks, default=1))
        meshes = meshes.take(np.flatnonzero(possible))
    pp, dp = degrees[meshes.degree_index], meshes.dp
    micro = inner.micro_batch[meshes.inner_index]
    ranks = dp * inner.cp[meshes.inner_index]
    batches = limits.global_batch // (dp * micro)
    fills = (pp > 1) & (batches % pp == 0)
    open_ = [ranks > 1, (ranks > 1) & (pp == 1)]
    turns = [
        Turns(v) for v in pipelines.virtual
        if cuts_alike(limits.layers, degrees[degrees > 1], v).any()
    ]  # fmt: skip
    open_ += [fills & cuts_alike(limits.layers, pp, one.interleave) for one in turns]
    ordered = [Turns(v, code) for code in pipelines.codes for v in pipelines.chunks or (1,)]
    turns += ordered
    open_ += [cuts_alike(limits.layers, pp, v) & runs(code, Pipe(pp, v, batches), limits.layers) for v, code in ordered]
    key = np.zeros(meshes.meshes, dtype=np.int64)
    for bit, mask in enumerate(open_):
        key |= mask.astype(np.int64) << bit
    for value in ascending(key).tolist() if only is None else ():
        zeros = pipelines.unpiped if value & 2 else pipelines.piped if value & 1 else (0,)
        chosen = pipelines.turns(one for bit, one in enumerate(turns, start=2) if value >> bit & 1)
        if chosen:
            yield replace(meshes.take(np.flatnonzero(key == value)), zeros=zeros, turns=chosen)
    if only is None and 3 not in pipelines.unpiped:
        return
    tp, of_experts = inner.tp[meshes.inner_index], expert_ranks[meshes.inner_index]
    mesh, shard = sharding_groups(ranks, tp, of_experts, np.flatnonzero(pp == 1), only)
    if mesh.size:
        yield replace(meshes.take(mesh), shard=shard, zeros=(3,), turns=(Turns(),))


def _possible(
    limits: LayoutLimits, inner: Inner, degrees: Column, meshes: Family, code: int, chunks: int
) -> NDArray[np.bool_]:
    """True for meshes that have no pipeline, or one that schedule `code` can run with `chunks` on a rank."""
    pp, micro = degrees[meshes.degree_index], inner.micro_batch[meshes.inner_index]
    batches = limits.global_batch // (meshes.dp * micro)
    possible: NDArray[np.bool_] = runs(code, Pipe(pp, chunks, batches), limits.layers)
    possible[pp == 1] = True
    return possible


def sharding_groups(
    ranks: Column, tp: Column, expert_ranks: Column, meshes: Index, only: int | None = None
) -> tuple[Index, Column]:
    """(mesh, ranks of a group): every way to shard within groups of the `ranks` of these meshes and replicate beyond.

    Groups come out even, are larger than one rank and smaller than all, hold at least `MIN_GROUP_GPUS` devices, and
    hold whole sets of all experts (`expert_ranks` devices), or lie within one. With `only`, groups of so many ranks,
    all of them included.
    """
    gpus = np.concatenate([powers_of_two(int((ranks * tp)[meshes].max(initial=1))), ODD_NODES])
    gpus = np.sort(gpus[gpus >= MIN_GROUP_GPUS])
    own, tensor, experts = (column[meshes][:, None] for column in (ranks, tp, expert_ranks))
    groups = gpus // tensor
    sensible = (groups * tensor == gpus) & (groups > 1) & (groups < own)
    if only is not None:
        groups, sensible = np.full(own.shape, only), own > 1
    groups = np.maximum(groups, 1)
    even = sensible & (own % groups == 0) & ((groups * tensor % experts == 0) | (experts % (groups * tensor) == 0))
    column, row = np.nonzero(even.T)  # group by group, so that what only the micro-batch tells apart stays side by side
    return meshes[row], groups[row, column]
