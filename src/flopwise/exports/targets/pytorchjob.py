"""A run on Kubeflow's Training Operator: a PyTorchJob with a master and the other machines as workers."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files

refusals = training.run_refusals
CONTAINER = "pytorch"
"""What the operator calls the container that it tells where the others are."""


def export(deployment: Deployment) -> Files:
    """`pytorchjob.yaml`: the PyTorchJob, with its files and the claims of its folders."""
    command, settings = training.trainer(deployment), deployment.settings
    spec = training.run_pod(deployment, command, name=CONTAINER)
    del spec["restartPolicy"]  # the operator's own
    template = {"metadata": {"labels": parts.labels(deployment)}, "spec": spec}
    machines = {"Master": 1, "Worker": deployment.num_nodes - 1}
    scheduling = {"priorityClass": settings.priority} if settings.priority else {}
    queue = training.queue_label(deployment)
    one = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": parts.metadata(deployment, more=queue),
        "spec": {
            "nprocPerNode": str(deployment.gpus_per_node),
            "runPolicy": {
                "backoffLimit": training.restarts(deployment), "cleanPodPolicy": "Running",
                **({"suspend": True} if queue else {}),
                "schedulingPolicy": {"minAvailable": deployment.num_nodes, **scheduling},
            },
            "pytorchReplicaSpecs": {
                role: {"replicas": number, "restartPolicy": "OnFailure", "template": template}
                for role, number in machines.items()
                if number
            },
        },
    }  # fmt: skip
    return parts.manifests(
        "pytorchjob.yaml", *parts.config_map(deployment, command), *training.run_claims(deployment), one,
        assumptions=(
            *command.assumptions, *training.run_notes(deployment),
            "Kubeflow Training Operator 1.8 or 1.9 is installed; it gives each pod its rank and the master's address",
        ),
    )  # fmt: skip
