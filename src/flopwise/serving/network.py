"""The network that a service needs: bytes that a request has a GPU send over each kind of link, and a second of them.

The bytes are what the formulas of a step take on links that carry one byte per second and nothing else: no formula of
a message stands here a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flopwise.cost.fabric import byte_counting
from flopwise.serving.disaggregated import moved_s
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import ServeJob
from flopwise.serving.techniques import request_work, runner


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLinkNeed:
    """What one kind of link carries: bytes that a GPU sends for a request by what for, and bytes/s, one direction.

    `average`: at the planned rate; `full`: where the replica answers as much as it can. `link_bytes_per_s`: of the
    datasheet, for one GPU; None where that is not known.
    """

    link: str
    between_nodes: bool
    request_bytes: dict[str, float]
    average_bytes_per_s: float  # of one GPU
    full_bytes_per_s: float
    node_average_bytes_per_s: float  # of all GPUs of a node
    node_full_bytes_per_s: float
    link_bytes_per_s: float | None


def request_network_needs(
    job: ServeJob, requests_per_s: float | None, full_per_s: float, replicas: int = 1
) -> tuple[RequestLinkNeed, ...]:
    """Each kind of link that a replica uses, innermost first; rates are of one replica of `replicas`, None: as full.

    Every token passes through all layers once: those of the prompt that are not cached, and those of the answer but
    the last, or all that a round of drafts has. A GPU has the layers of its pipeline stage.

    Source: `flopwise.serving.iteration`, whose messages are counted (2 (g - 1) / g n from each of g ranks that sum n
    bytes), and `flopwise.serving.disaggregated` for caches that go from prompts to answers.
    Assumes: requests of mean length; towers beside the first stack send nothing; replicas fill whole nodes.
    """
    layout, fabric, (prompt, steps) = job.layout, job.cluster.fabric, request_work(job)
    if int(layout.num_gpus) == 1 and not job.techniques.prefill_gpus:
        return ()
    drafted = 0 if job.techniques.speculation is None else job.techniques.speculation.tokens
    tokens = prompt + max(steps - 1.0, 0.0) * (1 + drafted)
    stages, each = int(layout.pp), 1.0 / int(layout.dp)
    on_node = min(job.cluster.gpus_per_node, int(layout.num_gpus) * replicas)
    rates = [each * (full_per_s if rate is None else rate) for rate in (requests_per_s, full_per_s)]
    needs = []
    for number, level in enumerate(fabric.levels):
        counted = replace(job, cluster=replace(job.cluster, fabric=byte_counting(fabric, number)))
        machine, load = runner(counted), StepLoad(prefill_tokens=tokens, prefill_context=tokens)
        layers, whole = (
            float(np.asarray(machine.step(load, split).communication_s)) for split in (replace(layout, pp=1), layout)
        )
        sent = {"tensor_parallel": layers / stages, "pipeline_p2p": (whole - layers) / max(stages - 1, 1)}
        sent["cache_transfer"] = moved_s(counted, round(prompt)) if job.techniques.prefill_gpus else 0.0
        sent = {name: nbytes for name, nbytes in sent.items() if 1.0 < nbytes < np.inf}
        average, full = (rate * sum(sent.values()) for rate in rates)
        if sent:
            need = RequestLinkNeed(
                link=level.kind, between_nodes=len(fabric.levels) > 1 and number == len(fabric.levels) - 1,
                request_bytes=sent, average_bytes_per_s=average, full_bytes_per_s=full,
                node_average_bytes_per_s=average * on_node, node_full_bytes_per_s=full * on_node,
                link_bytes_per_s=level.bytes_per_s if np.isfinite(level.bytes_per_s) else None,
            )  # fmt: skip
            needs.append(need)
    return tuple(needs)
