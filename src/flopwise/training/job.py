"""What a training estimate is asked about: a layout of a recipe on a cluster, and the conditions of the run."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.ops.work import has_gated_experts
from flopwise.training.goodput import DEFAULT_RELIABILITY, Reliability
from flopwise.training.stragglers import JITTER_FRAC
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.facts.price_book import PurchaseTerms
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.storage import Reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a run besides its steps; `origins` gives by field the origin of a value of `reliability`."""

    reliability: Reliability = DEFAULT_RELIABILITY
    jitter_frac: float = JITTER_FRAC  # standard deviation of step times between ranks, over their mean
    validate_every: int | None = None  # steps
    validate_batches: int = 1  # global batches of one validation
    loader_samples_per_s: float | None = None  # sequences/s that the CPU workers of one GPU deliver
    start_s: float = 0.0  # paid before the first step
    terms: PurchaseTerms | None = None  # how the provider rounds what is paid; None: not at all
    origins: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        """Raise SpecError for more validation than training."""
        every = self.validate_every
        if every is not None and self.validate_batches > every:
            raise SpecError(
                f"{self.validate_batches} batches of validation every {every} steps are more than the training between "
                f"them; give at most {every}"
            )


DEFAULT_CONDITIONS = Conditions()


def as_trained(model: Model, recipe: Recipe) -> Model:
    """`model` as the stack of `recipe` trains it: with its layers for multi-token prediction, or without them."""
    return model.with_predictors() if recipe.stack.trains_predictors and recipe.lora is None else model


def as_multiplied(model: Model, recipe: Recipe) -> Recipe:
    """`recipe` with the kernels that the experts of `model` can have, the same object where these are the stack's own.

    Fused grouped products hold a gated activation: experts without a gate are multiplied one by one.

    Source: cuDNN frontend documentation, grouped GEMM with GLU and dGLU epilogues; Megatron-Bridge pull request 5620,
    by which hybrids of state spaces, whose experts have no gate, ran without them in the containers 26.06 and 26.08.
    Assumes: all experts of a model are of one kind.
    """
    if recipe.stack.grouped_kernel != "fused" or not model.has_experts:
        return recipe
    if any(has_gated_experts(stack.items) for stack in model.stacks):
        return recipe
    return replace(recipe, stack=replace(recipe.stack, grouped_kernel="split"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """The input of an estimate: one layout of a recipe on a cluster; `tokens` of the run, None for a step alone."""

    model: Model
    recipe: Recipe
    layout: Layout
    cluster: Cluster
    tokens: float | None = None
    reads: Reads | None = None  # None: the data are there when they are needed
    conditions: Conditions = DEFAULT_CONDITIONS  # of the run

    def __post_init__(self) -> None:
        """Take the model as the stack trains it, with the kernels that it has for its experts."""
        object.__setattr__(self, "model", as_trained(self.model, self.recipe))
        object.__setattr__(self, "recipe", as_multiplied(self.model, self.recipe))

    @property
    def micro_batches(self) -> float:
        """Micro-batches of a step through one replica."""
        return float(self.recipe.global_batch) / (int(self.layout.dp) * int(self.layout.micro_batch))
