"""Rows of published training budgets, predicted: GPU-hours of a whole campaign, not of its steps alone.

Model cards give tokens, GPUs and hours, seldom the recipe: what they leave open is filled in as people trained at the
time, on the fastest layout that the search finds. Restarts, evaluation, warm-up phases, longer contexts and layouts
that were not the fastest are in their hours: `campaign_frac` is the share that the steps have of them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from flopwise.backtests.prediction import Prediction, Row, choice, model_by_size, number, prediction_of, whole
from flopwise.backtests.training import PRECISIONS
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts, Resolution
from flopwise.search.layout_search import GivenSettings, StepTables, layout_search, timed_layouts
from flopwise.search.nodes import NodeKind
from flopwise.search.space import MODES
from flopwise.training.layout import Recipe
from flopwise.training.spec import usual_batch_tokens

UNIT = "GPU-hours"
DEFAULT_GPUS = 512
MAX_SEQ = 8192
"""Tokens of a sequence in the main phase of pre-training, where the model allows more."""
STACK, EARLY_STACK = "in-house", "megatron-deepspeed"
REPORTED = {
    "deepseek-v3": ("hai-llm", 4096, 15_360), "deepseek-v2": ("hai-llm-2024", 4096, 9_216),
    "deepseek": ("hai-llm-2024", 4096, 4_608),
}  # fmt: skip
"""Stacks that reports describe, tokens of a sequence and sequences of a step, by how a model's name begins, longest
first: DeepSeek-V3 (arXiv 2412.19437) sections 3 and 4.2, DeepSeek-V2 (arXiv 2405.04434) section 3.1, whose batches grow
in the first 3 %, and DeepSeek-LLM 67B (arXiv 2401.02954) table 2."""
FLASH_MONTH = "2023-01"
"""Month from which reports are taken to train with flash attention (published in May 2022, in Megatron-LM and
GPT-NeoX from early 2023) and without recomputing everything (Korthikanti et al., May 2022)."""
CAMPAIGN = "train_campaign_frac"
PROJECT = "any"
"""What published hours cover unless they say otherwise: a whole project, restarts and evaluation among it. Others:
`main`, the run alone; `family`, models that larger ones were distilled into."""


def campaign_frac(calibration: Calibration, covers: str = PROJECT) -> float:
    """Share of the GPU-hours of a published pre-training that its steps need on the fastest layout.

    Source: data/calibration/training.json (`benchmarks/fit_campaign.py`). Known parts of it: Llama 3 405B trained for
    more than 90 % of its time (arXiv 2407.21783 section 3.3.4); 30.8 M GPU-hours against 26 M at its reported 41 %
    utilisation; OPT-175B's 35 manual restarts (arXiv 2205.01068 section 2.5).
    Assumes: one share for all campaigns whose hours cover the same.
    """
    return calibration.find(CAMPAIGN, (covers, PROJECT)).value


def before_flash_attention(row: Row) -> bool:
    """True if the run predates flash attention: reported before it, or undated and in fp16.

    Assumes: who trained in fp16 on an A100 ran code of the V100's time.
    """
    return row["date"] < FLASH_MONTH if row.get("date") else row.get("precision") == "fp16"


def row_degrees(row: Row) -> tuple[tuple[str, int], ...]:
    """Degrees of parallelism that the row states."""
    return tuple((name, whole(row, name, 1)) for name in ("tp", "pp", "dp") if row.get(name))


def row_recipe(row: Row, model: Model, facts: Facts, gpus: int) -> Recipe:
    """The recipe of a pre-training run of that model, with a batch that divides over the GPUs.

    Raises: SpecError: a cell is not one of its values.
    """
    name = row.get("model", "").lower()
    reported = (own for begins, own in REPORTED.items() if name.startswith(begins))
    software, longest, batch = next(reported, (STACK, MAX_SEQ, 0))
    seq = min(model.max_position or longest, longest)
    precision = choice(row, "precision", PRECISIONS, "bf16")
    if software == "hai-llm" and precision == "fp8":
        precision = "fp8_block"  # DeepSeek-V3 report, section 3.3.2
    early = before_flash_attention(row)
    return Recipe(
        seq_len=seq,
        global_batch=gpus * max(1, round((batch or usual_batch_tokens(model) / seq) / gpus)),
        precision=precision,
        optimizer=facts.optimizer(defaults.OPTIMIZER),
        stack=facts.stack(EARLY_STACK if early else software),
        attention="eager" if early else "flash",
    )


@lru_cache(maxsize=64)
def _hours_per_token(
    model: Model, recipe: Recipe, gpu: Resolution, gpus: int, degrees: tuple[tuple[str, int], ...]
) -> float:
    """GPU-hours a token of the fastest layout that fits; of those with `degrees`, as far as any has them.

    Raises: SpecError: nothing fits.
    """
    machine = cluster(gpu.accelerator, ambiguous=gpu.note)
    node = NodeKind(cluster=machine, count=math.gcd(gpus, machine.gpus_per_node), priced=(), networked=True)
    given = GivenSettings(recomputes=(2,) if recipe.attention == "eager" else MODES)
    job = layout_search(model, recipe, most=gpus, least=gpus, given=given)
    layouts = timed_layouts(job, node, 1.0, StepTables(), every=bool(degrees))
    if not layouts.rows.size:
        raise SpecError(f"no layout of {model.name} fits {gpus} x {gpu.accelerator.name}")
    order = np.argsort(layouts.run_s, kind="stable")
    for index in order if degrees else ():
        layout = job.space.layout(int(layouts.rows[index]))
        if all(getattr(layout, name) == degree for name, degree in degrees):
            return float(layouts.run_s[index]) * gpus / 3600
    return float(layouts.run_s[order[0]]) * gpus / 3600


def predict_row(row: Row, facts: Facts) -> Prediction:
    """GPU-hours of one row, with their interval."""

    def figure() -> tuple[float, ErrorBand]:
        tokens = number(row, "tokens")
        if tokens is None:
            raise SpecError("the number of tokens (tokens) is missing")
        gpus, model = whole(row, "gpus", DEFAULT_GPUS), model_by_size(row, facts)
        gpu, recipe = facts.resolve(row.get("gpu", "")), row_recipe(row, model, facts, gpus)
        steps = tokens * _hours_per_token(model, recipe, gpu, gpus, row_degrees(row))
        band = error_band("gpu_hours.moe" if model.has_experts else "gpu_hours.dense", facts.calibration)
        return steps / campaign_frac(facts.calibration, row.get("covers") or PROJECT), band

    return prediction_of(row, UNIT, "gpu_hours", figure)
