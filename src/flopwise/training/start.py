"""What a training run pays for before its first step: machines that boot, an image, weights, data, compilation."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.money import num_instances
from flopwise.facts import defaults
from flopwise.facts.formats import BF16
from flopwise.facts.tables import ANY
from flopwise.ops.types import Floats
from flopwise.ops.weights import weight_bytes
from flopwise.training.storage import stored_token_bytes
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.training.job import Conditions, TrainJob
    from flopwise.training.layout import Recipe

OBJECT_STORE = "s3"
"""Kind of storage that weights and data are brought from."""


def with_start(job: TrainJob, facts: Facts, *, epochs: float, pretrained: bool) -> TrainJob:
    """The job of a run with what it pays for before its first step, and how its machines are billed.

    Source: `training_start_s`; data/purchase_terms.csv. Assumes: without an offer time is paid as it is.
    """
    if job.tokens is None:
        return job
    machines = num_instances(int(job.layout.num_gpus), max(1, job.cluster.gpus_per_node))
    start_s = training_start_s(job.model, job.recipe, job.tokens / epochs, machines, facts, pretrained=pretrained)
    return replace(job, conditions=with_paid_start(job.conditions, start_s, job.cluster, facts))


def with_paid_start(conditions: Conditions, start_s: Floats, cluster: Cluster, facts: Facts) -> Conditions:
    """The conditions of a run whose start takes `start_s`, billed as the provider of the cluster's offer does."""
    offer = cluster.offer
    terms = None if offer is None else facts.terms_of(offer.provider, offer.instance)
    return replace(conditions, start_s=float(start_s), terms=terms)


def training_start_s(
    model: Model, recipe: Recipe, tokens: float, instances: Floats, facts: Facts, *, pretrained: bool
) -> Floats:
    """Seconds from a machine that is paid to the first step of a training run; shape of `instances`.

    Source: data/run_start.csv; weights of a pretrained model at the rate of an engine's loader (data/engines.json).
    `tokens`: different ones, of one epoch.
    Assumes: nothing is compiled or cached before; each instance brings its share of the data from an object store and
    all of the weights, at that store's rate whatever its own network; what is not in the table takes no time.
    """
    read = tokens * stored_token_bytes(model, float(np.max(recipe.seq_len)))
    staged: Floats = staging_s(recipe.stack.name, model.stacks[0].num_layers, read, instances, facts)
    if pretrained:
        staged = staged + _published_bytes(model) / facts.engines[defaults.ENGINE].loader_bytes_per_s
    return staged


def staging_s(stack: str, layers: int, data_bytes: float, instances: Floats, facts: Facts) -> Floats:
    """Seconds from a machine that is paid to the first step with software `stack`, weights apart; of `instances`.

    Source: data/run_start.csv. Assumes: as `training_start_s`.
    """
    fixed = sum(
        record.seconds * (layers if record.per == "layer" else 1)
        for record in facts.start_records
        if {ANY, stack} & set(record.stacks)
    )
    return fixed + data_bytes / (np.asarray(instances) * facts.storage(OBJECT_STORE).read_bytes_per_s)


@lru_cache(maxsize=64)
def _published_bytes(model: Model) -> float:
    """Bytes of a model's weights in 16 bits: the same for every machine of a search."""
    return float(weight_bytes(model, BF16))
