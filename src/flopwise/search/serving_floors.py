"""Lower bounds of latencies: reading the weights, computing a prompt at datasheet rates, starting every message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.collectives import all_reduce_s
from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Experts, Linear
from flopwise.facts.formats import WeightFormat
from flopwise.ops.tensors import active_parameters
from flopwise.search.answer import Floor
from flopwise.search.deployments import MAX_TP, computed_prompt_tokens, least_prompt_s, replica_grid
from flopwise.serving.precision import layer_weight_bits, product_path, substitute
from flopwise.serving.spec import DRAFT_TOKENS
from flopwise.serving.techniques import tokens_per_step

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.search.nodes import NodeKind
    from flopwise.search.spec import Latency
    from flopwise.search.workload import Resolved

Floats = NDArray[np.floating[Any]]
READING, COMPUTING, LINKS = "reading the weights", "operations of the prompt", "link latency"


def format_on(weights: WeightFormat, cluster: Cluster, facts: Facts) -> WeightFormat:
    """The format that stands in for a 16-bit one which the device has no units for; else `weights` itself."""
    other = substitute(weights.name, cluster.rates)
    return weights if other is None else facts.weight_format(other)


def tokens_per_decode_step(workload: Resolved) -> float:
    """Tokens that a decoding sequence gets from one step: several where drafts are accepted.

    Source: `flopwise.serving.speculative.tokens_per_step`.
    """
    how = workload.techniques
    return 1.0 if how.draft is None else float(tokens_per_step(how.acceptance or 0.0, how.draft_tokens or DRAFT_TOKENS))


def weights_read_s(model: Model, node: NodeKind, weights: WeightFormat) -> float:
    """Seconds to read the weights once, however the layers are cut inside a node: no token takes less.

    Source: bytes over the datasheet bandwidth of all devices. Assumes: of the experts only those of one token.
    """
    read = layer_weight_bits(model, weights) / 8 * active_parameters(model)
    return read / (min(node.count, MAX_TP) * node.cluster.accelerator.hbm_bytes_per_s)


def message_s(model: Model, node: NodeKind, tp: Floats) -> Floats:
    """Fixed time of the all-reduces of one token through the layers, shape of `tp`; nothing for their bytes.

    Source: launch and hops of a collective (data/calibration), two a layer as Shoeybi et al. 2019 (arXiv:1909.08053).
    Assumes: none overlaps with computing.
    """
    stack = model.stacks[0]
    rows = [sum(isinstance(i, Linear | Experts) and i.shard == "row" for i in kind.items) for kind in stack.kinds]
    count = sum(rows[place] for place in stack.order)
    seconds: Floats = count * np.asarray(all_reduce_s(node.cluster.fabric, 1.0, tp, direct=True), dtype=float)
    return seconds


def floors(workload: Resolved, model: Model, nodes: Sequence[NodeKind], wanted: Sequence[WeightFormat]) -> list[Floor]:
    """For each latency target, the best that the allowed devices could do by physics alone, and whether that misses.

    Source and assumptions: `weights_read_s`, `message_s` and `least_prompt_s`, at the tp that makes the sum least.
    """
    each = tokens_per_decode_step(workload)
    tpots: list[Floor] = []
    ttfts: list[Floor] = []
    for node in nodes:
        for weights in wanted:
            form = format_on(weights, node.cluster, workload.facts)
            tp = np.unique(np.asarray(replica_grid(node, model, workload.max_gpus, spread=False).tp, dtype=float))
            if not tp.size:
                continue
            read = weights_read_s(model, node, form) * min(node.count, MAX_TP) / tp / each
            links = message_s(model, node, tp) / each
            at = int((read + links).argmin())
            parts = {READING: float(read[at]), LINKS: float(links[at])}
            tpots.append(_floor("tpot", workload.tpot, parts, node, weights, tp[at]))
            links = links * each
            try:
                dtype = product_path(model, form, node.cluster.rates).dtype
                compute = least_prompt_s(model, node, dtype, computed_prompt_tokens(workload), tp)
            except MissingFactError:
                continue
            at = int((compute + links).argmin())
            parts = {COMPUTING: float(compute[at]), LINKS: float(links[at])}
            ttfts.append(_floor("ttft", workload.ttft, parts, node, weights, tp[at]))
    found = []
    if tpots and workload.tpot is not None:
        found.append(min(tpots, key=lambda f: f.seconds))
    if ttfts and workload.ttft is not None:
        found.append(min(ttfts, key=lambda f: f.seconds))
    if tpots and ttfts and workload.latency is not None:
        found.append(_whole(workload, min(ttfts, key=lambda f: f.seconds), min(tpots, key=lambda f: f.seconds)))
    return found


def _floor(
    target: str, limit: Latency | None, parts: dict[str, float], node: NodeKind, weights: WeightFormat, tp: float
) -> Floor:
    return Floor(
        target=target,
        limit_s=0.0 if limit is None else limit.seconds,
        seconds=sum(parts.values()),
        parts=parts,
        gpu=node.cluster.accelerator.name,
        instance=node.name,
        layout={"tp": int(tp), "weights": weights.name},
    )


def _whole(workload: Resolved, ttft: Floor, tpot: Floor) -> Floor:
    """The floor of a whole request: its prompt, and one step for each further token."""
    assert workload.latency is not None
    steps = workload.output_tokens - 1
    host_s = workload.engine.request_s
    parts = {COMPUTING: ttft.seconds, f"{steps:,} tokens": steps * tpot.seconds, "the server": host_s}
    return Floor(
        target="latency", limit_s=workload.latency.seconds, seconds=sum(parts.values()), parts=parts,
        gpu=tpot.gpu, instance=tpot.instance, layout=tpot.layout,
    )  # fmt: skip
