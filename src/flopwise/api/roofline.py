"""How long any piece of work takes at least: compute against memory, for given FLOP and bytes or for a model's pass."""

from __future__ import annotations

from typing import Any

from flopwise import options as kinds
from flopwise.cost.roofline import RooflineAnswer, RooflineWork
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.training.spec import DataSpec


@takes(
    MachineSpec, SourceSpec, flops=kinds.FLOPS, bytes=kinds.BYTES, gpus=kinds.DEGREE, batch=kinds.BATCH,
    seq=kinds.TOKENS, efficiency=kinds.FRACTION,
)  # fmt: skip
def roofline(
    model: Model | str | None = None,
    *,
    flops: float | None = None,
    bytes: float | None = None,  # noqa: A002 - the word of the command line
    dtype: str = "bf16",
    efficiency: float | None = None,
    gpus: int | None = None,
    batch: int = 1,
    seq: int | None = None,
    training: bool = False,
    **options: Any,
) -> RooflineAnswer:
    """Time of a piece of work by the roofline: operations against bytes moved, in seconds.

    The work is `flops` and `bytes`, or one pass of `model` over `batch` samples of `seq` tokens.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        flops: floating-point operations: 1e15, "1PFLOP".
        bytes: moved to and from memory: "2TB".
        dtype: format that is multiplied.
        efficiency: achieved share of the datasheet's rates, of both (default: as calibrated).
        gpus: number of accelerators.
        batch: samples of a pass.
        seq: tokens of each sample.
        training: forward and backward pass.
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.

    Examples:
        >>> import flopwise
        >>> flopwise.roofline(flops=1e15, bytes="2TB", gpu="h100").bound
        'compute'
    """
    machines, source = take(options, MachineSpec, SourceSpec)
    if model is not None and (flops is not None or bytes is not None):
        raise SpecError("both a model and FLOP or bytes are given; give one of them")
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"efficiency {efficiency} is out of range; allowed: above 0, up to 1")
    if batch < 1:
        raise SpecError(f"batch {batch}; give 1 or more")
    if model is not None:
        architecture = source.model(model)
        tokens = DataSpec(seq=seq).seq_len(architecture) if architecture.stacks else 0
        work = RooflineWork.of_pass(architecture, batch, tokens, training=training)
    elif flops is None and bytes is None:
        raise SpecError("no work is given; give --flops and --bytes, or a MODEL")
    else:
        work = RooflineWork(flops=flops or 0.0, nbytes=bytes or 0.0)
    gpus = machines.num_gpus(gpus)
    return RooflineAnswer.of(work, machines.cluster(gpus, source.catalog), gpus, dtype, efficiency)
