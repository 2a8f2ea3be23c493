"""Rows of published training budgets, predicted: GPU-hours of a whole run, on the best layout that the search finds.

Model cards give tokens, GPUs and hours, not the recipe: what they leave open is filled in as a plan would, and restarts
and evaluation runs are in their hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import cast

from flopwise.backtests.names import named_model
from flopwise.backtests.prediction import Prediction, banded, number, skipped, whole
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import error_band
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.architecture import Experts, Model
from flopwise.facts.catalog import Facts, Resolution
from flopwise.ops.tensors import parameters
from flopwise.search.defaults import BATCH_TOKENS
from flopwise.search.nodes import NodeKind
from flopwise.search.training import searched, timed
from flopwise.training.layout import Precision, Recipe

UNIT = "GPU-hours"
DEFAULT_GPUS = 512
MAX_SEQ = 8192
"""Tokens of a sequence in the main phase of pre-training, where the model allows more."""
STACK = "in-house"


def row_recipe(row: Mapping[str, str], model: Model, gpus: int) -> Recipe:
    """The recipe of a pre-training run of that model, with a batch that divides over the GPUs."""
    seq = min(model.max_position or MAX_SEQ, MAX_SEQ)
    tokens = next(batch for size, batch in BATCH_TOKENS if parameters(model) < size)
    precision = (row.get("precision") or "bf16").lower()
    if precision not in {"bf16", "fp16", "fp8", "fp32", "mxfp8", "nvfp4"}:
        raise SpecError(f"precision {precision[:40]!r} is unknown")
    return Recipe(
        seq_len=seq,
        global_batch=gpus * max(1, round(tokens / seq / gpus)),
        precision=cast("Precision", precision),
        stack=STACK,
    )


@lru_cache(maxsize=64)
def _hours_per_token(model: Model, recipe: Recipe, gpu: Resolution, gpus: int) -> float:
    """GPU-hours a token of the fastest layout that fits.

    Raises:
        SpecError: nothing fits.
    """
    machine = cluster(gpu.accelerator, ambiguous=gpu.note)
    node = NodeKind(cluster=machine, count=math.gcd(gpus, machine.gpus_per_node), priced=(), networked=True)
    found = timed(searched(model, recipe, most=gpus, least=gpus), node, 1.0, {})
    if not found.rows.size:
        raise SpecError(f"no layout of {model.name} fits {gpus} x {gpu.accelerator.name}")
    return float(found.run_s.min()) * gpus / 3600


def predict_row(row: Mapping[str, str], facts: Facts) -> Prediction:
    """GPU-hours of one row of training_gpu_hours.csv, with its interval."""
    name, measured = row.get("id", ""), number(row, "gpu_hours")
    billions = number(row, "tokens_b")
    if billions is None:
        return skipped(name, UNIT, "tokens_b is missing", measured)
    try:
        gpus = whole(row, "n_gpus", DEFAULT_GPUS)
        model = named_model(row.get("model", ""), facts)
        gpu = facts.resolve(row.get("gpu", ""))
        hours = billions * 1e9 * _hours_per_token(model, row_recipe(row, model, gpus), gpu, gpus)
    except FlopwiseError as error:
        return skipped(name, UNIT, str(error), measured)
    mixture = any(isinstance(i, Experts) for k in model.stacks[0].kinds for i in k.items)
    band = error_band("gpu_hours.moe" if mixture else "gpu_hours.dense")
    return banded(name, UNIT, measured, hours, band)
