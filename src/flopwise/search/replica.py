"""One replica of a served workload as a job: of the search's grid, or of a candidate that was planned."""

from __future__ import annotations

from typing import Any, cast

from flopwise.cost.cluster import Cluster
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import WeightFormat
from flopwise.facts.offers import Offer
from flopwise.search.answer import Candidate
from flopwise.search.nodes import offer_cluster
from flopwise.search.workload import Resolved
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout, generates
from flopwise.serving.spec import RequestSpec
from flopwise.values import replace

DEGREES = ("tp", "pp", "ep", "dp")
"""What a deployment's layout is made of."""


def with_facts(workload: Resolved, facts: Facts) -> Resolved:
    """The workload with what is known, and with the model that drafts for it.

    Raises:
        SpecError, UnknownNameError: no such model.
    """
    name = workload.techniques.draft_name
    drafter = None if name is None else facts.model(name)
    return replace(workload, drafter=drafter, facts=facts)


def with_lengths(workload: Resolved, model: Model) -> tuple[Resolved, tuple[str, ...]]:
    """The workload with requests as long as the model takes where nobody says how long they are; what is assumed.

    Source: `flopwise.serving.estimate.request_tokens`, as `flopwise serve`.
    """
    stated: Any = workload.document.get("traffic") or {}
    given = {name: stated.get(name) for name in ("input_tokens", "output_tokens")}
    if workload.trace is not None or None not in given.values():
        return workload, ()
    from flopwise.serving.estimate import request_tokens  # noqa: PLC0415 - an export states them
    from flopwise.serving.techniques import tokens_of_images  # noqa: PLC0415 - an export states them

    prompt, answer, notes = request_tokens(
        model, RequestSpec(**given), encode=answers_in_one_pass(model, workload),
        images=tokens_of_images(workload.techniques, model),
    )  # fmt: skip
    changed: dict[str, Any] = {"input_tokens": prompt} if given["input_tokens"] is None else {}
    if given["output_tokens"] is None and answer:
        changed["output_tokens"] = answer
    if workload.sessions is not None:  # these are a turn's own
        sessions = replace(workload.sessions, **changed)
        changed |= {"sessions": sessions, "input_tokens": round(sessions.prompt_tokens)}
    if all(getattr(workload, name) == tokens for name, tokens in changed.items()):
        return workload, ()
    return replace(workload, **changed), notes


def replica_job(
    workload: Resolved, model: Model, cluster: Cluster, weights: WeightFormat, layout: ServingLayout
) -> ServeJob:
    """One replica of the workload, or a column of them, without what the search varies beside.

    Raises: SpecError: the device or the engine cannot do what a technique asks.
    """
    job = ServeJob(
        model=model, cluster=cluster, layout=layout, weights=weights, engine=workload.engine,
        input_tokens=workload.input_tokens,
        output_tokens=0 if answers_in_one_pass(model, workload) else workload.output_tokens,
        memory_frac=workload.limits.memory_fraction, policy=workload.queue.policy, preempt=workload.queue.preempt,
        priorities=workload.priorities,
    )  # fmt: skip
    if not workload.techniques.any:
        return job
    from flopwise.serving.techniques import resolve_techniques  # noqa: PLC0415 - most workloads ask for none

    techniques = resolve_techniques(workload.techniques, job, workload.facts, lambda _: cast("Model", workload.drafter))
    if workload.sessions is not None:  # whose caches hold it beside their histories
        techniques = replace(techniques, shared_tokens=0)
    return replace(job, techniques=techniques)


def answers_in_one_pass(model: Model, workload: Resolved) -> bool:
    """True if a request is one pass over its input: encoders, and any model that computes embeddings."""
    return workload.task == "encode" or not generates(model)


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> ServeJob:
    """The job of one replica that a candidate of a plan stands for, from its `layout_document`."""
    document = chosen.layout
    built = offer_cluster(workload, facts, offer, chosen.purchase)
    arrivals = None if workload.requests_per_s is None else workload.requests_per_s / document["replicas"]
    layout = ServingLayout(**{name: document.get(name, 1) for name in DEGREES})
    resolved = with_lengths(with_facts(workload, facts), model)[0]
    job = replica_job(resolved, model, built, facts.weight_format(document["weights"]), layout)
    if found_frac := chosen.figures.get("prompt_found_frac"):  # histories of sessions
        job = replace(job, techniques=replace(job.techniques, hit_frac=found_frac))
    return replace(
        job,
        kv_dtype=facts.cache_format(document["kv_dtype"]),
        engine=facts.engine(document["engine"]),
        concurrency=document["max_batch"] * int(layout.dp),
        arrivals_per_s=None if answers_in_one_pass(model, workload) else arrivals,
    )
