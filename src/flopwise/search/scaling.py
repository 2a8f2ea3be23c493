"""How single ways of spreading a job scale with the number of GPUs, and why each of them bends."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import Cluster
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.models.positions import check_length
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.search.layout_search import GivenSettings, fastest_layout
from flopwise.search.space import MAX_INTERLEAVE, MODES, LayoutLimits, powers_of_two
from flopwise.training.estimate import TrainEstimate, estimate
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import COLUMNS, Inner, Layout, Recipe
from flopwise.training.memory import allocated_and_host, confident_capacity_bytes, reported_bytes
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.on_device import recipe_on
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.training.stages import cuts_alike
from flopwise.training.step import step_parts
from flopwise.training.step_table import step_table
from flopwise.training.stragglers import STRAGGLERS
from flopwise.units import format_gib, format_number
from flopwise.values import dataclass, replace

Floats = NDArray[np.float64]
STRATEGIES = ("data", "zero-1", "fsdp", "tensor", "pipeline", "context", "expert", "hybrid")
"""One degree grows with the GPUs, or the best of all (hybrid); expert: data parallel with experts spread over it."""
MEANINGS = {
    "data": "replicas (DDP)", "zero-1": "replicas, states sharded (ZeRO 1)", "fsdp": "all sharded (FSDP, ZeRO 3)",
    "tensor": "tensor parallel", "pipeline": "pipeline stages", "context": "parts of each sequence",
    "expert": "replicas, experts spread", "hybrid": "the best of all layouts",
}  # fmt: skip
BENT_FRAC = 0.8
"""Efficiency below which a way of spreading counts as bent."""
MICRO_BATCHES = 16
FULLY_SHARDED = 3
CAUSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tensor-parallel messages are exposed", ("tensor_parallel",)),
    ("context-parallel messages are exposed", ("context_parallel",)),
    ("expert all-to-alls are exposed", ("expert_parallel",)),
    ("messages of gradients and weights are exposed", ("data_parallel",)),
    ("messages between stages", ("pipeline_p2p",)),
    ("pipeline bubble", ("pipeline_bubble",)),
    ("launching kernels takes longer than running them", ("launch",)),
    ("recompute, to fit the memory", ("recompute",)),
    ("the optimizer's step does not shrink", ("optimizer", NEWTON_SCHULZ)),
    ("all wait for the slowest GPU", (STRAGGLERS,)),
    ("kernels too small to be fast", ("forward", "backward")),
)
"""Why a step is longer than its share of the reference, and the lines of the step that say so."""
UNEVEN = "the fullest stage (head, embedding, layers left over) sets the pace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One way of spreading on one number of GPUs; without layout or time where it cannot be, `reason` says why."""

    strategy: str
    num_gpus: int
    global_batch: int
    fits: bool
    layout: Layout | None = None
    step_s: float | None = None
    memory_bytes: float | None = None
    samples_per_s: float | None = None  # sequences
    efficiency_frac: float | None = None  # of the reference's throughput a GPU
    reason: str = ""  # what bends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """The point where a scheme of parallelism leaves the straight line, and why; None: not up to the GPUs given."""

    strategy: str
    num_gpus: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingComparison:
    """Every way of spreading on 1, 2, 4 ... GPUs, against `reference`: the best on the fewest GPUs that it fits."""

    weak: bool
    points: tuple[ScalingPoint, ...]
    bends: tuple[Bend, ...]
    reference: ScalingPoint | None

    def fastest(self, num_gpus: int) -> ScalingPoint | None:
        """The fastest layout on `num_gpus`, or None if none fits."""
        points = [point for point in self.points if point.num_gpus == num_gpus and point.fits]
        return max(points, key=lambda point: point.samples_per_s or 0.0, default=None)


class _Steps(NamedTuple):
    """Candidates of one number of GPUs: whose each is, its memory, and the lines of its step."""

    layout: Layout
    strategies: tuple[str, ...]
    memory: Floats
    step: Floats
    lines: dict[str, Floats]

    def best(self, strategy: str, capacity: float) -> int:
        """The fastest of `strategy` (hybrid: of all) below `capacity`, or the one of least memory if none is."""
        own = np.array([strategy in ("hybrid", name) for name in self.strategies])
        fits = own & (self.memory <= capacity)
        return int((np.where(fits, self.step, np.inf) if fits.any() else np.where(own, self.memory, np.inf)).argmin())


def comparison(
    model: Model, recipe: Recipe, cluster: Cluster, gpus: int, *, weak: bool = False, micro_batch: int | None = None
) -> ScalingComparison:
    """Compare all ways of spreading on powers of two up to `gpus`, and on `gpus`.

    Strong scaling keeps the recipe's global batch; weak scaling keeps that batch for each GPU of `gpus`.

    Raises: MissingFactError: the device lacks a rate that the recipe needs.
    """
    points: list[ScalingPoint] = []
    reference: ScalingPoint | None = None
    ideal: dict[str, float] = {}  # GPU-seconds a sequence of each line of the reference
    capacity = cluster.accelerator.hbm_bytes
    for count in sorted({*powers_of_two(gpus).tolist(), gpus}):
        batch = int(recipe.global_batch)
        if weak:
            batch = max(1, batch * count // gpus)
        here = replace(recipe, global_batch=batch)
        layout, strategies, reasons = _candidates(model, here, cluster, count, micro_batch)
        shown = {
            name: ScalingPoint(strategy=name, num_gpus=count, global_batch=batch, fits=False, reason=reason)
            for name, reason in reasons.items()
        }
        if strategies:
            steps = _steps(model, here, cluster, layout, strategies)
            sure = confident_capacity_bytes(here, cluster.accelerator)
            best = {name: steps.best(name, sure) for name in dict.fromkeys((*strategies, "hybrid"))}
            if reference is None and steps.memory[best["hybrid"]] <= capacity:
                reference = replace(_point("hybrid", here, steps, best["hybrid"], capacity), efficiency_frac=1.0)
                ideal = {name: float(line[best["hybrid"]]) * count / batch for name, line in steps.lines.items()}
            for name in best.keys() - reasons.keys():
                shown[name] = _point(name, here, steps, best[name], capacity, reference, ideal)
        points += [shown[name] for name in STRATEGIES if name in shown]
    bends = tuple(_bend(name, own) for name in STRATEGIES if (own := [p for p in points if p.strategy == name]))
    return ScalingComparison(weak=weak, points=tuple(points), bends=bends, reference=reference)


def ruled_out(strategy: str, count: int, limits: LayoutLimits, batch: int) -> str:
    """Why `strategy` cannot use `count` GPUs; empty where it can."""
    replicas = {
        f"the batch is exhausted: {batch:,} sequences for {count:,} replicas": count > batch,
        f"{batch:,} sequences are not divisible by {count:,} replicas": batch % count != 0,
    }
    others = {
        "tensor": {f"{limits.heads} attention heads are not divisible by {count:,}": limits.heads % count != 0},
        "pipeline": {f"{count:,} stages are more than the {limits.layers} layers": count > limits.layers},
        "context": {f"{limits.seq_len:,} tokens are not divisible by 2 x {count:,}": limits.seq_len % (2 * count) != 0},
    }
    return next((reason for reason, holds in others.get(strategy, replicas).items() if holds), "")


def _degrees(strategy: str, count: int, limits: LayoutLimits) -> dict[str, int]:
    """The degrees of `strategy` on `count` GPUs."""
    if strategy in ("tensor", "pipeline", "context"):
        return {{"tensor": "tp", "pipeline": "pp", "context": "cp"}[strategy]: count}
    zero = {"zero-1": 1, "fsdp": 3, "expert": 1}.get(strategy, 0) if count > 1 else 0
    experts = int(np.gcd(count, limits.experts)) if strategy == "expert" else 1
    return {"dp": count, "zero": zero, "ep": experts}


def _candidates(
    model: Model, recipe: Recipe, cluster: Cluster, count: int, micro_batch: int | None
) -> tuple[Layout, tuple[str, ...], dict[str, str]]:
    """Candidates of all strategies as one layout of columns, the strategy of each; and why the others have none."""
    batch, software = int(recipe.global_batch), recipe.stack
    limits = LayoutLimits.of(model, int(recipe.seq_len), batch)
    rows: list[tuple[str, dict[str, int]]] = []
    reasons: dict[str, str] = {}
    for strategy in STRATEGIES[:-1]:
        if strategy == "expert" and limits.experts == 1:
            continue
        reason = ruled_out(strategy, count, limits, batch)
        if strategy == "fsdp" and software.zero < FULLY_SHARDED:
            reason = f"{software.name} shards by ZeRO {software.zero} at most"
        base = _degrees(strategy, count, limits)
        if lacking := software.missing(base):
            reason = f"{software.name} has no {' and no '.join(lacking)}"
        if reason:
            reasons[strategy] = reason
            continue
        each, stages = batch // base.get("dp", 1), base.get("pp", 1)
        for micro in [micro_batch] if micro_batch else powers_of_two(min(MICRO_BATCHES, each)).tolist():
            if each % micro:
                continue
            chunks = [1]  # virtual stages of each rank that come out even
            if stages > 1 and each // micro % stages == 0:
                chunks += [v for v in range(2, MAX_INTERLEAVE + 1) if cuts_alike(limits.layers, stages, v)]
            rows += [
                (strategy, {**base, "micro_batch": micro, "interleave": v, "recompute": mode})
                for v in chunks
                for mode in MODES
            ]
    best = fastest_layout(model, recipe, cluster, count, GivenSettings(micro_batch=micro_batch))
    if best is None:
        reasons["hybrid"] = f"no layout of {count:,} GPUs divides {batch:,} sequences"
    else:
        rows.append(("hybrid", {name: int(getattr(best[0], name)) for name in COLUMNS}))
    default = Layout()
    columns: dict[str, Any] = {
        name: np.array([row.get(name, getattr(default, name)) for _, row in rows]) for name in COLUMNS
    }
    return replace(default, **columns), tuple(strategy for strategy, _ in rows), reasons


def _steps(model: Model, recipe: Recipe, cluster: Cluster, layout: Layout, strategies: tuple[str, ...]) -> _Steps:
    """Memory and step of every candidate."""
    keys = np.stack([np.asarray(getattr(layout, name)) for name in ("tp", "cp", "ep", "micro_batch")])
    distinct, inner = np.unique(keys, axis=1, return_inverse=True)
    degrees, degree = np.unique(np.asarray(layout.pp), return_inverse=True)
    table = step_table(model, recipe, cluster.rates, cluster.fabric, Inner(*distinct), degrees)
    parts = step_parts(table, inner.ravel(), degree.ravel(), layout)
    lines: dict[str, Floats] = {n: np.broadcast_to(np.asarray(v, float), len(strategies)) for n, v in parts.items()}
    allocated, _ = allocated_and_host(MemoryTable(model, recipe), layout)
    memory = np.asarray(reported_bytes(allocated, recipe.stack, cluster.accelerator.kind))
    step: Floats = np.sum(list(lines.values()), axis=0)
    return _Steps(layout, strategies, np.broadcast_to(memory, len(strategies)), step, lines)


def _point(
    strategy: str, recipe: Recipe, steps: _Steps, row: int, capacity: float, reference: ScalingPoint | None = None,
    ideal: dict[str, float] | None = None,
) -> ScalingPoint:  # fmt: skip
    """The point of one strategy; `ideal`: GPU-seconds a sequence of each line of the reference."""
    step, memory, batch = float(steps.step[row]), float(steps.memory[row]), int(recipe.global_batch)
    layout, rate = steps.layout.at(row), batch / step
    count = int(layout.num_gpus)
    point = ScalingPoint(
        strategy=strategy, num_gpus=count, global_batch=batch, fits=memory <= capacity, layout=layout, step_s=step,
        memory_bytes=memory, samples_per_s=rate,
    )  # fmt: skip
    if not point.fits:
        return replace(point, reason=f"does not fit: {format_gib(memory)} of {format_gib(capacity)}")
    if reference is None or reference.samples_per_s is None or ideal is None:
        return point
    efficiency = rate / count / (reference.samples_per_s / reference.num_gpus)
    excess = {
        cause: sum(float(steps.lines[n][row]) - ideal[n] * batch / count for n in lines if n in ideal)
        for cause, lines in CAUSES
    }
    worst = max(excess, key=lambda cause: excess[cause])
    if efficiency < 1 and excess[worst] > 0:
        cause = UNEVEN if worst == CAUSES[-1][0] and int(layout.pp) > 1 else worst
        point = replace(point, reason=f"{cause} ({100 * excess[worst] / step:.0f} % of the step)")
    return replace(point, efficiency_frac=efficiency)


def _bend(strategy: str, points: list[ScalingPoint]) -> Bend:
    """The first number of GPUs from which on `strategy`, whose points these are, is bent or impossible."""
    good = [p.efficiency_frac is not None and p.efficiency_frac >= BENT_FRAC for p in points]
    if not any(good):
        fitting = [p for p in points if p.fits]
        sized = [p for p in points if p.memory_bytes is not None]
        nearest = fitting[0] if fitting else min(sized or points, key=lambda p: p.memory_bytes or 0.0)
        where = f" on {nearest.num_gpus:,} GPUs" if nearest.num_gpus != points[0].num_gpus else ""
        return Bend(strategy=strategy, num_gpus=points[0].num_gpus, reason=nearest.reason + where)
    bent = points[max(i for i, fine in enumerate(good) if fine) + 1 :]
    return Bend(strategy=strategy, num_gpus=bent[0].num_gpus if bent else None, reason=bent[0].reason if bent else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer:
    """Throughput of a job on more and more accelerators, for each kind of parallelism alone and for all layouts."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    num_gpus: int
    comparison: ScalingComparison
    fastest: TrainEstimate | None  # a step of the fastest layout on all accelerators; None where none fits
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]

    @classmethod
    def of(
        cls, model: ModelName, gpus: int | None, data: DataSpec, spec: TrainingSpec, machines: MachineSpec,
        source: SourceSpec, *, weak: bool,
    ) -> CompareAnswer:  # fmt: skip
        """The comparison of all ways of spreading a job on the accelerators of `machines`; `weak` as in `comparison`.

        Raises:
            SpecError: a layout, which is what is compared, or a single accelerator.
            MissingFactError: a fact that the answer needs is not known.
            InfeasibleError: no offer satisfies what was asked.
        """
        if spec.bounds_layout:
            raise SpecError("a comparison goes through all layouts: leave out degrees, ZeRO, recompute and offloading")
        gpus = machines.num_gpus(gpus)
        if gpus < 2:
            raise SpecError(f"{gpus} accelerator leaves nothing to compare; give 2 or more (--gpus)")
        architecture, cluster = source.model_with_layers(model), machines.cluster(gpus, source.catalog)
        seq_len = data.seq_len(architecture, tunes=spec.tunes)
        batch, notes = data.batch(
            architecture, seq_len, tunes=spec.tunes, unit=gpus * (spec.micro_batch or 1),
            least=spec.least_batch(architecture, seq_len, gpus, source.catalog),
        )  # fmt: skip
        wanted = spec.recipe(seq_len, batch, source.catalog, architecture, data.documents(seq_len))
        recipe, device_notes = recipe_on(wanted, cluster.accelerator)
        kept = (
            f"{format_number(batch / gpus, 4)} sequences per accelerator"
            if weak
            else f"{batch:,} sequences per step at every size"
        )
        scaling = comparison(architecture, recipe, cluster, gpus, weak=weak, micro_batch=spec.micro_batch)
        layout = None if (point := scaling.fastest(gpus)) is None else point.layout
        job = None if layout is None else TrainJob(model=architecture, recipe=recipe, layout=layout, cluster=cluster)
        notes = (*notes, *device_notes, *architecture.assumptions, *check_length(architecture, seq_len))
        return CompareAnswer(
            model=architecture, cluster=cluster, recipe=recipe, num_gpus=gpus, comparison=scaling,
            fastest=None if job is None else estimate(job),
            settings=(
                ("accelerators", f"{cluster.accelerator.name}, {cluster.gpus_per_node} per node"),
                ("global batch", f"{kept}, of {seq_len:,} tokens"), ("recipe", recipe.text),
                ("stack", recipe.stack.name),
            ),
            assumptions=tuple(dict.fromkeys((*notes, *cluster.assumptions))),
        )  # fmt: skip
