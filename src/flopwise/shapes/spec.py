"""What a review of shapes is asked for, and the pass that it times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.ops.spec import SharedSpec
from flopwise.options import OptionError, Spec, changed_options, same
from flopwise.serving.spec import ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.shapes.clocks import Clock, EngineClock

COMPARED = ("fsdp-eager", "fsdp-compile", "megatron-te")
"""Stacks that differ in what they fuse: nothing, what a compiler finds, hand-written kernels."""
TRAINED_BATCH, DECODED_BATCH = 1, 32
"""Sequences of a pass where none are given."""
TRAINING_OPTIONS = ("precision", "stack", "attention", "offload", "ep")
SERVING_OPTIONS = ("weights", "kv_dtype", "engine")
FOREIGN = {"train": SERVING_OPTIONS, "serve": TRAINING_OPTIONS}
"""Options that do not go with a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSpec(Spec):
    """Options of a pass of a model; None: as by default.

    Raises: SpecError: a value cannot be, or does not go with the task.
    """

    task: Literal["train", "serve"] = "train"
    tp: int | None = same(SharedSpec, "tp", section="")
    ep: int | None = same(SharedSpec, "ep", section="")
    batch: int | None = same(SharedSpec, "batch", section="")
    seq: int | None = same(DataSpec, "seq", section="")
    precision: str = same(TrainingSpec, "precision", default=TrainingSpec().precision, section="Training")
    stack: str | None = same(TrainingSpec, "stack", section="Training")
    attention: str | None = same(TrainingSpec, "attention", section="Training")
    offload: tuple[str, ...] = same(TrainingSpec, "offload", section="Training")
    weights: str | None = same(ServingSpec, "weights", section="Serving")
    kv_dtype: str | None = same(ServingSpec, "kv_dtype", section="Serving")
    engine: str | None = same(ServingSpec, "engine", section="Serving")

    def __post_init__(self) -> None:
        if self.task not in FOREIGN:
            raise SpecError(f"unknown task {str(self.task)[:40]!r}; allowed: {', '.join(FOREIGN)}")
        Spec.__post_init__(self)
        for name in changed_options(self):
            if name in FOREIGN[self.task]:
                raise OptionError(name, f"does not go with --task {self.task}")
        if foreign := sorted({*self.offload} - {"optimizer"}):
            raise OptionError("offload", f"a review of shapes has the optimizer alone, not {', '.join(foreign)}")

    def clock(self, model: Model, cluster: Cluster, facts: Facts) -> Clock:
        """The pass of a model on a cluster.

        Raises: SpecError: a choice that does not exist, or experts that `ep` ranks cannot share.
        """
        from flopwise.ops.degrees import check_expert_parallel
        from flopwise.shapes.clocks import TrainingClock
        from flopwise.training.job import as_multiplied
        from flopwise.training.on_device import recipe_on

        tokens = DataSpec(seq=self.seq).seq_len(model)
        if self.task == "serve":
            return self._step(model, cluster, facts, tokens)
        check_expert_parallel(model, self.ep or 1)
        batch = self.batch or TRAINED_BATCH
        spec = TrainingSpec(precision=self.precision, stack=self.stack, attention=self.attention)
        recipe = as_multiplied(model, recipe_on(spec.recipe(tokens, batch, facts, model), cluster.accelerator)[0])
        fuses = recipe.stack.activations == "fused"  # a stack that fuses less has the same kernels, or more
        compared = (stack for stack in map(facts.stack, COMPARED) if stack.activations == "fused" or not fuses)
        return TrainingClock(
            model=model, recipe=recipe, cluster=cluster, tp=self.tp or 1, ep=self.ep or 1, batch=batch,
            offload=bool(self.offload), compared=tuple(compared),
        )  # fmt: skip

    def _step(self, model: Model, cluster: Cluster, facts: Facts, tokens: int) -> EngineClock:
        from flopwise.serving.deployment import usual_engine
        from flopwise.shapes.clocks import EngineClock

        usual = usual_engine(facts, model, cluster.accelerator)
        return EngineClock(
            model=model, cluster=cluster, weights=facts.weight_format(self.weights or defaults.WEIGHTS),
            kv_dtype=facts.cache_format(self.kv_dtype or defaults.CACHE),
            engine=facts.engine(self.engine) if self.engine else usual,
            tp=self.tp or 1, batch=self.batch or DECODED_BATCH, seq=tokens,
        )  # fmt: skip
