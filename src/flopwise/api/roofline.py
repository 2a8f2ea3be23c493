"""How long any piece of work takes at least: compute against memory, for given FLOP and bytes or for a model's pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.api.machines import Machines, loaded
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.cost.roofline import RooflineAnswer
    from flopwise.facts.architecture import Model


def roofline(
    model: Model | str | None = None,
    *,
    flops: float | None = None,
    bytes: float | None = None,  # noqa: A002 - the word of the command line
    gpu: str | None = None,
    dtype: str = "bf16",
    efficiency: float | None = None,
    gpus: int = 1,
    batch: int = 1,
    seq: int | None = None,
    training: bool = False,
    machines: Machines | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
) -> RooflineAnswer:
    """Time of `flops` operations that move `bytes`, or of one pass of `model` over `batch` samples, on `gpus` devices.

    `efficiency` is the achieved fraction of the datasheet's rates, for both; without it the calibrated fractions hold.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.
    """
    from flopwise.api.memory import default_seq
    from flopwise.cost.roofline import RooflineWork, pass_of_model, roofline_answer

    place = machines or Machines(gpu=gpu, facts=facts)
    if model is not None and (flops is not None or bytes is not None):
        raise SpecError("a model and its own FLOP or bytes are both given; give one of them")
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"efficiency {efficiency} is out of range; allowed: above 0, up to 1")
    if batch < 1:
        raise SpecError(f"batch {batch}; give 1 or more")
    if model is not None:
        found = loaded(model, assume_family=assume_family, offline=offline, facts=place.facts)
        tokens = default_seq(found, seq) if found.stacks else 0
        work = pass_of_model(found, batch, tokens, training=training)
    elif flops is None and bytes is None:
        raise SpecError("nothing to do is given; give --flops and --bytes, or a MODEL")
    else:
        work = RooflineWork(flops=flops or 0.0, nbytes=bytes or 0.0)
    return roofline_answer(work, place.cluster(gpus), gpus, dtype, efficiency)
