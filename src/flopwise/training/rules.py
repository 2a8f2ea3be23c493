"""Rules of tokens and batch: what is compute-optimal, and beyond which batch more steps are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.ops.tensors import active_parameters
from flopwise.ops.types import Floats
from flopwise.units import format_count, format_number
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.training.job import TrainJob

CHINCHILLA_TOKENS = 20.0
"""Compute-optimal tokens a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The rules of thumb of a pre-training run; in tokens. `notes` in sentences, warnings first."""

    compute_optimal_tokens: float
    critical_batch_tokens: float  # the larger of the two rules
    loss: float  # predicted, in nats a token
    notes: tuple[str, ...]

    @classmethod
    def of(cls, job: TrainJob) -> TokenRules | None:
        """The rules of `job`; None where they do not apply: no tokens, adapters, no text."""
        model, recipe = job.model, job.recipe
        if job.tokens is None or recipe.lora is not None or not applies_to(model):
            return None
        size = float(active_parameters(model))
        best = float(optimal_tokens(size))
        loss = float(predicted_loss(size, job.tokens))
        batch = recipe.useful_tokens
        critical = critical_batch_tokens(model, job.tokens)
        notes = []
        if batch > critical:
            extra = float(extra_tokens_frac(batch, critical))
            notes.append(
                f"warning: a batch of {format_count(batch)} tokens is above the critical batch of about "
                f"{format_count(critical)} (Kaplan 2020, Zhang 2024): the same loss may take up to "
                f"{format_number(1 + extra, 2)} times the tokens of small batches"
            )
        notes += _campaign(job.cluster.rates.value.get("train_campaign_frac"))
        notes.append(_proportion(job.tokens, best, size))
        return cls(compute_optimal_tokens=best, critical_batch_tokens=critical, loss=loss, notes=tuple(notes))


def applies_to(model: Model) -> bool:
    """True if the rules are of such a model: one of text."""
    return bool(model.vocab) and not model.stacks[0].tokens_per_sample


def critical_batch_tokens(model: Model, tokens: float) -> float:
    """The critical batch of a run of `tokens`, in tokens: the larger of the two rules.

    Source: `critical_batch_of_loss`, `critical_batch_of_tokens`. Assumes: as there.
    """
    loss = predicted_loss(float(active_parameters(model)), tokens)
    return max(float(critical_batch_of_loss(loss)), float(critical_batch_of_tokens(tokens)))


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


def _campaign(frac: float | None) -> list[str]:
    """The factor of published pre-trainings over their steps; nothing where the calibration does not say."""
    if frac is None:
        return []
    around = "restarts, evaluation, ramp-up, longer contexts, slower layouts"
    counted = "the run above includes only failures and the overheads that you give"
    return [f"published pre-trainings took {1 / frac:.2f} times the GPU-hours of their steps ({around}); {counted}"]


def _proportion(tokens: float, best: float, size: float) -> str:
    """A comparison of the tokens with the compute-optimal number."""
    ratio = tokens / best
    rule = f"the {format_count(best)} that are compute-optimal for {format_count(size)} parameters (Hoffmann 2022)"
    scratch = "for training from scratch, the tokens are"
    if ratio > 1.5:
        return f"{scratch} {format_number(ratio)} times {rule}: more expensive to train, cheaper to serve"
    if ratio < 0.67:
        return f"{scratch} {100 * ratio:.2g} % of {rule}: a smaller model would make better use of the compute"
    return f"{scratch} about {rule}"
