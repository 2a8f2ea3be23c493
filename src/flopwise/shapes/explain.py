"""Where the figures of a pass come from: each operation with its FLOP, its bytes and the rates that bound it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.origin import COUNTED, KERNEL, Device, estimate_of, number
from flopwise.provenance import Figure, term
from flopwise.shapes.clocks import TrainingClock
from flopwise.training.step_figures import TrainingDevice

if TYPE_CHECKING:
    from flopwise.shapes.answer import ShapeAnswer
    from flopwise.shapes.kernels import KernelShape


def pass_figure(answer: ShapeAnswer) -> Figure:
    """The tree of a pass: its time, and of each operation the time, the share, the rate and the intensity."""
    clock = answer.clock
    kernels = term("kernels of the pass", answer.kernels_s, "s", f"{COUNTED}: times x seconds of each operation")
    between = f"{KERNEL}: kernels in their order, messages, and time of the host that nothing hides"
    whole = term("pass", answer.pass_s, "s", between, kernels)
    bound = f"{COUNTED}: shares of the operations that memory bounds"
    figures = [whole, term("memory-bound share", answer.memory_bound_frac, "frac", bound)]
    device = _device(clock) if isinstance(clock, TrainingClock) else Device(clock.cluster)
    latent = any(getattr(item, "latent_dim", None) for kind in clock.model.stacks[0].kinds for item in kind.items)
    for operation in answer.operations:
        figures += _operation_figures(operation, device, Figure("pass", answer.pass_s, "s", between), latent=latent)
    return estimate_of(f"a pass of {clock.model.name} on {clock.cluster.accelerator.name}", figures)


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
