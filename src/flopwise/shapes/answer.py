"""The kernels of a pass and what to change: shapes, software, links and transfers, each with the seconds saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from flopwise.cost.fabric import fabric, host_link_bytes_per_s
from flopwise.ops.tensors import sharded_parameters
from flopwise.origin import COUNTED, KERNEL, Device, estimate_of, number
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Figure, term
from flopwise.results import Result, attributes, notes
from flopwise.serving.iteration import prompt
from flopwise.serving.memory import generates
from flopwise.shapes.clocks import Clock, TrainingClock
from flopwise.shapes.kernels import KernelShape, blocks, l2_ridge_flops_per_byte, ridge_flops_per_byte, scalar
from flopwise.shapes.rules import RULES, Advice, Case, Finding, Fine
from flopwise.training.step_figures import TrainingDevice
from flopwise.training.widths import ACT_BYTES, resident_grad_bytes
from flopwise.units import format_number, format_percent, format_seconds
from flopwise.values import dataclass, replace

PAGEABLE_FRAC = 0.4
"""Share of that rate that transfers from pageable memory reach: 2.3 of 5.8 GB/s (Harris 2012)."""


DRAWN = 20
"""Operations in a picture, largest first."""


class StackTime(NamedTuple):
    """A micro-batch under one training stack."""

    name: str
    pass_s: float
    memory_bound_frac: float  # of the time in kernels


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShapeAnswer(Result):
    """The kernels of a pass on one rank, and what to change. Seconds are of one pass.

    A pass is a micro-batch forward and backward (`train`), or a step that gives each sequence one token (`serve`;
    of a model that generates none, a forward pass over all sequences).
    """

    clock: Clock
    pass_s: float
    operations: tuple[KernelShape, ...]
    advice: tuple[Advice, ...]  # what software refuses first, then the largest gain
    fine: tuple[Fine, ...]
    stacks: tuple[StackTime, ...]
    settings: tuple[tuple[str, str], ...]

    table: ClassVar[str] = "operations"

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """The kernels of a pass, and what to change: each finding is a single change beside the model as it is.

        Raises: MissingFactError: the device lacks a rate that the pass needs.
        """
        now_s = scalar(clock.pass_s())
        case = Case(clock, now_s, clock.kernels(now_s))
        findings = [finding for rule in RULES for finding in rule(case)]
        device = f"{clock.cluster.accelerator.name}, tp {clock.tp}"
        stacks: tuple[StackTime, ...] = ()
        if isinstance(clock, TrainingClock):
            recipe, device = clock.recipe, device + f", ep {clock.ep}" * (clock.ep > 1)
            stacks = tuple(_stack_times(clock)) if recipe.lora is None else ()
            findings += [*_stack_findings(case, stacks), *_attention_findings(case, clock), *_link_findings(case)]
            findings += _transfer_findings(case, clock)
            work = f"forward and backward of {clock.batch:,} x {clock.seq:,} tokens on one rank"
            way = ("recipe", f"{recipe.precision}, {recipe.attention} attention, {recipe.stack.name}")
        else:
            findings += _link_findings(case)
            work, cache = f"one token for each of {clock.batch:,} sequences with {clock.seq:,} tokens cached", ""
            if generates(clock.model):
                cache = f"cache {clock.kv_dtype.name}, "
            else:
                tokens = float(prompt(clock.model, clock.seq).tokens)
                work = f"forward over {clock.batch:,} x {tokens:,.0f} tokens on one rank"
            way = ("serving", f"weights {clock.weights.name}, {cache}{clock.engine.name}")
        advice = (finding for finding in findings if isinstance(finding, Advice))
        return cls(
            clock=clock, pass_s=now_s, operations=case.kernels,
            advice=tuple(sorted(advice, key=lambda a: (not a.needed, -a.gain_s))),
            fine=tuple(finding for finding in findings if isinstance(finding, Fine)),
            stacks=stacks, settings=(("pass", work), ("accelerator", device), way),
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        """The time of a pass, and the change that saves most of it."""
        clock, share = self.clock, format_percent(self.memory_bound_frac, 0)
        where = f"{clock.model.name} on {clock.cluster.accelerator.name}"
        text = f"A pass of {where} takes {format_seconds(self.pass_s)}, {share} of it bound by memory"
        if not self.advice:
            return f"{text}; no single change of shape saves 0.5 % of it."
        best = self.advice[0]
        change = f"{best.what} {best.better} instead of {best.now}"
        if best.needed:
            return f"{text}. It does not run without a change: {change}."
        return f"{text}. The largest gain: {change}, {format_percent(best.gain_frac)} of it."

    def document(self) -> dict[str, Any]:
        """The answer by key."""
        return attributes(
            self,
            "model=clock.model.name gpu=clock.cluster.accelerator.name clock.task clock.tp clock.batch clock.seq "
            "clock.dtype pass_s kernels_s memory_bound_frac ridge_flops_per_byte l2_ridge_flops_per_byte operations "
            "advice fine stacks",
        ) | notes(self)

    def picture(self) -> Picture:
        """The share of each operation in the pass, largest first."""
        longest = sorted(self.operations, key=lambda one: -one.share_frac)[:DRAWN]
        rows = [(one.name, 100 * one.share_frac) for one in longest]
        return BarPicture(title=self.verdict, unit="% of the pass", rows=rows)

    def figure(self) -> Figure:
        """The tree of the pass: its time, and of each operation the time, the share, the rate and the intensity."""
        clock = self.clock
        kernels = term("kernels of the pass", self.kernels_s, "s", f"{COUNTED}: times x seconds of each operation")
        between = f"{KERNEL}: kernels in their order, messages, and time of the host that nothing hides"
        whole = term("pass", self.pass_s, "s", between, kernels)
        bound = f"{COUNTED}: shares of the operations that memory bounds"
        figures = [whole, term("memory-bound share", self.memory_bound_frac, "frac", bound)]
        device = _device(clock) if isinstance(clock, TrainingClock) else Device(clock.cluster)
        latent = any(getattr(item, "latent_dim", None) for kind in clock.model.stacks[0].kinds for item in kind.items)
        for operation in self.operations:
            figures += _operation_figures(operation, device, Figure("pass", self.pass_s, "s", between), latent=latent)
        return estimate_of(f"a pass of {clock.model.name} on {clock.cluster.accelerator.name}", figures)

    @property
    def kernels_s(self) -> float:
        """Seconds of the pass in kernels."""
        return sum(o.seconds * o.layers for o in self.operations)

    @property
    def memory_bound_frac(self) -> float:
        """Share of the pass in kernels that memory bounds."""
        return sum(o.share_frac for o in self.operations if o.bound == "memory")

    @property
    def ridge_flops_per_byte(self) -> float:
        """Operations for each byte of DRAM from which on computing bounds."""
        return ridge_flops_per_byte(self.clock.cluster.rates, self.clock.dtype)

    @property
    def l2_ridge_flops_per_byte(self) -> float | None:
        """The ridge point for operands in L2."""
        return l2_ridge_flops_per_byte(self.clock.cluster.rates, self.clock.dtype)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions on the model and the machine."""
        return tuple(dict.fromkeys((*self.clock.model.assumptions, *self.clock.cluster.assumptions)))


def _stack_times(clock: TrainingClock) -> Iterator[StackTime]:
    """The micro-batch under the stack asked for and under those that fuse as much or more."""
    for stack in {stack.name: stack for stack in (clock.recipe.stack, *clock.compared)}.values():
        seconds, _, memory = replace(clock, recipe=replace(clock.recipe, stack=stack)).lines()
        yield StackTime(stack.name, scalar(seconds), scalar(memory) / scalar(seconds))


def _stack_findings(case: Case, stacks: tuple[StackTime, ...]) -> Iterator[Finding]:
    """Savings of another stack's fused kernels in memory-bound operations and launches.

    Source: `data/stacks.json`: what each stack fuses.
    """
    if not stacks:
        return
    now, best = stacks[0], min(stacks, key=lambda t: t.pass_s)
    gain = now.pass_s - best.pass_s
    if case.worth(gain):
        was, less = now.memory_bound_frac * now.pass_s, best.memory_bound_frac * best.pass_s
        others = "attention kernel, launches and overlap"
        why = f"memory-bound operations take {format_number(1e3 * less)} ms instead of {format_number(1e3 * was)} ms"
        if less >= was:
            why = f"faster {others}; memory-bound operations take {format_number(1e3 * (less - was))} ms longer"
        elif was - less < gain / 2:
            why += f"; more from {others}"
        yield case.advice("software", now.name, best.name, why, gain)
    else:
        text = f"{now.name}: {100 * now.memory_bound_frac:.0f} % memory-bound; no other stack is faster"
        yield Fine("software", text)


def _attention_findings(case: Case, clock: TrainingClock) -> Iterator[Advice]:
    """Savings of flash kernels where attention writes its scores.

    Source: FlashAttention-2 (arXiv 2307.08691); Korthikanti et al. 2022 (arXiv:2205.05198) section 4.1.
    """
    if not clock.flash:
        changed = replace(clock, recipe=replace(clock.recipe, attention="flash"))
        gain = case.now_s - scalar(changed.pass_s())
        if case.worth(gain):
            yield case.advice("attention", "eager", "flash", "scores cross memory several times", gain)


def _link_findings(case: Case) -> Iterator[Fine]:
    """Traffic on the link of the tensor-parallel group, against PCIe."""
    clock, cluster = case.clock, case.clock.cluster
    if clock.tp == 1:
        return
    kind, chip = cluster.fabric.link_kind, cluster.accelerator
    text = f"messages of tp {clock.tp} take {100 * clock.messages_s() / case.now_s:.1f} % over {kind}"
    if not kind.startswith("pcie") and chip.pcie_bytes_per_s:
        over_pcie = replace(cluster, fabric=fabric(chip, gpus_per_node=max(8, clock.tp), intra_node="pcie"))
        slower = scalar(replace(clock, cluster=over_pcie).pass_s()) / case.now_s
        what = "pass" if clock.task == "train" else "step"
        text += f"; over PCIe the {what} would take {slower:.2f} times as long"
    yield Fine("links", text)


def _transfer_findings(case: Case, clock: TrainingClock) -> Iterator[Finding]:
    """Bytes of an optimizer in host memory over its link each step, from pinned memory and from pageable.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 3: gradients go down, 16-bit weights come up. Pageable memory:
    Harris 2012, "How to Optimize Data Transfers in CUDA C/C++", NVIDIA blog.
    Assumes: nothing hides it; the weights of one rank, not sharded further.
    """
    chip = clock.cluster.accelerator
    if not clock.offload or not chip.host_link_bytes_per_s:
        return
    items = [i for part in clock.model.stacks for _, layers, group in blocks(part) for i in group * layers]
    count = scalar(sharded_parameters(items, clock.tp, clock.ep))
    nbytes = count * resident_grad_bytes(clock.recipe) + count * ACT_BYTES
    pinned_s = nbytes / host_link_bytes_per_s(clock.cluster.rates)
    link = "the link to the host's chip" if chip.c2c_bytes_per_s else f"PCIe {chip.pcie_gen or ''}".rstrip()
    text = f"{nbytes / 1e9:,.1f} GB a step over {link} take {pinned_s:,.2f} s"
    yield Fine("host transfers, pinned", f"{text}; over n micro-batches a step 1/n of it each")
    pageable_s = pinned_s / PAGEABLE_FRAC
    why = "pageable memory is copied twice; bind each rank to its GPU's socket, too; of a pass that is a whole step"
    gain_s = pageable_s - pinned_s
    yield Advice("host transfers", "pageable memory", "pinned memory", why, gain_s, gain_s / (case.now_s + pageable_s))


def _device(clock: TrainingClock) -> TrainingDevice:
    """The accelerator under the stack, at the clock that the model's first layers leave."""
    part, tokens = next(clock.stacks(clock.model))
    sizes = tokens, np.array([clock.batch]), np.array([clock.tp])
    table = clock.table(replace(clock.model, stacks=(part,)), *sizes)
    frac = number(table.kernels[0][0].clock_frac)
    return TrainingDevice(clock.cluster, clock.recipe.stack, clock.context(*sizes).rates, frac)


def _operation_figures(
    operation: KernelShape, device: Device, whole: Figure, *, latent: bool
) -> Iterator[Figure]:  # fmt: skip
    """Time, share of the pass, rate and intensity of one operation."""
    name = operation.label
    moved = term("bytes moved", operation.bytes, "B", COUNTED)
    flops = term("FLOP", operation.flops, "FLOP", _counting(operation))
    inputs = (flops, moved) if operation.flops else (moved,)
    each = term(name, operation.seconds, "s", KERNEL, *inputs, *_rates(operation, device, latent=latent))
    yield each
    times = term("times", operation.layers, "", f"{COUNTED}: layers that hold it")
    yield term(f"share of {name}", operation.share_frac, "frac", f"times x {name} / pass", times, each, whole)
    if operation.flops and operation.seconds:
        yield term(f"rate of {name}", operation.flops / operation.seconds, "FLOP/s", f"FLOP / {name}", flops, each)
    if operation.flops and operation.bytes:
        ratio = operation.intensity_flops_per_byte
        yield term(f"FLOP per byte of {name}", ratio, "", "FLOP / bytes moved", flops, moved)


def _counting(operation: KernelShape) -> str:
    """The rule by which its FLOP are counted."""
    if operation.kind == "matmul":
        return f"2 x {operation.m:.12g} x {operation.n:.12g} x {operation.k:.12g}"
    if operation.kind == "attention":
        return f"{COUNTED}: pairs that the mask lets through"
    return COUNTED


def _rates(operation: KernelShape, device: Device, *, latent: bool) -> tuple[Figure, ...]:
    """The sustained rates that bound it: of memory, and of products where it has some.

    A training stack's attention has a rate of its own; on latents it is held against that of products.
    """
    if operation.kind not in ("matmul", "grouped", "attention"):
        return (device.memory_rate(),)
    own = operation.kind == "attention" and operation.dtype != "fp32" and not latent
    if own and isinstance(device, TrainingDevice):
        return device.attention_rate(backward=not operation.forward), device.memory_rate()
    return device.product_rate(operation.dtype), device.memory_rate()
