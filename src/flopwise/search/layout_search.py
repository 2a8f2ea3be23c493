"""The best layouts of a recipe on every kind of node, in columns.

What a layout needs in memory does not depend on the machine, so the space and its memory are evaluated once; each kind
of node then times the meshes on which something fits, unless a lower bound says that they cannot win; the mesh of the
least bound for each number of GPUs comes first, for what it takes rules out most others. On one kind of node a slower
run on as many GPUs is worse in everything that a plan weighs, so only the fastest for each number of GPUs go on.

Full recompute of some blocks is slower than none, and needs more memory than that of all: two bounds thus spare nearly
all of this axis. Of first blocks the fewest that fit are the fastest; every n-th block is tried for a few n.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import Cluster
from flopwise.cost.energy import facility_joules
from flopwise.cost.precisions import PRECISIONS, SIXTEEN_BIT
from flopwise.cost.rates import Rates, together
from flopwise.cost.sustained import training_rates
from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.software import PARALLELISM, RECOMPUTE
from flopwise.ops.columns import ascending
from flopwise.search.space import (
    CHUNK,
    EVERY,
    MAX_EP,
    MAX_MICRO_BATCH,
    MAX_MICRO_TOKENS,
    MAX_PP,
    MAX_TP,
    MODES,
    PARTIALS,
    Column,
    Family,
    LayoutLimits,
    Pipelines,
    Space,
    divisors,
    layouts,
    powers_of_two,
)
from flopwise.training.blocks import Kernels
from flopwise.training.estimate import keep_kernels, step_watts
from flopwise.training.frozen import run_model
from flopwise.training.goodput import checkpoint_bytes, goodput_frac
from flopwise.training.job import DEFAULT_CONDITIONS, Conditions, as_multiplied, as_trained
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Inner, Layout, Recipe
from flopwise.training.memory import (
    FITS_WITH,
    allocated_and_host,
    confident_capacity_bytes,
    reported_bytes,
    tensor_bytes,
)  # fmt: skip
from flopwise.training.stage_memory import moved_bytes
from flopwise.training.stages import FULL, layers_of_fullest
from flopwise.training.step import balanced_parts, hides_beside, passes_transfer_s, whole_step_s
from flopwise.training.step_table import DeviceKernels, StepTable, block_contexts, model_kernels, step_table
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.search.nodes import NodeKind
    from flopwise.training.spec import TrainingSpec

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
BLOCK_CELLS = 2**14
"""Devices times inner combinations that are evaluated at once: what is on the way stays in the processor's cache."""
FEW = 1024
"""Candidates of a family up to which its memory is evaluated with that of others, candidate by candidate."""
CALL_CANDIDATES = 10_000
"""Candidates that take as long as what the calls of a step's or of memory's formulas cost, however few there are."""
TIE = 1.08
"""Layouts whose steps are no longer than this many times the fastest are as fast.

Source: benchmarks/truth/training.csv: the errors of two layouts of one model on the same machines, published together,
differ by 8 % (the median of 43 tables, each by the median of its pairs; 7 to 8 % of those with all settings stated).
"""
ROUNDING = 1.0 + 1e-9
"""More than what two ways to add up the lines of a step may differ by, over the step."""
KINDS = 4
"""Kinds of parallelism besides that of data: tensor, pipeline, context, expert."""


class PossibleMeshes(NamedTuple):
    """The meshes of a family that a kind of node can be laid out as, their candidates, and the least bytes of any."""

    mask: Mask
    candidates: int
    least_bytes: float


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    """All layouts of a recipe with the memory of each; arrays of each family have its shape."""

    model: Model
    recipe: Recipe
    space: Space
    allocated_bytes: tuple[Floats, ...]  # by tensors, on any device
    checkpoint_bytes: float  # whatever the layout
    memory: MemoryTable
    host_bytes: tuple[Floats, ...] = ()  # offloaded, per GPU, where anything is
    moved_bytes: NDArray[np.float64] | None = None  # of a micro-batch, where activations are offloaded
    conditions: Conditions = DEFAULT_CONDITIONS
    _least_bytes: dict[int, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)  # by family
    _kinds: dict[int, Index] = field(default_factory=dict, init=False, repr=False, compare=False)  # by family
    _partial_bytes: dict[str, NDArray[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _possible: dict[tuple[int, ...], PossibleMeshes] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _variants: dict[Hashable, LayoutSearch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of_recipe(self, recipe: Recipe, conditions: Conditions = DEFAULT_CONDITIONS) -> LayoutSearch:
        """The same layouts of a recipe that takes the same memory; both share what is evaluated of it, variants too."""
        other = replace(self, recipe=as_multiplied(self.model, recipe), conditions=conditions)
        for each in fields(self):
            if not each.init:
                object.__setattr__(other, each.name, getattr(self, each.name))
        return other

    def variant(self, kind: Hashable, make: Callable[[], LayoutSearch]) -> LayoutSearch:
        """The search that `make` varies this one to, evaluated once for all recipes that share its memory."""
        if kind not in self._variants:
            self._variants[kind] = make()
        return self._variants[kind].of_recipe(self.recipe, self.conditions)

    def least_bytes(self, number: int) -> Floats:
        """The lower bound of the tensors' bytes of a family on each of its meshes, over all other choices."""
        if number not in self._least_bytes:
            self._least_bytes[number] = self.allocated_bytes[number].min(axis=(0, 1, 2))
        return self._least_bytes[number]

    def kinds(self, number: int) -> Index:
        """Kinds of parallelism besides that of data of a family's meshes."""
        if number not in self._kinds:
            family, inner = self.space.families[number], self.space.inner
            kinds = kinds_in(Layout(tp=inner.tp, cp=inner.cp, ep=inner.ep))
            self._kinds[number] = kinds[family.inner_index] + (self.space.degrees > 1)[family.degree_index]
        return self._kinds[number]

    def possible_meshes(self, number: int, node: NodeKind | AnyNodes) -> PossibleMeshes:
        """The meshes of a family that are whole nodes whose tensor ranks share the fast link.

        One node where the network is not known.
        """
        domain, count = max(node.cluster.fabric.domain, 1), node.count
        most = domain if node.networked else min(domain, count)
        if (key := (number, count, most, node.networked)) not in self._possible:
            family = self.space.families[number]
            whole = family.num_gpus % count == 0 if node.networked else family.num_gpus == count
            mask = np.asarray(whole & (self.space.inner.tp[family.inner_index] <= most))
            least = float(self.least_bytes(number).min(where=mask, initial=np.inf))
            self._possible[key] = PossibleMeshes(mask, int(np.count_nonzero(mask)) * family.choices, least)
        return self._possible[key]

    def partial_bytes(self, rows: Index, layout: Layout) -> Floats:
        """Bytes of the tensors of `rows`, laid out as `layout`, with full recompute of each of `EVERY` only.

        Kinds of node ask for many of the same rows: each is evaluated once.
        """
        known = self._partial_bytes.setdefault("rows", np.full(1, -1))
        new = np.flatnonzero(known[np.searchsorted(known, rows, side="right") - 1] != rows)
        if new.size:
            some = replace(layout.take(new), recompute_every=np.array(EVERY)[:, None])
            nbytes = np.broadcast_to(allocated_and_host(self.memory, some)[0], (len(EVERY), new.size))
            before = self._partial_bytes.get("bytes", np.empty((len(EVERY), 1)))
            order = np.argsort(every := np.concatenate([known, rows[new]]))
            self._partial_bytes["rows"] = known = every[order]
            self._partial_bytes["bytes"] = np.concatenate([before, nbytes], axis=1)[:, order]
        return self._partial_bytes["bytes"][:, np.searchsorted(known, rows)]

    def chunk_blocks(self, layout: Layout) -> Column:
        """Blocks of a chunk of the fullest stage; shape of the columns."""
        stack = self.model.stacks[0]
        stages = layers_of_fullest(stack.num_layers, layout.pp, stack.output_heads)
        return np.asarray(-(-stages // np.asarray(layout.interleave)))

    def fewest_first(
        self, layout: Layout, chunk: Column, undecided: Undecided, capacity: float
    ) -> tuple[Column, Floats]:  # fmt: skip
        """First blocks of each chunk with whose full recompute alone `layout` fits, at least, and the tensors' bytes.

        Candidates have full recompute of the blocks of a `chunk`, and fit with it, and do not fit without. A block more
        never takes memory, and each saves about as much.
        """
        none, full = undecided.none_bytes, undecided.full_bytes
        few, many, nbytes = np.zeros_like(chunk), chunk.copy(), full.copy()
        chord = np.ceil(chunk * ((none - capacity) / (none - full))).astype(chunk.dtype) + np.arange(-1, 2)[:, None]
        turn = 0
        while (open_ := np.flatnonzero(many - few > 1)).size:
            low, high = few[open_], many[open_]
            parts = min(int((high - low).max()), max(2, CALL_CANDIDATES // open_.size))
            tried = low + np.arange(1, parts)[:, None] * (high - low) // parts if turn else chord[:, open_]
            tried, turn = np.clip(tried, low + 1, high - 1), turn + 1
            needed = allocated_and_host(self.memory, replace(layout.take(open_), recompute_first=tried))[0]
            fits = needed <= capacity
            few[open_] = np.where(fits, low, tried).max(axis=0)
            many[open_] = np.where(fits, tried, high).min(axis=0)
            nbytes[open_] = np.where(fits, needed, nbytes[open_]).max(axis=0)
        return many, nbytes

    def with_memory(self) -> LayoutSearch:
        """The same with the memory of its space evaluated, chunk by chunk; the host's where something lives there.

        Families of `FEW` candidates are evaluated together: what formulas of short columns cost is their calls.
        """
        space, families = self.space, self.space.families
        allocated = tuple(np.empty(family.shape) for family in families)
        host = tuple(map(np.empty_like, allocated)) if space.offload else ()
        few = [number for number, family in enumerate(families) if family.meshes * family.choices <= FEW]
        if few:
            rows = [np.arange(allocated[number].size) + space.starts[number] for number in few]
            here, away = allocated_and_host(self.memory, space.at_rows(np.concatenate(rows))[2])
            ends = np.cumsum([part.size for part in rows])[:-1]
            for number, on_device, on_host in zip(few, np.split(here, ends), np.split(away, ends), strict=True):
                allocated[number][:] = on_device.reshape(families[number].shape)
                if host:
                    host[number][:] = on_host.reshape(families[number].shape)
        for number, family in enumerate(families):
            for part in () if number in few else family.chunks(CHUNK):
                here, away = allocated_and_host(self.memory, space.columns(family.take(part)))
                allocated[number][..., part] = here
                if host:
                    host[number][..., part] = away
        return replace(self, allocated_bytes=allocated, host_bytes=host)


def device_kernels(
    model: Model, recipe: Recipe, clusters: Iterable[Cluster], inner: Inner, *, sequence_parallel: bool = True
) -> dict[Hashable, DeviceKernels]:
    """`kernels` for `step_table`, by the key of each device's rates: those of devices of one form at once.

    What formulas cost in a search is mostly their calls. Devices that lack a rate that the recipe needs are left out.
    """
    forms: dict[object, dict[Hashable, Rates]] = {}
    split, fabric = run_model(model, recipe.frozen, recipe.stack), None
    formats = PRECISIONS[recipe.precision]
    read = {*SIXTEEN_BIT, "tf32", "fp32", formats.peak, formats.narrow}  # other rates part no devices
    for each in clusters:
        fabric = each.fabric  # any: kernels send nothing
        rates = training_rates(each.rates, recipe.stack, recipe.precision)
        rates = replace(rates, peak={name: rate for name, rate in rates.peak.items() if name in read})
        forms.setdefault(rates.form, {})[each.rates.key] = rates
    kernels: dict[Hashable, DeviceKernels] = {}
    shape, most = recipe.shape(split.model, inner.micro_batch), max(1, BLOCK_CELLS // max(1, inner.tp.size))
    for alike in forms.values():
        for start in range(0, len(alike), most):
            some = dict(list(alike.items())[start : start + most])
            assert fabric is not None
            try:
                rates = together([*some.values()], np.arange(len(some))[:, None])
                contexts = block_contexts(
                    split.model, recipe, rates, fabric, inner, shape, sequence_parallel=sequence_parallel
                )
                columns = [model_kernels(split, context) for context in contexts]
            except MissingFactError:
                continue
            for row, key in enumerate(some):
                kernels[key] = [[_of_device(block, row) for block in blocks] for blocks in columns]
    return kernels


def _of_device(kernels: Kernels, row: int) -> Kernels:
    """The rows of one of the devices that were evaluated together; a single device's are in no row."""
    columns = {f.name: np.asarray(getattr(kernels, f.name)) for f in fields(kernels)}
    return Kernels(**{name: each[row] if each.ndim > 1 else each for name, each in columns.items()})


@dataclass(slots=True)
class StepTables:
    """The data that step tables of one search share: kernels by device, and all that no link changes.

    `clusters`: those whose devices are evaluated together as soon as one of them is asked for.
    """

    clusters: Collection[Cluster] = ()
    kernels: dict[Hashable, DeviceKernels] = field(default_factory=dict)  # by the key of a device's rates
    first: StepTable | None = None

    def table(self, search: LayoutSearch, built: Cluster) -> StepTable:
        """The step table of the space on one kind of node.

        Raises: MissingFactError: the device lacks a rate that the recipe needs.
        """
        model, recipe, space, device = search.model, search.recipe, search.space, built.rates.key
        split = space.like.sequence_parallel
        if device not in self.kernels:
            waiting = (one for one in self.clusters if one.rates.key not in self.kernels)
            self.kernels |= device_kernels(model, recipe, waiting, space.inner, sequence_parallel=split)
        table = step_table(
            model, recipe, built.rates, built.fabric, space.inner, space.degrees, kernels=self.kernels.get(device),
            like=self.first, partials=space.partials, sequence_parallel=split,
        )  # fmt: skip
        self.kernels[device], self.first = table.kernels, self.first or table
        if split:  # single estimates keep no others
            keep_kernels(model, recipe, built.rates, space.inner, table.kernels)
        return replace(table, moved_bytes=search.moved_bytes, jitter_frac=search.conditions.jitter_frac)


@dataclass(frozen=True, slots=True)
class AnyNodes:
    """Devices with their links, whatever instances they are in: a layout may leave part of a node to others."""

    cluster: Cluster
    count: int = 1
    networked: bool = True
    host_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedLayouts:
    """Candidates of a space that fit one kind of node, with their times; every array has one entry a candidate."""

    rows: Index
    step_s: Floats
    run_s: Floats
    num_gpus: NDArray[np.int64]
    kinds: Index  # of parallelism besides that of data
    memory_bytes: Floats
    watts: Floats  # at the meter, of all devices with their hosts; not finite where a device's limit is not known
    table: StepTable | None  # None where nothing fits
    considered: int  # candidates that this kind of node could be laid out as
    timed: int  # of them
    fitting: int
    smallest_bytes: float  # of the candidates that do not fit

    def simplest(self, rows: Index) -> int:
        """Of `rows`, on as many GPUs, that of the fewest kinds of parallelism that is as fast as the fastest."""
        return int(rows[_simplest(self.step_s[rows], self.kinds[rows])])


class Piece(NamedTuple):
    """Some meshes of a family with their kinds of parallelism; of every choice on them bytes of tensors and the fit.

    `open`: of each recompute mode, whether any choice fits.
    """

    meshes: Index
    kinds: Index
    nbytes: Floats
    fits: Mask
    open: Mask

    def take(self, kept: Index) -> Piece:
        """Only these meshes."""
        return self if kept.size == self.meshes.size else Piece._make(column.take(kept, axis=-1) for column in self)


FamilyPiece = tuple[Family, int, Piece]
"""A family, its first row, and some of its meshes."""


class Rows(NamedTuple):
    """Candidates with their times, in columns of one shape."""

    row: Index
    step_s: Floats
    num_gpus: NDArray[np.int64]
    nbytes: Floats
    kinds: Index

    def take(self, kept: Any) -> Rows:
        """Only these candidates."""
        return Rows._make(column[kept] for column in self)

    def simplest(self, least_s: Floats) -> Index:
        """Of each number of GPUs the place of the simplest that is as fast as the fastest, which takes `least_s`."""
        as_fast = np.flatnonzero(self.step_s <= TIE * least_s[self.num_gpus])
        step_s = self.step_s[as_fast]
        key = self.kinds[as_fast] + step_s / (1.0 + step_s.max(initial=0.0))
        return as_fast[_least_per_count(self.num_gpus[as_fast], key)]


class Undecided(NamedTuple):
    """Rows of full recompute that may be better with that of some blocks; of each what it takes without any."""

    row: Index
    none_s: Floats
    num_gpus: NDArray[np.int64]
    kinds: Index
    none_bytes: Floats
    full_bytes: Floats

    @classmethod
    def of(cls, parts: Sequence[Undecided]) -> Undecided:
        """All of `parts`, in one."""
        if not parts:
            return cls._make([np.empty(0, dtype=np.intp)] * len(cls._fields))
        return cls._make(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def take(self, kept: Mask | Index) -> Undecided:
        """Only these rows."""
        return Undecided._make(column[kept] for column in self)


class GivenSettings(NamedTuple):
    """The settings that are given of a layout whose degrees are searched.

    `like`: what is no column of a candidate; `interleave`, `schedule`: those of pipelines, as `needed` says in words;
    `shard`: ranks of a group of HSDP; `recomputes`: the modes.
    """

    like: Layout = Layout()
    interleave: int | None = None
    schedule: str | None = None
    needed: str | None = None
    micro_batch: int | None = None
    shard: int | None = None
    recomputes: tuple[int, ...] = MODES

    @classmethod
    def of(cls, spec: TrainingSpec, model: Model) -> GivenSettings:
        """The settings of a question.

        Raises: SpecError: options that do not go together, or that name what the model has not.
        """
        if spec.shard and spec.pipeline_option:
            text = f"{spec.pipeline_option} needs pipeline stages, and shard {spec.shard} is searched without"
            raise SpecError(f"{text}; give one of them")
        like, chunks = spec.searched_alike(model), None if spec.interleave is None else spec.chunks
        modes = MODES if spec.recompute_mode() is None else (int(like.recompute),)
        return cls(like, chunks, spec.schedule, spec.pipeline_option, spec.micro_batch, spec.shard, modes)

    @property
    def narrows(self) -> bool:
        """True if fewer degrees are left than without."""
        return self.needed is not None or self.like.offload_parameters

    def pipelines(self, tried: Pipelines) -> Pipelines:
        """Of the pipelines that would be `tried`, those that are as given."""
        chunks = tried.chunks if self.interleave is None else (self.interleave,)
        return tried._replace(chunks=chunks, needed=self.needed is not None)


def layout_search(
    model: Model, recipe: Recipe, *, most: int, least: int = 1, max_tp: int = MAX_TP, max_pp: int = MAX_PP,
    given: GivenSettings | None = None,
) -> LayoutSearch:  # fmt: skip
    """The whole space of `recipe` on `least` to `most` GPUs, with the memory of every candidate.

    Degrees that its stack does not have are 1; what it computes again where nobody says is computed again unless
    nothing of that is among the modes of `given`: what holds in all layouts.

    Raises: InfeasibleError: the ranks that are to share an expert divide no tensor-parallel degree.
    """
    model = as_trained(model, recipe)
    recipe = as_multiplied(model, recipe)
    limits = LayoutLimits.of(model, int(recipe.seq_len), int(recipe.global_batch))
    has, given = recipe.stack.degrees, given or GivenSettings()
    recomputes = tuple(m for m in given.recomputes if RECOMPUTE[m] in recipe.recomputes) or given.recomputes
    max_micro_batch = max(MAX_MICRO_BATCH, MAX_MICRO_TOKENS // limits.seq_len)
    inner = inner_combinations(limits, min(max_tp, most), given.micro_batch or max_micro_batch, has)
    piped = ("pp" in has or given.needed is not None) and not given.like.offload_activations
    if given.micro_batch is not None:
        inner = inner.take(inner.micro_batch == given.micro_batch)
    if recipe.ranks_per_expert is not None:
        tried, inner = ascending(inner.tp), inner.take(inner.tp % recipe.ranks_per_expert == 0)
        if tried.size and not inner.tp.size:
            degrees = ", ".join(map(str, tried))
            raise InfeasibleError(f"expert tp {recipe.ranks_per_expert} divides none of the tp tried: {degrees}")
    pipelines = given.pipelines(Pipelines.of(recipe, given.schedule))._replace(most=max_pp if piped else 1)
    space = layouts(
        limits, inner, most=most, least=least, recomputes=recomputes, pipelines=pipelines, shard=given.shard,
        expert_ranks=recipe.expert_ranks(inner.tp, inner.ep),
    )  # fmt: skip
    table = MemoryTable(model, recipe)
    if inner.tp.size:
        table.prepare(inner.tp, inner.ep, inner.cp, PARTIALS)
    return laid_out_alike(LayoutSearch(model, recipe, space, (), checkpoint_bytes(table), table), given.like)


def laid_out_alike(search: LayoutSearch, like: Layout) -> LayoutSearch:
    """The same search with all that is no column of a candidate as in `like`, and its memory.

    Parameters are offloaded in shards (ZeRO 3) only.
    """
    space, moved = search.space, None
    families = space.families
    if like.offload_parameters:
        sharded = (replace(family, zeros=tuple(z for z in family.zeros if z == 3)) for family in families)
        families = tuple(family for family in sharded if family.zeros)
    space = replace(space, families=families, like=like)
    if like.offload_activations and space.inner.tp.size:
        partials = space.partials if like.recomputes_some else ()
        moved = moved_bytes(search.memory, space.inner, space.degrees, like, partials)
    return replace(search, space=space, moved_bytes=moved).with_memory()


def steps_s(table: StepTable, space: Space, family: Family) -> Floats:
    """Seconds of the step of every candidate of `family`; has its shape."""
    whole_s = whole_step_s(table, family.inner_index, family.degree_index, space.columns(family))
    return np.broadcast_to(whole_s, family.shape)


def floor_s(table: StepTable, space: Space, family: Family, modes: tuple[int, ...]) -> Floats:
    """Least seconds of a step for each of `modes` of the table and mesh of `family`, whatever else is chosen.

    What the busiest stage takes for all micro-batches, less the messages that may hide beside other passes, with what
    activations on the host add, and the bubble of the most interleaved 1F1B; messages across replicas, launches and the
    optimizer come on top.
    """
    mode, inner, degree = np.array(modes)[:, None], family.inner_index, family.degree_index
    each_s, schedules = table.stage_s, np.array([turn.schedule for turn in family.turns])
    if hides_beside(table, schedules):
        each_s = each_s - table.stage_beside_s
    if table.moved_bytes is not None:
        known, parts = len(table.moved_bytes), table.stage_parts
        open_s = passes_transfer_s(
            0.0, table.moved_bytes, table.rates, parts[0, :known], parts[1, :known] + parts[2, :known], 1.0
        )
        each_s = each_s[:known] + open_s
    num_micro = table.recipe.global_batch / (family.dp * space.inner.micro_batch[inner])
    total: Floats = each_s[mode, degree, inner] * num_micro
    if schedules.any():
        return total
    deepest = max(turn.interleave for turn in family.turns)
    bubble: Floats = table.rest_s[mode, degree, inner] * ((space.degrees[degree] > 1) / deepest)
    return total + bubble


def kinds_in(layout: Layout) -> Index:
    """Kinds of parallelism of each candidate; shape of its degrees."""
    degrees = (layout.tp, layout.pp, layout.cp, layout.ep)
    return np.asarray(sum((np.asarray(degree) > 1).astype(np.intp) for degree in degrees))


def _simplest(step_s: Floats, kinds: Index) -> int:
    """The place of the simplest that is as fast as the fastest; of equals the faster."""
    as_fast = np.flatnonzero(step_s <= TIE * step_s.min())
    return int(as_fast[np.lexsort((step_s[as_fast], kinds[as_fast]))[0]])


@dataclass(slots=True)
class _NodeSearch:
    """A search on one kind of node as it goes.

    `least_s`: the fastest step so far for each number of GPUs, of so many kinds of parallelism or fewer.
    """

    search: LayoutSearch
    node: NodeKind | AnyNodes
    capacity: float  # bytes of tensors that a device holds
    least_s: Floats = field(default_factory=lambda: np.empty((0, KINDS + 1)))
    parts: list[Rows] = field(default_factory=list)
    undecided: list[Undecided] = field(default_factory=list)
    considered: int = 0
    timed: int = 0
    fitting: int = 0
    smallest: float = float("inf")  # tensors of the smallest that does not fit

    def pieces(self, unless: LayoutSearch | None) -> Iterator[FamilyPiece]:
        """The meshes on which something fits; small families first, to be beaten."""
        search, space = self.search, self.search.space
        for number in sorted(range(len(space.families)), key=lambda i: space.families[i].meshes):
            family, least = space.families[number], search.least_bytes(number)
            possible = search.possible_meshes(number, self.node)
            self.considered += possible.candidates
            if possible.least_bytes > self.capacity:
                self.smallest = min(self.smallest, possible.least_bytes)
                continue
            roomy = least <= self.capacity
            full = np.where(possible.mask & ~roomy, least, np.inf)
            self.smallest = min(self.smallest, float(full.min(initial=np.inf)))
            meshes, step = np.flatnonzero(possible.mask & roomy), max(1, CHUNK // family.choices)
            for start in range(0, meshes.size, step):
                chosen = meshes[start : start + step]
                nbytes = search.allocated_bytes[number].take(chosen, axis=-1)  # row by row, which an index is not
                fits = nbytes <= self.capacity
                if unless is not None:
                    fits &= unless.allocated_bytes[number].take(chosen, axis=-1) > self.capacity
                if search.host_bytes:
                    fits &= search.host_bytes[number].take(chosen, axis=-1) <= self.node.host_bytes
                fitting = int(np.count_nonzero(fits))
                self.fitting += fitting
                if fitting < fits.size:
                    self.smallest = min(self.smallest, float(np.where(fits, np.inf, nbytes).min()))
                if fitting:
                    possible_modes: Mask = np.asarray(fits.reshape(-1, *fits.shape[2:]).any(axis=0))
                    piece = Piece(chosen, search.kinds(number)[chosen], nbytes, fits, possible_modes)
                    yield family, space.starts[number], piece.take(np.flatnonzero(possible_modes.any(axis=0)))

    def start(self, after: TimedLayouts | None) -> None:
        """Make room for the fastest steps, which are those of `after` at first."""
        counts = [family.num_gpus for family in self.search.space.families] + (
            [] if after is None else [after.num_gpus]
        )
        self.least_s = np.full((1 + max(int(each.max(initial=0)) for each in counts), KINDS + 1), np.inf)
        if after is not None:
            self.add_least(after.num_gpus, after.kinds, after.step_s)

    def to_beat_s(self, gpus: NDArray[np.int64], kinds: Index) -> Floats:
        """Seconds below which a layout may be chosen: faster than any as simple, and as fast as the fastest."""
        return np.asarray(np.minimum(self.least_s[gpus, kinds], TIE * self.least_s[gpus, KINDS]))

    def add_least(self, gpus: NDArray[np.int64], kinds: Index, step_s: Floats) -> None:
        """Lower the fastest steps to those of new candidates."""
        for most in range(KINDS + 1):
            simple = kinds <= most
            np.minimum.at(self.least_s[:, most], gpus[simple], step_s[simple])

    def beatable(self, table: StepTable, pieces: Sequence[FamilyPiece]) -> Iterator[list[FamilyPiece]]:
        """Of each piece the meshes that have a choice that fits and might be the fastest, as those before are timed.

        A step takes at least `floor_s`. Pieces of one list are timed at once. All are, where they are so few that
        bounds would take longer than they save.
        """
        if _num_candidates(pieces) <= CALL_CANDIDATES:
            yield [*pieces]
            return
        likely, floors = zip(*(self.piece_floors_s(table, family, piece) for family, _, piece in pieces), strict=True)
        self.time_likeliest(table, pieces, likely)

        def open_part(number: int) -> FamilyPiece:
            family, start, piece = pieces[number]
            to_beat_s = self.to_beat_s(family.num_gpus[piece.meshes], piece.kinds)
            return family, start, piece.take(np.flatnonzero(floors[number] < to_beat_s))

        for group in _timed_together([open_part(number) for number in range(len(pieces))]):
            some = [part for part in map(open_part, group) if part[2].meshes.size]
            if some:
                yield some

    def piece_floors_s(self, table: StepTable, family: Family, piece: Piece) -> tuple[Floats, Floats]:
        """The least seconds of a step on each mesh of a piece of `family`: of the modes that fit, and of any that may.

        That of some blocks may where full recompute fits, and takes at least what a step without takes.
        """
        modes = (0,) * len(family.recomputes) if self.search.space.like.recomputes_some else family.recomputes
        each_s = floor_s(table, self.search.space, family.take(piece.meshes), modes)
        least_s = np.where(piece.open, each_s, np.inf).min(axis=0)
        some_s = np.where(piece.open[FULL], each_s[0], np.inf) if self.recomputes_some(family) else least_s
        return least_s, np.minimum(least_s, some_s)

    def recomputes_some(self, family: Family) -> bool:
        """True if full recompute of some blocks is tried beside that of none and all."""
        like = self.search.space.like
        return family.recomputes == MODES and not like.offloads and not like.recomputes_some

    def time_likeliest(self, table: StepTable, pieces: Sequence[FamilyPiece], floors: Sequence[Floats]) -> None:
        """Lower the fastest steps to those on the meshes of the least floors, one for each number of GPUs.

        What these beat need not be timed. They themselves are timed with their pieces: room for rounding keeps them in.
        """
        gpus = np.concatenate([family.num_gpus[piece.meshes] for family, _, piece in pieces])
        likeliest = np.zeros(gpus.size, dtype=bool)
        likeliest[_least_per_count(gpus, np.concatenate(floors))] = True
        rows, ends = [], np.cumsum([least_s.size for least_s in floors])[:-1]
        for (family, start, piece), chosen in zip(pieces, np.split(likeliest, ends), strict=True):
            some = piece.take(np.flatnonzero(chosen))
            choice, mesh = np.nonzero(some.fits.reshape(family.choices, -1))
            rows.append(choice * family.meshes + some.meshes[mesh] + start)
        inner, degree, layout = self.search.space.at_rows(np.concatenate(rows))
        step_s = np.asarray(ROUNDING * whole_step_s(table, inner, degree, layout))
        self.add_least(np.asarray(layout.num_gpus), kinds_in(layout), step_s)

    def time(self, table: StepTable, pieces: Sequence[FamilyPiece], *, every: bool) -> None:
        """Add what is fastest on each mesh of some pieces, or everything that fits; all are timed at once."""
        joined, places = Family.union([family.take(piece.meshes) for family, _, piece in pieces])
        whole_s = steps_s(table, self.search.space, joined)
        shape, modes = (joined.choices, joined.meshes), len(joined.recomputes)
        nbytes, fits = np.full(shape, np.inf), np.zeros(shape, dtype=bool)
        first_row = np.empty((len(pieces), joined.choices), dtype=np.intp)
        of_mesh = np.repeat(np.arange(len(pieces)), [piece.meshes.size for _, _, piece in pieces])
        end = 0
        for (family, start, piece), first, own in zip(pieces, first_row, places, strict=True):
            here = slice(end, end := end + piece.meshes.size)
            nbytes[own, here] = piece.nbytes.reshape(family.choices, -1)
            fits[own, here] = piece.fits.reshape(family.choices, -1)
            first[own] = np.arange(family.choices) * family.meshes + start
            self.timed += piece.fits.size
        meshes = np.concatenate([piece.meshes for _, _, piece in pieces])
        kinds = np.concatenate([piece.kinds for _, _, piece in pieces])
        step = np.where(fits, whole_s.reshape(shape), np.inf)
        best = step.argmin(axis=0)
        choice, mesh = np.nonzero(fits) if every else (best, np.arange(best.size))
        self.parts.append(
            Rows(
                first_row[of_mesh[mesh], choice] + meshes[mesh], step[choice, mesh], joined.num_gpus[mesh],
                nbytes[choice, mesh], kinds[mesh],
            )
        )  # fmt: skip
        self.add_least(self.parts[-1].num_gpus, self.parts[-1].kinds, self.parts[-1].step_s)
        if self.recomputes_some(joined):
            by_mode = (-1, modes, joined.meshes)
            fits, nbytes, none_s = fits.reshape(by_mode), nbytes.reshape(by_mode), whole_s.reshape(by_mode)[:, 0]
            maybe = fits[:, FULL] & ~fits[:, 0]
            if not every:
                maybe &= none_s < step[best, mesh]
            turn, mesh = np.nonzero(maybe)
            rows = first_row[of_mesh[mesh], turn * modes + FULL] + meshes[mesh]
            bytes_of = (nbytes[:, mode][maybe] for mode in (0, FULL))
            self.undecided.append(Undecided(rows, none_s[maybe], joined.num_gpus[mesh], kinds[mesh], *bytes_of))

    def recompute_first(self, table: StepTable, undecided: Undecided, *, every: bool) -> None:
        """Add those of full recompute that fit with that of fewer blocks than all, with the fewest first blocks.

        Those that may be the fastest, unless `every` one is kept.
        """
        if not every:
            undecided = undecided.take(undecided.none_s < self.to_beat_s(undecided.num_gpus, undecided.kinds))
        if not undecided.row.size:
            return
        inner, degree, whole = self.search.space.at_rows(undecided.row)
        chunk = self.search.chunk_blocks(whole)
        blocks, nbytes = self.search.fewest_first(whole, chunk, undecided, self.capacity)
        fewer = np.flatnonzero(blocks < chunk)
        if not fewer.size:
            return
        blocks, some = blocks[fewer], undecided.take(fewer)
        layout = replace(whole.take(fewer), recompute_first=blocks)
        step_s = np.asarray(whole_step_s(table, inner[fewer], degree[fewer], layout))
        self.timed += step_s.size
        rows = some.row + (len(EVERY) + blocks) * self.search.space.size
        new = Rows(rows, step_s, some.num_gpus, nbytes[fewer], some.kinds)
        self.parts.append(new if every else new.take(step_s < self.to_beat_s(new.num_gpus, new.kinds)))
        self.add_least(new.num_gpus, new.kinds, new.step_s)

    def recompute_partly(self, table: StepTable, rows: Index, *, every: bool) -> None:
        """Add those of `rows` that fit with full recompute of each of `EVERY` only; `table` has `PARTIALS`.

        Their memory is evaluated where one of their steps may be the fastest, unless `every` one is kept.
        """
        search, times = self.search, 1 + np.arange(len(EVERY))[:, None]
        for start in range(0, rows.size, CHUNK // len(EVERY)):
            part = rows[start : start + CHUNK // len(EVERY)]
            inner, degree, whole = search.space.at_rows(part)
            gpus, kinds = np.asarray(whole.num_gpus), kinds_in(whole)
            partly = replace(whole, recompute_every=np.array(EVERY)[:, None])
            step = np.asarray(whole_step_s(table, inner, degree, partly))
            self.timed += step.size
            if not every:
                open_ = np.flatnonzero((step < self.to_beat_s(gpus, kinds)).any(axis=0))
                part, gpus, kinds, step = part[open_], gpus[open_], kinds[open_], step[:, open_]
                whole = whole.take(open_)
            if part.size:
                nbytes = search.partial_bytes(part, whole)
                columns = part + times * search.space.size, step, gpus, nbytes, kinds
                fits = nbytes <= self.capacity
                self.parts.append(Rows._make(np.broadcast_to(column, fits.shape)[fits] for column in columns))

    def rows(self, *, every: bool) -> Rows:
        """All rows as one: for each number of GPUs the fastest and the simplest as fast, unless `every` is kept.

        Recompute of first blocks, which few trainers have an option for, is chosen for its speed: it has to be as fast
        as what would be chosen without.
        """
        if not self.parts:
            return Rows._make([np.empty(0)] * len(Rows._fields))
        merged = Rows._make(np.concatenate(columns) for columns in zip(*self.parts, strict=True))
        if every:
            return merged
        first = merged.row >= (1 + len(EVERY)) * self.search.space.size
        if first.any():
            most_s = np.full(len(self.least_s), np.inf)
            others, least_s = merged.take(~first), most_s.copy()
            np.minimum.at(least_s, others.num_gpus, others.step_s)
            chosen = others.take(others.simplest(least_s))
            most_s[chosen.num_gpus] = chosen.step_s
            merged = merged.take(~first | (merged.step_s <= most_s[merged.num_gpus]))
        best = _least_per_count(merged.num_gpus, merged.step_s)
        return merged.take(ascending(np.concatenate([best, merged.simplest(self.least_s[:, KINDS])])))


def timed_layouts(
    search: LayoutSearch, node: NodeKind | AnyNodes, tokens: float, tables: StepTables, *, margin: float = 1.0,
    every: bool = False, after: TimedLayouts | None = None, unless: LayoutSearch | None = None,
) -> TimedLayouts:  # fmt: skip
    """Step and run time on `node` of the fastest candidates for each number of GPUs, or of `every` one that fits.

    `tables` keeps what nodes of the same device share. `margin`: what a candidate's memory is multiplied by before it
    is held against the device's. `after`: layouts found on this node, which are to be beaten. `unless`: the same
    candidates, better where they fit. Meshes that cannot be the fastest by a lower bound of their steps are not timed.

    Raises: MissingFactError: the device lacks a rate that the recipe needs.
    """
    table, software, kind = None, search.recipe.stack, node.cluster.accelerator.kind
    capacity = tensor_bytes(node.cluster.accelerator.hbm_bytes / margin, software, kind)
    going = _NodeSearch(search, node, capacity)
    if after is not None and after.table is not None:
        table = replace(after.table, moved_bytes=search.moved_bytes)
    pieces = [*going.pieces(unless)]
    if pieces:
        table = table or tables.table(search, node.cluster)
        going.start(after)
        for some in ([piece] for piece in pieces) if every else going.beatable(table, pieces):
            going.time(table, some, every=every)
        undecided = Undecided.of(going.undecided)
        going.recompute_first(table, undecided, every=every)
        open_ = undecided.none_s < going.to_beat_s(undecided.num_gpus, undecided.kinds)
        going.recompute_partly(table, undecided.row if every else undecided.row[open_], every=every)
    best = going.rows(every=every)
    kept = goodput_frac(best.num_gpus, search.checkpoint_bytes, search.conditions.reliability)
    return TimedLayouts(
        rows=(rows := best.row.astype(np.intp)), step_s=best.step_s,
        run_s=tokens / search.recipe.useful_tokens * (best.step_s / kept), num_gpus=best.num_gpus.astype(np.int64),
        kinds=best.kinds.astype(np.intp), memory_bytes=np.asarray(reported_bytes(best.nbytes, software, kind)),
        watts=_meter_watts(search, node, table, rows), table=table, considered=going.considered,
        timed=going.timed, fitting=going.fitting,
        smallest_bytes=float(reported_bytes(going.smallest, software, kind)) if going.smallest < np.inf else 0.0,
    )  # fmt: skip


def _timed_together(pieces: Sequence[FamilyPiece]) -> list[list[int]]:
    """The pieces that have meshes, by number, in groups that are timed at once.

    The choices that a piece does not have are evaluated for it, too: in the group that this costs least in, or in one
    of its own where that costs more than `CALL_CANDIDATES`.
    """
    groups: list[list[int]] = []
    for number, part in enumerate(pieces):
        if not part[2].meshes.size:
            continue

        def padding(group: list[int], part: FamilyPiece = part) -> float:
            """Candidates that are evaluated beside those of a group and of the piece if they are timed at once."""
            before = [pieces[other] for other in group]
            together = _num_candidates([*before, part])
            return together - _num_candidates(before) - _num_candidates([part]) if together <= CHUNK else np.inf

        best = min(groups, key=padding, default=[])
        if best and padding(best) <= CALL_CANDIDATES:
            best.append(number)
        else:
            groups.append([number])
    return groups


def _num_candidates(pieces: Sequence[FamilyPiece]) -> int:
    """Number of candidates on the meshes of some pieces if each has the choices of all."""
    zeros = {zero for family, _, _ in pieces for zero in family.zeros}
    turns = {turn for family, _, _ in pieces for turn in family.turns}
    return len(zeros) * len(turns) * len(pieces[0][0].recomputes) * sum(piece.meshes.size for _, _, piece in pieces)


def _least_per_count(gpus: NDArray[Any], value: Floats) -> Index:
    """The index of the least `value` for each number of GPUs."""
    least = np.full(int(gpus.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, gpus, value)
    candidates = np.flatnonzero(value == least[gpus])
    candidates = candidates[np.argsort(gpus[candidates], kind="stable")]
    first = np.ones(candidates.size, dtype=bool)
    first[1:] = np.diff(gpus[candidates]) > 0
    return candidates[first]


def _meter_watts(search: LayoutSearch, node: NodeKind | AnyNodes, table: StepTable | None, rows: Index) -> Floats:
    """Power of candidates at the meter, hosts and cooling included, in W; infinite where the limit is not known."""
    device = node.cluster.accelerator
    if device.tdp_w is None or table is None or not rows.size:
        return np.full(rows.size, np.inf)
    inner, degree, layout = search.space.at_rows(rows)
    parts = balanced_parts(table, inner, degree, layout)
    memory_s = search.recipe.global_batch / (layout.dp * layout.micro_batch) * table.memory_s[degree, inner]
    drawn = step_watts(device.tdp_w, parts, memory_s)
    return np.asarray(facility_joules(device, layout.num_gpus, drawn, 1.0))


def fastest_layout(
    model: Model, recipe: Recipe, built: Cluster, gpus: int, given: GivenSettings | None = None
) -> tuple[Layout, int, int] | None:
    """The simplest as fast as the fastest layout that fits with a probability of `FITS_WITH`, and how it was found.

    Where none is so sure to fit, of those that fit with a plan's `CONFIDENCE`; where none is, the layout that needs the
    least memory: the likeliest to fit. Returns the layout, the number of layouts and how many of them fit with
    `FITS_WITH`, or None if there is no layout.
    """
    search = layout_search(
        model, recipe, most=gpus, least=gpus, max_tp=min(built.fabric.domain, 8), max_pp=defaults.SEARCHED_STAGES,
        given=given,
    )  # fmt: skip
    tried = search.space.size
    if not tried:
        return None
    anywhere = AnyNodes(built, host_bytes=np.inf)  # what hosts hold is not known of accelerators alone
    for sure in (FITS_WITH, defaults.CONFIDENCE):
        most = confident_capacity_bytes(recipe, built.accelerator, sure)
        margin = built.accelerator.hbm_bytes / most
        timed = timed_layouts(search, anywhere, 1.0, StepTables(), margin=margin)
        if timed.rows.size:
            row = int(timed.rows[_simplest(timed.step_s, timed.kinds)])
            return search.space.layout(row), tried, timed.fitting if sure == FITS_WITH else 0
    flat = np.concatenate([nbytes.ravel() for nbytes in search.allocated_bytes])
    return search.space.layout(int(flat.argmin())), tried, 0


def inner_combinations(
    limits: LayoutLimits, domain: int, max_micro_batch: int = MAX_MICRO_BATCH, degrees: Collection[str] = PARALLELISM
) -> Inner:
    """(tp, cp, ep, micro-batch) that the model divides into; tp stays inside the fast-link `domain`.

    Those that are not among `degrees` are 1.
    """
    tp = divisors(limits.heads, min(domain, 64))
    tp = tp[(tp & (tp - 1)) == 0]
    cp = powers_of_two(max(1, limits.seq_len // defaults.CONTEXT_TOKENS))
    cp = cp[limits.seq_len % (2 * cp) == 0] if limits.seq_len > 1 else cp[:1]
    cp = cp if cp.size else np.array([1])
    ep = divisors(limits.experts, MAX_EP)
    ep = ep[(ep & (ep - 1)) == 0]
    micro = powers_of_two(min(max_micro_batch, limits.global_batch))
    micro = micro[limits.global_batch % micro == 0]
    tp, cp, ep = (sizes if name in degrees else sizes[:1] for name, sizes in (("tp", tp), ("cp", cp), ("ep", ep)))
    grid = np.meshgrid(tp, cp, ep, micro, indexing="ij")
    return Inner(*(g.ravel().astype(np.int64) for g in grid))
