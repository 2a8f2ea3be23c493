"""`flopwise memory`: does it fit."""

from __future__ import annotations

from typing import Any, Literal

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.views import parts, training
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.options import BATCH, TOKENS, choice, options_of
from flopwise.serving.spec import RequestSpec, ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec

DATA = "seq packing mean_length length_spread lengths"
TASKS = {
    "train": {*DATA.split(), "grad_accum", *options_of(TrainingSpec)},
    "serve": {"concurrency", "context", *options_of(ServingSpec)},
}
"""The options of each task."""


@options.command(
    "memory",
    "flopwise memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp --seq 8192",
    "flopwise memory Llama-3.1-8B --task serve --gpu a100-80gb --weights fp8 --concurrency 64 --context 8192",
)
@options.argument("model")
@add("--task", choice("train", "serve"), "What the memory is for.", default="train")
@declared(MachineSpec, "gpu", section="")
@declared(TrainingSpec, "micro_batch", flags=("--micro-batch", "--batch"), section="")
@declared(DataSpec, "seq", section="")
@add("--grad-accum", BATCH, "Micro-batches of a step.", default=1)
@declared(TrainingSpec, without="micro_batch")
@declared(DataSpec, "packing mean_length length_spread lengths")
@declared(ServingSpec, without="tp pp ep dp")
@declared(RequestSpec, "concurrency", section="Formats and engine")
@add("--context", TOKENS, "Tokens of each sequence in the cache.", section="Formats and engine")
@declared(SourceSpec)
@options.explained
def command(*, explain: bool, **given: Any) -> None:
    """Memory per accelerator, item by item, and what would make it fit.

    Of the fullest rank. Training: --batch is the micro-batch. Serving: --concurrency sequences (1 where not given) of
    --context tokens. The answer is a size: the exit code is 0 whether it fits or not, and `fits` of --json says which.
    """
    answer = question(**given)
    parts.write_answer(answer, training.memory_document, training.memory_lines, explained=explain)


def question(*, model: str, task: Literal["train", "serve"], **given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.memory import memory

    mine = TASKS[task]
    options.refuse({name for names in TASKS.values() for name in names - mine}, f"does not go with --task {task}")
    others = {name for names in TASKS.values() for name in names} - mine
    return memory(model, task=task, **options.values({n: v for n, v in given.items() if n not in others}))
