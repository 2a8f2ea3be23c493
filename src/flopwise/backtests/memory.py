"""Rows of published peak memory in training and fine-tuning, predicted: bytes per GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from flopwise.backtests.names import named_model
from flopwise.backtests.prediction import Prediction, banded, flag, number, skipped, whole
from flopwise.cost.intervals import error_band
from flopwise.errors import FlopwiseError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models import model_from_config
from flopwise.training.adapters import trainable_parameters
from flopwise.training.layout import TARGET_SETS, Layout, Lora, Precision, Recipe
from flopwise.training.memory import Memory, step_memory

UNIT = "bytes/GPU"
UNITS = {"gib": 2.0**30, "gb": 1e9}

STACK_WORDS: tuple[tuple[str, str], ...] = (
    ("plain-pytorch", "fsdp-eager"),
    ("torchtune", "torchtune-eager"),
    ("torchtitan", "fsdp-eager"),
    ("torchao", "fsdp-eager"),
    ("litgpt", "litgpt"),
    ("lit-gpt", "litgpt"),
    ("unsloth", "unsloth"),
    ("nanotron", "nanotron"),
    ("fast-llm", "fast-llm"),
    ("llm-foundry", "fsdp-fused"),
    ("bigscience", "megatron-deepspeed"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("megatron", "megatron-te"),
    ("nemo", "megatron-te"),
    ("deepspeed", "deepspeed-zero3"),
    ("maxtext", "xla"),
    ("peft", "hf-trainer"),
    ("trl", "hf-trainer"),
    ("transformers", "hf-trainer"),
)
"""Words by which a row's source names its software, most telling first."""

RECENT_YEAR = 2025  # from then on FSDP stacks compile the loss as well
DEFAULT_SEQ = 512  # of unpacked instruction tuning whose length is not stated
PAPER_LORA = (64, "all-linear")
"""Rank and targets where a row states none: those of QLoRA (arXiv 2305.14314)."""
USUAL_LORA = {"torchtune": (8, "qv"), "litgpt": (8, "qv")}
"""The same for tools whose recipes default to others."""
ADAPTER_METHODS = {"lora", "qlora", "lora_emb", "dora", "qdora", "lora-fa", "rslora"}
SMALL_METHODS = {"adapter", "adapter_v2", "ia3", "ln_tuning", "vera", "prefix_tuning", "boft"}


def row_stack(row: Mapping[str, str]) -> str:
    """The software that the row's own words name; with torch.compile where it says so."""
    if row.get("stack"):
        return row["stack"]
    words = " ".join(row.get(c, "") for c in ("parallelism", "source_key", "source", "memory_kind")).lower()
    found = next((name for word, name in STACK_WORDS if word in words), "hf-trainer")
    notes = row.get("notes", "").lower()
    compiled = flag(row, "torch_compile", default="compile" in notes.replace("nocompile", "") and "eager" not in notes)
    if compiled and found.endswith("-eager"):
        recent = found == "fsdp-eager" and whole(row, "year", 2025) >= RECENT_YEAR
        return found.replace("-eager", "-compile-2025" if recent else "-compile")
    if found == "torchtune-eager" and whole(row, "year", RECENT_YEAR) < RECENT_YEAR:
        return "torchtune-2024"
    return found


@lru_cache(maxsize=256)
def _shaped(key: tuple[int, int, int, int]) -> Model:
    """A BLOOM of (width, layers, heads, vocabulary)."""
    width, layers, heads, vocab = key
    config: dict[str, Any] = {
        "model_type": "bloom",
        "hidden_size": width,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": vocab,
    }
    return model_from_config(config, name=f"bloom-h{width}-l{layers}")


def row_model(row: Mapping[str, str], facts: Facts) -> Model:
    """By name; a prototype is built from the shape (h, l, a) that the row's id carries."""
    shape = re.search(r"-h(\d+)-l(\d+)-a(\d+)", row.get("id", ""))
    if shape and "bloom" in row["model"].lower():
        return _shaped((int(shape[1]), int(shape[2]), int(shape[3]), 250_880))
    return named_model(row["model"], facts)


def _degree(text: str, name: str) -> int:
    found = re.search(rf"\b{name}(\d+)", text)
    return int(found[1]) if found else 1


def row_layout(row: Mapping[str, str]) -> Layout:
    """Degrees as `parallelism` prints them; dp is what is left of the GPUs."""
    text, gpus = row.get("parallelism", "").lower(), whole(row, "n_gpus", 1)
    tp, pp, cp = (_degree(text, n) for n in ("tp", "pp", "cp"))
    stage = re.search(r"zero-?(\d)", text)
    zero = int(stage[1]) if stage else 3 if "fsdp" in text else 0
    saved = row.get("activation_checkpointing", "").lower()
    recompute = 1 if saved.startswith("selective") else 0 if saved.startswith(("none", "false")) else 2
    offload = row.get("offload", "").lower()
    states = any(word in offload for word in ("optimizer", "params"))
    return Layout(
        dp=max(1, gpus // (tp * pp * cp)),
        tp=tp,
        pp=pp,
        cp=cp,
        zero=zero,
        micro_batch=whole(row, "micro_batch", 1),
        recompute=recompute,
        sequence_parallel=tp > 1 and "fsdp" in text,
        offload_optimizer=states and "paged" not in offload,
        offload_parameters="params" in offload,
        offload_activations="activations" in offload,
    )


def _lora(row: Mapping[str, str], model: Model, stack: str, facts: Facts) -> Lora | None:
    """The adapters of a row: rank and targets from its notes or its number of trained parameters."""
    method, notes = row.get("method", "").lower(), row.get("notes", "").lower()
    if method not in ADAPTER_METHODS | SMALL_METHODS:
        return None
    base = row.get("base_weight_quant") or "bf16"
    if "fp32 weights" in row.get("param_dtype", ""):
        base = "fp32"
    stated = re.search(r"rank[ =]*(\d+)", notes)
    usual_rank, usual_targets = USUAL_LORA.get(stack.partition("-")[0], PAPER_LORA)
    wide = "all layers" in notes or "all linear" in notes
    narrow = "q,v" in notes or "q and v" in notes or number(row, "trainable_params_m") is not None
    targets = TARGET_SETS["all-linear" if wide else "qv" if narrow else usual_targets]
    rank = int(stated[1]) if stated else usual_rank
    lora = Lora(
        rank=rank,
        targets=targets,
        base=facts.weight_format(base),
        adapter_dtype="fp32" if "adapters fp32" in row.get("param_dtype", "") else "bf16",
        method="dora" if "dora" in method else "lora-fa" if method == "lora-fa" else "lora",
        dropout=stack == "litgpt",
        scales_outputs=method == "adapter_v2",
        extra_trainable=("embedding", "head") if method == "lora_emb" else (),
    )
    trained = number(row, "trainable_params_m")
    if stated or trained is None or method in SMALL_METHODS:
        return lora
    one = trainable_parameters(model, replace(lora, rank=1))
    return replace(lora, rank=max(1, round(trained * 1e6 / one)))


def row_recipe(row: Mapping[str, str], model: Model, layout: Layout, facts: Facts) -> Recipe:
    """Optimizer, types, loss and adapters of a row."""
    words = f"{row.get('optimizer', '')} {row.get('notes', '')}".lower()
    name = row.get("optimizer", "").lower()
    kinds = row.get("param_dtype", "").lower()
    stack = row_stack(row)
    found = re.search(r"gbs(\d+)", f"{row.get('id', '')} {row.get('notes', '')}")
    replicas = int(layout.dp) * int(layout.micro_batch)
    flash = row.get("flash_attention", "").lower()
    pure = "bf16" if "pure bf16" in words else None
    return Recipe(
        seq_len=whole(row, "seq_len", DEFAULT_SEQ),
        global_batch=max(int(found[1]) if found else 1, replicas),
        precision=_precision(kinds),
        optimizer=facts.optimizer(row_optimizer(name)),
        stack=facts.stack(stack),
        attention="eager" if flash.startswith("false") else "flash",
        weights_dtype="fp32" if "fp32 weights" in kinds else pure,
        grad_dtype=pure,
        states_dtype=pure,
        loss_chunks=8 if "chunked" in words else 1 if "cumulative" in words else None,
        optimizer_in_backward=any(w in name for w in ("in_bwd", "in backward", "low-memory")),
        selective="alternate" if "every 2nd" in words else None,
        lora=_lora(row, model, stack, facts),
    )


def row_optimizer(name: str) -> str:
    """The row of data/optimizers.csv that a printed name means: AdamW unless another is named."""
    other = next((o for o in ("adafactor", "sgd", "lion", "muon", "adagrad") if o in name), None)
    if other == "sgd" and "momentum" in name:
        return "sgd-momentum"
    paged, eight = "paged" in name, "8bit" in name or "8-bit" in name
    return other or f"{'paged-' if paged else ''}adamw{'-8bit' if eight else ''}"


def _precision(kinds: str) -> Precision:
    """The arithmetic that a row's `param_dtype` names."""
    if kinds.strip() in ("fp32", "float32", "32-true"):
        return "fp32"
    order: tuple[Precision, ...] = ("mxfp8", "fp8", "fp16")
    return next((p for p in order if p in kinds), "bf16")


def read_bytes(row: Mapping[str, str], memory: Memory) -> float:
    """The figure of `memory` that the row's `memory_kind` measures."""
    kind = row.get("memory_kind", "").lower()
    if "reserved" in kind:
        return float(memory.reserved_bytes)
    if "nvidia-smi" in kind:
        return float(memory.total_bytes)
    return float(memory.allocated_bytes)


def predict_row(row: Mapping[str, str], facts: Facts) -> Prediction:
    """Peak bytes per GPU of one row of training_memory.csv, with its interval."""
    name, printed = row.get("id", ""), number(row, "peak_memory_gb_per_gpu")
    scale = UNITS.get(row.get("memory_unit", "").strip().lower())
    if printed is not None and scale is None:
        return skipped(name, UNIT, "memory_unit is neither GB nor GiB")
    measured = None if printed is None or scale is None else printed * scale
    if "capacity limit" in row.get("memory_kind", "").lower():
        return skipped(name, UNIT, "a capacity limit (the largest that fits), not a peak", measured)
    try:
        memory = row_memory(row, facts)
    except FlopwiseError as error:
        return skipped(name, UNIT, str(error), measured)
    adapters = row.get("method", "").lower() in ADAPTER_METHODS | SMALL_METHODS
    band = error_band("memory.adapters" if adapters else "memory.full", facts.calibration)
    return banded(name, UNIT, measured, read_bytes(row, memory), band)


def row_memory(row: Mapping[str, str], facts: Facts) -> Memory:
    """All items of a row. Raises FlopwiseError where it can't be predicted."""
    model, layout = row_model(row, facts), row_layout(row)
    return step_memory(model, row_recipe(row, model, layout, facts), layout)
