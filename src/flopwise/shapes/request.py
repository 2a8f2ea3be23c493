"""What a review of shapes is asked for, and the pass that it times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flopwise.cost.cluster import Cluster
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.ops.degrees import check_expert_parallel
from flopwise.options import OptionError, take
from flopwise.serving.deployment import usual_engine
from flopwise.shapes.clocks import Clock, EngineClock, TrainingClock
from flopwise.training.on_device import recipe_on
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import dataclass

COMPARED = ("fsdp-eager", "fsdp-compile", "megatron-te")
"""Stacks that differ in what they fuse: nothing, what a compiler finds, hand-written kernels."""
TRAINED_BATCH, DECODED_BATCH = 1, 32
"""Sequences of a pass where none are given."""
TRAINING_OPTIONS = ("precision", "stack", "attention", "offload", "ep")
SERVING_OPTIONS = ("weights", "kv_dtype", "engine")
FOREIGN = {"train": SERVING_OPTIONS, "serve": TRAINING_OPTIONS}
"""Options that do not go with a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRequest:
    """A pass of a model, with options of its task by their names; None: as by default.

    Raises:
        SpecError: a value cannot be, or does not go with the task.
    """

    task: Literal["train", "serve"] = "train"
    tp: int = 1
    batch: int | None = None
    seq: int | None = None
    ep: int | None = None
    precision: str | None = None
    stack: str | None = None
    attention: str | None = None
    offload: Sequence[str] | str | None = None
    weights: str | None = None
    kv_dtype: str | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.task not in FOREIGN:
            raise SpecError(f"unknown task {str(self.task)[:40]!r}; allowed: {', '.join(FOREIGN)}")
        for name in FOREIGN[self.task]:
            if getattr(self, name) is not None:
                raise OptionError(name, f"does not go with --task {self.task}")
        for name in ("tp", "batch", "seq", "ep"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise SpecError(f"{name} {size}; give 1 or more")
        (training,) = take({"offload": self.offload}, TrainingSpec)
        if foreign := sorted({*training.offload} - {"optimizer"}):
            raise OptionError("offload", f"a review of shapes has the optimizer alone, not {', '.join(foreign)}")

    def clock(self, model: Model, cluster: Cluster, facts: Facts) -> Clock:
        """The pass of a model on a cluster.

        Raises:
            SpecError: a choice that does not exist, or experts that `ep` ranks cannot share.
        """
        tokens = DataSpec(seq=self.seq).seq_len(model)
        if self.task == "serve":
            return self._step(model, cluster, facts, tokens)
        check_expert_parallel(model, self.ep or 1)
        batch = self.batch or TRAINED_BATCH
        spec = TrainingSpec(precision=self.precision or "bf16", stack=self.stack, attention=self.attention)
        recipe, _ = recipe_on(spec.recipe(tokens, batch, facts), cluster.accelerator)
        return TrainingClock(
            model=model, recipe=recipe, cluster=cluster, tp=self.tp, ep=self.ep or 1, batch=batch,
            offload=bool(self.offload), compared=tuple(map(facts.stack, COMPARED)),
        )  # fmt: skip

    def _step(self, model: Model, cluster: Cluster, facts: Facts, tokens: int) -> EngineClock:
        usual = usual_engine(facts.engines, model, cluster.accelerator)
        return EngineClock(
            model=model, cluster=cluster, weights=facts.weight_format(self.weights or defaults.WEIGHTS),
            kv_dtype=facts.cache_format(self.kv_dtype or defaults.CACHE),
            engine=facts.engine(self.engine) if self.engine else usual,
            tp=self.tp, batch=self.batch or DECODED_BATCH, seq=tokens,
        )  # fmt: skip
