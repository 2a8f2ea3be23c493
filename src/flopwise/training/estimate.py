"""One training job, estimated: step, throughput, utilisation, memory, and the run with its cost and energy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import field, fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.cost.energy import device_watts
from flopwise.cost.intervals import ErrorBand, device_band
from flopwise.cost.rates import Rates
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.calibration import FEW_ROWS
from flopwise.facts.software import TrainingStack
from flopwise.ops.flops import causal_forward_flops, forward_flops, runs, stack_shape, stack_works
from flopwise.ops.routing import dropped_frac
from flopwise.ops.types import Floats
from flopwise.training.alternatives import UnstatedInput
from flopwise.training.blocks import Kernels
from flopwise.training.frozen import Frozen, split_model
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import memory_table
from flopwise.training.layout import Inner, Layout, Recipe, check_layout
from flopwise.training.memory import Memory, step_memory
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.routing import check_routing
from flopwise.training.run import StepRun
from flopwise.training.schedules import NAMES, SCHEDULES, Pipe, schedule_text
from flopwise.training.stage_memory import moved_bytes
from flopwise.training.stages import partials_of, uneven_layers
from flopwise.training.step import FRESH_MEMORY, WAITING, balanced_parts, host_s
from flopwise.training.step_table import EXPERT_IMBALANCE, DeviceKernels, StepTable, step_table
from flopwise.training.storage import LINE
from flopwise.values import dataclass, replace

COMMUNICATION = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_p2p", "data_parallel")
KEPT_KERNELS = 128
"""Devices under a recipe whose kernels are kept: a plan's own layouts are estimated after its search."""
KEPT_TABLES = 64
"""Step tables of single layouts that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEstimate:
    """The estimate of a training job; seconds of one optimizer step, tokens of all GPUs per second, fractions to 1."""

    job: TrainJob
    step_s: float
    breakdown: tuple[tuple[str, float], ...]  # the lines add up to step_s
    tokens_per_s: float  # as computed, padding included
    useful_tokens_per_s: float  # of documents: without padding and what packing leaves empty
    tokens_per_s_per_gpu: float
    low: float  # of tokens_per_s_per_gpu, 10 %
    high: float  # 90 %
    lower_bound_s: float
    upper_bound_s: float
    mfu_frac: float  # causal attention counted as computed (half)
    mfu_full_attention_frac: float  # attention counted in full, as 12 L D S per token does
    hfu_frac: float  # recomputed operations included, causal attention
    bound: str
    memory: Memory
    run: StepRun | None
    band: ErrorBand
    table: StepTable = field(repr=False, compare=False)  # what the step was summed from
    unstated: tuple[UnstatedInput, ...] = ()  # inputs that are assumed, and how much each widens the interval
    dropped_frac: float | None = None  # of the copies of tokens that experts with a capacity are sent
    assumptions: tuple[str, ...] = field(default=())

    @property
    def num_gpus(self) -> int:
        """The world size."""
        return int(self.job.layout.num_gpus)

    @property
    def step(self) -> TimedStep:
        """The step alone."""
        return TimedStep(self.job, self.table, dict(self.breakdown))


def check(job: TrainJob) -> None:
    """Refuse layouts that cannot be.

    Raises:
        SpecError: a degree does not divide what it has to; says which and what would.
    """
    layout, model, recipe = job.layout, job.model, job.recipe
    if not model.stacks:
        raise SpecError(
            f"{model.name} has no layers in the catalog (published figures only); use `flopwise roofline` for it"
        )
    replicas = int(layout.dp) * int(layout.micro_batch)
    if int(recipe.global_batch) % replicas:
        raise SpecError(
            f"global batch {recipe.global_batch} does not divide into dp {layout.dp} x micro-batch "
            f"{layout.micro_batch} = {replicas}; give a multiple of {replicas}"
        )
    check_layout(layout, model, recipe)
    micros = int(recipe.global_batch) // replicas
    pipe = Pipe(int(layout.pp), int(layout.interleave), micros)
    _check_schedule(int(layout.schedule), pipe, model.stacks[0].num_layers)
    check_routing(model, recipe, layout)
    if model.max_position and int(recipe.seq_len) > 16 * model.max_position:
        raise SpecError(
            f"a sequence of {recipe.seq_len:,} tokens is far beyond the {model.max_position:,} that {model.name} is "
            "made for"
        )


def _check_schedule(code: int, pipe: Pipe, layers: int) -> None:
    """Refuse a pipeline that a schedule cannot run."""
    name, schedule = NAMES[code], SCHEDULES[NAMES[code]]
    stages, chunks, micros = (int(n) for n in pipe)
    if stages == 1:
        return
    if chunks > 1 and (schedule.keeps_losses or schedule.fill):
        own = "one chunk" if schedule.chunks == 1 else f"{schedule.chunks} chunks"
        raise SpecError(f"schedule {name} runs {own} of layers per stage, not interleave {chunks}")
    if stages * schedule.chunks > layers:
        pieces = stages * schedule.chunks
        raise SpecError(f"schedule {name} splits the model into {pieces} pieces, more than its {layers} layers")
    if schedule.copies > 1 and (stages % 2 or micros % 2):
        raise SpecError(f"schedule {name} needs even numbers of stages and micro-batches, not {stages} and {micros}")
    if micros < schedule.fill * stages:
        raise SpecError(
            f"schedule {name} needs at least {schedule.fill} micro-batches for each of the {stages} stages; "
            f"{micros} are left of the global batch: give a larger one, or lower dp, micro-batch or pp"
        )


def single_table(job: TrainJob, like: StepTable | None = None) -> StepTable:
    """The step table of one layout.

    `like`: an earlier table of the same job but for its links and what of its messages is hidden, whose kernels hold.
    """
    parts = job.model, job.recipe, job.cluster, _of_table(job.layout.at(0))  # in plain numbers
    table = _kept_table(*parts) if like is None else _table(*parts, like)
    return replace(table, jitter_frac=job.conditions.jitter_frac)


def _of_table(layout: Layout) -> Layout:
    """The layout as its step table has it: one replica, whatever replicas shard, whichever schedule they follow.

    First blocks that are computed again set what of the activations moves.
    """
    first = layout.recompute_first if layout.offload_activations else 0
    return replace(
        layout, dp=1, zero=0, shard=0, schedule=0, recompute=0, recompute_first=first,
        interleave=layout.interleave if first else 1, offload_optimizer=False, offload_parameters=False,
    )  # fmt: skip


@lru_cache(maxsize=KEPT_TABLES)
def _kept_table(model: Model, recipe: Recipe, cluster: Cluster, layout: Layout) -> StepTable:
    """The step table of layouts, kept: links, levers and further questions about one read the same table."""
    return _table(model, recipe, cluster, layout, None)


def single_inner(layout: Layout) -> Inner:
    """The inner combination of one layout, shape (1,)."""
    return Inner(*(np.array([int(value)]) for value in (layout.tp, layout.cp, layout.ep, layout.micro_batch)))


_FIRST = np.zeros((), dtype=np.intp)  # of the axes of a table of one layout
_KERNELS = OrderedDict[tuple[object, ...], tuple[Inner, DeviceKernels]]()


def keep_kernels(model: Model, recipe: Recipe, rates: Rates, inner: Inner, kernels: DeviceKernels) -> None:
    """Keep the kernels of a search, or of one layout, for the estimates of single layouts: the last `KEPT_KERNELS`."""
    _KERNELS[_place(model, recipe, rates, inner)] = inner, kernels
    if len(_KERNELS) > KEPT_KERNELS:
        _KERNELS.popitem(last=False)


def _place(model: Model, recipe: Recipe, rates: Rates, inner: Inner | None) -> tuple[object, ...]:
    """Under which kernels are kept: those of one combination by its degrees, those of a search without.

    Kernels are of one micro-batch, whatever the global batch.
    """
    alone = None
    if inner is not None and inner.tp.size == 1:
        alone = tuple(int(getattr(inner, f.name)[0]) for f in fields(inner))
    return model, replace(recipe, global_batch=1), rates.key, alone


def kept_kernels(model: Model, recipe: Recipe, rates: Rates, inner: Inner) -> DeviceKernels | None:
    """The kernels of one combination that were evaluated before; None where they are not kept."""
    _, own = _KERNELS.get(_place(model, recipe, rates, inner), (None, None))
    columns, kernels = _KERNELS.get(_place(model, recipe, rates, None), (None, None))
    if own is not None or columns is None or kernels is None:
        return own
    same = np.logical_and.reduce([getattr(columns, f.name) == getattr(inner, f.name)[0] for f in fields(inner)])
    if not same.any():
        return None
    return kernels_at(kernels, int(same.argmax()))


def kernels_at(kernels: DeviceKernels, place: int) -> DeviceKernels:
    """The kernels of the inner combination at `place`; columns of shape (1,)."""
    some = slice(place, place + 1)
    return [
        [Kernels(**{f.name: np.asarray(getattr(block, f.name))[some] for f in fields(block)}) for block in blocks]
        for blocks in kernels
    ]


def _table(model: Model, recipe: Recipe, cluster: Cluster, layout: Layout, like: StepTable | None) -> StepTable:
    inner, degrees = single_inner(layout), np.array([int(layout.pp)])
    kernels = None if like is None else like.kernels
    if like is None and layout.sequence_parallel:  # as a search has it
        kernels = kept_kernels(model, recipe, cluster.rates, inner)
    table = step_table(
        model, recipe, cluster.rates, cluster.fabric, inner, degrees,
        sequence_parallel=layout.sequence_parallel, sizes=uneven_layers(layout), partials=partials_of(layout),
        kernels=kernels, like=like,
    )  # fmt: skip
    if kernels is None and layout.sequence_parallel:
        keep_kernels(model, recipe, cluster.rates, inner, table.kernels)
    if not layout.offload_activations:
        return table
    memory = memory_table(model, recipe)
    return replace(table, moved_bytes=moved_bytes(memory, inner, degrees, layout, table.partials))


def single_parts(table: StepTable, layout: Layout) -> dict[str, float]:
    """The lines of one layout's step."""
    first = np.zeros(1, dtype=np.intp)
    parts = balanced_parts(table, first, first, layout)
    return {name: float(np.asarray(value).ravel()[0]) for name, value in parts.items()}


class TimedStep(NamedTuple):
    """One step of a job: seconds by line, the table that they were summed from, and what reading takes."""

    job: TrainJob
    table: StepTable
    parts: dict[str, float]
    read_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All lines."""
        return sum(self.parts.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens as computed, padding included, a second and device."""
        tokens = float(self.job.recipe.global_batch) * float(self.table.seq_tokens[0])
        return tokens / self.seconds / int(self.job.layout.num_gpus)


def timed_step(job: TrainJob) -> TimedStep:
    """One step of a job, without bounds, interval and memory.

    Raises:
        SpecError: the layout cannot be.
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    check(job)
    table = single_table(job)
    parts = single_parts(table, job.layout)
    if job.reads is None:
        return TimedStep(job, table, parts)
    read_s = job.reads.read_s(job.recipe, job.layout, job.cluster.gpus_per_node)
    parts[LINE] = max(0.0, read_s - sum(parts.values()))  # reading overlaps computing: `kept_up_frac`
    return TimedStep(job, table, parts, read_s)


def job_memory(job: TrainJob) -> Memory:
    """The memory of a job on the fullest device."""
    table, kind = memory_table(job.model, job.recipe), job.cluster.accelerator.kind
    return step_memory(job.model, job.recipe, job.layout, table=table, device_kind=kind)


def estimate(job: TrainJob) -> TrainEstimate:
    """Estimate one job.

    Raises:
        SpecError: the layout cannot be.
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    step = timed_step(job)
    table, parts, read_s, step_s = step.table, step.parts, step.read_s, step.seconds
    layout, recipe, gpus = job.layout, job.recipe, int(job.layout.num_gpus)
    tokens_per_s = float(recipe.global_batch) * float(table.seq_tokens[0]) / step_s
    per_gpu = tokens_per_s / gpus
    lower, upper = step_bounds(job, table)
    least_s = max(lower, read_s)
    band = training_band(job).up_to(step_s / least_s)
    low, high = band.interval(per_gpu)
    memory = job_memory(job)
    mfu, mfu_full, hfu = utilisation(job, table, step_s)
    watts = None if job.cluster.accelerator.tdp_w is None else job_watts(job, parts, table)
    notes = (
        *job.model.assumptions,
        *job.cluster.assumptions,
        *memory.assumptions,
        *_schedule_notes(layout, recipe.stack),
    )
    return TrainEstimate(
        job=job, step_s=step_s, breakdown=tuple(parts.items()), tokens_per_s=tokens_per_s,
        useful_tokens_per_s=recipe.useful_tokens / step_s, tokens_per_s_per_gpu=per_gpu, low=float(low),
        high=float(high), lower_bound_s=least_s, upper_bound_s=upper / band.low + read_s, mfu_frac=mfu,
        mfu_full_attention_frac=mfu_full, hfu_frac=hfu, bound=bound(job, parts, table), memory=memory,
        run=StepRun.of_job(job, parts, watts), band=band,
        table=table, dropped_frac=_dropped_frac(job.model, recipe, layout), assumptions=notes,
    )  # fmt: skip


def _dropped_frac(model: Model, recipe: Recipe, layout: Layout) -> float | None:
    """Share of routed copies of tokens that are dropped; None without experts or a capacity.

    Source: `flopwise.ops.routing.dropped_frac`.
    Assumes: the capacity holds for the tokens of one rank's micro-batch, as in GShard and Megatron-LM.
    """
    item = model.stacks[0].largest_experts
    if item is None or recipe.capacity_factor is None:
        return None
    routed = float(layout.micro_batch) * float(recipe.seq_len) / float(layout.cp) * item.top_k
    return float(dropped_frac(item.experts, recipe.expert_skew, recipe.capacity_factor, np.array([routed]))[0])


def _schedule_notes(layout: Layout, software: TrainingStack) -> tuple[str, ...]:
    """A note where a training stack is not known to run the schedule of a layout."""
    pp, chunks = int(layout.pp), int(layout.interleave)
    name = schedule_text(int(layout.schedule), chunks)
    schedules = software.schedules
    if pp == 1 or name in schedules or (chunks > 1 and {"interleaved", NAMES[int(layout.schedule)]} <= set(schedules)):
        return ()
    return (f"{software.name} is not known to run the schedule {name}; it runs {', '.join(schedules)}",)


LARGE_GPUS = 1000
"""Number of devices above which few runs were measured."""


def training_band(job: TrainJob, *, complete: bool = True, num_gpus: int | None = None) -> ErrorBand:
    """The error band of the job's class on its devices; `num_gpus`: on so many of them, whatever its layout says.

    Classes tell apart mixtures and dense models, and whether all inputs are known. Wider above `LARGE_GPUS`, as the
    rows there ask for, and on a stack without rows.

    Source: publishers left out of the calibration (benchmarks/accuracy). Assumes: as `device_band`; a stack that nobody
    measured errs as a family of devices that nobody measured.
    """
    kind, inputs = "moe" if job.model.has_experts else "dense", "complete" if complete else "incomplete"
    band = device_band(f"training.{kind}.{inputs}", job.cluster)
    measured = job.cluster.accelerator.calibration.measured.get("training")
    if measured is None:
        return band
    gpus = int(job.layout.num_gpus) if num_gpus is None else num_gpus
    if gpus > LARGE_GPUS and measured.large > 1.0:
        band = band.wider(measured.large, f"above {LARGE_GPUS:,} devices")
    stack = job.recipe.stack.name
    if stack not in band.stacks and measured.stacks.get(stack, 0) < FEW_ROWS and measured.family_out > 1.0:
        band = band.wider(measured.family_out, f"few measured runs with {stack}")
    return band


def step_bounds(job: TrainJob, table: StepTable) -> tuple[float, float]:
    """(lower bound of the step, the step with nothing hidden) in seconds.

    Lower: `least_step_s`. The other: everything at calibrated rates one after the other; an upper bound at the slow end
    of the measured errors, which rates have, too.

    Source: roofline model (Williams et al. 2009).
    """
    stack = replace(job.recipe.stack, tp_overlap=0.0, ep_overlap=0.0, dp_overlap=0.0, ring_overlap=0.0)
    alone = replace(job, recipe=replace(job.recipe, stack=stack))
    modes, at = table.modes(job.layout, _FIRST, _FIRST)
    launch_s = job.micro_batches * float(host_s(modes, *at))
    serial = replace(single_table(alone, like=table), serial=True)
    return least_step_s(job, table), sum(single_parts(serial, job.layout).values()) + launch_s


def least_step_s(job: TrainJob, table: StepTable) -> float:
    """Lower bound of the step in seconds: compute, memory or network of the busiest stage, at datasheet rates.

    Source: roofline model (Williams et al. 2009).
    """
    return job.micro_batches * float(table.floor_s[:, 0, 0].max())


def counted_batch(job: TrainJob) -> tuple[float, int]:
    """Sequences and their length that have as many tokens and pairs of tokens as one step computes.

    Source: `Documents.computed_lengths`. Assumes: as there.
    """
    tokens, attended = (float(np.ravel(n)[0]) for n in job.recipe.computed_tokens(job.layout.micro_batch))
    return float(job.recipe.global_batch) * tokens / attended, int(attended)


def counted_passes(job: TrainJob) -> float:
    """Operations of forward and backward over those of the forward pass, as utilisation counts them.

    Source: Chowdhery et al. 2022 (arXiv:2204.02311) appendix B; of frozen parts `training_flops`.
    Assumes: adapters cost nothing, and no weight of the base has a gradient.
    """
    return recipe_passes(job.model, job.recipe, *counted_batch(job))


def counted_flops(job: TrainJob) -> tuple[float, float]:
    """Operations of a step's forward pass: attention as the mask lets through, and in full.

    Source: Chowdhery et al. 2022 (arXiv:2204.02311) appendix B. Assumes: experts do nothing for tokens that they drop.
    """
    batch, seq = counted_batch(job)
    causal = float(causal_forward_flops(job.model, batch, seq))
    full = float(forward_flops(job.model, batch, seq))
    if not (frac := _dropped_frac(job.model, job.recipe, job.layout)):
        return causal, full
    stack = job.model.stacks[0]
    parts = stack_works(stack, stack_shape(job.model, stack, batch, seq))
    experts = sum(n * float(work.flops) for _, n, works in parts for work in works if work.kind == "grouped")
    return causal - frac * experts, full - frac * experts


def recipe_passes(model: Model, recipe: Recipe, batch: float, seq: int) -> float:
    """As `counted_passes`, of `batch` sequences of `seq` tokens. Source and assumptions: as there."""
    if recipe.frozen is not None:
        forward, whole = training_flops(model, recipe.frozen, batch, seq, causal=True)
        return whole / forward
    return 3.0 if recipe.lora is None else 2.0


def training_flops(model: Model, frozen: Frozen, batch: float, seq: int, *, causal: bool) -> tuple[float, float]:
    """Operations of (the forward pass, forward and backward); attention as the mask lets through, or in full.

    A product costs once forward, once for its input's gradient and once for its weight's; attention, which has no
    weights, three times wherever gradients pass.

    Source: Kaplan et al. 2020 (arXiv:2001.08361) section 2.1, product by product; equal to PyTorch's FlopCounterMode in
    tests/training/test_frozen.py.
    Assumes: attention's backward pass counts as twice its forward.
    """
    split = split_model(model, frozen)
    forward = whole = 0.0
    for stack in split.model.stacks:
        if not runs(split.model, stack):
            continue
        shape = stack_shape(split.model, stack, batch, seq)
        mine = stack is split.model.stacks[0]
        blocks = split.blocks if mine else (split.towers,) * (len(stack.kinds) + 2)
        for block, (_, layers, works) in zip(blocks, stack_works(stack, shape), strict=True):
            for work in works:
                flops = layers * float(work.causal_flops if causal else work.flops)
                weightless = work.kind in {"attention", "recurrence"} or work.name not in block.frozen
                forward += flops
                whole += flops * ((3.0 if weightless else 2.0) if block.backward else 1.0)
    return forward, whole


def utilisation(job: TrainJob, table: StepTable, step_s: float) -> tuple[float, float, float]:
    """(MFU with causal attention, MFU with attention in full, HFU) of the peak rate of the recipe's precision.

    Source: Chowdhery et al. 2022 (arXiv:2204.02311) appendix B; Korthikanti et al. 2022 (arXiv:2205.05198) section 6.3.
    """
    recipe, layout = job.recipe, job.layout
    gpus = int(layout.num_gpus)
    passes = counted_passes(job)
    causal, full = counted_flops(job)
    available = step_s * gpus * table.rates.peak_flops_per_s(recipe.precision)
    again = causal * again_frac(table, layout)
    return passes * causal / available, passes * full / available, (passes * causal + again) / available


def again_frac(table: StepTable, layout: Layout) -> float:
    """Of the operations of a forward pass, what recompute runs again.

    Source: `Kernels.recomputed_part`. Assumes: causal attention counted as computed.
    """
    modes, (mode, _, inner) = table.modes(layout, _FIRST, _FIRST)
    return float(modes.again_flops[mode, inner] / table.forward_flops[0])


def bound(job: TrainJob, parts: dict[str, float], table: StepTable) -> str:
    """The largest part of the step's time: compute, memory bandwidth, communication, pipeline bubble, host, transfers.

    Transfers are those between devices and their hosts. Storage, whenever the rest waits for it.
    """
    if parts.get(LINE, 0.0) > 0:
        return "storage I/O"
    memory_s = job.micro_batches * float(table.memory_s[0, 0]) + parts["optimizer"]
    busy = parts["forward"] + parts["backward"] + parts["recompute"] + parts["optimizer"]
    busy += parts.get(EXPERT_IMBALANCE, 0.0) + parts.get(WAITING, 0.0) + parts.get(NEWTON_SCHULZ, 0.0)
    shares = {
        "compute": busy - memory_s,
        "memory bandwidth": memory_s,
        "communication": sum(parts[name] for name in COMMUNICATION),
        "pipeline bubble": parts["pipeline_bubble"],
        "host": parts["launch"] + parts.get(FRESH_MEMORY, 0.0),
        "transfers to and from the host": parts.get("offload", 0.0),
    }
    return max(shares, key=lambda name: shares[name])


def job_watts(job: TrainJob, parts: dict[str, float], table: StepTable) -> float:
    """Mean draw of one device over the step, in W; `table`: of this layout alone."""
    memory_s = job.micro_batches * float(table.memory_s[0, 0])
    return float(step_watts(float(job.cluster.accelerator.figure("tdp_w")), dict(parts), memory_s))


def step_watts(tdp_w: float, parts: Mapping[str, Floats], memory_s: Floats) -> Floats:
    """Mean draw of one device over a step of these lines, `memory_s` of it in memory-bound kernels, in W; broadcasts.

    Source and assumptions: `device_watts`.
    """
    step_s = sum(parts.values())
    in_memory = np.minimum(memory_s + parts["optimizer"], step_s)
    busy = parts["forward"] + parts["backward"] + parts["recompute"] + parts["optimizer"]
    busy = busy + parts.get(NEWTON_SCHULZ, 0.0)
    wires = sum(parts[name] for name in COMMUNICATION)
    return device_watts(tdp_w, np.maximum(busy - in_memory, 0.0) / step_s, in_memory / step_s, wires / step_s)
