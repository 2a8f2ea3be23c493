"""Runs as rows of the measurement files that `backtest` and `calibrate` read.

Unknown values are empty; the readers apply their defaults, as for published rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import defaults
from flopwise.records.measured import Measured
from flopwise.training.layout import TARGET_SETS
from flopwise.values import dataclass

TRAINING = (
    "id", "study", "model", "gpu", "gpus", "tp", "pp", "cp", "ep", "zero", "micro_batch", "global_batch", "interleave",
    "recompute", "sequence_parallel", "attention", "precision", "software", "seq_len", "task", "lora_rank",
    "lora_targets", "tokens_per_s_per_gpu", "source",
)  # fmt: skip
MEMORY = (
    "id", "study", "model", "method", "lora_rank", "lora_targets", "base", "gpu", "gpus", "tp", "pp", "cp", "zero",
    "software", "precision", "optimizer", "micro_batch", "global_batch", "seq_len", "recompute", "attention", "offload",
    "reading", "peak_bytes", "source",
)  # fmt: skip
SERVING = (
    "id", "study", "model", "gpu", "gpus", "tp", "pp", "ep", "dp", "weights", "kv_dtype", "engine", "engine_version",
    "memory_frac", "mode", "input_tokens", "output_tokens", "concurrency", "arrivals_per_s", "requests",
    "output_tokens_per_s", "ttft_s", "tpot_s", "source",
)  # fmt: skip
COLUMNS: dict[str, tuple[str, ...]] = {"training": TRAINING, "memory": MEMORY, "serving": SERVING}
"""The columns of each kind, as in `flopwise backtest`."""
_READINGS = {"peak_memory_bytes": "allocated", "reserved_memory_bytes": "reserved", "used_memory_bytes": "device"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """Rows of a measurement file of a kind, and the reasons why other runs give none."""

    kind: str
    rows: tuple[dict[str, str], ...]
    missing: tuple[str, ...]

    @property
    def csv(self) -> str:
        """The rows as CSV."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS[self.kind], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


def rows_of(runs: Iterable[Measured], kind: str) -> RunRows:
    """Runs as rows of a kind. Raises UnknownNameError: there is no such kind."""
    if kind not in COLUMNS:
        raise UnknownNameError("kind of rows", kind, COLUMNS, f"allowed: {', '.join(COLUMNS)}")
    make = {"training": _training, "memory": _memory, "serving": _serving}[kind]
    rows, missing = list[dict[str, str]](), list[str]()
    for one in runs:
        try:
            row = make(one)
        except SpecError as reason:
            missing.append(f"{one.run.name}: {reason}")
        else:
            rows.append({name: _cell(row.get(name)) for name in COLUMNS[kind]})
    return RunRows(kind=kind, rows=tuple(rows), missing=tuple(missing))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.9g}" if isinstance(value, float) else " ".join(str(value).split())


def _shared_cells(one: Measured) -> dict[str, object]:
    """Cells that all kinds have.

    Raises: SpecError: the run's model or accelerator is not known.
    """
    run = one.run
    for name in ("model", "gpu"):
        if getattr(run, name) is None:
            raise SpecError(f"its {name} is not known")
    layout = {n: run.settings.get(n) for n in ("tp", "pp", "cp", "ep", "dp", "zero", "micro_batch", "global_batch")}
    return {
        **layout, "id": run.run_id[:12], "study": f"run {run.name}", "model": run.model, "gpu": run.gpu,
        "gpus": run.gpus,
        "source": f"{run.source}: {run.name}",
    }  # fmt: skip


def _recipe(one: Measured) -> dict[str, object]:
    """Cells of a training recipe."""
    settings = one.run.settings
    adapts = "qlora" if settings.get("qlora") else "lora" if settings.get("lora") else None
    targets = settings.get("lora_targets")
    listed = [str(t) for t in targets] if isinstance(targets, list | tuple) else []
    zero = 3 if settings.get("fsdp") else settings.get("zero")
    return {
        "seq_len": settings.get("seq"), "precision": settings.get("precision"), "attention": settings.get("attention"),
        "recompute": settings.get("recompute"), "software": settings.get("stack"), "zero": zero,
        "method": adapts or "full", "task": adapts or ("full-ft" if one.run.task == "finetune" else "pretrain"),
        "lora_rank": settings.get("lora") if adapts else None,
        "lora_targets": (listed[0] if len(listed) == 1 and listed[0] in TARGET_SETS else " ".join(listed)) or None,
        "interleave": settings.get("interleave"), "optimizer": settings.get("optimizer"),
        "sequence_parallel": settings.get("sequence_parallel"),
    }  # fmt: skip


def _training(one: Measured) -> dict[str, object]:
    if not one.trains:
        raise SpecError("it is a serving run")
    rate = one.value("tokens_per_s")
    if rate is None:
        raise SpecError("its throughput is not known: it was not measured, and seq or global_batch is missing")
    if one.run.gpus is None:
        raise SpecError("its number of accelerators is not known")
    return _shared_cells(one) | _recipe(one) | {"tokens_per_s_per_gpu": rate / one.run.gpus}


def _memory(one: Measured) -> dict[str, object]:
    if not one.trains:
        raise SpecError("it is a serving run")
    name = next((name for name in _READINGS if one.value(name) is not None), None)
    if name is None:
        raise SpecError("no memory peak was measured")
    offload = one.run.settings.get("offload")
    parts = " ".join(map(str, offload)) if isinstance(offload, list | tuple) else None
    base = {"base": "nf4"} if one.run.settings.get("qlora") else {}
    peak = {"offload": parts, "reading": _READINGS[name], "peak_bytes": one.value(name)}
    return _shared_cells(one) | _recipe(one) | base | peak


def _serving(one: Measured) -> dict[str, object]:
    if one.trains:
        raise SpecError("it is a training run")
    settings, rate = one.run.settings, one.run.settings.get("rate")
    if rate is None and settings.get("concurrency") is None:
        raise SpecError("neither its concurrency nor its request rate is known")
    figures = {"output_tokens_per_s": "tokens_per_s", "ttft_s": "ttft_s", "tpot_s": "itl_s"}
    engine = str(settings.get("engine") or defaults.ENGINE)
    requests = one.levels.get("e2e_s") or one.levels.get("ttft_s")
    return _shared_cells(one) | {
        **{column: one.value(metric) for column, metric in figures.items()},
        "engine": engine, "engine_version": one.run.software.get(engine), "weights": settings.get("weights"),
        "kv_dtype": settings.get("kv_dtype"), "memory_frac": settings.get("memory_fraction"),
        "mode": "serving_concurrency" if rate is None else "serving_qps", "input_tokens": settings.get("input_tokens"),
        "output_tokens": settings.get("output_tokens"), "concurrency": settings.get("concurrency"),
        "arrivals_per_s": rate,
        "requests": requests.count if requests is not None and requests.count > 1 else None,
    }  # fmt: skip
