"""A run on one machine of a Kubernetes cluster: a Job that starts again from its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no single pod can run the plan."""
    if deployment.num_nodes > 1:
        yield f"the plan takes {deployment.num_nodes} machines: export jobset, trainjob or pytorchjob instead"
    yield from training.run_refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`job.yaml`: the Job, with its files and the claims of its folders."""
    command, queue = training.trainer(deployment), training.queue_label(deployment)
    one = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": parts.metadata(deployment, more=queue),
        "spec": {
            **({"suspend": True} if queue else {}),
            **training.restart_policy(training.restarts(deployment)),
            "template": {
                "metadata": {"labels": parts.labels(deployment)}, "spec": training.run_pod(deployment, command),
            },
        },
    }  # fmt: skip
    return parts.manifests(
        "job.yaml", *parts.config_map(deployment, command), *training.run_claims(deployment), one,
        assumptions=(*command.assumptions, *training.run_notes(deployment)),
    )  # fmt: skip
