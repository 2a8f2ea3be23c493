"""Rows of published memory, predicted: bytes of weights, and peak bytes per GPU in training and fine-tuning."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flopwise.backtests.prediction import (
    VOCABULARIES,
    Prediction,
    Row,
    choice,
    flag,
    lora_targets,
    model_by_size,
    models_by_size,
    number,
    prediction_of,
    whole,
)
from flopwise.backtests.training import (
    ADAPTER_DTYPES,
    ATTENTION,
    COMPILED_LOSS,
    DTYPES,
    PEFT_STACKS,
    PRECISIONS,
    RECOMPUTE,
    UPCAST_YEAR,
    ZERO,
    offloads,
    recomputed_modules,
    resident,
)
from flopwise.cost.intervals import ErrorBand
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.config import model_from_config
from flopwise.facts.software import TrainingStack
from flopwise.training.adapters import trainable_parameters
from flopwise.training.layout import GradSync, Layout, Lora, Recipe, Selective
from flopwise.training.memory import Memory, ends_of, memory_band, stale_shifts, step_memory
from flopwise.values import replace

UNIT = "bytes/GPU"
RECENT_YEAR = 2025  # of a row that names none; from then on torchtune computes its loss in pieces
LOOPING_YEAR = 2022  # optimizers of PyTorch before 2.0 go through the parameters one by one
OLD_LIBRARIES_YEAR = 2023  # of PyTorch before 2.1 and bitsandbytes before 0.43.2, whatever software runs on them
LITGPT_PINNED_YEAR = 2024  # the last whole year in which LitGPT took bitsandbytes 0.42.0 and no other
WHOLE_SEQUENCES = frozenset({"megatron-deepspeed", "megatron-2021"})  # stacks of before sequence parallelism
DEFAULT_SEQ = 512  # of unpacked instruction tuning whose length is not stated
TRAINER_BATCH = "8"  # per_device_train_batch_size where a script of the Trainer's names none
FEW, MANY = 1, 8  # micro-batches of a step where none are stated; in a pipeline so often its stages
PAPER_LORA = (64, "all-linear")
"""Rank and targets where a row states none: those of QLoRA (arXiv 2305.14314)."""
USUAL_LORA = {"torchtune": (8, "qv"), "litgpt": (8, "qv")}
"""The same for tools whose recipes default to others."""
VAGUE = {"not stated": ("device", "allocated", "device"), "peak": ("allocated", "allocated", "reserved")}
"""What a reading in vague words may be: the usual, and both ends."""
ADAPTER_METHODS = {"lora", "qlora", "lora_emb", "dora", "qdora", "lora-fa", "rslora"}
SMALL_METHODS = {"adapter", "adapter_v2", "ia3", "ln_tuning", "vera", "prefix_tuning", "boft"}
SELECTIVE: dict[str, Selective | None] = {
    **dict.fromkeys(RECOMPUTE), "alternate": "alternate", "operations": "operations",
}  # fmt: skip
GRAD_SYNC: dict[str, GradSync | None] = {"each": "each", "round": "round", "last": "last"}
BLOOM_VOCAB = 250_880


def row_stack(row: Row) -> str:
    """The row of data/stacks.csv: the software of that year, compiled or not."""
    name = row.get("software") or "hf-trainer"
    if name.endswith("-eager") and flag(row, "compiled", default=False):
        recent = name == "fsdp-eager" and (_year(row), whole(row, "month", 12)) >= COMPILED_LOSS
        return name.replace("-eager", "-compile-2025" if recent else "-compile")
    return "torchtune-2024" if name == "torchtune-eager" and _year(row) < RECENT_YEAR else name


def row_method(row: Row) -> str:
    """The training method of a row, by the names of `memory_method`."""
    if row.get("method", "").lower() not in ADAPTER_METHODS | SMALL_METHODS:
        return "full"
    return "adapters" if (row.get("base") or "bf16") in DTYPES else "quantised"


def _year(row: Row) -> int:
    """The year of the software: of its version where that names one, or of the row."""
    named = re.search(r"\b20\d\d\b", row.get("software_version") or "")
    return int(named[0]) if named else whole(row, "year", RECENT_YEAR)


def _libraries(row: Row, stack: TrainingStack) -> TrainingStack:
    """The stack with the habits of the libraries of the row's year.

    Source: bitsandbytes pull request 1270; PyTorch pull request 101982 (see `litgpt-2023` in data/stacks.json); PyTorch
    2.0 release notes: foreach implementations of optimizers, which hold temporaries of all parameters, by default;
    Lightning-AI/litgpt, finetune/lora.py of 2024 ("LitGPT only supports bitsandbytes v0.42.0", whose products of
    quantised weights keep their input) and pyproject.toml of 0.5.11 (2025: bitsandbytes from 0.45.2).
    """
    if _year(row) <= LOOPING_YEAR:
        stack = replace(stack, step_copies=0)
    if row.get("recompute") == "plain":
        stack = replace(stack, holds_inputs=False)
    if stack.name == "litgpt" and _year(row) <= LITGPT_PINNED_YEAR:
        stack = replace(stack, quantised_keeps_input=True)
    old = stack.pipeline_gathered and _year(row) <= OLD_LIBRARIES_YEAR  # PyTorch's FSDP
    return replace(stack, frozen_stay_gathered=True, quantised_keeps_input=True) if old else stack


@lru_cache(maxsize=256)
def _bloom(width: int, layers: int, heads: int) -> Model:
    """A BLOOM of that shape."""
    config: dict[str, Any] = {
        "model_type": "bloom", "hidden_size": width, "n_layer": layers, "n_head": heads, "vocab_size": BLOOM_VOCAB,
    }  # fmt: skip
    return model_from_config(config, name=f"bloom-h{width}-l{layers}")


def row_model(row: Row, facts: Facts) -> Model:
    """By name, else by the size that it prints; a prototype of BLOOM by the shape that its row states.

    Raises: SpecError: a cell of the shape is not a number, or as `model_by_size`.
    """
    shape = tuple(whole(row, column, 0) for column in ("hidden", "num_layers", "num_heads"))
    if all(shape) and not row.get("config") and "bloom" in row.get("model", "").lower():
        return _bloom(*shape)
    return model_by_size(row, facts)


def row_layout(row: Row) -> Layout:
    """The row's layout; dp is what is left of the GPUs, and recompute is full where it is not stated.

    Raises: SpecError: a cell is not one of its values.
    """
    tp, pp, cp, ep = (whole(row, n, 1) for n in ("tp", "pp", "cp", "ep"))
    return Layout(
        dp=max(1, whole(row, "gpus", 1) // (tp * pp * cp)), tp=tp, pp=pp, cp=cp, ep=ep,
        zero=choice(row, "zero", ZERO, 0), micro_batch=whole(row, "micro_batch", 1),
        recompute=choice(row, "recompute", RECOMPUTE, 2),
        sequence_parallel=flag(row, "sequence_parallel", default=row.get("software") not in WHOLE_SEQUENCES),
        **offloads(row),
    )  # fmt: skip


def _lora(row: Row, model: Model, stack: str, facts: Facts) -> Lora | None:
    """The adapters of a row: rank and targets as stated, or from its number of trained parameters."""
    method = row.get("method", "").lower()
    if method not in ADAPTER_METHODS | SMALL_METHODS:
        return None
    base = "fp32" if row.get("weights_dtype") == "fp32" else row.get("base") or "bf16"
    if base == "nf4" and flag(row, "double_quant", default=False):
        base = "nf4-dq"
    usual_rank, usual_targets = USUAL_LORA.get(stack.partition("-")[0], PAPER_LORA)
    trained = number(row, "trainable_params")
    usual_dtype = "fp32" if stack.startswith(PEFT_STACKS) and _year(row) >= UPCAST_YEAR else "bf16"
    lora = Lora(
        rank=whole(row, "lora_rank", usual_rank),
        targets=lora_targets(row.get("lora_targets") or (usual_targets if trained is None else "qv")),
        base=facts.weight_format(base),
        adapter_dtype=choice(row, "adapter_dtype", ADAPTER_DTYPES, ADAPTER_DTYPES[usual_dtype]),
        method="dora" if "dora" in method else "lora-fa" if method == "lora-fa" else "lora",
        dropout=bool(number(row, "lora_dropout")),
        scales_outputs=method == "adapter_v2",
        extra_trainable=("embedding", "head") if method == "lora_emb" else (),
    )
    if row.get("lora_rank") or trained is None or method in SMALL_METHODS:
        return lora
    one = trainable_parameters(model, replace(lora, rank=1))
    return replace(lora, rank=max(1, round(trained / one)))


def row_recipe(row: Row, model: Model, layout: Layout, facts: Facts) -> Recipe:
    """Optimizer, types, loss and adapters of a row. Raises FlopwiseError: a cell is not one of its values."""
    stack = row_stack(row)
    replicas = int(layout.dp) * int(layout.micro_batch) * whole(row, "grad_accum", 1)
    return Recipe(
        seq_len=whole(row, "seq_len", DEFAULT_SEQ),
        global_batch=max(whole(row, "global_batch", 1), replicas),
        precision=choice(row, "precision", PRECISIONS, "bf16"),
        stack=_libraries(row, facts.stack(stack)),
        attention=choice(row, "attention", ATTENTION, "flash"),
        optimizer_in_backward=flag(row, "optimizer_in_backward", default=False),
        selective=choice(row, "recompute", SELECTIVE, None),
        modules=recomputed_modules(row),
        lora=_lora(row, model, stack, facts),
        grad_sync=choice(row, "grad_sync", GRAD_SYNC, None),
        lengths_vary=row.get("lengths") in {"longest", "cap"},
        **resident(row, facts),
    )


def reading_bytes(row: Row, memory: Memory) -> float:
    """The figure of `memory` that the row's `reading` counts."""
    reading = row.get("reading", "")
    if reading == "reserved":
        return float(memory.reserved_bytes)
    return float(memory.total_bytes if reading == "device" else memory.allocated_bytes)


def row_memory(row: Row, facts: Facts) -> Memory:
    """All items of a row's memory, as it is stated. Raises FlopwiseError: it cannot be predicted."""
    model, layout = row_model(row, facts), row_layout(row)
    return step_memory(model, row_recipe(row, model, layout, facts), layout)


def unstated_cells(row: Row) -> dict[str, tuple[Mapping[str, str], ...]]:
    """Inputs that a row does not state, each with cells of the usual value and of both ends of common practice.

    Source: defaults of the tools (`USUAL_LORA`: torchtune and litgpt recipes; torchtitan `local_batch_size` 1 to 4;
    PEFT rank 8, QLoRA rank 64 on every layer); transformers, TrainingArguments: per_device_train_batch_size 8, bf16 and
    fp16 off; Megatron-LM's advice of many micro-batches a stage; Megatron-Bridge, scripts/performance/configs:
    recipes name what they compute again, most nothing.
    """
    method, alternatives = row.get("method", "").lower(), dict[str, tuple[Mapping[str, str], ...]]()

    def silent(column: str, *cells: Mapping[str, str], when: bool = True) -> None:
        if when and not row.get(column):
            alternatives[column] = cells

    adapters, stages = method in ADAPTER_METHODS, whole(row, "pp", 1)
    tool = (row.get("software") or "").partition("-")[0]
    usual_recompute = "none" if tool == "nemo" else "full"
    silent("recompute", *({"recompute": mode} for mode in (usual_recompute, "none", "full")))
    most = TRAINER_BATCH if tool == "hf" else "4"
    silent("micro_batch", *({"micro_batch": size} for size in ("1", "1", most)))
    plain = tool == "hf" and (row.get("base") or "bf16") in DTYPES and not row.get("weights_dtype")
    without_flags = {"precision": "fp32", "weights_dtype": "fp32"}
    silent("precision", {"precision": "bf16"}, {"precision": "bf16"}, without_flags, when=plain)
    whole_batch = not row.get("grad_accum") and (stages > 1 or row.get("zero") in {"2", "3"})
    usual = stages * MANY // 2 if stages > 1 else FEW
    silent("global_batch", *({"grad_accum": str(n)} for n in (usual, stages * FEW, stages * MANY)), when=whole_batch)
    pretrains = method == "pretrain"
    lengths = ("4096", "2048", "8192") if pretrains else (str(DEFAULT_SEQ), "256", "1024")
    silent("seq_len", *({"seq_len": length} for length in lengths))
    counted = number(row, "trainable_params") is not None
    rank, targets = USUAL_LORA.get(tool, PAPER_LORA)
    ends = (str(rank), "8", "64")
    silent("lora_rank", *({"lora_rank": r} for r in ends), when=adapters and not counted)
    sets = (targets, "qv", "all-linear")
    silent("lora_targets", *({"lora_targets": t} for t in sets), when=adapters and not counted)
    drops = "0.05" if tool == "litgpt" else "0"
    silent("lora_dropout", *({"lora_dropout": d} for d in (drops, "0", "0.05")), when=adapters)
    accumulates = (number(row, "grad_accum") or 1.0) > 1.0 and row.get("zero") in {"2", "3"}
    by_version = accumulates and tool in {"hf", "axolotl"}  # of accelerate and of FSDP: whether reductions are put off
    silent("grad_sync", *({"grad_sync": sync} for sync in ("", "each", "last")), when=by_version)
    double = "no" if tool == "litgpt" else "yes"
    silent("double_quant", *({"double_quant": d} for d in (double, "no", "yes")), when=row.get("base") == "nf4")
    cuts = row.get("software") not in WHOLE_SEQUENCES and whole(row, "tp", 1) > 1
    silent("sequence_parallel", *({"sequence_parallel": p} for p in ("yes", "no", "yes")), when=cuts)
    if row.get("lengths") == "cap" and (longest := number(row, "seq_len")):
        alternatives["longest sequence"] = tuple({"seq_len": f"{share * longest:.0f}"} for share in (0.75, 0.5, 1.0))
    if row.get("reading") in VAGUE:
        alternatives["reading"] = tuple({"reading": kind} for kind in VAGUE[row["reading"]])
    return alternatives


def usual_row(row: Row) -> Row:
    """The row with usual values for the inputs that it does not state."""
    stated = dict(row)
    for usual, *_ in unstated_cells(row).values():
        stated |= usual
    return stated


def predict_row(row: Row, facts: Facts) -> Prediction:
    """Peak bytes per GPU of one row, with its interval.

    That is not below weights and states, and has the spread of what the row does not state. A row that measured less
    than its weights and states is reported, not scored.
    """
    floor = 0.0

    def figure() -> tuple[float, ErrorBand]:
        nonlocal floor
        if row.get("peak_bytes") and number(row, "peak_bytes") is None:
            raise SpecError(f"the peak is {row['peak_bytes'][:60]!r}, no number of bytes")
        if row.get("reading") == "capacity":
            raise SpecError("a capacity limit (the largest that fits), not a peak")
        open_inputs, stated = unstated_cells(row), usual_row(row)
        if models_by_size(row, row_model(row, facts)):
            open_inputs["vocabulary"] = ({}, *({"vocab": str(size)} for size in VOCABULARIES))
        memory = row_memory(stated, facts)
        total, floor = reading_bytes(stated, memory), memory.floor_bytes
        shifts = [stale_shifts(memory, total)]
        for cells in open_inputs.values():
            others = [{**stated, **end} for end in cells[1:] if end != cells[0]]
            estimates = [row_memory(other, facts) for other in others]
            floor = min(floor, *(other.floor_bytes for other in estimates)) if estimates else floor
            pairs = zip(others, estimates, strict=True)
            shifts.append(tuple(math.log(reading_bytes(other, m) / total) for other, m in pairs))
        model, layout = row_model(stated, facts), row_layout(stated)
        band = memory_band(row_recipe(stated, model, layout, facts), facts.calibration)
        return total, band.between(*ends_of(shifts))

    prediction = prediction_of(row, UNIT, "peak_bytes", figure)
    if prediction.low is None or prediction.high is None:
        return prediction
    return replace(prediction, low=max(prediction.low, floor), high=max(prediction.high, floor), floor=floor)
