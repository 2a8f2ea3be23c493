"""Where the lines of a step come from that the batch itself brings: lengths of documents, loads of experts."""

from __future__ import annotations

import numpy as np

from flopwise.origin import COUNTED, KERNEL, number
from flopwise.provenance import Figure, derived, given
from flopwise.training.block_lines import EXPERT_IMBALANCE
from flopwise.training.job import TrainJob
from flopwise.training.routing import expert_load
from flopwise.training.step import WAITING, StepTable


class BatchFigures:
    """Figures of one estimate's batch; `StepFigures` sets what they rest on."""

    job: TrainJob
    table: StepTable
    lines: dict[str, float]
    stage: dict[str, float]
    seq: Figure
    dp: Figure
    micro_batch: Figure
    num_micro: Figure
    useful: Figure

    def _lengths(self) -> tuple[Figure, Figure]:
        """Tokens of a sequence as computed, and those of documents among them."""
        recipe = self.job.recipe
        found = recipe.documents
        if found is None:
            return self.seq, self.seq
        mean = given("mean length of a document", found.mean, "tokens")
        padded = found.packing == "padded"
        computed = derived(
            "tokens of a sequence as computed",
            number(self.table.seq_tokens[0]),
            "tokens",
            f"{COUNTED}: the longest of a micro-batch, expected" if padded else "sequence length",
            *((mean, self.micro_batch) if padded else (self.seq,)),
        )
        useful = derived(
            "tokens of documents in a sequence",
            found.per_sequence,
            "tokens",
            mean.name if padded else "best fit of the longest document first, the share of a sequence that is filled",
            mean,
            *(() if padded else (self.seq,)),
            source="" if padded else "Krell et al. 2021 (arXiv:2107.02027) section 3.1",
        )
        return computed, useful

    def _waiting(self) -> Figure:
        """What replicas wait for the one with the longest documents."""
        dp = self.dp
        mean = given("mean length of a document", number(self.useful.inputs[0].value), "tokens")
        formula = "busy time x (the widest replica / the mean replica - 1), expected"
        busy = derived(
            "busy time",
            number(self.num_micro.value) * sum(self.stage.values()),
            "s",
            f"{self.num_micro.name} x one micro-batch on the busiest stage",
        )
        return derived(WAITING.replace("_", " "), self.lines[WAITING], "s", formula, busy, dp, self.micro_batch, mean)

    def _imbalance(self) -> Figure:
        """What the fullest rank of experts takes longer than even routing would."""
        recipe, ep = self.job.recipe, int(self.job.layout.ep)
        skew = given("load of the fullest expert over the mean", recipe.expert_skew)
        formula, held = "ep (p + (E / ep - 1) (1 - p) / (E - 1)), p = skew / E", [skew, given("ranks of experts", ep)]
        if recipe.capacity_factor is not None:
            formula, held = "the capacity, filled up or not", [given("capacity factor", recipe.capacity_factor)]
        load = number(expert_load(self.job.model, recipe, np.array([ep])))
        name = "load of the fullest rank over the mean"
        fullest = derived(name, load, "", formula, *held, source="Gale et al. 2022 (arXiv:2211.15841) section 2")
        one = derived(
            "imbalance of a micro-batch",
            self.stage[EXPERT_IMBALANCE],
            "s",
            f"{KERNEL}: experts and their all-to-alls with {fullest.name}, less the same evenly routed",
            fullest,
        )
        formula = f"{self.num_micro.name} x {one.name}"
        return derived("expert imbalance", self.lines[EXPERT_IMBALANCE], "s", formula, self.num_micro, one)
