"""Memory of a training step: bytes on the fullest GPU, item by item, for one layout or a column of layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np

from flopwise.cost.intervals import OTHER_SOFTWARE, ErrorBand, error_band
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.calibration import Calibration
from flopwise.facts.software import BARE_KINDS, CONTEXT, TrainingStack
from flopwise.ops.types import Array, Floats
from flopwise.training.layer_sums import MemoryTable, memory_table
from flopwise.training.layout import Layout, Recipe
from flopwise.training.stage_memory import MOMENTS, STALE, StageBytes, StageMemory, pipeline_stages
from flopwise.values import dataclass

STATES = ("weights", "master weights", "optimizer states")
"""The exact part of a step's memory: the names of its items."""
_STAGES = ("first pipeline stage", "middle pipeline stage", "last pipeline stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per GPU on the worst rank; every value a float, or a column as long as the layout's."""

    items: dict[str, Floats]
    total_bytes: Floats  # what the driver would report
    reserved_bytes: Floats  # what PyTorch's allocator holds: without context and NCCL
    allocated_bytes: Floats  # what tensors take: without fragmentation
    host_bytes: Floats  # offloaded, of the GPU that offloads most
    moments: dict[str, Floats]  # `total_bytes` at each moment of a step, the largest of which counts
    worst_stage: Array | int  # 0 first, 1 middle, 2 last pipeline stage; -1: there is one stage only
    stages: tuple[tuple[str, dict[str, float]], ...] = ()
    """Items of a single layout on the GPUs of each of its pipeline stages, each at its own fullest moment: the first,
    one between where it may be fuller than the last, and the last; empty where there is one stage."""
    assumptions: tuple[str, ...] = ()

    @property
    def floor_bytes(self) -> float:
        """The lower bound of a single layout: weights and states, whose bytes are counted exactly."""
        return float(sum(np.ravel(self.items[name])[0] for name in STATES if name in self.items))

    @property
    def peak(self) -> str:
        """The fullest moment of a single layout, in words."""
        return max(self.moments, key=lambda name: float(np.ravel(self.moments[name])[0]))

    @property
    def worst_rank(self) -> str:
        """The fullest rank of a single layout, in words."""
        stage = int(np.ravel(self.worst_stage)[0])
        return "every rank" if stage < 0 else _STAGES[stage]


def _number_and_columns(items: dict[str, Floats]) -> tuple[float, list[Array]]:
    """The sum of the items that are numbers, and those that are columns."""
    plain = sum(v for v in items.values() if isinstance(v, float))
    return plain, [v for v in items.values() if not isinstance(v, float)]


def _total(plain: float, columns: Sequence[Array]) -> Floats:
    """The sum of a number and columns, these touched only where there is something to add."""
    if not columns:
        return plain
    return reduce(add, columns[1:], columns[0] + plain if plain else columns[0])


def _sum(items: dict[str, Floats]) -> Floats:
    """The sum of items."""
    return _total(*_number_and_columns(items))


def _peak(moments: Sequence[dict[str, Floats]]) -> Floats:
    """The most that any of the moments adds.

    Columns that the first two end with are added to the larger of their sums before: as rounding keeps order, the same
    as the larger sum. What is smaller than a column of all candidates is so compared first.
    """
    (plain, before), (other_plain, after), *others = map(_number_and_columns, moments)
    both: list[Array] = []
    while min(len(before), len(after)) > 1 and before[-1] is after[-1]:
        both.insert(0, before.pop())
        after.pop()
    fullest = reduce(add, both, np.maximum(_total(plain, before), _total(other_plain, after)))
    later = [total for total in (_total(*each) for each in others) if not isinstance(total, float) or total]
    return np.maximum(reduce(np.maximum, later), fullest) if later else fullest


def _items(parts: StageBytes) -> tuple[dict[str, Floats], Floats, list[Floats]]:
    """Items of one stage at its fullest moment, their sum, and its bytes at each moment."""
    fixed, added, peak = _sum(parts.fixed), [_sum(moment) for moment in parts.moments], _peak(parts.moments)
    items = dict(parts.fixed)
    earlier: Floats = 0.0  # 1.0 where an earlier moment is the fullest already
    for moment, total in zip(parts.moments, added, strict=True):
        now = (np.asarray(total) >= peak) * (1.0 - earlier)
        earlier = earlier + now
        for name, value in moment.items():
            items[name] = value * now + items.get(name, 0.0)
    return items, fixed + peak, [fixed + total for total in added]


def overheads(software: TrainingStack, device_kind: str) -> tuple[float, float]:
    """(share that the allocator reserves beyond tensors, bytes of the driver's context) on devices of a kind.

    Source: data/stacks.json; `BARE_KINDS` for the devices that have neither.
    Assumes: nothing.
    """
    return (0.0, 0.0) if device_kind in BARE_KINDS else (software.fragmentation_frac, software.context_bytes)


def reported_bytes(allocated: Floats, software: TrainingStack, device_kind: str) -> Floats:
    """The memory that the driver reports where tensors take `allocated` bytes. Source and assumptions: `overheads`."""
    spare, context = overheads(software, device_kind)
    return allocated * (1.0 + spare) + context


def tensor_bytes(reported: float, software: TrainingStack, device_kind: str) -> float:
    """Memory for tensors within `reported` bytes: the inverse of `reported_bytes`. Source and assumptions: there."""
    spare, context = overheads(software, device_kind)
    return (reported - context) / (1.0 + spare)


def allocated_and_host(table: MemoryTable, layout: Layout) -> tuple[Floats, Floats]:
    """`allocated_bytes` and `host_bytes` of `step_memory`; for searches: no items.

    Neither depends on the device. Source and assumptions: as `step_memory`.
    """
    run, shape = StageMemory(table, layout), layout.shape()
    best: Floats = 0.0
    host: Floats = 0.0
    for number, stage in enumerate(pipeline_stages(table, layout)):
        parts = run.parts(stage)
        needed = _sum(parts.fixed) + _peak(parts.moments)
        best = np.maximum(best, needed) if number else needed
        host = np.maximum(host, parts.host)
    return _plain(best, shape), _plain(host, shape)


STALE_ENDS = (0.0, 4.0)
"""What blocks of other lengths come to at least and at most, over the estimate: a tool that empties its cache at each
step (PEFT's method comparison) has none, one that never does has kept twice the tensors of a micro-batch (ms-swift)."""


def stale_shifts(memory: Memory, total: float) -> tuple[float, ...]:
    """Logarithms of what more or less blocks of other lengths make of `total` bytes; none where lengths do not vary.

    Source: `STALE_ENDS`. Assumes: the ends are percentiles 10 and 90.
    """
    stale = float(np.ravel(memory.items.get(STALE, 0.0))[0])
    if not stale or total <= float(np.ravel(memory.allocated_bytes)[0]):
        return ()
    return tuple(math.log(1.0 + (share - 1.0) * stale / total) for share in STALE_ENDS)


def ends_of(shifts: Iterable[Iterable[float]]) -> tuple[float, float]:
    """The least and the most that inputs which nobody stated make of an estimate, as factors.

    `shifts`: of each input the logarithms of the estimate at other values of it, over its own.

    Source: variances of independent errors add up. Assumes: the ends of an input lie alike far out.
    """
    logs = [(0.0, *each) for each in shifts]
    return math.exp(-math.hypot(*map(min, logs))), math.exp(math.hypot(*map(max, logs)))


PLAIN_BITS = 16
"""Bits of a weight that is not quantised."""
FITS_WITH = 0.9
"""Probability to fit that a layout must reach where nobody names one: running out of memory costs more than time."""


def memory_method(recipe: Recipe) -> str:
    """The training method by the classes of errors: all weights, adapters, or adapters on quantised weights."""
    if recipe.lora is None:
        return "full"
    return "quantised" if recipe.lora.base.weight_bits < PLAIN_BITS else "adapters"


def memory_class(stack: TrainingStack, method: str, measured: Mapping[str, int]) -> str:
    """The class of errors of a training step's memory: what is trained, whose modules, and whether that was measured.

    Modules of transformers keep what each model's author wrote, frameworks have layers of their own. `measured`: rows
    by "stack method".

    Source: publishers left out in turn (benchmarks/accuracy). Assumes: software with rows of another method alone, and
    software that nobody named, errs as software without rows.
    """
    modules = "transformers" if stack.hf_modules else "framework"
    seen = not stack.unnamed and measured.get(f"{stack.name} {method}")
    return f"memory.{method}.{modules}.{'seen' if seen else 'unseen'}"


def memory_band(recipe: Recipe, calibration: Calibration, device: Accelerator | None = None) -> ErrorBand:
    """The measured error band of a training step's memory: that of its class.

    On devices with software of their own no memory is measured: the widest of the classes that train the same weights.

    Source: data/intervals.json; data/coverage.json for what was measured. Assumes: as `ErrorBand`; None: a GPU.
    """
    coverage, method = calibration.measured.get("memory"), memory_method(recipe)
    measured = {} if coverage is None else coverage.stacks
    band = error_band(memory_class(recipe.stack, method, measured), calibration)
    if device is None or device.kind not in OTHER_SOFTWARE:
        return band
    classes = [errors for name, errors in calibration.errors.items() if f"{name}.".startswith(f"memory.{method}.")]
    return band.no_surer_than(classes, device.architecture)


def confident_capacity_bytes(recipe: Recipe, device: Accelerator, confidence: float = FITS_WITH) -> float:
    """The most that an estimate may come to on `device` so that it fits with a probability of `confidence`.

    Source: the quantile of `memory_band`. Assumes: as `ErrorBand`.
    """
    return device.hbm_bytes / memory_band(recipe, device.calibration, device).quantile(confidence)


def step_memory(
    model: Model, recipe: Recipe, layout: Layout, *, table: MemoryTable | None = None, device_kind: str = "gpu"
) -> Memory:
    """Bytes on the fullest GPU of each candidate of `layout`, item by item, at the fullest moment of a step.

    `table` keeps what depends on the model and the recipe alone; pass one when asking about many layouts. Devices of
    the kinds in `BARE_KINDS` have neither a driver's context nor a caching allocator.

    Source: Rajbhandari et al. 2020 (arXiv 1910.02054) for states under ZeRO; Korthikanti et al. 2022 (arXiv 2205.05198)
    for activations in flight under 1F1B and interleaving; data/stacks.json for what the software adds.
    Assumes: the rank with the most loaded experts has them in every layer; stages hold layers as evenly as they divide.
    """
    table = table or memory_table(model, recipe)
    run, shape = StageMemory(table, layout), layout.shape()
    first, *others = [run.parts(stage) for stage in pipeline_stages(table, layout)]
    (best, best_total, moments), host = _items(first), first.host
    every = [(best, best_total)]
    worst: Floats = np.where(np.asarray(layout.pp) == 1, -1, 0)
    for number, parts in enumerate(others, start=1):
        items, total, of_stage = _items(parts)
        every.append((items, total))
        larger = total > best_total
        best = {name: np.where(larger, items[name], best[name]) for name in items}
        moments = [np.where(larger, now, before) for now, before in zip(of_stage, moments, strict=True)]
        host = np.maximum(host, parts.host)
        worst = np.where(larger, 2 if number == len(others) else 1, worst)
        best_total = np.maximum(total, best_total)
    spare, context = overheads(table.software, device_kind)
    fragmentation = best_total * spare
    best |= {"allocator": fragmentation, CONTEXT: context}
    stage_of = np.broadcast_to(worst, shape)
    return Memory(
        items={name: _plain(value, shape) for name, value in best.items()},
        total_bytes=_plain(best_total + fragmentation + context, shape),
        reserved_bytes=_plain(best_total + fragmentation, shape),
        allocated_bytes=_plain(best_total - best.get(STALE, 0.0), shape),
        host_bytes=_plain(host, shape),
        moments={name: _plain(n * (1.0 + spare) + context, shape) for name, n in zip(MOMENTS, moments, strict=True)},
        worst_stage=stage_of if shape else int(stage_of),
        stages=() if shape else _stage_items(every, spare, context),
        assumptions=table.assumptions,
    )  # fmt: skip


def _stage_items(
    every: Sequence[tuple[dict[str, Floats], Floats]], spare: float, context: float
) -> tuple[tuple[str, dict[str, float]], ...]:
    """`Memory.stages` of one layout; `every`: items and sum of each of its stages."""
    if len(every) == 1:
        return ()
    names = [_STAGES[0], *([_STAGES[1]] if len(every) == 3 else []), _STAGES[2]]
    if len(every) > 3:
        names = [f"pipeline stage {number}" for number in range(1, len(every) + 1)]
    found = []
    for name, (items, total) in zip(names, every, strict=True):
        sizes = {item: float(np.asarray(size).ravel()[0]) for item, size in items.items()}
        sizes |= {"allocator": float(np.asarray(total).ravel()[0]) * spare, CONTEXT: context}
        found.append((name, {item: size for item, size in sizes.items() if size}))
    return tuple(found)


def _plain(value: Floats, shape: tuple[int, ...]) -> Floats:
    """A float for a single candidate, else a column of the candidates' shape."""
    return np.broadcast_to(value, shape) if shape else float(np.asarray(value))
