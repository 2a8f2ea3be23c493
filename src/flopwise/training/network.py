"""The network that a layout needs: bytes that a GPU sends in a step over each kind of link, and the rates they ask for.

The bytes are what the formulas of the step take on links that carry one byte per second and nothing else: no formula of
a message stands here a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.cost.collectives import p2p_s
from flopwise.cost.fabric import Fabric, byte_counting
from flopwise.facts.architecture import Model
from flopwise.training.estimate import COMMUNICATION, KEPT_TABLES, TimedStep, single_table
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout, Recipe
from flopwise.training.schedules import copies, having
from flopwise.training.step import messages_s
from flopwise.training.step_table import StepTable
from flopwise.training.widths import ACT_BYTES
from flopwise.values import dataclass, replace

IN_COMPUTE = ("forward", "backward", "recompute", "optimizer")
"""Lines of a step that are work of the devices: messages that are not to be seen fit beside these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkNeed:
    """The traffic on one kind of link: bytes that a GPU sends in a step by purpose, and bytes/s, one direction.

    `average`: over the step. `needed`: so that messages take no longer than the work that could hide them.
    `link_bytes_per_s`: of the datasheet, for one GPU; None where that is not known.
    """

    link: str
    between_nodes: bool
    step_bytes: dict[str, float]
    average_bytes_per_s: float  # of one GPU
    needed_bytes_per_s: float
    node_average_bytes_per_s: float  # of all GPUs of a node
    node_needed_bytes_per_s: float
    link_bytes_per_s: float | None


def network_needs(step: TimedStep) -> tuple[LinkNeed, ...]:
    """Each kind of link that the layout uses, innermost first.

    Source: `flopwise.training.step` and `flopwise.training.blocks`, whose messages are counted; ring algorithms, so an
    all-reduce of n bytes over g ranks sends 2 (g - 1) / g n from each (Patarasuk and Yuan 2009,
    doi:10.1016/j.jpdc.2008.09.002).
    Assumes: of the heaviest pipeline stage, a rank in the middle; a GPU receives as much as it sends.
    """
    job, fabric, num_gpus = step.job, step.job.cluster.fabric, int(step.job.layout.num_gpus)
    parts = job.model, job.recipe, job.cluster, job.layout.at(0)
    compute_s = sum(seconds for name, seconds in step.parts.items() if name in IN_COMPUTE)
    on_node = min(job.cluster.gpus_per_node, num_gpus)
    needs = []
    for number, level in enumerate(fabric.levels):
        sent = {name: n for name, n in _sent_bytes(*parts, number).items() if n > 1.0}
        each = sum(sent.values())
        if not each:
            continue
        average, needed = each / step.seconds, each / max(compute_s, 1e-12)
        need = LinkNeed(
            link=level.kind, between_nodes=number == len(fabric.levels) - 1 and num_gpus > on_node,
            step_bytes=sent, average_bytes_per_s=average, needed_bytes_per_s=needed,
            node_average_bytes_per_s=average * on_node, node_needed_bytes_per_s=needed * on_node,
            link_bytes_per_s=level.bytes_per_s if np.isfinite(level.bytes_per_s) else None,
        )  # fmt: skip
        needs.append(need)
    return tuple(needs)


@lru_cache(maxsize=KEPT_TABLES)
def _sent_bytes(model: Model, recipe: Recipe, cluster: Cluster, layout: Layout, number: int) -> Mapping[str, float]:
    """`_step_bytes` over the links of one level: a table of other links, whose kernels hold."""
    like = single_table(TrainJob(model=model, recipe=recipe, layout=layout, cluster=cluster))
    counted = replace(cluster, fabric=byte_counting(cluster.fabric, number))
    job = TrainJob(model=model, recipe=recipe, layout=layout, cluster=counted)
    return _step_bytes(single_table(job, like=like), layout)


def _step_bytes(table: StepTable, layout: Layout) -> dict[str, float]:
    """Bytes that a GPU sends in a step over the counted link, by the lines of a step."""
    first, recipe = np.zeros(1, dtype=np.intp), table.recipe
    modes, at = table.modes(layout, first, first)
    num_micro = float(recipe.global_batch) / (float(layout.dp) * float(layout.micro_batch))
    stage = dict(zip(table.lines, modes.stage_parts[:, *at], strict=True))
    sent = {name: float(stage[name].ravel()[0]) * num_micro for name in COMMUNICATION if name in stage}
    sent["pipeline_p2p"] = _hop_bytes(table, layout, table.fabric) * num_micro if int(layout.pp) > 1 else 0.0
    dp, shard = (np.broadcast_to(np.asarray(column), first.shape) for column in (layout.dp, layout.shard))
    zero = int(layout.zero)
    messages = messages_s(table, first, first, dp, shard, (zero == 0, zero > 0, bool(shard.any())))
    whole, reduce_, gather, across, gather_all = (float(m.ravel()[0]) * table.software.message_frac for m in messages)
    pp = int(layout.pp)
    reduces, gathers = float(recipe.reductions(zero, pp, num_micro)), float(recipe.gathers(zero, pp, num_micro))
    if zero == 3 and not recipe.gathers_once(pp):
        gathers *= 2.0  # once more for the backward pass
    data = whole if zero == 0 else reduces * reduce_
    if zero:
        data = data + gathers * (gather_all if zero >= recipe.shards_weights_from else gather)
    data = data + (across if shard.any() else 0.0)
    sent["data_parallel"] = data * float(np.asarray(copies(layout.schedule, np.asarray(layout.pp))))
    return sent


def _hop_bytes(table: StepTable, layout: Layout, fabric: Fabric) -> float:
    """Activations on and gradients back that a middle stage sends for one micro-batch, over all of its chunks.

    Source and assumptions: `flopwise.training.step.p2p_step_s`.
    """
    tp, cp = int(layout.tp), int(layout.cp)
    stride = tp * cp * int(layout.dp)
    nbytes = float(layout.micro_batch) * float(table.seq_tokens[0]) / cp * table.width * ACT_BYTES
    back = nbytes if table.software.whole_grad_hops else nbytes / tp
    chunks = float(layout.interleave) * float(np.asarray(having(layout.schedule, lambda one: one.chunks)))
    return chunks * float(np.asarray(p2p_s(fabric, np.asarray(nbytes / tp + back), stride, int(layout.pp))))
