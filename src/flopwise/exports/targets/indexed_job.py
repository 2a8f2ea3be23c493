"""A batch on Kubernetes: an indexed Job with a pod for each share of the requests."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.replica import start_ends_s
from flopwise.exports.server import split_script
from flopwise.training.goodput import daly_interval_s, interruptions_per_s

TRIES = 4
"""Of a share, beside those that a node's end or a preemption takes."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no indexed job can run the plan."""
    if deployment.nodes_per_replica > 1:
        yield (
            f"a replica takes {deployment.nodes_per_replica} machines, and a share runs in one pod: plan with larger "
            "machines or smaller formats (--weights)"
        )
    yield from serving.server_refusals(deployment)


def shares(deployment: Deployment) -> int:
    """Shares of a batch: as many for each replica as lose least to interruptions and to starts.

    Source: Daly's interval (`flopwise.training.goodput`), with a replica's start in place of a checkpoint.
    Assumes: a share that is interrupted is begun anew; of machines on demand the default failure rate.
    """
    chosen = deployment.candidate
    rate = float(interruptions_per_s(deployment.gpus_per_replica))
    if chosen.purchase == "spot":
        rate += deployment.facts.spot(chosen.provider, chosen.gpu).interruptions_per_s
    interval_s = float(daly_interval_s(start_ends_s(deployment)[1], 1.0 / rate))
    requests = deployment.workload.requests
    each = max(1, math.ceil(chosen.seconds / interval_s - 1e-9))
    return deployment.replicas * each if requests is None else min(deployment.replicas * each, math.ceil(requests))


def export(deployment: Deployment) -> Files:
    """`indexed-job.yaml`, and the script that deals the requests out."""
    command, number = serving.server(deployment), shares(deployment)
    spec = parts.pod(deployment, command, deployment.gpus_per_replica, more={"REPLICA": training.INDEX})
    queue = training.queue_label(deployment)
    one = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": parts.metadata(deployment, more=queue),
        "spec": {
            **({"suspend": True} if queue else {}), "completionMode": "Indexed", "completions": number,
            "parallelism": min(deployment.replicas, number), **training.restart_policy(TRIES * number),
            "template": {
                "metadata": {"labels": parts.labels(deployment)}, "spec": {"restartPolicy": "Never", **spec},
            },
        },
    }  # fmt: skip
    folders = training.run_claims(deployment)
    split = f"bash split-requests.sh requests.jsonl {shlex.quote(deployment.value('data'))}"
    return Files(
        files={
            "indexed-job.yaml": yaml_text(*parts.config_map(deployment, command), *folders, one),
            "split-requests.sh": split_script(number),
        },
        apply=(f"{split}  # where the folder of the data is mounted", "kubectl apply -f indexed-job.yaml"),
        assumptions=(
            *command.assumptions, *training.folder_notes(deployment), *parts.placement_notes(deployment),
            f"the requests are distributed over {number} files, of which {deployment.replicas} are processed at once",
        ),
    )  # fmt: skip
