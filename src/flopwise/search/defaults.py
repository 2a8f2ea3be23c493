"""What a workload file leaves open, filled in by stated rules: each becomes an assumption of the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.errors import SpecError
from flopwise.facts.software import TrainingStack
from flopwise.ops.tensors import parameters
from flopwise.options import OptionError
from flopwise.search.spec import ANY
from flopwise.training.layout import Recipe
from flopwise.training.routing import check_skew
from flopwise.training.spec import SEQ_LEN, divisible_batch

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.search.workload import Resolved

FINETUNE_SEQ_LEN = 2048
"""Tokens of a sequence of fine-tuning where none are given."""
BATCH_TOKENS = ((2e9, 1e6), (20e9, 4e6), (200e9, 8e6), (float("inf"), 32e6))
"""Tokens of a global batch by model size, as published runs have (Llama 2: 4 M; Llama 3: 16 M; DeepSeek-V3: 63 M)."""
FINETUNE_BATCH = 64
STACKS = {
    "pretrain": ("megatron-te", "fsdp-compile", "xla", "hf-trainer"),
    "finetune": ("fsdp-compile", "xla", "hf-trainer"),
}
"""Training software by task where none is named: the first that runs on the device."""


def stack_on(workload: Resolved, accelerator: Accelerator, facts: Facts) -> TrainingStack | None:
    """The training software on a device: the one asked for, or the usual one there; None where it does not run.

    Raises:
        UnknownNameError: an unknown stack is asked for.
    """
    asked = workload.training.stack
    stacks = map(facts.stack, STACKS[workload.task] if asked is None else (asked,))
    return next((stack for stack in stacks if stack.runs_on(accelerator)), None)


def seq_len(workload: Resolved, model: Model) -> int:
    """Tokens of a sequence: as given, else 4,096 to pre-train, 2,048 to fine-tune, as far as the model goes."""
    usual = SEQ_LEN if workload.task == "pretrain" else FINETUNE_SEQ_LEN
    return workload.data.seq or min(usual, model.max_position or usual)


def global_batch(workload: Resolved, model: Model, seq: int) -> int:
    """Sequences of an optimizer step: as given, else near the tokens that runs of this size use."""
    try:
        sequences = workload.data.sequences(seq)
    except OptionError as error:
        raise SpecError(f"data.{error.name}: {error.reason}") from None
    if sequences is not None:
        return sequences
    if workload.task == "finetune":
        return FINETUNE_BATCH
    tokens = next(batch for size, batch in BATCH_TOKENS if parameters(model) < size)
    return divisible_batch(tokens / seq)


def precisions(workload: Resolved, software: TrainingStack) -> tuple[list[str], str]:
    """The precisions that are searched with a training stack, and what is assumed of them.

    `any` stands for all that the stack trains in; devices without a rate for one are ruled out for it alone.

    Raises:
        SpecError: an unknown precision.
    """
    one, several = workload.one_precision, workload.limits.precision
    wanted = list(several) or [one or "bf16"]
    for name in wanted:
        if name not in (*TRAINING_PRECISIONS, ANY):
            raise SpecError(f"precision: {name!r} is unknown; allowed: {', '.join((*TRAINING_PRECISIONS, ANY))}")
    if ANY not in wanted:
        open_ = one is None and not several
        return wanted, f"bf16, as no precision was given (constraints.precision; {ANY} searches all)" if open_ else ""
    found = ["bf16"]
    if not workload.training.adapts and software.activations == "fused":
        found += ["fp8", "nvfp4"] if software.fp8_inputs else ["fp8"]
    found += [name for name in wanted if name not in (*found, ANY)]
    return found, f"{', '.join(found)} were searched; that narrower formats need no more tokens is for you to check"


def recipes(workload: Resolved, model: Model, software: TrainingStack, facts: Facts) -> tuple[list[Recipe], list[str]]:
    """The recipes that the workload allows with the training stack `software`, and what was assumed.

    Raises:
        SpecError: an unknown precision.
        UnknownNameError: an unknown optimizer or format.
    """
    data, spec = workload.data, replace(workload.training, stack=software.name)
    wanted, chosen = precisions(workload, software)
    seq = seq_len(workload, model)
    batch = global_batch(workload, model, seq)
    notes = [chosen] if chosen else []
    if data.seq is None:
        notes.append(f"sequences of {seq:,} tokens, as none were given (data.seq_len)")
    if data.global_batch_tokens is not None and batch * seq != data.global_batch_tokens:
        notes.append(f"a global batch of {batch:,} sequences, near the tokens asked for and shared evenly among ranks")
    if data.global_batch_tokens is None and data.global_batch is None:
        notes.append(f"a global batch of {batch:,} sequences, as none was given (data.global_batch)")
    documents = data.documents(seq)
    found = [replace(spec, precision=name).recipe(seq, batch, facts, documents) for name in wanted]
    check_skew(model, found[0])
    return found, notes
