"""How else people run a training job: its layout and recipe at the ends of what they do, input by input."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from flopwise.cost.intervals import OTHER_SOFTWARE
from flopwise.facts import defaults
from flopwise.facts.software import PARALLELISM
from flopwise.training.layout import TARGET_SETS, Layout, Lora, Recipe
from flopwise.training.spec import CHOSEN_MICRO_BATCH
from flopwise.training.stages import cuts_alike
from flopwise.units import format_change
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.software import TrainingStack

SEEN_BELOW = 0.995
"""An input that leaves as much of the estimate is not worth a word."""
MICRO_BATCHES = (1, 2, 4)
"""Sequences of a micro-batch that people run."""
LORA_ENDS = ((8, "qv"), (64, "all-linear"))
"""Rank and targets of small and of large adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstatedInput:
    """One input that is assumed, and the estimate at the ends of what people do, over its own."""

    name: str
    low: float  # at most 1
    high: float  # at least 1

    def text(self, quantity: str) -> str:
        """The effect of the input on the interval of the quantity, in words."""
        ends = f"{format_change(self.low, 1)} to {format_change(self.high, 1)}"
        return f"{self.name} not stated: other common values change the {quantity} by {ends}"

    @property
    def matters(self) -> bool:
        """True if the input moves the estimate enough for a note."""
        return self.low < SEEN_BELOW or self.high > 1.0 / SEEN_BELOW

    def no_surer_than(self, other: UnstatedInput) -> UnstatedInput:
        """The input, moving the estimate by no less than `other` does."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))


Setting = tuple[Layout, Recipe]


def other_settings(
    layout: Layout,
    recipe: Recipe,
    model: Model,
    open_settings: Collection[str],
    stacks: Sequence[TrainingStack] = (),
    recomputes: tuple[int, int] = (0, 1),
) -> dict[str, list[Setting]]:
    """By input that nobody stated, layout and recipe as other people have them.

    `stacks`: those that people have; `recomputes`: the two modes of recompute that lie farthest apart.

    Source: published runs (benchmarks/truth/training.csv) for the ends. Assumes: a batch is rounded up to whole
    micro-batches.
    """
    stages, layers = int(layout.pp), model.stacks[0].num_layers
    others: dict[str, list[Setting]] = {}

    def laid_out(**fields: int) -> Setting:
        changed = replace(layout, **fields)  # type: ignore[arg-type]  # fields by name
        replicas = int(changed.dp) * int(changed.micro_batch)
        batch = math.ceil(int(recipe.global_batch) / replicas) * replicas
        return changed, replace(recipe, global_batch=batch)

    if "sequence length" in open_settings:
        follows = CHOSEN_MICRO_BATCH in open_settings
        lengths = _lengths(recipe, model)
        others["sequence length"] = [_of_length(length, layout, recipe, follows=follows) for length in lengths]
    if "micro-batch" in open_settings:
        others["micro-batch"] = [laid_out(micro_batch=size) for size in _micro_batches(layout, recipe)]
    if "recompute" in open_settings:
        others["recompute"] = [laid_out(recompute=mode) for mode in recomputes]
    if "interleave" in open_settings and stages > 1:
        deepest = max((v for v in range(2, layers // stages + 2) if cuts_alike(layers, stages, v)), default=1)
        others["interleave"] = [laid_out(interleave=chunks) for chunks in (1, deepest)]
    if "sharding" in open_settings and int(layout.dp) > 1:
        usual = recipe.zero_stages(piped=True) if stages > 1 else (0, 1, 3)
        others["sharding"] = [laid_out(zero=stage) for stage in usual if stage <= recipe.stack.zero]
    for name, adapters in _adapters(recipe, open_settings).items():
        others[name] = [(layout, replace(recipe, lora=other)) for other in adapters]
    if "stack" in open_settings:
        others["stack"] = [_on_stack(stack, layout, recipe) for stack in stacks]
    return others


def _on_stack(stack: TrainingStack, layout: Layout, recipe: Recipe) -> Setting:
    """The layout as people have it on another stack: in a pipeline with the nearest ZeRO stage that is of use there."""
    there, own = replace(recipe, stack=stack), int(layout.zero)
    if int(layout.pp) == 1 or not own:
        return layout, there
    nearest = min(there.zero_stages(piped=True), key=lambda stage: (abs(stage - own), -stage))
    return replace(layout, zero=nearest), there


def _micro_batches(layout: Layout, recipe: Recipe) -> list[int]:
    """Micro-batches that people have: in a pipeline none larger than its own that leaves fewer of them than stages.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 3.1: the bubble is (p - 1) / m of the work, so that m is
    many times the p stages. Assumes: nothing further.
    """
    own, stages = int(layout.micro_batch), int(layout.pp)
    each = int(recipe.global_batch) // int(layout.dp)
    sizes = sorted({*MICRO_BATCHES, own, 2 * own})
    return [size for size in sizes if size <= own or stages == 1 or each // size >= stages]


def _adapters(recipe: Recipe, open_settings: Collection[str]) -> dict[str, list[Lora]]:
    """Small and large adapters, by what of them nobody stated."""
    if (lora := recipe.lora) is None:
        return {}
    sets = [(rank, TARGET_SETS[targets]) for rank, targets in LORA_ENDS]
    ends = {
        "adapters": [replace(lora, rank=rank, targets=targets) for rank, targets in sets],
        "adapter rank": [replace(lora, rank=rank) for rank, _ in sets],
        "adapter targets": [replace(lora, targets=targets) for _, targets in sets],
    }
    return {name: adapters for name, adapters in ends.items() if name in open_settings}


def _lengths(recipe: Recipe, model: Model) -> tuple[int, int]:
    """The shortest and the longest sequences that people have where the recipe's are the default ones."""
    own = int(recipe.seq_len)
    longest = max(own, defaults.LONG_SEQ_LEN)
    return max(own // 2, 1), min(longest, model.max_position or longest)


def _of_length(length: int, layout: Layout, recipe: Recipe, *, follows: bool) -> Setting:
    """Sequences of `length` tokens, as many in whole micro-batches as make up the tokens of a step.

    `follows`: a micro-batch keeps its tokens, too, as far as it can; else its sequences. A step of one stays so.
    """
    own, size, replicas = int(recipe.seq_len), int(layout.micro_batch), int(layout.dp)
    alone = int(recipe.global_batch) <= replicas * size
    if follows:
        size = max(1, size * own // length)
    several = 1 if alone else max(1, round(int(recipe.global_batch) * own / length / (replicas * size)))
    batch = several * replicas * size
    return replace(layout, micro_batch=size), replace(recipe, seq_len=length, global_batch=batch)


BEST_MEASURED = ("H100-SXM-80", "H100-PCIe-80")
"""The device of the family with the most measured runs of training (data/coverage.json), in the forms it is sold in."""


def measured_recipe(recipe: Recipe, device: Accelerator | None, facts: Facts) -> Recipe | None:
    """The recipe on software that is measured, where the device has software of its own; None for other devices.

    What nobody stated moves an estimate on other software by no less than it does on this.
    """
    if device is None or device.kind not in OTHER_SOFTWARE:
        return None
    return replace(recipe, stack=facts.stacks[_first_stack(recipe)])


def _first_stack(recipe: Recipe) -> str:
    """The default stack for such a recipe."""
    return (defaults.STACKS if recipe.lora is None else defaults.ADAPTER_STACKS)[0]


def usual_stacks(layout: Layout, recipe: Recipe, device: Accelerator | None, facts: Facts) -> list[TrainingStack]:
    """The other stacks that people use for such a recipe, that run on the device and have the layout's degrees.

    Of a device with software of its own all count, and the default of others: how far stacks lie apart is the least
    that is known of how far what people run there does.
    """
    usual = defaults.USUAL_STACKS if recipe.lora is None else defaults.USUAL_ADAPTER_STACKS
    degrees = {name: int(getattr(layout, name)) for name in PARALLELISM}
    if device is not None and device.kind in OTHER_SOFTWARE:
        usual = (_first_stack(recipe), *usual)
        device = None
    stacks = map(facts.stack, dict.fromkeys(filter(facts.is_released, usual)))
    others = [stack for stack in stacks if stack.name != recipe.stack.name and not stack.missing(degrees)]
    return [stack for stack in others if device is None or stack.runs_on(device)]
