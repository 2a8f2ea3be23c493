"""What a training run pays for before its first step: machines that boot, an image, weights, data, compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.facts import defaults
from flopwise.facts.formats import BF16
from flopwise.facts.tables import ANY
from flopwise.ops.types import Floats
from flopwise.ops.weights import weight_bytes
from flopwise.training.corpus import corpus

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts

OBJECT_STORE = "s3"
"""Kind of storage that weights and data are brought from."""


def training_start_s(
    model: Model, stack: str, tokens: float, instances: Floats, facts: Facts, *, pretrained: bool
) -> Floats:
    """Seconds from a machine that is paid to the first step of a training run; shape of `instances`.

    Source: data/run_start.csv; weights of a pretrained model at the rate of an engine's loader (data/engines.json).
    `tokens`: different ones, of one epoch.
    Assumes: nothing is compiled or cached before; each instance brings its share of the data from an object store and
    all of the weights, at that store's rate whatever its own network; what is not in the table takes no time.
    """
    layers = model.stacks[0].num_layers
    fixed = sum(
        record.seconds * (layers if record.per == "layer" else 1)
        for record in facts.start_records
        if {ANY, stack} & set(record.stacks)
    )
    if pretrained:
        fixed += float(weight_bytes(model, BF16)) / facts.engine(defaults.ENGINE).loader_bytes_per_s
    staged: Floats = corpus(model.vocab, tokens).ids_bytes / (
        np.asarray(instances) * facts.storage(OBJECT_STORE).read_bytes_per_s
    )
    return fixed + staged
