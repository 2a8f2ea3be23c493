"""Number formats that matrix products run in, each one row; light, since the options of training name them."""

from __future__ import annotations

from typing import NamedTuple


class Precision(NamedTuple):
    """The properties of products in a number format: peak rate, calibrated fraction, bytes read."""

    peak: str  # dtype of the datasheet rate
    rate: str  # suffix of matmul_frac
    act_bits: float  # activations as the matmul reads them
    weight_bits: float  # weights with their scales
    quantised: bool  # activations are quantised on the way in: one more pass over them
    unpacked: bool  # weights are unpacked to 16 bits before they are multiplied
    trains: bool = False  # training stacks have it
    grouped: str = ""  # the first kind of grouped kernel (fused, fused-fp8) that multiplies it in one piece
    narrow: str = ""  # datasheet rate that a device must have to take the narrower operand, where the two differ


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", "fp32", 32, 32, quantised=False, unpacked=False, trains=True),
    "tf32": Precision("tf32", "bf16", 32, 32, quantised=False, unpacked=False, trains=True),
    "fp16": Precision("fp16", "bf16", 16, 16, quantised=False, unpacked=False, trains=True),
    "bf16": Precision("bf16", "bf16", 16, 16, quantised=False, unpacked=False, trains=True),
    "int8_wo": Precision("bf16", "bf16", 16, 8.125, quantised=False, unpacked=True),
    "int4_wo": Precision("bf16", "bf16", 16, 4.25, quantised=False, unpacked=True),
    "w4a16_mxfp4": Precision("bf16", "bf16", 16, 4.25, quantised=False, unpacked=True),
    "int8": Precision("int8", "int8", 8, 8, quantised=True, unpacked=False),
    "fp8": Precision("fp8", "fp8", 8, 8, quantised=True, unpacked=False, trains=True, grouped="fused-fp8"),
    "fp8_rowwise": Precision("fp8", "fp8_block", 8, 8, quantised=True, unpacked=False, trains=True),
    "fp8_block": Precision(
        "fp8", "fp8_block", 8.25, 8.002, quantised=True, unpacked=False, trains=True, grouped="fused-fp8"
    ),
    "mxfp8": Precision("fp8", "fp8", 8.25, 8.25, quantised=True, unpacked=False, trains=True, grouped="fused"),
    "w4a8_mxfp4_mxfp8": Precision("fp8", "fp8", 8.25, 4.25, quantised=True, unpacked=False, narrow="fp4"),
    "nvfp4": Precision("fp4", "nvfp4", 4.5, 4.5, quantised=True, unpacked=False, trains=True, grouped="fused"),
    "mxfp4": Precision("fp4", "nvfp4", 4.25, 4.25, quantised=True, unpacked=False),
}
"""Each is declared here alone: options, kernels, memory and the search ask its row."""
TRAINING_PRECISIONS = tuple(name for name, row in PRECISIONS.items() if row.trains)
"""What the matrix products of training run in."""
LOW_PRECISIONS = frozenset(name for name in TRAINING_PRECISIONS if PRECISIONS[name].quantised)
"""Those of them whose operands are quantised on the way in."""

FULL_WIDTH = ("fp32", "tf32")
"""Formats whose operands are kept in 32 bits; tf32 rounds them for tensor units (NVIDIA A100 white paper)."""
SIXTEEN_BIT = ("fp16", "bf16")
"""Formats that stand in for each other (Volta, Turing: the same units), in fp32 where there are no units for them."""
