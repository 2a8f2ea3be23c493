"""Rules of thumb beside the estimate: six times the weights, 16 bytes a parameter, 6 N D; rules of tokens and batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.quick import QuickFormula, quick_gpus
from flopwise.ops.degrees import heads_and_experts
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import active_parameters, parameters
from flopwise.ops.types import Floats
from flopwise.training.layout import Layout, Recipe, shard_ranks
from flopwise.training.memory import step_memory
from flopwise.units import format_count

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.job import TrainJob

MOST_DOUBLINGS = 16
"""Of GPUs that are looked at."""
CHINCHILLA_TOKENS = 20.0
"""Compute-optimal tokens a parameter."""


def memory_rules(
    model: Model, recipe: Recipe, layout: Layout, total_bytes: float, device: Accelerator | None
) -> tuple[QuickFormula, ...]:
    """16 bytes a parameter against the memory of a GPU, and six times the weights against the GPUs that it takes.

    Source: Rajbhandari et al. 2019 (arXiv:1910.02054) section 3 and figure 1 for the 16 bytes: 2 of weights and of
    gradients, 12 of Adam's states, as far as the ZeRO stage leaves them whole.
    """
    count = parameters(model)
    share = 1.0 / int(shard_ranks(layout.shard, int(layout.dp) * int(layout.cp)))
    whole = {0: 16.0, 1: 4.0 + 12.0 * share, 2: 2.0 + 14.0 * share, 3: 16.0 * share}[int(layout.zero)]
    states = QuickFormula(
        name="16 bytes a parameter", formula="16 x parameters, sharded as ZeRO shards them", unit="B",
        value=count / (int(layout.tp) * int(layout.pp)) * whole, estimate=total_bytes,
    )  # fmt: skip
    if device is None:
        return (states,)
    gpus = QuickFormula(
        name="GPUs", formula="parameters x bytes / memory x 6", unit="GPUs",
        value=max(1.0, float(quick_gpus(count, recipe.elem_bytes, device.hbm_bytes, training=True))),
        estimate=_fewest_gpus(model, recipe, layout, device),
    )  # fmt: skip
    return states, gpus


def step_rules(estimate: TrainEstimate) -> tuple[QuickFormula, ...]:
    """6 N D: FLOP to train N parameters on D tokens.

    Source: Kaplan et al. 2020 (arXiv:2001.08361) section 2.1. Assumes: attention is negligible.
    """
    from flopwise.training.estimate import counted_batch, counted_passes  # noqa: PLC0415 - rules of memory need no times

    job = estimate.job
    batch, seq = counted_batch(job)
    tokens = job.recipe.useful_tokens if job.tokens is None else job.tokens
    flops = counted_passes(job) * float(causal_forward_flops(job.model, batch, seq))
    rule = QuickFormula(
        name="6 N D",
        formula="6 x active parameters x tokens" + (" of a step" if job.tokens is None else ""),
        unit="FLOP",
        value=float(6.0 * active_parameters(job.model) * tokens),
        estimate=flops * tokens / job.recipe.useful_tokens,
    )
    return (rule,)


def _fewest_gpus(model: Model, recipe: Recipe, layout: Layout, device: Accelerator) -> float | None:
    """The smallest power of two of GPUs on which this recipe fits, fully sharded, tp up to 8; None beyond 65,536."""
    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8) if (heads or 8) % t == 0]
    tp, gpus = (a.ravel() for a in np.meshgrid(degrees, 2 ** np.arange(MOST_DOUBLINGS + 1)))
    whole = gpus % tp == 0
    tp, gpus = tp[whole], gpus[whole]
    dp = gpus // tp
    column = layout.with_degrees(dp=dp, tp=tp, pp=1, cp=1, ep=1, shard=0, interleave=1, zero=np.where(dp > 1, 3, 0))
    batch = replace(recipe, global_batch=dp * int(layout.micro_batch))
    fits = np.asarray(step_memory(model, batch, column, device_kind=device.kind).total_bytes) <= device.hbm_bytes
    return float(gpus[fits].min()) if fits.any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What rules say of a pre-training run; in tokens. `notes` in sentences, warnings first."""

    compute_optimal_tokens: float
    critical_batch_tokens: float  # the larger of the two rules
    loss: float  # predicted, in nats a token
    notes: tuple[str, ...]


def optimal_tokens(parameters: Floats) -> Floats:
    """Tokens at which a model of that size is the best use of its compute; shape of `parameters`.

    Source: Hoffmann et al. 2022 (arXiv:2203.15556), table 3: about 20 tokens a parameter.
    Assumes: text of web quality, each token once; for mixtures of experts, the active parameters.
    """
    return CHINCHILLA_TOKENS * parameters


def predicted_loss(parameters: Floats, tokens: Floats) -> Floats:
    """Loss at the end of training, in nats a token; broadcasts.

    1.69 + 406.4 / N^0.34 + 410.7 / D^0.28.

    Source: Hoffmann et al. 2022 (arXiv:2203.15556) section 3.3, equation 10. Assumes: as `optimal_tokens`.
    """
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28


def critical_batch_of_loss(loss: Floats) -> Floats:
    """Batch in tokens at which tokens and steps cost alike, at a loss in nats; shape of `loss`.

    2e8 / L^4.8.

    Source: Kaplan et al. 2020 (arXiv:2001.08361) equation 1.4; the quantity is McCandlish et al. 2018
    (arXiv:1812.06162) section 2.3.
    """
    return 2e8 / loss**4.8


def critical_batch_of_tokens(tokens: Floats) -> Floats:
    """Batch in tokens beyond which 20 % more steps than ideal are needed, by the tokens of the run; same shape.

    22.91 D^0.47 sequences of 512 tokens, D in millions.

    Source: Zhang et al. 2024 (arXiv:2410.21676), fitted on 85 million to 1.2 billion parameters.
    Assumes: the law holds beyond the sizes it was fitted on.
    """
    return 512.0 * 22.91 * (tokens / 1e6) ** 0.47


def extra_tokens_frac(batch_tokens: Floats, critical_tokens: Floats) -> Floats:
    """Tokens needed beyond those of small batches, as a share; broadcasts.

    Source: McCandlish et al. 2018 (arXiv:1812.06162) equation 2.11: E / E_min = 1 + B / B_crit. Assumes: a fixed loss.
    """
    return batch_tokens / critical_tokens


def token_rules(job: TrainJob) -> TokenRules | None:
    """What the rules say of `job`; None where they do not apply: no tokens, adapters, no text."""
    model, recipe = job.model, job.recipe
    if job.tokens is None or recipe.lora is not None or not model.vocab or model.stacks[0].tokens_per_sample:
        return None
    size = float(active_parameters(model))
    best = float(optimal_tokens(size))
    loss = float(predicted_loss(size, job.tokens))
    batch = recipe.useful_tokens
    critical = max(float(critical_batch_of_loss(loss)), float(critical_batch_of_tokens(job.tokens)))
    notes = []
    if batch > critical:
        extra = float(extra_tokens_frac(batch, critical))
        notes.append(
            f"warning: a batch of {format_count(batch)} tokens is above the critical batch of about "
            f"{format_count(critical)} (Kaplan 2020, Zhang 2024): the same loss may take up to "
            f"{1 + extra:.2g} times the tokens of small batches"
        )
    notes += _campaign(job.cluster.rates.value.get("train_campaign_frac"))
    notes.append(_proportion(job.tokens, best, size))
    return TokenRules(compute_optimal_tokens=best, critical_batch_tokens=critical, loss=loss, notes=tuple(notes))


def _campaign(frac: float | None) -> list[str]:
    """How much more than their steps published pre-trainings took; nothing where the calibration does not say."""
    if frac is None:
        return []
    around = "restarts, evaluation, ramp-up, longer contexts, slower layouts"
    counted = "of these, the run above counts failures and what you state"
    return [f"published pre-trainings took {1 / frac:.2f} times the GPU-hours of their steps ({around}); {counted}"]


def _proportion(tokens: float, best: float, size: float) -> str:
    """How the tokens compare with what is compute-optimal."""
    ratio = tokens / best
    rule = f"the {format_count(best)} that are compute-optimal for {format_count(size)} parameters (Hoffmann 2022)"
    if ratio > 1.5:
        return f"trained from scratch, these are {ratio:.3g} times {rule}: dearer to train, cheaper to serve"
    if ratio < 0.67:
        return f"trained from scratch, these are {ratio:.2g} of {rule}: a smaller model would use the compute better"
    return f"trained from scratch, these are about {rule}"
