"""Precision in which a weight format computes on a device, and bits of a weight inside the layers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from flopwise.cost.precisions import SIXTEEN_BIT
from flopwise.cost.rates import Rates, is_zero, precision
from flopwise.errors import MissingFactError
from flopwise.facts.formats import BF16, MXFP4, CacheFormat, WeightFormat
from flopwise.ops.tensors import parameters
from flopwise.ops.weights import weight_bytes, weight_groups
from flopwise.values import kept_by_identity

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model


CUDA_VENDOR = "NVIDIA"
"""Vendor of devices whose kernels for newer formats need units for bf16."""
EIGHT = (0.45, 0.75)
"""Shares between which the weights of a part are in 8 bits, with what stays in 16 within it."""
WIDE = 0.99
"""Share of their bytes in 16 bits from which the weights of a part are as they were."""
LARGE = 0.01
"""Share of a part's bytes in 16 bits from which a product of it that a format leaves alone is told apart."""


class PartsPath(NamedTuple):
    """Parts of the layers whose products run otherwise than the rest: their precision, and bits of a weight."""

    parts: frozenset[str]
    dtype: str
    weight_bits: float


class ComputePath(NamedTuple):
    """The execution of a format: precision of the products, bits of a weight in the layers, and assumptions."""

    dtype: str
    weight_bits: float
    note: str | None
    head_bits: float = 16.0  # of a weight of the head
    wide: frozenset[str] = frozenset()  # parts of the layers, or products of them, whose weights stay in 16 bits
    eight: PartsPath | None = None  # parts whose weights are in 8 bits beside experts in fewer


@lru_cache(maxsize=512)
def layer_weight_bits(model: Model, form: WeightFormat) -> float:
    """Mean bits of a weight inside the layers of the first stack, scales included.

    Source: tensor by tensor, `flopwise.ops.weights`.
    Assumes: products of a layer read their weights at this mean width.
    """
    if _plain(form):
        return precision(form.computes).weight_bits
    parts = _bytes_by_part(model, form).values()
    plain = sum(whole for whole, _ in parts)
    if not plain:
        return 8.0 * weight_bytes(model, form) / max(1, parameters(model))
    return 16.0 * sum(mine for _, mine in parts) / plain


def _bytes_by_part(model: Model, form: WeightFormat) -> dict[str, tuple[float, float]]:
    """Bytes of the parts of the first stack's layers (attention, experts ...): in 16 bits, and in the format."""
    parts = dict[str, tuple[float, float]]()
    for name, (whole, mine) in _bytes_by_item(model, form).items():
        added, narrow = parts.get(part := name.split("/")[0], (0.0, 0.0))
        parts[part] = (added + whole, narrow + mine)
    return parts


def _bytes_by_item(model: Model, form: WeightFormat) -> dict[str, tuple[float, float]]:
    """Bytes of what the first stack's layers have by name (attention/o_proj ...): in 16 bits, and in the format."""
    stack, items = model.stacks[0].name if model.stacks else "", dict[str, tuple[float, float]]()
    mine = weight_groups(model, form)
    for path, size in weight_groups(model, BF16).items():
        if path.startswith(f"{stack}/") and path.count("/") > 1 and path in mine:
            whole, narrow = items.get(name := path.split("/", 2)[2], (0.0, 0.0))
            items[name] = (whole + size, narrow + mine[path])
    return items


@lru_cache(maxsize=512)
def product_weights(model: Model, form: WeightFormat) -> tuple[float, frozenset[str]]:
    """Mean bits of a weight of the layers that the format shortens, and what of the layers it leaves alone.

    That is parts, by their name, and large products of parts that it shortens else (attention/q_b_proj).

    Source: tensor by tensor, `flopwise.ops.weights`: formats of experts alone leave attention in 16 bits.
    Assumes: the other products of a part read their weights at one width.
    """
    items = {} if _plain(form) else _bytes_by_item(model, form)
    parts = {} if _plain(form) else _bytes_by_part(model, form)
    wide = frozenset(part for part, (whole, mine) in parts.items() if mine > WIDE * whole)
    apart = wide | eight_bit_weights(model, form)[1]
    inside = {name: sizes for name, sizes in items.items() if name.split("/")[0] not in apart}
    alone = frozenset(
        name for name, (whole, mine) in inside.items()
        if mine > WIDE * whole > WIDE * LARGE * parts[name.split("/")[0]][0]
    )  # fmt: skip
    whole, mine = (sum(sizes[n] for name, sizes in inside.items() if name not in alone) for n in (0, 1))
    return (16.0 * mine / whole, wide | alone) if whole else (layer_weight_bits(model, form), frozenset())


@lru_cache(maxsize=512)
def eight_bit_weights(model: Model, form: WeightFormat) -> tuple[float, frozenset[str]]:
    """Mean bits of a weight of the parts of the layers that are in 8 bits beside experts in 4, and these parts.

    Source: tensor by tensor, `flopwise.ops.weights`. Assumes: products of these parts read their weights at one width.
    """
    if not model.fp8_linear or form.name != MXFP4:
        return 8.0, frozenset()
    sizes = _bytes_by_part(model, form)
    parts = frozenset(part for part, (whole, mine) in sizes.items() if EIGHT[0] < mine / whole < EIGHT[1])
    whole, mine = (sum(sizes[part][n] for part in parts) for n in (0, 1))
    return 16.0 * mine / whole, parts


@lru_cache(maxsize=512)
def head_weight_bits(model: Model, form: WeightFormat) -> float:
    """Bits of a weight of the head, scales included: of the embedding where the two are one tensor.

    Source: tensor by tensor, `flopwise.ops.weights`; files of llama.cpp quantise the head, too.
    Assumes: 16 bits where there is neither.
    """
    stack = model.stacks[0].name
    whole, mine = weight_groups(model, BF16), weight_groups(model, form)
    path = next((p for p in (f"{stack}/lm_head", f"{stack}/embed_tokens") if whole.get(p) and p in mine), None)
    return 16.0 if path is None else 16.0 * mine[path] / whole[path]


@kept_by_identity(2048)
def product_path(model: Model, form: WeightFormat, rates: Rates) -> ComputePath:
    """The path of a weight format on a device.

    Formats that quantise activations use the low-precision units where there are any; others are unpacked to 16 bits.

    Source: engines' kernels (vLLM and TensorRT-LLM quantisation tables; TensorRT-LLM's W4A8_MXFP4_MXFP8 and SGLang's
    flashinfer_mxfp4 quantise activations to 8 bits where there are units for 8 by 4).
    Assumes: a device without the units runs the format weight-only, as Marlin kernels do for fp8.
    Raises: MissingFactError: no kernels for it run on so old a device.
    """
    wanted, (bits, wide) = form.computes, product_weights(model, form)
    stand_in = substitute("bf16", rates)
    if _plain(form):
        return ComputePath(wanted, bits, rates.substitution_note(wanted))
    if form.newer and stand_in is not None and rates.vendor == CUDA_VENDOR:
        raise MissingFactError(
            f"{rates.name}: no kernels for {form.name} weights run on devices without bf16 units (before compute "
            f"capability 8.0); use fp16, int8, gptq or awq, or llama.cpp with a GGUF format"
        )
    eight_bits, parts = eight_bit_weights(model, form)
    eight = PartsPath(parts, "fp8_block" if "fp8" in rates.peak else "int8_wo", eight_bits) if parts else None
    needed = [unit for unit in (precision(wanted).peak, precision(wanted).narrow) if unit] if wanted else []
    missing = next((unit for unit in needed if unit not in rates.peak), None)
    if wanted and missing is None:
        return ComputePath(wanted, bits, None, wide=wide, eight=eight)
    note = None
    if wanted:
        note = (
            f"{rates.name} has no {missing} units: {form.name} weights are only stored in that "
            "format, and products run in 16 bits"
        )
    elif stand_in is not None:
        note = f"{rates.name} has no bf16 units: {form.name} weights are unpacked and multiplied in {stand_in}"
    return ComputePath("int4_wo" if bits < 6 else "int8_wo", bits, note, head_weight_bits(model, form), wide, eight)


def substitute(dtype: str, rates: Rates) -> str | None:
    """The precision that stands in for a 16-bit one that the device has no units for; None where it has, or needs none.

    Source: `Rates.peak_flops_per_s`. Assumes: as there.
    """
    if dtype not in SIXTEEN_BIT or dtype in rates.peak:
        return None
    return next((k for k in (*SIXTEEN_BIT, "fp32") if k in rates.peak), None)


def conversion_note(cache: CacheFormat, rates: Rates) -> str | None:
    """The assumption on a cache format that the device has no units for; None where it has them, or needs none.

    Source: emulated conversions of CUDA's fp8 types. Assumes: vector units do it, if their rate is known.
    """
    if not cache.name.startswith("fp8") or "fp8" in rates.peak or is_zero(rates.peak.get("fp32", 0.0)):
        return None
    return f"{rates.name} has no fp8 units: it converts an fp8 cache in software at each read"


def _plain(form: WeightFormat) -> bool:
    """True if products read the weights as they are stored, in a precision that quantises nothing."""
    return bool(form.computes) and not precision(form.computes).quantised
