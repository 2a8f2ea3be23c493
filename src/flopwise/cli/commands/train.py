"""`flopwise train`: how fast does it train."""

from __future__ import annotations

from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.views import parts, training
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FLAG, options_of
from flopwise.training.spec import DataSpec, ReadsSpec, RunConditionsSpec, TrainingSpec

OF_RUNS = ("tokens", "samples", "epochs", *options_of(ReadsSpec), *options_of(RunConditionsSpec), "explain")
"""Options that mean nothing to --compare."""


@options.command(
    "train",
    "flopwise train Llama-3.1-8B --gpu h100 --gpus 64 --seq 8192 --tokens 1T",
    "flopwise train Llama-3.1-8B --gpu a100-80gb --gpus 16 --tp 2 --zero 1 --global-batch 256 --provider aws --json",
    "flopwise train Llama-3.1-8B --gpu l40s --qlora --seq 2048 --tokens 50M --explain",
    "flopwise train Llama-3.1-8B --gpu h100 --gpus 256 --seq 8192 --global-batch 512 --compare",
)
@options.argument("model")
@declared(MachineSpec, "gpu", section="")
@declared(SharedSpec, "gpus")
@add("--compare", FLAG, "Instead: how data, ZeRO, FSDP, tensor, pipeline ... layouts scale.", default=False)
@add("--weak", FLAG, "With --compare: the global batch grows with the accelerators.", default=False)
@declared(DataSpec)
@declared(ReadsSpec)
@declared(TrainingSpec)
@declared(RunConditionsSpec)
@declared(MachineSpec, without="gpu")
@declared(SourceSpec)
@options.explained
def command(*, model: str, compare: bool, weak: bool, explain: bool, **given: Any) -> None:
    """Step time, throughput, utilisation, memory, and the run's cost.

    Without --dp, --tp, --pp, --cp, --ep, --zero, --fsdp, --shard the fastest layout that fits is taken. A layout that
    does not fit is estimated all the same; the exit code is then 1.
    """
    if compare:
        from flopwise.api.compare import compare as compared

        options.refuse(OF_RUNS, "--compare is of steps in all layouts; leave it out")
        asked = options.values(given, DataSpec, TrainingSpec, MachineSpec, SourceSpec)
        found = compared(model, gpus=given["gpus"] or 1, weak=weak, **asked)
        options.answer(lambda: training.scaling_document(found), lambda paper: training.scaling_lines(found, paper))
        return
    if weak:
        raise options.usage_error("--weak says how --compare scales the batch; give that, too")
    answer = question(model=model, **given)
    parts.write_answer(answer, training.document, training.lines, explained=explain)
    if not answer.fits:
        click.get_current_context().exit(1)


def question(*, model: str, **given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.train import train

    return train(model, **options.values(given))
