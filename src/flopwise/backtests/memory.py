"""Rows of published memory, predicted: bytes of weights, and peak bytes per GPU in training and fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from flopwise.backtests.prediction import (
    Prediction,
    Row,
    choice,
    flag,
    lora_targets,
    number,
    prediction_of,
    stated_model,
    whole,
)
from flopwise.backtests.training import ATTENTION, PRECISIONS, RECOMPUTE, ZERO
from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.config import model_from_config
from flopwise.training.adapters import trainable_parameters
from flopwise.training.layout import Layout, Lora, Recipe
from flopwise.training.memory import Memory, step_memory

UNIT = "bytes/GPU"
RECENT_YEAR = 2025  # from then on FSDP stacks compile the loss as well
DEFAULT_SEQ = 512  # of unpacked instruction tuning whose length is not stated
PAPER_LORA = (64, "all-linear")
"""Rank and targets where a row states none: those of QLoRA (arXiv 2305.14314)."""
USUAL_LORA = {"torchtune": (8, "qv"), "litgpt": (8, "qv")}
"""The same for tools whose recipes default to others."""
ADAPTER_METHODS = {"lora", "qlora", "lora_emb", "dora", "qdora", "lora-fa", "rslora"}
SMALL_METHODS = {"adapter", "adapter_v2", "ia3", "ln_tuning", "vera", "prefix_tuning", "boft"}
DTYPES: dict[str, str | None] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
BLOOM_VOCAB = 250_880


def row_stack(row: Row) -> str:
    """The row of data/stacks.csv: the software of that year, compiled or not."""
    name = row.get("software") or "hf-trainer"
    if name.endswith("-eager") and flag(row, "compiled", default=False):
        recent = name == "fsdp-eager" and whole(row, "year", RECENT_YEAR) >= RECENT_YEAR
        return name.replace("-eager", "-compile-2025" if recent else "-compile")
    if name == "torchtune-eager" and whole(row, "year", RECENT_YEAR) < RECENT_YEAR:
        return "torchtune-2024"
    return name


@lru_cache(maxsize=256)
def _bloom(width: int, layers: int, heads: int) -> Model:
    """A BLOOM of that shape."""
    config: dict[str, Any] = {
        "model_type": "bloom", "hidden_size": width, "n_layer": layers, "n_head": heads, "vocab_size": BLOOM_VOCAB,
    }  # fmt: skip
    return model_from_config(config, name=f"bloom-h{width}-l{layers}")


def row_model(row: Row, facts: Facts) -> Model:
    """By name; a prototype of BLOOM by the shape that its row states.

    Raises:
        SpecError: a cell of the shape is no number, or the name is not known.
    """
    shape = tuple(whole(row, column, 0) for column in ("hidden", "num_layers", "num_heads"))
    if all(shape) and not row.get("config") and "bloom" in row.get("model", "").lower():
        return _bloom(*shape)
    return stated_model(row, facts)


def row_layout(row: Row) -> Layout:
    """The row's layout; dp is what is left of the GPUs, and recompute is full where it is not stated.

    Raises:
        SpecError: a cell is not one of its values.
    """
    tp, pp, cp = (whole(row, n, 1) for n in ("tp", "pp", "cp"))
    offload = row.get("offload", "").split()
    return Layout(
        dp=max(1, whole(row, "gpus", 1) // (tp * pp * cp)), tp=tp, pp=pp, cp=cp, zero=choice(row, "zero", ZERO, 0),
        micro_batch=whole(row, "micro_batch", 1),
        recompute=choice(row, "recompute", RECOMPUTE, 2),
        sequence_parallel=flag(row, "sequence_parallel", default=False),
        offload_optimizer="optimizer" in offload,
        offload_parameters="parameters" in offload,
        offload_activations="activations" in offload,
    )  # fmt: skip


def _lora(row: Row, model: Model, stack: str, facts: Facts) -> Lora | None:
    """The adapters of a row: rank and targets as stated, or from its number of trained parameters."""
    method = row.get("method", "").lower()
    if method not in ADAPTER_METHODS | SMALL_METHODS:
        return None
    base = "fp32" if row.get("weights_dtype") == "fp32" else row.get("base") or "bf16"
    usual_rank, usual_targets = USUAL_LORA.get(stack.partition("-")[0], PAPER_LORA)
    trained = number(row, "trainable_params")
    lora = Lora(
        rank=whole(row, "lora_rank", usual_rank),
        targets=lora_targets(row.get("lora_targets") or (usual_targets if trained is None else "qv")),
        base=facts.weight_format(base),
        adapter_dtype="fp32" if row.get("adapter_dtype") == "fp32" else "bf16",
        method="dora" if "dora" in method else "lora-fa" if method == "lora-fa" else "lora",
        dropout=stack == "litgpt",
        scales_outputs=method == "adapter_v2",
        extra_trainable=("embedding", "head") if method == "lora_emb" else (),
    )
    if row.get("lora_rank") or trained is None or method in SMALL_METHODS:
        return lora
    one = trainable_parameters(model, replace(lora, rank=1))
    return replace(lora, rank=max(1, round(trained / one)))


def row_recipe(row: Row, model: Model, layout: Layout, facts: Facts) -> Recipe:
    """Optimizer, types, loss and adapters of a row.

    Raises:
        FlopwiseError: a cell is not one of its values.
    """
    stack = row_stack(row)
    replicas = int(layout.dp) * int(layout.micro_batch)
    return Recipe(
        seq_len=whole(row, "seq_len", DEFAULT_SEQ),
        global_batch=max(whole(row, "global_batch", 1), replicas),
        precision=choice(row, "precision", PRECISIONS, "bf16"),
        optimizer=facts.optimizer(row.get("optimizer") or defaults.OPTIMIZER),
        stack=facts.stack(stack),
        attention=choice(row, "attention", ATTENTION, "flash"),
        weights_dtype=choice(row, "weights_dtype", DTYPES, None),
        grad_dtype=choice(row, "grad_dtype", DTYPES, None),
        states_dtype=choice(row, "states_dtype", DTYPES, None),
        loss_chunks=whole(row, "loss_chunks", 1) if row.get("loss_chunks") else None,
        optimizer_in_backward=flag(row, "optimizer_in_backward", default=False),
        selective="alternate" if row.get("recompute") == "alternate" else None,
        lora=_lora(row, model, stack, facts),
    )


def reading_bytes(row: Row, memory: Memory) -> float:
    """The figure of `memory` that the row's `reading` counts."""
    reading = row.get("reading", "")
    if reading == "reserved":
        return float(memory.reserved_bytes)
    return float(memory.total_bytes if reading in {"device", "not stated"} else memory.allocated_bytes)


def row_memory(row: Row, facts: Facts) -> Memory:
    """All items of a row's memory.

    Raises:
        FlopwiseError: it cannot be predicted.
    """
    model, layout = row_model(row, facts), row_layout(row)
    return step_memory(model, row_recipe(row, model, layout, facts), layout)


def predict_row(row: Row, facts: Facts) -> Prediction:
    """Peak bytes per GPU of one row, with its interval."""

    def figure() -> tuple[float, ErrorBand]:
        if row.get("peak_bytes") and number(row, "peak_bytes") is None:
            raise SpecError(f"the peak is {row['peak_bytes'][:60]!r}, no number of bytes")
        if row.get("reading") == "capacity":
            raise SpecError("a capacity limit (the largest that fits), not a peak")
        adapters = row.get("method", "").lower() in ADAPTER_METHODS | SMALL_METHODS
        band = error_band("memory.adapters" if adapters else "memory.full", facts.calibration)
        return reading_bytes(row, row_memory(row, facts)), band

    return prediction_of(row, UNIT, "peak_bytes", figure)
