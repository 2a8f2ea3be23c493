"""How long any piece of work takes at least: compute against memory, for given FLOP and bytes or for a model's pass."""

from __future__ import annotations

from typing import Any

from flopwise import options as kinds
from flopwise.cost.roofline import RooflineAnswer, RooflineWork
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.training.spec import DataSpec


@takes(
    MachineSpec, SourceSpec, flops=kinds.FLOPS, bytes=kinds.BYTES, gpus=kinds.DEGREE, batch=kinds.BATCH,
    seq=kinds.TOKENS, efficiency=kinds.FRACTION,
)  # fmt: skip
def roofline(
    model: ModelName | None = None, *, flops: float | None = None,
    bytes: float | None = None,  # noqa: A002 - the word of the command line
    dtype: str = "bf16", efficiency: float | None = None, gpus: int | None = None, batch: int = 1,
    seq: int | None = None, training: bool = False, **options: Any,
) -> RooflineAnswer:  # fmt: skip
    """Time of a piece of work by the roofline: operations against bytes moved, in seconds.

    The work is `flops` and `bytes`, or one pass of `model` over `batch` samples of `seq` tokens.

    Args:
        flops: floating-point operations: 1e15, "1PFLOP".
        bytes: moved to and from memory: "2TB".
        dtype: format that is multiplied.
        efficiency: achieved share of the datasheet's rates, of both (default: as calibrated).
        batch: samples of a pass.
        seq: tokens of each sample.
        training: forward and backward pass.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.

    Examples:
        >>> import flopwise
        >>> flopwise.roofline(flops=1e15, bytes="2TB", gpu="h100").bound
        'compute'
    """
    machines, source = take(options, MachineSpec, SourceSpec)
    architecture = None if model is None else source.model(model)
    tokens = 0 if architecture is None or not architecture.stacks else DataSpec(seq=seq).seq_len(architecture)
    work = RooflineWork.of(architecture, batch, tokens, training=training, flops=flops, nbytes=bytes)
    gpus = machines.num_gpus(gpus)
    return RooflineAnswer.of(work, machines.cluster(gpus, source.catalog), gpus, dtype, efficiency)
