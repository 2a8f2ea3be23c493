"""Replicas on several kinds of nodes and in several formats, timed in one column: what a step costs is mostly calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise import values
from flopwise.cost.fabric import Fabric
from flopwise.cost.kernels import DOT, KEYS, PACKED_16, PACKING, PLAIN_PRODUCTS, PORTED, STREAMS, TILES, UNPACKED
from flopwise.cost.rates import Rates, precision, together
from flopwise.facts.architecture import Item
from flopwise.facts.software import Engine
from flopwise.ops.fusion import Group
from flopwise.ops.shapes import Work
from flopwise.ops.types import Array, Floats
from flopwise.search.replica import DEGREES
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.iteration import Runner, StepLoad, StepTime, norms_over_ranks, on_cuda, on_intel
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.steady import Steady
from flopwise.serving.techniques import TechniqueRunner, prefix_tokens, request_work

BY_PART = frozenset({
    "rates", "fabric", "engine", "dtype", "weight_bits", "head_bits", "chains", "draft", "draft_layout",
    "cached_tokens",
})  # fmt: skip
"""Fields of runners that may differ between replicas in one column; of an engine its limits alone."""


FEW_ROWS = 1000
"""Rows below which kernels take little longer than calling their formulas."""
MOST_OF_ROWS = 0.8
"""Share of the rows that may differ for it to pay to look for those that do not."""


class TimedReplicas(NamedTuple):
    """Replicas to be timed: their job, in columns, and its runner."""

    job: ServeJob
    machine: Runner


@lru_cache(maxsize=64)
def _without_limits(engine: Engine) -> Engine:
    """The engine without the limits of its batches, but for whether a step has one."""
    return values.replace(engine, max_batch=0, prefill_tokens=int(engine.prefill_tokens > 0))


def _dtypes(machine: Runner) -> tuple[str, ...]:
    """The precisions that a step multiplies in: of the layers, of the rest, of the head, and of kernels in 16 bits."""
    head = _head_dtype(machine)
    return (machine.dtype, machine.other_dtype, *((head,) if head else ()), "bf16", "fp32")


def _head_dtype(machine: Runner) -> str:
    if machine.head_bits >= UNPACKED * 16.0:
        return ""
    return "int4_wo" if machine.head_bits < 6 else "int8_wo"


def _arithmetic(machine: Runner) -> tuple[object, ...]:
    """The kind of arithmetic of the format that products run in, and of the head's."""
    p = precision(machine.dtype)
    unpacked = machine.weight_bits < UNPACKED * p.act_bits
    packed = machine.weight_bits < p.act_bits
    return (p.act_bits, p.quantised, p.unpacked or unpacked, packed, bool(_head_dtype(machine)))


def _device(machine: Runner) -> tuple[object, ...]:
    """The rates that a device has for the step's precisions, and the figures that are nothing, as formulas ask them.

    Precisions that share a datasheet rate on one device share it on all, so that each rate has one name.
    """
    rates, own, dtypes = machine.rates, machine.own_rates, _dtypes(machine)
    kinds = [rates.peak_dtype(dtype) for dtype in dtypes]
    fractions = [precision(dtype).rate for dtype in dtypes]
    packing = [PACKING.get(kind, PACKED_16) for kind in kinds]
    packed = any(own.value[name] for name in {*PACKING.values(), PACKED_16})
    formats = dict.fromkeys((machine.dtype, machine.dtype if machine.eight is None else machine.eight.dtype))
    return (
        rates.is_host, rates.compiles, rates.matrix_unit_dim, on_intel(rates), rates.is_host and bool(rates.l2_bytes),
        tuple(kind in rates.peak for kind in kinds), bool(rates.peak.get("fp32")),
        "fp8" in rates.peak if machine.kv_dtype.name.startswith("fp8") else None,
        tuple(map(kinds.index, kinds)), tuple(map(fractions.index, fractions)), tuple(packing) if packed else (),
        machine.engine.cuda_experts_frac == 1.0 or on_cuda(rates),
        bool(own.value.get(DOT)), *(own.value.get(name) is None for name in (KEYS, STREAMS)),
        tuple(PORTED + dtype for dtype in formats if PORTED + dtype in own.value),
        tuple(PLAIN_PRODUCTS + dtype for dtype in formats if PLAIN_PRODUCTS + dtype in own.value),
        *_figures_of_fp8(machine),
    )  # fmt: skip


def _figures_of_fp8(machine: Runner) -> tuple[bool, ...]:
    """Of each figure for products in fp8 alone: True if the device has it, and if a step multiplies in fp8 there."""
    value, p = machine.own_rates.value, precision(machine.dtype)
    splits, wider = value["fp8_splits_k"] > 0, value["expert_rows"] > TILES[-1][0]
    return splits, splits and p.rate == "fp8", wider, wider and p.peak == "fp8"


def _formulas(machine: Runner) -> tuple[object, ...]:
    """The part of `JoinedRunner.formulas` that a runner has, its draft's included."""
    draft = machine.draft if isinstance(machine, TechniqueRunner) else None
    plain = (getattr(machine, f.name) for f in fields(machine) if f.init and f.name not in BY_PART)
    drafts = () if draft is None else _formulas(draft)
    return (_without_limits(machine.engine), _arithmetic(machine), _device(machine), *plain, *drafts)


def _as_named(mine: tuple[str, ...], rates: Rates, first: Runner) -> Rates:
    """A machine's rates, those of its precisions (`mine`) under the names that `first` has for its own."""
    theirs = _dtypes(first)
    if mine == theirs and all(rates.peak_dtype(dtype) == first.rates.peak_dtype(dtype) for dtype in mine):
        return rates
    peak, value = dict(rates.peak), dict(rates.value)
    for dtype, name in zip(mine, theirs, strict=True):
        kind, fraction = rates.peak_dtype(dtype), f"matmul_frac.{precision(dtype).rate}"
        if kind in rates.peak:
            peak[first.rates.peak_dtype(name)] = rates.peak[kind]
        value[f"matmul_frac.{precision(name).rate}"] = rates.value[fraction]
    return values.replace(rates, peak=peak, value=value)


@values.dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRunner(TechniqueRunner):
    """A runner of the rows of several with the same `formulas`; messages go over the links of each.

    `parts`: rows over links of the same form, one after another, and a runner of them; `place`: of each row the one of
    `machines` whose it is.

    `once`: where several rows have the same kernels over other links, one of each, which are timed for all.
    """

    parts: tuple[tuple[slice, Runner], ...] = ()
    machines: tuple[Runner, ...] = ()
    place: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    once: RowsOnce | None = None
    step_tokens: Floats | int = field(default=0, init=False)
    _formats: dict[tuple[bool, str, str], tuple[str, Any]] = field(default_factory=dict, init=False, repr=False)
    _pieces: dict[tuple[str, str], tuple[Any, list[Any]]] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def formulas(group: Sequence[TimedReplicas]) -> tuple[object, ...]:
        """Key that is equal for groups of replicas whose steps follow the same formulas with other figures.

        Figures are those of `Rates`, links, bits of a weight, and the engine's limits. The key has what formulas ask
        beside them: the kind of arithmetic, which figures there are, and which are nothing. A group is of one device
        and format.
        """
        job, one = group[0]
        prompt, steps = request_work(job)
        shared, spread = (
            any((np.asarray(getattr(each.job.layout, name)) > 1).any() for each in group) for name in ("dp", "ep")
        )
        return (job.input_tokens if np.ndim(prompt) else prompt, steps, shared, spread, *_formulas(one))

    def __post_init__(self) -> None:
        """Lay the figures of the machines side by side."""
        first = self.machines[0]
        dtypes = [_dtypes(one) for one in self.machines]
        for name in ("rates", "own_rates"):
            known: dict[tuple[int, tuple[str, ...]], int] = {}  # machines of one device and format share theirs
            figures, index = list[Rates](), list[int]()
            for one, mine in zip(self.machines, dtypes, strict=True):
                rates = getattr(one, name)
                if (id(rates), mine) not in known:
                    known[id(rates), mine] = len(figures)
                    figures.append(_as_named(mine, rates, first))
                index.append(known[id(rates), mine])
            joined = together(figures, np.array(index)[self.place])
            if joined is figures[0]:  # which others have, too: its `products` would keep columns of these rows
                joined = values.replace(joined)
            object.__setattr__(self, name, joined)
        object.__setattr__(self, "step_tokens", self._column([one.engine.prefill_tokens for one in self.machines]))

    def _column(self, figures: Sequence[float]) -> Any:
        return figures[0] if len(set(figures)) == 1 else np.array(figures, dtype=float)[self.place]

    def _format(self, work: Work, *, inside: bool) -> tuple[str, Any]:
        key = (inside, work.kind, work.name.split("/")[0])
        if key not in self._formats:
            each = [one._format(work, inside=inside) for one in self.machines]  # noqa: SLF001 - of its own class
            self._formats[key] = each[0][0], self._column([bits for _, bits in each])
        return self._formats[key]

    def kernels_times(
        self, blocks: Sequence[Sequence[Group]], load: StepLoad, split: ServingLayout, *, inside: bool
    ) -> list[StepTime]:
        """As of `Runner`; shape of the rows."""
        if self.once is None:
            return Runner.kernels_times(self, blocks, load, split, inside=inside)
        first, place, runner = self.once
        load, split = self._some_rows(load, first), self._some_rows(split, first)
        times = Runner.kernels_times(runner, blocks, load, split, inside=inside)
        return [
            StepTime(*(part[..., place] if isinstance(part, np.ndarray) and part.ndim else part for part in time))
            for time in times
        ]

    def messages_s(
        self, kinds: Sequence[Sequence[Item]], load: StepLoad, split: ServingLayout, width: int
    ) -> list[Floats]:
        """As each has them; shape of the rows."""
        return self._each(load, split, lambda one, *of_rows: one.messages_s(kinds, *of_rows, width))

    def pipeline_s(self, load: StepLoad, split: ServingLayout, width: int) -> Floats:
        """As each has it; shape of the rows."""
        (hops_s,) = self._each(load, split, lambda one, *of_rows: [one.pipeline_s(*of_rows, width)])
        return hops_s

    def _each(self, load: StepLoad, split: ServingLayout, seconds: Callable[..., list[Floats]]) -> list[Floats]:
        pieces = zip(self.parts, self._of_parts(load), self._of_parts(split), strict=True)
        found = [seconds(one, its_load, its_split) for (_, one), its_load, its_split in pieces]
        if len(found) == 1:
            return found[0]
        columns = list[Floats]()
        for each in zip(*found, strict=True):
            loads = np.broadcast_shapes(*(np.shape(values_s)[:-1] for values_s in each))  # side by side
            column = np.empty((*loads, self.place.size))
            for (rows, _), values_s in zip(self.parts, each, strict=True):
                column[..., rows] = values_s
            columns.append(column)
        return columns

    def _of_parts(self, value: Any) -> list[Any]:
        """A load or a layout of the rows of each part: a step asks for it several times."""
        return self._kept_pieces(value, "parts", lambda: [_rows(value, rows) for rows, _ in self.parts])

    def _some_rows(self, value: Any, rows: NDArray[np.intp]) -> Any:
        """A load or a layout of some rows, likewise."""
        return self._kept_pieces(value, "once", lambda: [_rows(value, rows)])[0]

    def _kept_pieces(self, value: Any, name: str, pieces: Callable[[], list[Any]]) -> list[Any]:
        key = type(value).__name__, name
        if key not in self._pieces or self._pieces[key][0] is not value:
            self._pieces[key] = value, pieces()
        return self._pieces[key][1]


class RowsOnce(NamedTuple):
    """Of rows with the same kernels the first, of each row the place of its own among them, and a runner of them."""

    first: NDArray[np.intp]
    place: NDArray[np.intp]
    runner: JoinedRunner

    @classmethod
    def of(
        cls, machines: tuple[Runner, ...], place: NDArray[np.intp], layout: ServingLayout, in_flight: Array
    ) -> RowsOnce | None:
        """Rows of replicas with so many in flight; None where there are too few alike to gain by it.

        `machines`, `place`: as of `JoinedRunner`.

        Assumes: the load of a step goes by the layout, those in flight, and the limits of the engine.
        """
        if in_flight.size < FEW_ROWS:
            return None
        kinds: dict[tuple[object, ...], int] = {}
        keys = ((id(one.own_rates), id(one.engine), one.dtype, one.weight_bits, one.head_bits) for one in machines)
        kind = np.array([kinds.setdefault(key, len(kinds)) for key in keys])[place]
        for degree in (layout.tp, layout.pp, layout.ep, layout.dp):
            kind = kind * (int(np.max(degree)) + 1) + degree
        pairs = kind + 1j * in_flight
        _, first, same = np.unique(pairs, return_index=True, return_inverse=True)
        if first.size > MOST_OF_ROWS * in_flight.size:
            return None
        plain = {f.name: getattr(machines[0], f.name) for f in fields(Runner) if f.init}
        return cls(first, same, JoinedRunner(**plain, machines=machines, place=place[first]))


def _rows(value: Any, rows: slice | NDArray[np.intp]) -> Any:
    """A load or a layout of only these rows."""
    columns = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
    return values.replace(value, **{name: column[..., rows] for name, column in columns if getattr(column, "ndim", 0)})


class JoinedReplicas:
    """Replicas with the same `formulas` and so many in flight in one column, links of the same form side by side."""

    def __init__(self, several: Sequence[TimedReplicas], in_flight: Sequence[Floats]) -> None:
        every = [machine for _, machine in several]
        drafts = [machine.draft for machine in every if isinstance(machine, TechniqueRunner) and machine.draft]
        stacks = [one.model.stacks[0] for one in (every[0], *drafts[:1])]
        norms = any(norms_over_ranks(kind.items) for stack in stacks for kind in stack.kinds)
        starts = norms or any(machine.engine.sums_normalise for machine in every)
        by_links: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, machine in enumerate(every):
            starts_s = machine.own_rates.value["kernel_s"] if starts else None  # between halves of a norm, or saved
            by_links[machine.fabric.form, starts_s].append(number)
        self.order = [number for group in by_links.values() for number in group]
        sizes = [np.size(several[number].job.layout.tp) for number in self.order]
        ends = np.cumsum(sizes).tolist()
        slices = dict(zip(self.order, map(slice, [0, *ends], ends), strict=False))
        self.rows = [slices[number] for number in range(len(several))]
        self.place = np.repeat(np.arange(len(sizes)), sizes)
        self.links = list[tuple[slice, int, Fabric]]()  # rows, the first of their replicas, and the links of each
        for group in by_links.values():
            rows = slice(slices[group[0]].start, slices[group[-1]].stop)
            place = self.place[rows] - self.place[rows.start]
            self.links.append((rows, group[0], Fabric.together([every[number].fabric for number in group], place)))
        self.layout = ServingLayout(**{name: self._in_order([getattr(job.layout, name) for job, _ in several])
            for name in DEGREES})  # fmt: skip
        self.in_flight = self._in_order(in_flight)
        self.job = self._with_hits(several[0].job, [job.techniques.hit_frac for job, _ in several])
        own: dict[str, Any] = {}
        if drafts:
            tp = self._in_order([machine.draft_layout.tp for machine in every if isinstance(machine, TechniqueRunner)])
            own = {"draft": self._joined_runner(drafts), "draft_layout": ServingLayout(tp=tp)}
        if np.ndim(self.job.techniques.hit_frac):
            own["cached_tokens"] = prefix_tokens(self.job)
        self.machine = self._joined_runner(every, **own)

    def _with_hits(self, job: ServeJob, hits: Sequence[Any]) -> ServeJob:
        """A job with the share of prompts that caches hold: as it has it, or of each row where `hits` are columns."""
        if not any(map(np.ndim, hits)):
            return job
        by_row: Any = self._in_order(hits)
        return values.replace(job, techniques=values.replace(job.techniques, hit_frac=by_row))

    def _joined_runner(self, runners: Sequence[Runner], **own: Any) -> JoinedRunner:
        """One runner of all rows; `own`: fields of it that differ from those of each."""
        machines = tuple(runners[number] for number in self.order)
        parts = tuple((rows, values.replace(runners[number], fabric=links)) for rows, number, links in self.links)
        plain = {f.name: getattr(machines[0], f.name) for f in fields(machines[0]) if f.init} | own
        by_row = np.ndim(self.job.techniques.hit_frac)  # prompts differ
        once = None if by_row else RowsOnce.of(machines, self.place, self.layout, self.in_flight)
        return JoinedRunner(**plain, parts=parts, machines=machines, place=self.place, once=once)

    def _in_order(self, columns: Sequence[Any]) -> Array:
        return np.concatenate([np.asarray(columns[number]) for number in self.order])

    def closed_loops(self, in_flight: Sequence[Array] = (), hits: Sequence[Array] = ()) -> list[Steady]:
        """The `closed_loop` of each job's replicas, or of others in flight, of whose prompts caches hold these shares.

        `hits` are columns where the shares of the jobs are, too.
        """
        job, machine, columns = self.job, self.machine, self._in_order(in_flight) if in_flight else self.in_flight
        if hits:
            job = self._with_hits(job, hits)
            machine = values.replace(machine, cached_tokens=prefix_tokens(job))
        steady = closed_loop(machine, self.layout, columns, *request_work(job), only_seconds=True)
        return [rows_of(steady, rows) for rows in self.rows]


def rows_of(columns: Any, rows: slice) -> Any:
    """A tuple of columns, or of such tuples, of only these rows; a number stays one."""
    parts = list[Any]()
    for one in columns:
        if isinstance(one, np.ndarray):
            parts.append(one[rows] if one.ndim else one)
        else:
            parts.append(rows_of(one, rows) if isinstance(one, StepTime) else one)
    return columns._make(parts)
