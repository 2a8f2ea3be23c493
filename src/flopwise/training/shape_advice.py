"""Shape advice for training: one micro-batch forward and backward on one rank, through the training step's formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flopwise.cost.advice import Advice, Case, Fine, sorted_advice
from flopwise.cost.fabric import fabric
from flopwise.cost.shape_rules import findings
from flopwise.cost.shapes import Operation, blocks, kernel_names, operation, scalar
from flopwise.cost.sustained import training_rates
from flopwise.facts.architecture import Model, Stack
from flopwise.facts.software import stack as software_row
from flopwise.ops.flops import encoder_tokens, runs
from flopwise.ops.tensors import sharded_parameters
from flopwise.ops.work import Shape, Split
from flopwise.training.block_lines import block_list
from flopwise.training.blocks import BlockContext, Kernels, block_kernels, kernels_of
from flopwise.training.layout import Layout
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.step import Inner, StepTable, step_parts, step_table
from flopwise.training.widths import ACT_BYTES, DTYPE_BYTES, resident_grad_dtype

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.fabric import Fabric
    from flopwise.ops.types import Array, Ints
    from flopwise.training.layout import Recipe

ONCE = frozenset({"optimizer", NEWTON_SCHULZ, "data_parallel", "pipeline_bubble", "pipeline_p2p"})
"""Lines of a step that a micro-batch on one pipeline stage does not have."""
COMPARED = ("fsdp-eager", "fsdp-compile", "megatron-te")
"""Stacks that differ in what they fuse: nothing, what a compiler finds, hand-written kernels."""
PINNED_FRAC = 0.76
"""Of the link, what transfers from pinned memory reach: 12 of 15.75 GB/s (CUDA C++ Best Practices Guide, PCIe 3)."""
PAGEABLE_FRAC = 0.4
"""Of that, what transfers from pageable memory reach: 2.3 of 5.8 GB/s (Harris 2012)."""
MESSAGES = ("tensor_parallel", "context_parallel", "expert_parallel")


class StackTime(NamedTuple):
    """A micro-batch under one training stack."""

    name: str
    pass_s: float
    memory_bound_frac: float  # of the time in kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingClock:
    """Times a micro-batch of `batch` sequences of `seq` tokens on one rank; a `cost.advice.Clock`."""

    model: Model
    recipe: Recipe
    cluster: Cluster
    tp: int = 1
    ep: int = 1
    batch: int = 1
    offload: bool = False  # the optimizer and its states stand in host memory
    towers: bool = False  # a multimodal model's towers see a sample with each sequence
    seen: dict[Any, Kernels] = field(default_factory=dict, repr=False, compare=False)  # blocks timed already
    task: str = "train"

    @property
    def dtype(self) -> str:
        """Precision of the products inside the layers."""
        return self.recipe.precision

    @property
    def flash(self) -> bool:
        """Whether attention runs in flash kernels."""
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
        asked = self if seq is None else replace(self, recipe=replace(self.recipe, seq_len=seq))
        return asked.lines(model, batch=batch, tp=tp)[0]

    def lines(
        self,
        model: Model | None = None,
        *,
        batch: Ints | None = None,
        tp: Ints | None = None,
        stack: str | None = None,
        links: Fabric | None = None,
    ) -> tuple[Array, dict[str, Array], Array]:
        """(seconds, its lines, those in memory-bound kernels) of a micro-batch, for columns of batches and degrees."""
        whole = model or self.model
        sizes, ranks = np.broadcast_arrays(
            np.atleast_1d(self.batch if batch is None else batch), np.atleast_1d(self.tp if tp is None else tp)
        )
        total: dict[str, Array] = {}
        memory = np.zeros(sizes.shape)
        for part, tokens in self.stacks(whole):
            alone = whole if len(whole.stacks) == 1 else replace(whole, stacks=(part,))
            table = self.table(alone, tokens, sizes, ranks, stack=stack, links=links)
            place = np.arange(len(sizes))
            zero = np.zeros_like(place)
            parts = step_parts(table, place, zero, Layout(tp=ranks, ep=self.ep, micro_batch=sizes, recompute=zero))
            for name, seconds in parts.items():
                if name not in ONCE:
                    total[name] = total.get(name, 0.0) + seconds * np.ones(sizes.shape)
            memory = memory + table.memory_s[0]
        return np.sum(list(total.values()), axis=0), total, memory

    def context(self, tokens: int, batch: Array, tp: Array, stack: str | None = None) -> BlockContext:
        """What all blocks of a micro-batch over sequences of `tokens` share."""
        name = stack or self.recipe.stack
        software, one = software_row(name), np.ones(len(batch), dtype=np.int64)
        return BlockContext(
            recipe=replace(self.recipe, seq_len=tokens, global_batch=batch, stack=name),
            software=software,
            rates=training_rates(self.cluster.rates, software, self.recipe.precision),
            fabric=self.cluster.fabric,
            shape=Shape(batch=batch.astype(np.int64), query=tokens, context=tokens, encoder=tokens),
            split=Split(tp=tp.astype(np.int64), cp=one, ep=one * self.ep),
        )

    def table(
        self, model: Model, tokens: int, batch: Array, tp: Array, *, stack: str | None, links: Fabric | None
    ) -> StepTable:
        """The step table of the first stack of `model` over sequences of `tokens`; one micro-batch a step."""
        shared = self.context(tokens, batch, tp, stack)
        key = (tokens, batch.tobytes(), tp.tobytes(), stack, self.recipe.attention)
        kernels = []
        for items, _, inside in block_list(model):
            place = (key, inside, items)
            if place not in self.seen:
                self.seen[place] = block_kernels(items, shared, in_layers=inside)
            kernels.append(self.seen[place])
        cut = shared.split
        inner = Inner(np.asarray(cut.tp), np.asarray(cut.cp), np.asarray(cut.ep), np.asarray(shared.shape.batch))
        joined = links or self.cluster.fabric
        only = np.array([1])
        return step_table(
            model, shared.recipe, shared.software, self.cluster.rates, joined, inner, only, kernels=[kernels]
        )

    def operations(self, pass_s: float) -> tuple[Operation, ...]:
        """Every kernel of the micro-batch as a row, forward and backward."""
        return tuple(row for part, tokens in self.stacks(self.model) for row in self._rows(part, tokens, pass_s))

    def _rows(self, part: Stack, tokens: int, pass_s: float) -> Iterator[Operation]:
        context = self.context(tokens, np.array([self.batch]), np.array([self.tp]))
        fused = context.software.activations == "fused" and self.recipe.lora is None
        for place, layers, items in blocks(part):
            prefix = f"{part.name}/" if part is not self.model.stacks[0] else ""
            labels = kernel_names(items, fused=fused)
            for kernel in kernels_of(items, context, in_layers=place is not None):
                base, _, half = kernel.work.name.rpartition("/")
                first, gradient = (base, half) if half in {"dgrad", "wgrad", "grad"} else (kernel.work.name, "")
                label = prefix + (f"{place}: " if place else "") + labels.get(first, first)
                yield operation(
                    context.rates,
                    kernel.work,
                    name=f"{label} ({gradient})" if gradient else label,
                    layers=layers,
                    forward=kernel.forward,
                    dtype=kernel.dtype,
                    seconds=kernel.seconds,
                    memory_bound=scalar(kernel.memory_s) > 0,
                    pass_s=pass_s,
                    act_bytes=context.act_bytes,
                    kv_bytes=context.act_bytes,
                    weight_bits=8 * context.act_bytes,
                )

    def software(self) -> tuple[StackTime, ...]:
        """The micro-batch under the stack asked for and under those that fuse less or more."""
        names = dict.fromkeys((self.recipe.stack, *COMPARED))
        found = []
        for name in names:
            seconds, _, memory = self.lines(stack=name)
            found.append(StackTime(name, scalar(seconds), scalar(memory) / scalar(seconds)))
        return tuple(found)


def fusing(case: Case, compared: tuple[StackTime, ...]) -> Iterator[Advice | Fine]:
    """What another stack's fused kernels would save in memory-bound operations and launches.

    Source: `data/stacks.csv`: what each stack fuses.
    """
    now, best = compared[0], min(compared, key=lambda t: t.pass_s)
    gain = now.pass_s - best.pass_s
    if case.worth(gain):
        was, less = now.memory_bound_frac * now.pass_s, best.memory_bound_frac * best.pass_s
        why = f"memory-bound operations take {1e3 * was:,.3g} ms, there {1e3 * less:,.3g} ms"
        if was - less < gain / 2:
            why += "; more from attention kernel, launches and overlap"
        yield case.advice("software", now.name, best.name, why, gain)
    else:
        yield Fine(
            "software", f"{now.name}: {100 * now.memory_bound_frac:.0f} % memory-bound; no other stack is faster"
        )


def attention(case: Case, clock: TrainingClock) -> Iterator[Advice]:
    """What flash kernels would save where attention writes its scores.

    Source: FlashAttention-2 (arXiv 2307.08691); Korthikanti et al. 2022 (arXiv:2205.05198) section 4.1.
    """
    if not clock.flash:
        changed = replace(clock, recipe=replace(clock.recipe, attention="flash"))
        gain = case.now_s - scalar(changed.pass_s())
        if case.worth(gain):
            yield case.advice("attention", "eager", "flash", "scores cross memory several times", gain)


def links(case: Case, clock: TrainingClock) -> Iterator[Fine]:
    """What the link of the tensor-parallel group carries, against PCIe."""
    if clock.tp == 1:
        return
    _, parts, _ = clock.lines()
    share = sum(scalar(parts.get(name, 0.0)) for name in MESSAGES) / case.now_s
    told = f"messages of tp {clock.tp} take {100 * share:.1f} % over {clock.cluster.fabric.link_kind}"
    chip = clock.cluster.accelerator
    if clock.cluster.fabric.link_kind != "pcie" and chip.pcie_bytes_per_s:
        plain = replace(chip, link="none", link_bytes_per_s=None, max_scaleup=None)
        slower = scalar(clock.lines(links=fabric(plain, gpus_per_node=max(8, clock.tp)))[0])
        told += f"; over PCIe the pass would take {slower / case.now_s:.2f} times as long"
    yield Fine("links", told)


def host(case: Case, clock: TrainingClock) -> Iterator[Advice | Fine]:
    """What an optimizer in host memory sends over PCIe each step, from pinned memory and from pageable.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 3: gradients go down, 16-bit weights come up. Pageable memory:
    Harris 2012, "How to Optimize Data Transfers in CUDA C/C++", NVIDIA blog.
    Assumes: nothing hides it; the weights of one rank, not sharded further.
    """
    chip = clock.cluster.accelerator
    if not clock.offload or not chip.pcie_bytes_per_s:
        return
    dtype = resident_grad_dtype(clock.recipe, software_row(clock.recipe.stack))
    items = [i for part in clock.model.stacks for _, layers, group in blocks(part) for i in group * layers]
    held = scalar(sharded_parameters(items, clock.tp, clock.ep))
    down, up = held * DTYPE_BYTES[dtype], held * ACT_BYTES
    taken = (down + up) / (PINNED_FRAC * chip.pcie_bytes_per_s)
    gen = f"PCIe {chip.pcie_gen}" if chip.pcie_gen else "PCIe"
    told = (
        f"{(down + up) / 1e9:,.1f} GB a step over {gen} take {taken:,.2f} s; over n micro-batches a step 1/n of it each"
    )
    yield Fine("host transfers, pinned", told)
    slower = taken / PAGEABLE_FRAC
    yield Advice(
        what="host transfers",
        now="pageable memory",
        better="pinned memory",
        why="pageable memory is copied twice; bind each rank to its GPU's socket, too; of a pass that is a whole step",
        gain_s=slower - taken,
        gain_frac=(slower - taken) / (case.now_s + slower),
    )


def training_advice(clock: TrainingClock) -> tuple[Case, tuple[Advice, ...], tuple[Fine, ...], tuple[StackTime, ...]]:
    """(the case, advice by gain, what is fine, the stacks compared) of a micro-batch.

    Raises:
        MissingFactError: the device lacks a rate that the recipe needs.
    """
    now_s = scalar(clock.pass_s())
    case = Case(clock, now_s, clock.operations(now_s))
    advice, fine = findings(case)
    compared = clock.software() if clock.recipe.lora is None else ()
    more = [
        *(fusing(case, compared) if compared else ()),
        *attention(case, clock),
        *links(case, clock),
        *host(case, clock),
    ]
    advice = sorted_advice((*advice, *(m for m in more if isinstance(m, Advice))))
    return case, advice, (*fine, *(m for m in more if isinstance(m, Fine))), compared
