"""The memory of a training step as an answer: against a device, with its rule of thumb beside it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from flopwise.cost.intervals import ErrorBand
from flopwise.cost.memory_answer import MemoryAnswer, fit_figures
from flopwise.cost.quick import QuickFormula, quick_gpus
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.positions import check_length
from flopwise.facts.software import RECOMPUTE
from flopwise.ops.degrees import heads_and_experts
from flopwise.ops.tensors import parameters
from flopwise.training.alternatives import (
    BEST_MEASURED,
    SEEN_BELOW,
    Setting,
    UnstatedInput,
    measured_recipe,
    other_settings,
    usual_stacks,
)
from flopwise.training.job import as_trained
from flopwise.training.layer_sums import memory_table
from flopwise.training.layout import Layout, Recipe, shard_ranks
from flopwise.training.memory import Memory, ends_of, memory_band, stale_shifts, step_memory
from flopwise.training.schedules import NAMES
from flopwise.training.stages import FULL
from flopwise.units import format_alternatives, format_chance, format_gib
from flopwise.values import dataclass, replace

NO_RECOMPUTE = 0
ODDS_OF_OTHERS = 0.75
"""Where the settings of an answer have less than this share of its chance to run, the answer says so."""
MOST_DOUBLINGS = 16
"""Maximum number of doublings of the GPUs that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingMemoryAnswer(MemoryAnswer):
    """The memory of one training step."""

    recipe: Recipe
    layout: Layout
    memory: Memory
    unstated: tuple[UnstatedInput, ...] = ()  # inputs that are assumed, and how much each widens the interval
    stated_probability: float | None = None  # that it fits with the settings as they are, those that are assumed too

    @property
    def odds_note(self) -> str:
        """The share of unstated inputs in the chance that it runs, in words; empty where that is small."""
        chance, own = self.fits_probability, self.stated_probability
        names = [one.name for one in sorted(self.unstated, key=lambda one: one.low) if one.low < SEEN_BELOW]
        if self.fits is not False or not names or chance is None or own is None or own > ODDS_OF_OTHERS * chance:
            return ""
        other = f"another {format_alternatives(names)}, not stated, may take less"
        return f" ({format_chance(own)} with these settings: {other})"

    @property
    def more_gpus(self) -> str:
        """The fewest GPUs that hold a micro-batch each, and their layout; empty where these do, or none are known."""
        device = self.accelerator
        least = None if device is None else _least_layout(self.model, self.recipe, self.layout, device)
        twice = any(one.fits and one.change.endswith("on twice the GPUs") for one in self.remedies)
        if least is None or least.num_gpus <= self.num_gpus * (2 if twice else 1):
            return ""
        degrees = layout_text(least).split(", recompute ")[0]
        return f"{int(least.num_gpus):,} GPUs ({degrees})"

    def document(self) -> dict[str, Any]:
        """The memory as the JSON that scripts rely on."""
        return {**MemoryAnswer.document(self), "unstated": [asdict(one) for one in self.unstated]}


def memory_answer(
    model: Model,
    recipe: Recipe,
    layout: Layout,
    device: Accelerator | None,
    facts: Facts,
    *,
    seq_given: bool = True,
    open_settings: Collection[str] = (),
    on_gpus: Sequence[Setting] = (),
) -> TrainingMemoryAnswer:
    """The memory of one layout of one recipe, against `device`; `open_settings`: its inputs that nobody stated.

    `on_gpus`: as `unstated_memory` takes them.
    """
    model, kind = as_trained(model, recipe), "gpu" if device is None else device.kind
    memory = step_memory(model, recipe, layout, table=memory_table(model, recipe), device_kind=kind)
    total, capacity = float(memory.total_bytes), None if device is None else float(device.hbm_bytes)
    unstated, least = unstated_memory(model, (layout, recipe), device, facts, open_settings, on_gpus)
    shifts = [(math.log(one.low), math.log(one.high)) for one in unstated]
    floor = min(memory.floor_bytes, least)
    own_band, stale = memory_band(recipe, facts.calibration, device), stale_shifts(memory, total)
    band = own_band.between(*ends_of([stale, *shifts]))
    stated = own_band.between(*ends_of([stale]))
    if (measured := measured_recipe(recipe, device, facts)) is not None:
        settings = on_gpus or ((layout, measured),)
        band = _no_surer_above_floor(band, total, floor, _widest(model, settings, facts, open_settings))
    default = "" if seq_given else " (the default; --seq sets it)"
    assumed = tuple(one.text("memory") for one in unstated if one.matters)
    notes = (*model.assumptions, *check_length(model, int(recipe.seq_len)), *memory.assumptions, *assumed)
    return TrainingMemoryAnswer(
        **fit_figures(total, band, device, capacity, notes, floor=floor),
        model=model,
        num_gpus=int(layout.num_gpus),
        task="train",
        facts=facts,
        items=tuple((name, float(size)) for name, size in memory.items.items() if size),
        worst_rank=memory.worst_rank,
        stages=tuple((name, tuple(items.items())) for name, items in memory.stages),
        host_bytes=float(memory.host_bytes),
        fits=None if capacity is None else total <= capacity,
        quick=_memory_rules(model, recipe, layout, total, device),
        settings=(
            ("layout", layout_text(layout)),
            ("micro-batch", f"{int(layout.micro_batch)} x {int(recipe.seq_len):,} tokens{default}"),
            ("recipe", recipe.text),
            ("stack", recipe.stack.name),
        ),
        recipe=recipe,
        layout=layout,
        memory=memory,
        unstated=unstated,
        stated_probability=None
        if capacity is None
        else float(stated.probability_at_most(total, capacity, floor=memory.floor_bytes)),
        moments=tuple(sorted(((n, float(b)) for n, b in memory.moments.items()), key=lambda m: -m[1])),
    )


def usual_recompute(
    model: Model, recipe: Recipe, layout: Layout, device: Accelerator | None
) -> tuple[Layout, tuple[str, ...]]:
    """The layout with the recompute that is usual where nobody says: of its kinds the first with which it fits; why.

    Source: `Recipe.recomputes`. Assumes: who runs out of memory computes more again, as people are told to.
    """
    first, *others = (replace(layout, recompute=RECOMPUTE.index(name)) for name in recipe.recomputes)
    if device is None or not others:
        return first, ()
    trained = as_trained(model, recipe)
    needed = float(step_memory(trained, recipe, first, device_kind=device.kind).total_bytes)
    if needed <= device.hbm_bytes:
        return first, ()
    for other in others:
        if float(step_memory(trained, recipe, other, device_kind=device.kind).total_bytes) <= device.hbm_bytes:
            why = f"as with recompute {first.recompute_text} it takes {format_gib(needed)}"
            return other, (f"recompute {other.recompute_text} by default, {why} (--recompute sets it)",)
    return first, ()


def _widest(model: Model, settings: Sequence[Setting], facts: Facts, open_settings: Collection[str]) -> float:
    """The high end of an interval over its low one, of the widest that these settings have on the measured GPUs."""
    device = facts.accelerator(BEST_MEASURED[0])
    there = [memory_answer(model, recipe, layout, device, facts, open_settings=open_settings)
             for layout, recipe in settings]  # fmt: skip
    return max(one.high_bytes / one.low_bytes for one in there)


def _no_surer_above_floor(band: ErrorBand, total: float, floor: float, widest: float) -> ErrorBand:
    """The band, reaching so far up that its interval over an exact `floor` has ends no nearer than `widest` apart.

    What is counted exactly cuts the interval from below. It says nothing on the rest, which nobody measured there.
    """
    low, _ = band.interval(total, floor=floor)
    return band.between(1.0, max(1.0, float(low) * widest / (total * band.high)))


def unstated_memory(
    model: Model, own: Setting, device: Accelerator | None, facts: Facts, open_settings: Collection[str],
    on_gpus: Sequence[Setting] = (),
) -> tuple[tuple[UnstatedInput, ...], float]:  # fmt: skip
    """The inputs that are assumed in the memory of a setting, and the least that is exact of any that others have.

    On devices with software of their own an input moves the memory by no less than on the best measured GPUs.
    `on_gpus`: the setting that the same question has there (default: the same layout, on software that is measured).

    Source: the same formulas. Assumes: inputs change the memory independently.
    """
    inputs, least = _moved_memory(model, own, device, facts, open_settings)
    if (measured := measured_recipe(own[1], device, facts)) is not None:
        for setting in on_gpus or ((own[0], measured),):
            found, _ = _moved_memory(model, setting, None, facts, open_settings)
            by_name = {one.name: one for one in found}
            inputs = tuple(one.no_surer_than(by_name.get(one.name, one)) for one in inputs)
    return inputs, least


def _moved_memory(
    model: Model, own: Setting, device: Accelerator | None, facts: Facts, open_settings: Collection[str]
) -> tuple[tuple[UnstatedInput, ...], float]:
    """As `unstated_memory`, of this device alone; None: a GPU."""
    layout, recipe = own
    kind = "gpu" if device is None else device.kind
    stacks = usual_stacks(layout, recipe, device, facts) if "stack" in open_settings else []
    others = other_settings(layout, recipe, model, open_settings, stacks, (NO_RECOMPUTE, FULL))
    inputs, least = list[UnstatedInput](), math.inf
    total = float(step_memory(model, recipe, layout, device_kind=kind).total_bytes) if others else 0.0
    for name, settings in others.items():
        found = [step_memory(model, recipe, layout, device_kind=kind) for layout, recipe in settings]
        shares = [1.0, *(float(memory.total_bytes) / total for memory in found)]
        inputs.append(UnstatedInput(name=name, low=min(shares), high=max(shares)))
        least = min([least, *(memory.floor_bytes for memory in found)])
    return tuple(inputs), least


def layout_text(layout: Layout) -> str:
    """A layout on one line; degrees of 1 are left out."""
    degrees = [f"{n} {int(getattr(layout, n))}" for n in ("dp", "tp", "pp", "cp", "ep") if getattr(layout, n) > 1]
    zero, parts = int(layout.zero), degrees or ["1 GPU"]
    if zero:
        groups = f" over groups of {int(layout.shard)}" if layout.shard else ""
        parts.append((f"ZeRO {zero}" if zero < 3 else "HSDP" if groups else "ZeRO 3 (FSDP)") + groups)
    if layout.schedule:
        parts.append(f"{NAMES[int(layout.schedule)]} schedule")
    if layout.interleave > 1:
        parts.append(f"interleave {int(layout.interleave)}")
    if layout.stage_layers:
        parts.append(f"{'+'.join(map(str, layout.stage_layers))} layers")
    offloads = [part for part in ("optimizer", "parameters", "activations") if getattr(layout, f"offload_{part}")]
    return ", ".join([*parts, f"recompute {layout.recompute_text}", *(f"{part} offloaded" for part in offloads)])


def _memory_rules(
    model: Model, recipe: Recipe, layout: Layout, total_bytes: float, device: Accelerator | None
) -> tuple[QuickFormula, ...]:
    """16 bytes per parameter against the memory of a GPU, and six times the weights against the GPUs that it takes.

    Source: Rajbhandari et al. 2019 (arXiv:1910.02054) section 3 and figure 1 for the 16 bytes: 2 of weights and of
    gradients, 12 of Adam's states, as far as the ZeRO stage leaves them whole.
    """
    count = parameters(model)
    share = 1.0 / int(shard_ranks(layout.shard, int(layout.dp) * int(layout.cp)))
    whole = {0: 16.0, 1: 4.0 + 12.0 * share, 2: 2.0 + 14.0 * share, 3: 16.0 * share}[int(layout.zero)]
    states = QuickFormula(
        name="16 bytes per parameter", formula="16 x parameters, sharded by ZeRO", unit="B",
        value=count / (int(layout.tp) * int(layout.pp)) * whole, estimate=total_bytes,
    )  # fmt: skip
    if device is None:
        return (states,)
    least = _least_layout(model, recipe, layout, device)
    gpus = QuickFormula(
        name="GPUs", formula="parameters x bytes x 6 / memory, rounded up", unit="GPUs",
        value=float(quick_gpus(count, recipe.elem_bytes, device.hbm_bytes, training=True)),
        estimate=None if least is None else float(least.num_gpus),
    )  # fmt: skip
    return states, gpus


def _least_layout(model: Model, recipe: Recipe, layout: Layout, device: Accelerator) -> Layout | None:
    """The layout of the smallest power of two of GPUs on which this recipe fits, fully sharded, tp up to 8.

    One micro-batch a replica and step; None beyond 65,536 GPUs.
    """
    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8) if (heads or 8) % t == 0]
    tp, gpus = (a.ravel() for a in np.meshgrid(degrees, 2 ** np.arange(MOST_DOUBLINGS + 1)))
    whole = gpus % tp == 0
    tp, gpus = tp[whole], gpus[whole]
    dp = gpus // tp
    column = layout.with_degrees(dp=dp, tp=tp, pp=1, cp=1, ep=1, shard=0, interleave=1, zero=np.where(dp > 1, 3, 0))
    batch = replace(recipe, global_batch=dp * int(layout.micro_batch))
    fits = np.asarray(step_memory(model, batch, column, device_kind=device.kind).total_bytes) <= device.hbm_bytes
    if not fits.any():
        return None
    row = int(np.flatnonzero(fits)[gpus[fits].argmin()])
    return column.with_degrees(dp=int(dp[row]), tp=int(tp[row]), zero=3 if dp[row] > 1 else 0)
