"""Rows of published training runs, predicted: tokens per second and GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from flopwise.backtests.names import named_model
from flopwise.backtests.prediction import Prediction, flag, number, skipped, whole
from flopwise.cost.cluster import cluster
from flopwise.errors import FlopwiseError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models import model_from_config
from flopwise.training.documents import Documents, lognormal
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout, Lora, Precision, Recipe

UNIT = "tokens/s/GPU"
ZERO = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "ddp": 0, "none": 0}
NODE = 8
LINK_BYTES_PER_S = {"EDR": 12.5e9, "HDR": 25e9, "NDR": 50e9, "Omni-Path": 12.5e9}
"""One direction of one link, by the words of notes; nodes of `NODE` devices share their links."""
MIXTURE_KERNELS_YEAR = 2026
"""From then on Megatron's releases have the stack `megatron-2026`."""
DOCUMENT_TOKENS = {"squad": 190.0}
"""Mean tokens of a document with question and answer: SQuAD has paragraphs of 120 words (Rajpurkar et al. 2016,
arXiv 1606.05250) and questions and answers of about 15, at 1.4 tokens of Llama a word."""
DOCUMENT_SPREAD = 0.4
"""Standard deviation of their lengths over the mean (assumed)."""
FLASH_2_YEAR = 2024
"""The first whole year of flash attention 2; FSDP runs before it have the stack `fsdp-2023`."""
RECOMPUTE = {"none": 0, "false": 0, "selective": 1, "full": 2, "true": 2}


def measured_tokens_per_s(row: Mapping[str, str]) -> float | None:
    """What the row measured, as tokens per second and GPU: printed, or derived by the source's own arithmetic."""
    metric, value = row.get("measured_metric", ""), number(row, "measured_value")
    if metric == "tokens_per_sec_per_gpu" and value:
        return value
    for column in ("reported_tokens_per_sec_per_gpu", "derived_tokens_per_sec_per_gpu"):
        if found := number(row, column):
            return found
    gpus, batch, seq = number(row, "n_gpus"), number(row, "global_batch_seqs"), number(row, "seq_len")
    if metric == "step_time_s" and value and gpus and batch and seq:
        return batch * seq / value / gpus
    return None


SHAPE = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab", "seq_len")


@lru_cache(maxsize=512)
def _shaped(name: str, shape: tuple[int, ...], *, gated: bool) -> Model:
    """A dense model of a shape in the order of `SHAPE`: Llama-like when gated, GPT-like otherwise."""
    layers, width, heads, kv_heads, inner, vocab, longest = shape
    if gated:
        config: dict[str, object] = {
            "model_type": "llama",
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": inner,
            "vocab_size": vocab,
            "max_position_embeddings": longest,
            "tie_word_embeddings": False,
        }
    else:
        config = {
            "model_type": "gpt2",
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": inner,
            "vocab_size": vocab,
            "n_positions": longest,
        }
    return model_from_config(config, name=name)


def row_model(row: Mapping[str, str], facts: Facts) -> Model:
    """The model of a row: by its printed shape when it is dense, by name otherwise.

    Raises:
        SpecError: a cell of the shape is no number, or the name is not known.
    """
    total, active = number(row, "params_total_b"), number(row, "params_active_b")
    mixture = total is not None and active is not None and active < 0.9 * total
    heads = whole(row, "n_heads", 0)
    shape = tuple(whole(row, column, heads if column == "n_kv_heads" else 0) for column in SHAPE)
    if mixture or not all(shape):
        return named_model(row.get("model", ""), facts)
    return _shaped(row.get("model", ""), shape, gated=flag(row, "gated_mlp", default=True))


def row_layout(row: Mapping[str, str]) -> Layout:
    """The row's layout; degrees that it leaves out are 1, dp is what is left of its GPUs."""
    gpus = whole(row, "n_gpus", 1)
    tp, pp, cp, ep = (whole(row, c, 1) for c in ("tp", "pp", "cp", "ep"))
    dp = max(1, gpus // (tp * pp * cp))
    sharding, software = row.get("zero_stage_or_fsdp", "").lower(), row.get("stack", "")
    usual = 0 if software in {"megatron-2021", ""} else 1
    zero = 2 if "shard_grad_op" in sharding else next((z for k, z in ZERO.items() if k in sharding), usual)
    if software.startswith("megatron-te"):  # what NVIDIA calls ddp keeps its distributed optimizer: ZeRO 1
        zero = max(zero, 1)
    said = row.get("activation_recompute", "").lower()
    if not said and software.startswith("torchtune"):  # the recipes' default
        said = "full"
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=min(ep, dp * cp),
        zero=zero if dp * cp > 1 else 0,
        micro_batch=whole(row, "micro_batch", 1),
        interleave=whole(row, "interleave_vpp", 1) if pp > 1 else 1,
        recompute=RECOMPUTE.get(said, 0),
        sequence_parallel=flag(row, "sequence_parallel", default=tp > 1 and "2021" not in row.get("stack", "")),
    )


def row_recipe(row: Mapping[str, str], layout: Layout, facts: Facts) -> Recipe:
    """The row's recipe."""
    precision = row.get("precision", "bf16") or "bf16"
    names: tuple[Precision, ...] = ("bf16", "fp16", "fp32", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4")
    notes = row.get("notes", "").lower()
    if precision == "fp8" and "rowwise" in notes.split(";")[0]:
        precision = "fp8_rowwise"
    known: dict[str, Precision] = {name: name for name in names}
    base = {"lora": "bf16", "qlora": "nf4"}.get(row.get("task", ""))
    lora = Lora(rank=16, targets=("q", "k", "v", "o"), base=facts.weight_format(base)) if base else None
    replicas = int(layout.dp) * int(layout.micro_batch)
    seq = whole(row, "seq_len", 2048)
    return Recipe(
        seq_len=seq,
        documents=None if row.get("task") in {"pretrain", "", None} else noted_documents(notes, seq),
        global_batch=max(whole(row, "global_batch_seqs", replicas), replicas),
        precision=known.get(precision, "bf16"),
        optimizer=facts.optimizer(defaults.OPTIMIZER),
        stack=facts.stack(noted_stack(row)),
        attention="eager" if row.get("flash_attention", "").lower() == "false" else "flash",
        lora=lora,
        selective="alternate" if re.search("every 2nd|per-layer ac", notes) else None,
    )


def noted_documents(notes: str, seq: int) -> Documents | None:
    """Documents of a data set that the notes name, where they say that it is packed; attention stays within each."""
    known = next((mean for name, mean in DOCUMENT_TOKENS.items() if name in notes), None)
    return lognormal(min(known, seq), DOCUMENT_SPREAD, seq, "packed") if known and "packed" in notes else None


def noted_stack(row: Mapping[str, str]) -> str:
    """The row's stack; its notes say where single runs of a table compile, or overlap tensor-parallel messages."""
    name, notes = row.get("stack") or "fsdp-compile", row.get("notes", "").lower()
    if name == "megatron-te" and whole(row, "year", MIXTURE_KERNELS_YEAR - 1) >= MIXTURE_KERNELS_YEAR:
        name = "megatron-2026"
    if name == "fsdp-eager" and whole(row, "year", FLASH_2_YEAR) < FLASH_2_YEAR:
        name = "fsdp-2023"
    if name == "fsdp-eager" and "+compile" in notes:
        name = "fsdp-compile"
    if name == "torchtune-eager" and "cumulative flags" in notes and not notes.startswith("+packed"):
        name = "torchtune-compile"  # the table's second flag, on in all that follow
    return "fsdp-compile-async-tp" if name == "fsdp-compile" and re.search(r"async ?tp", notes) else name


def noted_network(row: Mapping[str, str]) -> float | None:
    """Bytes per second of a node's network, where the notes count its links."""
    found = re.search(r"\b(\d+)x? (HDR|EDR|NDR|Omni-Path)\b", row.get("notes", ""))
    return int(found[1]) * LINK_BYTES_PER_S[found[2]] if found else None


def row_job(row: Mapping[str, str], facts: Facts) -> TrainJob:
    """The job that a row ran, in nodes of eight where it says how they are joined.

    Raises:
        FlopwiseError: the row names what is not known, or a layout that cannot be.
    """
    gpu, network, layout = facts.resolve(row.get("gpu", "")), noted_network(row), row_layout(row)
    return TrainJob(
        model=row_model(row, facts),
        recipe=row_recipe(row, layout, facts),
        layout=layout,
        cluster=cluster(gpu.accelerator, ambiguous=gpu.note, network_bytes_per_s_per_gpu=network and network / NODE),
    )


def predict_row(row: Mapping[str, str], facts: Facts) -> Prediction:
    """Tokens per second and GPU of one row of training_throughput.csv, with its interval."""
    measured = measured_tokens_per_s(row)
    name = row.get("id", "")
    if number(row, "n_gpus") is None:
        return skipped(name, UNIT, "n_gpus is missing", measured)
    try:
        result = estimate(row_job(row, facts))
    except FlopwiseError as error:
        return skipped(name, UNIT, str(error), measured)
    return Prediction(
        id=name,
        measured=measured,
        predicted=result.tokens_per_s_per_gpu,
        low=result.low,
        high=result.high,
        unit=UNIT,
        band=result.band,
    )
