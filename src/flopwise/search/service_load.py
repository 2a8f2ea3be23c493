"""How much of a planned service's machines its load takes: the requests that arrive, or the users in flight."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.ops.columns import ascending
from flopwise.ops.types import Array
from flopwise.search.answer import Candidate
from flopwise.search.replica import answers_in_one_pass, candidate_job
from flopwise.search.service_machines import filled_frac
from flopwise.search.serving_option import latency_odds, latency_targets
from flopwise.search.workload import Resolved
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.estimate import job_memory
from flopwise.serving.iteration import whole_prompts
from flopwise.serving.job import ServeJob, serving_band
from flopwise.serving.techniques import request_work, runner, tokens_a_round
from flopwise.values import replace

SIZES = 256
"""Numbers of users that are tried, at equal ratios."""
KEPT = 1024
"""Replicas whose users are kept: offers of the same machines differ in price and region alone."""
Limits = tuple[tuple[str, float], ...]
"""Targets on latencies, in s, by name."""


def load_frac(workload: Resolved, facts: Facts, offer: Offer, candidate: Candidate) -> float:
    """Share of a service's planned machines that its load takes.

    Source: `filled_frac`; of users in flight, those that are stated over `most_users`. Assumes: as there.
    """
    full = filled_frac(candidate)
    if not workload.is_closed_loop or workload.concurrency is None:
        return full
    return full * workload.concurrency / most_users(workload, facts.model(workload.model), facts, offer, candidate)


def most_users(workload: Resolved, model: Model, facts: Facts, offer: Offer, candidate: Candidate) -> float:
    """The most users in flight that all replicas of a candidate hold; at least those that it was planned for.

    As many as have a place in memory and see each latency within its target with the workload's confidence.

    Source: closed loops and error bands, as the search has them. Assumes: users are spread evenly over replicas; the
    engine admits all of them.
    """
    job = candidate_job(workload, model, facts, offer, candidate)
    machines = replace(
        job.cluster, offer=None, usd_per_gpu_hour=None, purchase="on_demand", price_source="", assumptions=()
    )
    limits = tuple((name, target.seconds) for name, target in latency_targets(workload).items() if target)
    alone = replace(job, cluster=machines, concurrency=None, max_batch=None)
    each = _most_of_one(alone, limits, workload.confidence, one_pass=answers_in_one_pass(model, workload))
    ranks = int(candidate.layout["replicas"]) * int(job.layout.dp)
    return max(float(workload.concurrency or 1), ranks * each)


@lru_cache(maxsize=KEPT)
def _most_of_one(job: ServeJob, limits: Limits, confidence: float, *, one_pass: bool) -> float:
    """Users of one attention replica at most; 0 where a target is missed with one alone."""
    most = float(job_memory(job).max_concurrency)
    if one_pass:
        most = min(most, job.software.most_inputs(job.input_tokens))
    users = ascending(np.round(np.geomspace(1.0, max(most, 1.0), SIZES)))
    first_s, further_s = (_one_pass_s if one_pass else _closed_loop_s)(job, users)
    seconds = {"ttft": first_s, "tpot": further_s, "latency": first_s + max(job.output_tokens - 1, 0) * further_s}
    bands = {name: serving_band(job, name) for name in ("ttft", *(() if one_pass else ("tpot",)))}
    bands.setdefault("tpot", bands["ttft"])
    good, no_floor = np.ones(users.size, dtype=bool), np.zeros(users.size)  # estimates lie above their lower bound
    for name, limit_s in limits:
        if name != "tpot" or not one_pass:
            good &= latency_odds(bands, name, seconds[name], first_s, limit_s, no_floor) >= confidence
    within = users[np.logical_and.accumulate(good)]
    return float(within[-1]) if within.size else 0.0


def _closed_loop_s(job: ServeJob, users: Array) -> tuple[Array, Array]:
    """Seconds until the first token and between further ones, with so many users of each attention replica."""
    steady = closed_loop(runner(job), job.layout, users, *request_work(job))
    return np.asarray(steady.ttft_s), np.asarray(steady.tpot_s) / tokens_a_round(job)


def _one_pass_s(job: ServeJob, users: Array) -> tuple[Array, Array]:
    """Seconds of an answer in one pass, and none after it."""
    machine = runner(job)
    step = machine.step(whole_prompts(machine.model, users, job.input_tokens), job.layout)
    return machine.engine.request_s + np.asarray(step.seconds, dtype=float), np.zeros(users.size)
