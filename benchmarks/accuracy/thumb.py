"""Rules of thumb that people use instead of a model, fitted as they would be: one constant a group, its median.

Each gives, for a case, a raw figure without its constant; `errors` then takes the constant from all rows of the group,
or, for what a rule says of sources it has not seen, from the rows of the other sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rows import Case

from flopwise.backtests.io import row_workload
from flopwise.backtests.prediction import named_model, number, whole
from flopwise.backtests.serving import row_job
from flopwise.cost.rates import precision
from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import load_facts
from flopwise.ops.cache import kv_cache_bytes
from flopwise.ops.tensors import active_parameters, parameters
from flopwise.serving.estimate import estimate

Raw = tuple[tuple[str, ...], float]
"""The group whose constant applies, and the figure that it multiplies."""

MIXED_PRECISION_BYTES = 16.0
"""Bytes of a trained parameter with mixed-precision Adam."""
BITS = {"f32": 32.0, "fp8": 8.0, "int8": 8.0, "awq": 4.0, "gptq": 4.0, "nvfp4": 4.0, "mxfp4": 4.0}
BITS |= {f"{family}{bits}": float(bits) for family in ("q", "iq") for bits in range(1, 9)}
"""Bits of a weight as a format's name has them; 16 for all others."""


def raw(case: Case) -> Raw | None:
    """The rule's figure for a case; None where it has none."""
    rule = RULES.get(case.kind)
    try:
        return None if rule is None else rule(case)
    except (FlopwiseError, ZeroDivisionError, KeyError):
        return None


def _training(case: Case) -> Raw | None:
    """One model-FLOPs utilisation for each GPU and precision: 6N and causal attention a token."""
    row = case.row
    active, layers, width, seq = (number(row, c) for c in ("active_params", "num_layers", "hidden", "seq_len"))
    gpu = load_facts().accelerator(row["gpu"])
    peak = gpu.peak.get(precision(row["precision"]).peak)
    if not (active and layers and width and seq and peak):
        return None
    passes = 4 if row.get("task") in {"lora", "qlora"} else 6
    return (gpu.name, row["precision"]), peak / (passes * active + passes * layers * width * seq)


def _gpu_hours(case: Case) -> Raw | None:
    """6ND at one utilisation."""
    active, tokens = number(case.row, "active_params"), number(case.row, "tokens")
    peak = load_facts().accelerator(case.row["gpu"]).peak.get("bf16")
    return None if not (active and tokens and peak) else ((), 6.0 * active * tokens / peak / 3600)


def _memory(case: Case) -> Raw | None:
    """16 bytes a trained parameter and 2 a frozen one (0.5 in 4 bits), over the GPUs, nothing else; no constant."""
    row = case.row
    size, trained = number(row, "params") or 0.0, number(row, "trainable_params") or 0.0
    if not size:
        return None
    if row.get("method") in {"full", "pretrain"}:
        return ("none",), size * MIXED_PRECISION_BYTES / whole(row, "gpus", 1)
    frozen = 0.5 if row.get("base") else 2.0
    return ("none",), (size * frozen + trained * MIXED_PRECISION_BYTES) / whole(row, "gpus", 1)


def _weights(case: Case) -> Raw | None:
    """Parameters times the bits in the format's name; no constant."""
    name = case.row["format"].lower().removeprefix("gguf ")
    bits = next((b for key, b in BITS.items() if name.startswith(key)), 16.0)
    return ("none",), parameters(named_model(case.row["model"], load_facts())) * bits / 8


def _kernels(case: Case) -> Raw | None:
    """Roofline at datasheet rates with one achieved fraction for each operation."""
    bound = number(case.row, "roofline_s")
    return None if bound is None else ((case.row["op"],), bound)


@lru_cache(maxsize=4096)
def _roofline(cells: tuple[tuple[str, str], ...]) -> dict[str, float]:
    """Bytes over bandwidth and FLOP over peak: a token, a prompt, and both together at what memory holds."""
    job, replicas = row_job(dict(cells), load_facts())
    gpus = int(job.layout.num_gpus)
    result = estimate(job)
    chip, active = job.cluster.accelerator, active_parameters(job.model)
    bits = next((b for key, b in BITS.items() if job.weights.name.lower().startswith(key)), 16.0)
    context = job.input_tokens + job.output_tokens // 2
    cached = float(kv_cache_bytes(job.model, context, 1, job.kv_dtype.elem_bytes)) * result.concurrency
    token_s = (active * bits / 8 + cached) / (chip.hbm_bytes_per_s * gpus)
    prompt_s = 2.0 * active * job.input_tokens / (chip.peak.get("bf16", chip.peak.get("fp16", 0.0)) * gpus)
    prompts = float(job.concurrency or 1) if job.static else 1.0
    rate = result.concurrency / (token_s + prompt_s * result.concurrency / job.output_tokens)
    whole_s = prompt_s * prompts + (job.output_tokens - 1) * token_s
    return {
        "tpot_s": token_s, "ttft_s": prompt_s * prompts, "output_tokens_per_s": rate * replicas, "latency_s": whole_s
    }  # fmt: skip


def _serving(case: Case) -> Raw | None:
    """Roofline with one efficiency for each quantity and mode."""
    quantity = case.prediction.quantity
    return (quantity, case.row["mode"]), _roofline(tuple(case.row.items()))[quantity]


def _io(case: Case) -> Raw | None:
    """Bytes a FLOP at the datasheet's 16-bit rate; no constant."""
    facts = load_facts()
    work, peak = row_workload(case.row, facts), facts.accelerator(case.row["gpu"]).peak
    record = number(case.row, "record_bytes")
    return None if record is None else (("none",), record * (peak.get("bf16") or peak["fp16"]) / work.flops_per_sample)


RULES: dict[str, Callable[[Case], Raw | None]] = {
    "training": _training,
    "gpu-hours": _gpu_hours,
    "memory": _memory,
    "weights": _weights,
    "kernels": _kernels,
    "serving": _serving,
    "io": _io,
}
NAMES = {
    "training": "one MFU for each GPU and precision",
    "gpu-hours": "6ND at one MFU",
    "memory": "16 bytes a trained parameter, 2 (or 0.5) a frozen one",
    "weights": "parameters times nominal bits",
    "kernels": "datasheet roofline, one fraction an operation",
    "serving": "bytes over bandwidth and FLOP over peak, one efficiency a quantity and mode",
    "io": "bytes a FLOP at the datasheet's rate",
}


def errors(members: Sequence[Case], *, unseen: bool) -> NDArray[np.float64]:
    """Predicted / measured - 1 of the rule on the cases that it covers; `unseen`: constants from other sources."""
    scored = [c for c in members if c.prediction.measured and c.prediction.predicted]
    known = [(c, r) for c in scored if (r := raw(c)) is not None]
    groups: dict[tuple[str, ...], list[tuple[str, float]]] = defaultdict(list)
    for case, (group, figure) in known:
        groups[group].append((case.source, float(case.prediction.measured or 0.0) / figure))
    everything = [pair for pairs in groups.values() for pair in pairs]
    out = []
    for case, (group, figure) in known:
        if group == ("none",):
            constant = 1.0
        else:
            own = [c for s, c in groups[group] if not unseen or s != case.source]
            own = own or [c for s, c in everything if s != case.source]
            constant = float(np.median(own))
        out.append(figure * constant / float(case.prediction.measured or 1.0) - 1)
    return np.array(out)
