"""`flopwise roofline`: how long any piece of work takes at least."""

from __future__ import annotations

from typing import Any

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.views import roofline as view
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import BYTES, FLAG, FLOPS, name
from flopwise.training.spec import DataSpec


@options.command(
    "roofline",
    "flopwise roofline --flops 1e15 --bytes 2TB --gpu h100",
    "flopwise roofline --flops 1e15 --bytes 2TB --gpu a100-80gb --gpus 8 --efficiency 0.5 --json",
    "flopwise roofline Llama-3.1-8B --gpu l40s --batch 4 --seq 2048",
)
@options.argument("model", required=False)
@add("--flops", FLOPS, "Floating-point operations: 1e15.")
@add("--bytes", BYTES, "Bytes moved to and from memory: 2TB.")
@declared(MachineSpec, "gpu", section="")
@declared(SharedSpec, "gpus efficiency batch", section="")
@add("--dtype", name("dtype"), "Whose rate: bf16, fp8, fp64 ...", default="bf16")
@declared(DataSpec, "seq", section="")
@add("--training", FLAG, "With a MODEL: forward and backward.", default=False)
@declared(MachineSpec, without="gpu")
@declared(SourceSpec)
def command(**given: Any) -> None:
    """Compute time against memory time of any piece of work.

    Give --flops and --bytes, or a MODEL for one pass over --batch samples (1 where not given) of --seq tokens; models
    without layers use published figures.
    """
    from flopwise.api.roofline import roofline

    if given["model"] is None:
        options.refuse(["seq"], "goes with a MODEL")
    answer = roofline(given.pop("model"), **options.values(given))
    options.answer(lambda: view.document(answer), lambda paper: view.lines(answer, paper))
