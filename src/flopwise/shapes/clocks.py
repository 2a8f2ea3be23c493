"""The passes that shape advice times: a micro-batch forward and backward on one rank, or one step of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.cost.kernels import Elements
from flopwise.cost.sustained import limited_rates, training_rates
from flopwise.facts.architecture import Model, Stack
from flopwise.facts.formats import BF16, BF16_CACHE, CacheFormat, WeightFormat
from flopwise.facts.software import Engine, TrainingStack
from flopwise.ops.flops import encoder_tokens, runs
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.types import Array, Ints
from flopwise.serving.iteration import Runner, StepLoad, whole_prompts
from flopwise.serving.memory import ServingLayout, generates
from flopwise.serving.precision import product_path
from flopwise.shapes.kernels import KernelShape, blocks, kernel_names, kernel_shape, scalar
from flopwise.training.blocks import BlockContext, BoostedKernels, block_kernels, kernels_of
from flopwise.training.layout import Inner, Layout, Recipe
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.step import step_parts
from flopwise.training.step_table import StepTable, at_sustained_clock, block_list, step_table
from flopwise.values import dataclass, replace

ONCE = frozenset({"optimizer", NEWTON_SCHULZ, "data_parallel", "pipeline_bubble", "pipeline_p2p"})
"""Lines of a step that a micro-batch on one pipeline stage does not have."""
MESSAGES = ("tensor_parallel", "context_parallel", "expert_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineClock:
    """Times a step in which each of `batch` sequences with `seq` cached tokens gets one token.

    Of a model that generates none it is one pass over `batch` prompts of `seq` tokens.
    """

    model: Model
    cluster: Cluster
    weights: WeightFormat = BF16
    kv_dtype: CacheFormat = BF16_CACHE
    engine: Engine
    tp: int = 1
    batch: int = 1
    seq: int = 1
    task: str = "serve"
    flash: bool = True

    @property
    def dtype(self) -> str:
        """Precision of the products inside the layers."""
        return product_path(self.model, self.weights, self.cluster.rates).dtype

    def runner(self, model: Model | None = None) -> Runner:
        """The runner that times the steps of a model in this format."""
        path = product_path(self.model, self.weights, self.cluster.rates)
        return Runner(
            model=model or self.model, rates=limited_rates(self.cluster.rates), fabric=self.cluster.fabric,
            engine=self.engine, dtype=path.dtype, weight_bits=path.weight_bits, wide=path.wide, eight=path.eight,
            kv_dtype=self.kv_dtype,
        )  # fmt: skip

    def pass_s(
        self, model: Model | None = None, *, batch: Ints | None = None, seq: int | None = None, tp: Ints | None = None
    ) -> Array:
        """Seconds of a step, messages and the engine's own time included; shape (n,)."""
        sequences = np.atleast_1d(self.batch if batch is None else batch)
        split = ServingLayout(tp=np.atleast_1d(self.tp if tp is None else tp))
        return np.atleast_1d(self.runner(model).step(self._load(sequences, seq or self.seq), split).seconds)

    @property
    def step(self) -> tuple[StepLoad, ServingLayout]:
        """The load of the step, and how ranks share it."""
        return self._load(self.batch, self.seq), ServingLayout(tp=self.tp)

    def _load(self, batch: Ints, seq: int) -> StepLoad:
        if not generates(self.model):
            return whole_prompts(self.model, batch, seq)
        return StepLoad(decode_batch=batch, decode_context=float(seq))

    def messages_s(self) -> float:
        """Seconds of a step in messages."""
        return scalar(self.runner().step(*self.step).communication_s)

    def kernels(self, pass_s: float) -> tuple[KernelShape, ...]:
        """Every kernel of the step as a row."""
        (load, split), runner = self.step, self.runner()
        passes = [("", self.model.stacks[0], load)]
        if np.any(load.encoded):
            towers = [tower for tower in self.model.stacks[1:] if runs(self.model, tower)]
            passes += [(f"{tower.name}/", tower, runner.tower_load(tower, load)) for tower in towers]
        return tuple(row for name, part, each in passes for row in self._rows(name, part, each, split, pass_s))

    def _rows(
        self, prefix: str, part: Stack, load: StepLoad, split: ServingLayout, pass_s: float
    ) -> Iterator[KernelShape]:
        runner = self.runner()
        for place, layers, items in blocks(part):
            labels = kernel_names(items, fused=True)
            for kernel in runner.kernels_of(items, load, split, inside=place is not None):
                name = prefix + (f"{place}: " if place else "") + labels.get(kernel.work.name, kernel.work.name)
                bound = scalar(kernel.timing.memory_s) >= scalar(kernel.timing.compute_s)
                yield kernel_shape(
                    runner.rates, kernel.work, Elements(kernel.dtype, kernel.weight_bits, kv_bytes=runner.kv_bytes),
                    name=name, layers=layers, forward=True,
                    seconds=kernel.timing.seconds, memory_bound=bound, pass_s=pass_s,
                )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingClock:
    """Times a micro-batch of `batch` sequences of `seq` tokens on one rank."""

    model: Model
    recipe: Recipe
    cluster: Cluster
    tp: int = 1
    ep: int = 1
    batch: int = 1
    offload: bool = False  # the optimizer and its states stand in host memory
    compared: tuple[TrainingStack, ...] = ()  # other stacks whose kernels the advice looks at
    towers: bool = False  # a multimodal model's towers see a sample with each sequence
    seen: dict[Any, BoostedKernels] = field(default_factory=dict, repr=False, compare=False)  # blocks timed already
    task: str = "train"

    @property
    def dtype(self) -> str:
        """Precision of the products inside the layers."""
        return self.recipe.precision

    @property
    def flash(self) -> bool:
        """True if attention runs in flash kernels."""
        return self.recipe.attention != "eager"

    @property
    def seq(self) -> int:
        """Tokens of a sequence."""
        return int(self.recipe.seq_len)

    def stacks(self, model: Model) -> Iterator[tuple[Stack, int]]:
        """The stacks that a micro-batch runs, each with the tokens of one of its sequences."""
        for part in model.stacks:
            if self.towers or runs(model, part):
                seen = self.seq if part is model.stacks[0] else encoder_tokens(model, self.seq)
                yield part, part.tokens_per_sample or int(seen)

    def pass_s(
        self, model: Model | None = None, *, batch: Ints | None = None, seq: int | None = None, tp: Ints | None = None
    ) -> Array:
        """Seconds of a micro-batch forward and backward, messages and launching included; shape (n,)."""
        clock = self if seq is None else replace(self, recipe=replace(self.recipe, seq_len=seq))
        return clock.lines(model, batch=batch, tp=tp)[0]

    def lines(
        self, model: Model | None = None, *, batch: Ints | None = None, tp: Ints | None = None
    ) -> tuple[Array, dict[str, Array], Array]:
        """(seconds, its lines, those in memory-bound kernels) of a micro-batch, for columns of batches and degrees."""
        whole = model or self.model
        columns = (self.batch if batch is None else batch, self.tp if tp is None else tp)
        sizes, ranks = np.broadcast_arrays(*map(np.atleast_1d, columns))
        total: dict[str, Array] = {}
        memory = np.zeros(sizes.shape)
        for part, tokens in self.stacks(whole):
            alone = whole if len(whole.stacks) == 1 else replace(whole, stacks=(part,))
            table = self.table(alone, tokens, sizes, ranks)
            place = np.arange(len(sizes))
            zero = np.zeros_like(place)
            parts = step_parts(table, place, zero, Layout(tp=ranks, ep=self.ep, micro_batch=sizes, recompute=zero))
            for name, seconds in parts.items():
                if name not in ONCE:
                    total[name] = total.get(name, 0.0) + seconds * np.ones(sizes.shape)
            memory = memory + table.memory_s[0]
        return np.sum(list(total.values()), axis=0), total, memory

    def messages_s(self) -> float:
        """Seconds of a micro-batch in messages inside its layers."""
        _, parts, _ = self.lines()
        return sum(scalar(parts.get(name, 0.0)) for name in MESSAGES)

    def context(self, tokens: int, batch: Array, tp: Array) -> BlockContext:
        """The data that all blocks of a micro-batch over sequences of `tokens` share."""
        one = np.ones(len(batch), dtype=np.int64)
        return BlockContext(
            replace(self.recipe, seq_len=tokens, global_batch=batch),
            training_rates(self.cluster.rates, self.recipe.stack, self.recipe.precision),
            self.cluster.fabric,
            Shape(batch=batch.astype(np.int64), query=tokens, context=tokens, encoder=tokens),
            Split(tp=tp.astype(np.int64), cp=one, ep=one * self.ep),
        )

    def table(self, model: Model, tokens: int, batch: Array, tp: Array) -> StepTable:
        """The step table of the first stack of `model` over sequences of `tokens`; one micro-batch a step."""
        shared = self.context(tokens, batch, tp)
        key = (tokens, batch.tobytes(), tp.tobytes(), self.recipe.stack.name, self.recipe.attention)
        kernels = []
        for items, _, inside in block_list(model):
            place = (key, inside, items)
            if place not in self.seen:
                self.seen[place] = block_kernels(items, shared, in_layers=inside)
            kernels.append(self.seen[place])
        cut = shared.split
        inner = Inner(np.asarray(cut.tp), np.asarray(cut.cp), np.asarray(cut.ep), np.asarray(shared.shape.batch))
        cluster, only = self.cluster, np.array([1])
        timed = at_sustained_clock(model.stacks[0], kernels, shared.rates)
        return step_table(model, shared.recipe, cluster.rates, cluster.fabric, inner, only, kernels=[timed])

    def kernels(self, pass_s: float) -> tuple[KernelShape, ...]:
        """Every kernel of the micro-batch as a row, forward and backward."""
        return tuple(row for part, tokens in self.stacks(self.model) for row in self._rows(part, tokens, pass_s))

    def _rows(self, part: Stack, tokens: int, pass_s: float) -> Iterator[KernelShape]:
        sizes = tokens, np.array([self.batch]), np.array([self.tp])
        context = self.context(*sizes)
        clock = self.table(replace(self.model, stacks=(part,)), *sizes).kernels[0][0].clock_frac
        fused = context.software.activations == "fused" and self.recipe.lora is None
        for place, layers, items in blocks(part):
            prefix = f"{part.name}/" if part is not self.model.stacks[0] else ""
            labels = kernel_names(items, fused=fused)
            for kernel in kernels_of(items, context, in_layers=place is not None):
                base, _, half = kernel.work.name.rpartition("/")
                first, gradient = (base, half) if half in {"dgrad", "wgrad", "grad"} else (kernel.work.name, "")
                label = prefix + (f"{place}: " if place else "") + labels.get(first, first)
                yield kernel_shape(
                    context.rates,
                    kernel.work,
                    Elements(kernel.dtype, 8 * context.act_bytes, context.act_bytes, context.act_bytes),
                    name=f"{label} ({gradient})" if gradient else label,
                    layers=layers,
                    forward=kernel.forward,
                    seconds=kernel.at(clock).seconds,
                    memory_bound=scalar(kernel.memory_s) > 0,
                    pass_s=pass_s,
                )


Clock = TrainingClock | EngineClock
