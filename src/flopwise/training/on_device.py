"""A recipe as a device can run it, in formats that it has units for, and what a stack does not have of a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise.cost.precisions import SIXTEEN_BIT
from flopwise.facts.software import PARALLELISM
from flopwise.training.widths import trained_widths
from flopwise.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.software import TrainingStack
    from flopwise.training.layout import Layout, Recipe

FLASH_CAPABILITY = 8.0
"""Compute capability from which FlashAttention-2 runs: Ampere. Source: its README, requirements (CUDA)."""
CUDNN_CAPABILITIES = (9, 10)
"""Major compute capabilities on which PyTorch's attention takes cuDNN's kernels first: Hopper and Blackwell, without
consumer cards. Source: PyTorch, aten/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention."""
EFFICIENT_CAPABILITY = 5.0
"""The same of PyTorch's memory-efficient attention. Source: PyTorch, aten/native/transformers/cuda/sdp_utils.cpp."""
MICROSCALED, BLOCK_SCALED = frozenset({"mxfp8"}), "fp8_block"
"""Formats that matrix units scale by 32 elements, from Blackwell and CDNA 4 on; and what runs without such units.

Source: OCP Microscaling Formats 1.0; NVIDIA Transformer Engine user guide, MXFP8BlockScaling (compute capability 10);
AMD, CDNA 4 architecture white paper.
"""
FP16 = (
    "fp16: dynamic loss scaling, since gradients below 6e-8 vanish, fp32 master weights, and gradients clipped after "
    "unscaling (arXiv:1710.03740)"
)


MASKED = "experts with a capacity: plain products of even buffers, which products with masks fill and empty"


def recipe_on(recipe: Recipe, accelerator: Accelerator) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe as the device can run it, the same object where it can as it is, and what to say of it.

    A 16-bit format that the device has no units for gives way to the other, else to fp32, as tf32 does; fp16 has fp32
    master weights.
    Scales of 32 elements (mxfp8) need the units that came with those of fp4; else scales of whole blocks stand in.
    FlashAttention-2 gives way to PyTorch's memory-efficient attention, and that to plain products on devices of before
    it. XLA's kernel over uneven groups of rows gives way to even buffers where experts have a capacity.

    Source: datasheet rates; requirements of FlashAttention-2 and PyTorch; Micikevicius et al. 2018 (arXiv:1710.03740);
    MaxText, `RoutedMoE.dense_matmul` with a capacity factor.
    Assumes: memory-efficient attention keeps what flash attention keeps, at the rate of FlashAttention-1.
    """
    changes, notes = dict[str, Any](), list[str]()
    wanted = recipe.precision
    if wanted in SIXTEEN_BIT and accelerator.peak and wanted not in accelerator.peak:
        changes["precision"] = next((name for name in (*SIXTEEN_BIT, "fp32") if name in accelerator.peak), wanted)
        notes.append(f"{accelerator.name} has no {wanted} units: trained in {changes['precision']}")
    if wanted == "tf32" and accelerator.peak and wanted not in accelerator.peak and "fp32" in accelerator.peak:
        changes["precision"] = "fp32"
        notes.append(f"{accelerator.name} has no tf32 units: trained in fp32")
    if wanted in MICROSCALED and accelerator.peak and "fp4" not in accelerator.peak and "fp8" in accelerator.peak:
        changes["precision"] = BLOCK_SCALED
        notes.append(f"{accelerator.name} has no units for {wanted}, scales of 32 elements: trained in {BLOCK_SCALED}")
    if changes.get("precision", wanted) == "fp16":
        notes.append(FP16)
        widths = trained_widths(recipe)
        if recipe.master_weights is None and recipe.lora is None and widths.weights < 4 and not widths.master:
            changes["master_weights"] = True
    capability = accelerator.compute_capability if accelerator.vendor.lower() == "nvidia" else None
    if recipe.stack.grouped_kernel == "ragged" and recipe.capacity_factor is not None:
        changes["stack"] = replace(recipe.stack, grouped_kernel="masked")
        notes.append(MASKED)
    if recipe.stack.attention_kernel == "sdpa":
        first = capability is not None and int(float(capability)) in CUDNN_CAPABILITIES
        changes["stack"] = replace(recipe.stack, attention_kernel="cudnn" if first else "fa2")
    if capability is not None and float(capability) < FLASH_CAPABILITY and recipe.attention != "eager":
        efficient = float(capability) >= EFFICIENT_CAPABILITY
        kept = "sdpa" if efficient else "eager"
        changes |= {"attention": kept} if recipe.attention != kept else {}
        if recipe.stack.attention_kernel != "fa1":
            changes["stack"] = replace(recipe.stack, attention_kernel="fa1")
        kernel = "PyTorch's memory-efficient attention, timed as FlashAttention-1" if efficient else "unfused attention"
        notes.append(f"{accelerator.name} is older than Ampere, which FlashAttention-2 needs: {kernel}")
    return (replace(recipe, **changes) if changes else recipe), tuple(notes)


def stack_notes(
    layout: Layout, stack: TrainingStack, stacks: Iterable[TrainingStack], accelerator: Accelerator | None
) -> tuple[str, ...]:
    """Assumptions on a stack without the ZeRO stage or the degrees of a layout, and the stacks that have them.

    `stacks`: all that are known; the first that has them, and runs on the device, is named.
    """
    zero, degrees = int(layout.zero), {name: int(getattr(layout, name)) for name in PARALLELISM}
    notes = []
    if zero > stack.zero:
        notes.append(f"{stack.name} supports ZeRO up to stage {stack.zero}: ZeRO {zero} is estimated as if it did")
    if missing := stack.missing(degrees):
        notes.append(f"{stack.name} does not support {' or '.join(missing)}: estimated as if it did")
    if not notes:
        return ()
    able = (
        other.name
        for other in stacks
        if other.zero >= zero and not other.missing(degrees) and (accelerator is None or other.runs_on(accelerator))
    )
    other_stack = next(able, None)
    return (
        *notes[:-1],
        f"{notes[-1]}; {other_stack} supports the whole layout (--stack {other_stack})" if other_stack else notes[-1],
    )
