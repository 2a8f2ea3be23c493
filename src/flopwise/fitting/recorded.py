"""Recorded runs of training as rows that a backtest, and so a calibration, reads."""

from __future__ import annotations

import numpy as np

from flopwise.backtests.prediction import Row
from flopwise.errors import SpecError
from flopwise.records.model import Run
from flopwise.records.store import Store

COLUMNS = {
    "seq": "seq_len", "micro_batch": "micro_batch", "global_batch": "global_batch", "precision": "precision",
    "stack": "software", "recompute": "recompute", "attention": "attention", "zero": "zero", "tp": "tp", "pp": "pp",
    "cp": "cp", "ep": "ep", "interleave": "interleave",
}  # fmt: skip
"""Columns of a training file by the keywords of `flopwise.train`, which a run's settings are."""
FIRST = 3
"""Steps at a run's beginning that do not count: caches and compilers warm up."""


def recorded_row(run: Run, store: Store) -> Row:
    """One run of training as a row: its median step after the first few.

    Raises:
        SpecError: it is no training, or too little is known of it; says what is missing.
    """
    if run.task == "serve":
        raise SpecError(f"run {run.name}: recorded serving has no row yet; give a CSV file of it")
    steps = np.asarray(store.samples(run.run_id, "step_s").value, dtype=float)[FIRST:]
    seq, batch = run.settings.get("seq"), run.settings.get("global_batch")
    known = {"model": run.model, "gpu": run.gpu, "gpus": run.gpus, "seq": seq, "global_batch": batch}
    missing = [name for name, value in known.items() if not value]
    if not len(steps) or missing:
        why = f"its {', '.join(missing)} are not recorded" if missing else f"it has no more than {FIRST} steps"
        raise SpecError(f"run {run.name}: {why}; give a CSV file of it instead")
    tokens = float(str(seq)) * float(str(batch))
    row = {COLUMNS[name]: str(value) for name, value in run.settings.items() if name in COLUMNS and value is not None}
    return row | {
        "id": run.name, "study": "recorded", "source": f"run {run.run_id[:8]}", "model": str(run.model),
        "gpu": str(run.gpu), "gpus": str(run.gpus), "task": "lora" if run.settings.get("lora") else "pretrain",
        "tokens_per_s_per_gpu": repr(tokens / float(np.median(steps)) / int(run.gpus or 1)),
    }  # fmt: skip
