"""Replicas that do prompts only, beside those that decode: how many, and how long a cache is under way between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.serving.disaggregated import moved_s
from flopwise.serving.sim.setup import Transfer

if TYPE_CHECKING:
    from flopwise.serving.estimate import ServeJob


def transfer(job: ServeJob) -> Transfer:
    """The time of a cache between the pools as a straight line over its tokens.

    Source: `flopwise.serving.disaggregated.moved_s` at one token and at the job's prompt.
    Raises: SpecError: what joins the pools is not known.
    """
    most = max(job.input_tokens, 2)
    one, whole = moved_s(job, 1), moved_s(job, most)
    if not whole < float("inf"):
        raise SpecError("what joins the two pools is not known; give --network or an --instance")
    each = (whole - one) / (most - 1)
    return Transfer(latency_s=max(one - each, 0.0), s_per_token=each)


def prefill_instances(replicas: int, prefill_gpus: int, gpus: int) -> int:
    """Prompt-only replicas of `gpus` devices that `prefill_gpus` devices beside each of `replicas` make.

    Raises:
        SpecError: they make no whole replicas.
    """
    whole, rest = divmod(replicas * prefill_gpus, gpus)
    if rest or prefill_gpus < 0:
        raise SpecError(
            f"{prefill_gpus} prefill GPUs beside each of {replicas:,} replicas do not make whole replicas of {gpus}: "
            "give a multiple, or --prefill-replicas"
        )
    return whole
