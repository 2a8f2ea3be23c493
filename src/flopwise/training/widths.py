"""How wide parameters, gradients and states are kept, how gradients travel, and what the optimizer moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.precisions import FULL_WIDTH
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.training.layout import Recipe

ACT_BYTES = 2.0
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "both": 4.0}  # both: the fp32 sum is what is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bytes a trained parameter of each thing that is kept for it."""

    weights: float
    master: float
    gradients: float
    states: float
    others: float  # states of embedding, head and norms beyond those of matrices
    step: float  # temporary copies while the optimizer runs


def trained_widths(recipe: Recipe) -> Widths:
    """The widths of fully trained parameters: the recipe's choices over the stack's row."""
    row, compute = recipe.stack, recipe.elem_bytes

    def size(name: str) -> float:
        if name == "both":
            return compute + 4.0 if recipe.precision != "fp16" else compute
        return compute if name == "compute" else DTYPE_BYTES[name]

    weights, state = size(recipe.weights_dtype or row.weights_dtype), size(recipe.states_dtype or row.states_dtype)
    separate = row.master_weights if recipe.master_weights is None else recipe.master_weights
    master = 4.0 if separate and weights < 4 else 0.0
    return _widths(recipe, weights, master, size(recipe.grad_dtype or row.grad_dtype), state)


def adapter_widths(recipe: Recipe, elem: float) -> Widths:
    """The widths of adapters, or of whole tensors trained with them: all in one type of `elem` bytes."""
    return _widths(recipe, elem, 0.0, elem, elem)


def _widths(recipe: Recipe, weights: float, master: float, gradients: float, state: float) -> Widths:
    chosen = recipe.optimizer
    return Widths(
        weights=weights, master=master, gradients=gradients,
        states=chosen.states * state + chosen.packed_bytes,
        others=(chosen.end_states - chosen.states) * state,
        step=recipe.stack.step_copies * state if chosen.states else 0.0,
    )  # fmt: skip


def resident_grad_dtype(recipe: Recipe) -> str:
    """The type in which gradients are kept and reduced."""
    chosen = recipe.grad_dtype or recipe.stack.grad_dtype
    return ("fp32" if recipe.precision in FULL_WIDTH else "bf16") if chosen == "compute" else chosen


def resident_grad_bytes(recipe: Recipe) -> float:
    """Bytes of one gradient as it is kept and reduced."""
    return DTYPE_BYTES[resident_grad_dtype(recipe)]


def sent_grad_bytes(recipe: Recipe) -> float:
    """Bytes of one gradient as it is sent between replicas."""
    resident, sent = resident_grad_bytes(recipe), recipe.stack.reduce_dtype
    return resident if sent == "resident" else min(resident, DTYPE_BYTES[sent])


def optimizer_traffic_bytes(recipe: Recipe) -> float:
    """Bytes that one step reads and writes for each trained parameter.

    States are read and written, the gradient read, the weight (the fp32 one where there is one) read and written, and
    its copy to compute with written where that is narrower.

    Source: counting the tensors of the update rule (`data/optimizers.csv`).
    Assumes: the pass is repeated as often as the stack's optimizer kernels stream the tensors (`optimizer_passes`);
    adapters are kept all in their own type.
    """
    width = _kept_widths(recipe)
    gradient = resident_grad_bytes(recipe) if recipe.lora is None else width.gradients
    widest = max(width.weights, width.master)
    weight = 2 * widest + (recipe.elem_bytes if widest > recipe.elem_bytes else 0.0)
    once = 2 * width.states + gradient + weight
    return recipe.stack.optimizer_passes * once


def others_traffic_bytes(recipe: Recipe) -> float:
    """Bytes that one step moves more for a parameter of embedding, head or norms than for one of a hidden matrix.

    Source and assumptions: as `optimizer_traffic_bytes`, by the states of each (`data/optimizers.csv`).
    """
    return recipe.stack.optimizer_passes * 2 * _kept_widths(recipe).others


def _kept_widths(recipe: Recipe) -> Widths:
    """Widths of trained tensors: adapters in their own type, else as the recipe and its stack say."""
    lora = recipe.lora
    return trained_widths(recipe) if lora is None else adapter_widths(recipe, DTYPE_BYTES[lora.adapter_dtype])
