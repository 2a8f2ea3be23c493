"""What `measure_training.py` writes: rows with the columns of published throughput and memory tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from small_transformers import Shape

SCRIPT = "benchmarks/measure_training.py"
TRAINING_COLUMNS = (
    "id", "source", "year", "model", "params_total_b", "params_active_b", "n_layers", "d_model", "n_heads",
    "n_kv_heads", "d_ff", "gated_mlp", "vocab", "seq_len", "gpu", "n_gpus", "precision", "dp", "tp", "pp", "cp", "ep",
    "zero_stage_or_fsdp", "micro_batch", "global_batch_seqs", "interleave_vpp", "activation_recompute",
    "sequence_parallel", "flash_attention", "measured_metric", "measured_value", "peak_memory_gb_per_gpu", "notes",
    "task", "source_key", "reported_tokens_per_sec_per_gpu", "reported_tflops_per_gpu", "reported_mfu",
    "reported_step_time_s", "attn_flops_convention", "derived_tokens_per_sec_per_gpu", "derived_mfu_uniform",
    "quality", "stack",
)  # fmt: skip
MEMORY_COLUMNS = (
    "id", "source", "source_key", "year", "model", "params_b", "method", "trainable_params_m", "gpu", "n_gpus",
    "param_dtype", "base_weight_quant", "optimizer", "micro_batch", "seq_len", "seq_is_padded_or_packed",
    "activation_checkpointing", "flash_attention", "torch_compile", "parallelism", "offload",
    "peak_memory_gb_per_gpu", "memory_unit", "memory_kind", "speed_reported", "speed_unit", "notes", "quality",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure."""

    shape: Shape
    batch: int
    seq: int
    precision: str  # fp32, or bf16: autocast over fp32 weights
    attention: str  # flash or eager
    recompute: bool
    compiled: bool = False

    @property
    def name(self) -> str:
        """What the case is called in the files."""
        parts = (self.shape.name, f"b{self.batch}", f"s{self.seq}", self.precision, self.attention)
        return "-".join((*parts, "recompute" if self.recompute else "keep", *(("compile",) if self.compiled else ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one case took."""

    case: Case
    parameters: int
    steps_s: tuple[float, ...]
    disturbed: int  # steps thrown away because other processes had the core
    allocated_bytes: int
    reserved_bytes: int | None

    @property
    def step_s(self) -> float:
        """The median step."""
        return statistics.median(self.steps_s)


def training_row(m: Measured, gpu: str, date: str) -> dict[str, Any]:
    """The columns of a throughput row; what does not apply stays empty."""
    case, shape = m.case, m.case.shape
    tokens_per_s = case.batch * case.seq / m.step_s
    active = m.parameters - shape.layers * (shape.experts - shape.top_k) * 3 * shape.width * shape.inner
    return dict.fromkeys(TRAINING_COLUMNS, "") | {
        "id": case.name, "source": f"{SCRIPT}, {date}", "year": date[:4], "model": shape.name,
        "params_total_b": m.parameters / 1e9, "params_active_b": active / 1e9, "n_layers": shape.layers,
        "d_model": shape.width, "n_heads": shape.heads, "n_kv_heads": shape.kv_heads, "d_ff": shape.inner,
        "gated_mlp": str(shape.family != "gpt2").lower(), "vocab": shape.vocab, "seq_len": case.seq, "gpu": gpu,
        "n_gpus": 1, "precision": case.precision, "dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1,
        "zero_stage_or_fsdp": "none", "micro_batch": case.batch, "global_batch_seqs": case.batch, "interleave_vpp": 1,
        "activation_recompute": "full" if case.recompute else "none", "sequence_parallel": "false",
        "flash_attention": str(case.attention == "flash").lower(), "measured_metric": "tokens_per_sec_per_gpu",
        "measured_value": round(tokens_per_s, 2), "peak_memory_gb_per_gpu": round(m.allocated_bytes / 1e9, 6),
        "notes": f"median of {len(m.steps_s)} steps", "task": "pretrain", "source_key": "own",
        "reported_tokens_per_sec_per_gpu": round(tokens_per_s, 2), "reported_step_time_s": round(m.step_s, 6),
        "quality": "A", "stack": f"pytorch-{'compile' if case.compiled else 'eager'}",
    }  # fmt: skip


def memory_rows(m: Measured, gpu: str, date: str, kind: str) -> Iterator[dict[str, Any]]:
    """The columns of memory rows: what tensors take and, on a GPU, what the allocator holds."""
    case = m.case
    how = "torch peak allocated" if kind == "cuda" else "peak of live allocations (profiler)"
    for name, nbytes, said in (
        (case.name, m.allocated_bytes, how),
        (f"{case.name}-reserved", m.reserved_bytes, "torch reserved"),
    ):
        if nbytes is None:
            continue
        yield dict.fromkeys(MEMORY_COLUMNS, "") | {
            "id": name, "source": f"{SCRIPT}, {date}", "source_key": "own", "year": date[:4], "model": case.shape.name,
            "params_b": m.parameters / 1e9, "method": "pretrain", "gpu": gpu, "n_gpus": 1,
            "param_dtype": "fp32" if case.precision == "fp32" else "bf16 autocast over fp32 weights",
            "optimizer": "AdamW",
            "micro_batch": case.batch, "seq_len": case.seq, "seq_is_padded_or_packed": "packed",
            "activation_checkpointing": "full" if case.recompute else "none",
            "flash_attention": str(case.attention == "flash").lower(), "torch_compile": str(case.compiled).lower(),
            "parallelism": "plain-pytorch", "peak_memory_gb_per_gpu": round(nbytes / 1e9, 6), "memory_unit": "GB",
            "memory_kind": said, "speed_reported": round(case.batch * case.seq / m.step_s, 2), "speed_unit": "tokens/s",
            "quality": "A",
        }  # fmt: skip
