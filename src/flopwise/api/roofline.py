"""How long any piece of work takes at least: compute against memory, for given FLOP and bytes or for a model's pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise import options as kinds
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import take

if TYPE_CHECKING:
    from flopwise.cost.roofline import RooflineAnswer
    from flopwise.facts.architecture import Model


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
    """Time of `flops` operations that move `bytes`, or of one pass of `model` over `batch` samples, on `gpus` devices.

    A pass is over `seq` tokens of each sample, forward alone, or backward, too, with `training`; `dtype` is the format
    that is multiplied.
    `efficiency` is the achieved fraction of the datasheet's rates, for both; without it the calibrated fractions hold.
    `options` are those of `MachineSpec` and `SourceSpec`, or whole specs.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.
    """
    from flopwise.cost.roofline import RooflineWork, roofline_answer
    from flopwise.training.spec import DataSpec

    machines, source = take(options, MachineSpec, SourceSpec)
    if model is not None and (flops is not None or bytes is not None):
        raise SpecError("a model and its own FLOP or bytes are both given; give one of them")
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"efficiency {efficiency} is out of range; allowed: above 0, up to 1")
    if batch < 1:
        raise SpecError(f"batch {batch}; give 1 or more")
    if model is not None:
        found = source.model(model)
        tokens = DataSpec(seq=seq).seq_len(found) if found.stacks else 0
        work = RooflineWork.of_pass(found, batch, tokens, training=training)
    elif flops is None and bytes is None:
        raise SpecError("nothing to do is given; give --flops and --bytes, or a MODEL")
    else:
        work = RooflineWork(flops=flops or 0.0, nbytes=bytes or 0.0)
    gpus = machines.num_gpus(gpus)
    return roofline_answer(work, machines.cluster(gpus, source.catalog), gpus, dtype, efficiency)
