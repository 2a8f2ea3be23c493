"""The techniques of a workload on each candidate: looked up once, cut and stored as its layout and format want it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from flopwise.errors import SpecError
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.precision import substitute
from flopwise.serving.speculative import tokens_per_step
from flopwise.serving.technique_request import DRAFT_TOKENS, TechniqueContext
from flopwise.serving.technique_rules import check_techniques, technique_assumptions, technique_settings
from flopwise.serving.technique_runner import cached_tokens
from flopwise.serving.techniques import PLAIN, Techniques

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.formats import WeightFormat
    from flopwise.ops.types import Ints
    from flopwise.search.nodes import NodeKind
    from flopwise.search.workload import Resolved


def with_facts(workload: Resolved, facts: Facts) -> Resolved:
    """The workload with what is known, and with the model that drafts for it.

    Raises:
        SpecError, UnknownNameError: no such model.
    """
    name = workload.techniques.draft_name
    drafter = None if name is None else facts.model(name)
    return replace(workload, drafter=drafter, facts=facts)


def format_on(weights: WeightFormat, cluster: Cluster, facts: Facts) -> WeightFormat:
    """The format that stands in for a 16-bit one which the device has no units for; else `weights` itself."""
    other = substitute(weights.name, cluster.rates)
    return weights if other is None else facts.weight_format(other)


def used(workload: Resolved, model: Model, cluster: Cluster, weights: WeightFormat, tp: Ints) -> Techniques:
    """The techniques on replicas of degree `tp`, which may be a column.

    Raises:
        SpecError: the device or the engine cannot do what is asked.
    """
    if not workload.techniques.any:
        return PLAIN
    place = TechniqueContext(
        tp=tp, weights=weights, engine=workload.engine, chip=cluster.accelerator, facts=workload.facts
    )
    return workload.techniques.resolve(model, place, lambda _: cast("Model", workload.drafter))


def job_of(
    workload: Resolved, model: Model, cluster: Cluster, weights: WeightFormat, layout: ServingLayout
) -> ServeJob:
    """One replica of the workload, or a column of them, without what the search varies beside."""
    return ServeJob(
        model=model,
        cluster=cluster,
        layout=layout,
        weights=weights,
        engine=workload.engine,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        techniques=used(workload, model, cluster, weights, layout.tp),
    )


def told(workload: Resolved, model: Model, nodes: Sequence[NodeKind], weights: WeightFormat) -> list[str]:
    """What is used and what is assumed of it; refuses what cannot be on any device.

    Raises:
        SpecError: which technique cannot be, and why.
    """
    if not workload.techniques.any:
        return []
    node = next((n for n in nodes if n.cluster.accelerator.kind not in {"cpu", "soc"}), nodes[0])
    try:
        job = job_of(workload, model, node.cluster, weights, ServingLayout())
        check_techniques(job)
    except SpecError as error:
        raise SpecError(f"techniques: {error}") from None
    return [*(f"{name}: {text}" for name, text in technique_settings(job)), *technique_assumptions(job)]


def prompt_left(workload: Resolved) -> int:
    """Tokens of a prompt that are computed.

    Source: `flopwise.serving.technique_runner.cached_tokens`.
    """
    how = workload.techniques
    block = workload.engine.block_tokens
    found = cached_tokens(
        workload.input_tokens, shared_tokens=how.shared_prefix or 0, hit_frac=how.prefix_hit or 0.0, block_tokens=block
    )
    return max(1, round(workload.input_tokens - float(found)))


def tokens_a_step(workload: Resolved) -> float:
    """Tokens that a decoding sequence gets from one step.

    Source: `flopwise.serving.speculative.tokens_per_step`.
    """
    how = workload.techniques
    if how.draft is None:
        return 1.0
    return float(tokens_per_step(how.acceptance or 0.0, how.draft_tokens or DRAFT_TOKENS))
