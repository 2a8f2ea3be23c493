"""What a workload file leaves open, filled in by stated rules: each becomes an assumption of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flopwise.errors import SpecError
from flopwise.facts.formats import BF16
from flopwise.facts.software import TrainingStack
from flopwise.ops.tensors import parameters
from flopwise.training.documents import Documents, lognormal
from flopwise.training.frozen import frozen_of
from flopwise.training.layout import TARGET_SETS, Lora, Precision, Recipe
from flopwise.training.routing import check_skew
from flopwise.training.spec import batch_of_tokens, divisible_batch
from flopwise.units import parse_count

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.search.workload import Resolved

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4", "fp32")
ANY = "any"
"""Stands for every precision that the training software has."""
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
    asked = workload.source.constraints.stack
    stacks = map(facts.stack, STACKS[workload.source.task] if asked is None else (asked,))
    return next((stack for stack in stacks if stack.runs_on(accelerator)), None)


def seq_len(workload: Resolved, model: Model) -> int:
    """Tokens of a sequence where none are given: 4,096 to pre-train, 2,048 to fine-tune, as far as the model goes."""
    wanted = workload.seq_len or (4096 if workload.source.task == "pretrain" else 2048)
    return wanted if workload.seq_len else min(wanted, model.max_position or wanted)


def global_batch(workload: Resolved, model: Model, seq: int) -> int:
    """Sequences of an optimizer step where none are given: near the tokens that runs of this size use."""
    if workload.global_batch is not None:
        return workload.global_batch
    if workload.global_batch_tokens is not None:
        try:
            return batch_of_tokens(workload.global_batch_tokens, seq)
        except SpecError as error:
            raise SpecError(f"data.global_batch_tokens: {error}") from None
    if workload.source.task == "finetune":
        return FINETUNE_BATCH
    tokens = next(batch for size, batch in BATCH_TOKENS if parameters(model) < size)
    return divisible_batch(tokens / seq)


def lora(workload: Resolved, facts: Facts) -> Lora | None:
    """The adapters of a fine-tuning method, or None.

    Raises:
        SpecError: unknown targets.
    """
    method = workload.source.method
    if workload.source.task != "finetune" or method.kind == "full":
        return None
    targets: tuple[str, ...] = ()
    for name in method.targets or ["all-linear"]:
        targets += TARGET_SETS.get(name, (name,))
    named = method.base_format or ("nf4" if method.kind == "qlora" else None)
    base = BF16 if named is None else facts.weight_format(named)
    return Lora(rank=workload.lora_rank, targets=tuple(dict.fromkeys(targets)), base=base)


def _documents(workload: Resolved, seq: int) -> Documents | None:
    data = workload.source.data
    if data.packing is None:
        return None
    return lognormal(parse_count(data.mean_length, "data.mean_length"), data.length_spread, seq, data.packing)


def precisions(workload: Resolved, adapters: Lora | None, software: TrainingStack) -> tuple[list[str], str]:
    """The precisions that are searched with a training stack, and what is told of them.

    `any` stands for all that the stack trains in; devices without a rate for one are ruled out for it alone.

    Raises:
        SpecError: an unknown precision.
    """
    source = workload.source
    wanted = list(source.constraints.precision) or [source.precision or "bf16"]
    for name in wanted:
        if name not in (*PRECISIONS, ANY):
            raise SpecError(f"precision: {name!r} is unknown; allowed: {', '.join((*PRECISIONS, ANY))}")
    if ANY not in wanted:
        open_ = source.precision is None and not source.constraints.precision
        return wanted, f"bf16, as no precision was given (constraints.precision; {ANY} searches all)" if open_ else ""
    found = ["bf16"]
    if adapters is None and software.activations == "fused":
        found += ["fp8", "nvfp4"] if software.fp8_inputs else ["fp8"]
    found += [name for name in wanted if name not in (*found, ANY)]
    return found, f"{', '.join(found)} were searched; that narrower formats need no more tokens is for you to check"


def recipes(workload: Resolved, model: Model, software: TrainingStack, facts: Facts) -> tuple[list[Recipe], list[str]]:
    """The recipes that the workload allows with the training stack `software`, and what was assumed.

    Raises:
        SpecError: an unknown precision.
        UnknownNameError: an unknown optimizer or format.
    """
    source = workload.source
    adapters = lora(workload, facts)
    wanted, chosen = precisions(workload, adapters, software)
    seq = seq_len(workload, model)
    batch = global_batch(workload, model, seq)
    told = [chosen] if chosen else []
    if workload.seq_len is None:
        told.append(f"sequences of {seq:,} tokens, as none were given (data.seq_len)")
    if workload.global_batch_tokens is not None:
        if batch * seq != workload.global_batch_tokens:
            told.append(
                f"a global batch of {batch:,} sequences, near the tokens asked for and shared evenly among ranks"
            )
    elif workload.global_batch is None:
        told.append(f"a global batch of {batch:,} sequences, as none was given (data.global_batch)")
    found = [
        Recipe(
            seq_len=seq,
            global_batch=batch,
            precision=cast("Precision", name),
            optimizer=facts.optimizer(source.optimizer),
            stack=software,
            lora=adapters,
            expert_skew=source.routing.expert_skew,
            capacity_factor=source.routing.capacity_factor,
            documents=_documents(workload, seq),
            frozen=None if source.method.freeze is None else frozen_of(source.method.freeze),
        )
        for name in wanted
    ]
    check_skew(model, found[0])
    return found, told
