"""What `measure_training.py` writes: rows with the columns of benchmarks/truth."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from small_transformers import Shape

SCRIPT = "benchmarks/measure_training.py"


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
    """The cells of a throughput row."""
    case, shape = m.case, m.case.shape
    active = m.parameters - shape.layers * (shape.experts - shape.top_k) * 3 * shape.width * shape.inner
    return {
        "id": case.name, "study": "own", "year": date[:4], "model": shape.name, "params": m.parameters,
        "active_params": active, "num_layers": shape.layers, "hidden": shape.width, "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads, "inter": shape.inner, "gated": "no" if shape.family == "gpt2" else "yes",
        "vocab": shape.vocab, "seq_len": case.seq, "task": "pretrain", "gpu": gpu, "gpus": 1, "zero": 0,
        "micro_batch": case.batch, "global_batch": case.batch, "recompute": "full" if case.recompute else "none",
        "attention": case.attention, "precision": case.precision,
        "software": f"pytorch-{'compile' if case.compiled else 'eager'}",
        "tokens_per_s_per_gpu": round(case.batch * case.seq / m.step_s, 2), "quality": "A",
        "source": f"{SCRIPT}, {date}",
    }  # fmt: skip


def memory_rows(m: Measured, gpu: str, date: str) -> Iterator[dict[str, Any]]:
    """The cells of memory rows: what tensors take and, on a GPU, what the allocator holds."""
    case = m.case
    for name, reading, nbytes in (
        (case.name, "allocated", m.allocated_bytes),
        (f"{case.name}-reserved", "reserved", m.reserved_bytes),
    ):
        if nbytes is not None:
            yield {
                "id": name, "study": "own", "year": date[:4], "model": case.shape.name, "params": m.parameters,
                "method": "pretrain", "gpu": gpu, "gpus": 1, "software": "fsdp-eager",
                "compiled": "yes" if case.compiled else "no", "precision": case.precision,
                "weights_dtype": "fp32" if case.precision == "bf16" else "",
                "optimizer": "adamw", "micro_batch": case.batch, "seq_len": case.seq,
                "recompute": "full" if case.recompute else "none", "attention": case.attention, "reading": reading,
                "peak_bytes": nbytes, "quality": "A", "source": f"{SCRIPT}, {date}",
            }  # fmt: skip
