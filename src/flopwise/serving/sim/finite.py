"""A run with an end, as load generators make them: from the first request that comes to the last token of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.serving.estimate import RunMeans, estimate
from flopwise.serving.job import ServeEstimate, ServeJob
from flopwise.serving.sim.request import request_of
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import Scheduling

ENOUGH_REQUESTS = 2_000
"""Short runs are drawn again, with other lengths and arrivals, until so many requests are simulated in all."""
MOST_DRAWS = 8


def finite_estimate(job: ServeJob, traffic: Traffic, replicas: int, facts: Facts) -> ServeEstimate:
    """One of `replicas` that work off `traffic` to its end: means over its requests, and its tokens over its duration.

    The duration holds the first prompts, before which nothing is answered, and the drain of the longest answers, when
    few are left to share a step. What a step takes and what bounds it are those of the steady state under this load.

    Source: `flopwise.serving.sim`, run to the end; vLLM's and SGLang's serving benchmarks divide by the same duration.
    Assumes: lengths and arrivals as drawn; of a short run the mean of several draws.

    Raises:
        SpecError: a model that answers in one pass, or traffic without a number of requests.
        InfeasibleError: weights leave no room for a sequence.
    """
    if traffic.requests is None:
        raise SpecError("the number of requests is not given")
    pool = Scheduling(prefill_gpus=job.techniques.prefill_gpus)
    alone = replace(job, techniques=replace(job.techniques, prefill_gpus=0))
    draws = max(1, min(MOST_DRAWS, ENOUGH_REQUESTS // traffic.requests))
    figures = []
    for seed in range(traffic.seed, traffic.seed + draws):
        request = request_of(alone, replace(traffic, seed=seed), pool, facts, ())
        run = request.run_fixed(replicas)
        made = run.summary().output_tokens_per_s / job.output_tokens
        tpot_s = np.nanmean(run.tpot_s) if job.output_tokens > 1 else 0.0
        figures.append(np.array([np.nanmean(run.ttft_s), tpot_s, made / replicas]))
    return estimate(job, RunMeans(*np.mean(figures, axis=0).tolist()))
