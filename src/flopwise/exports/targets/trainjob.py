"""A run on Kubeflow Trainer: a TrainJob, and the runtime with the machines of the plan that it refers to."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object

refusals = training.run_refusals
GROUP = CONTAINER = "node"
"""What Trainer calls the machines of a run, and their container."""
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def export(deployment: Deployment) -> Files:
    """`trainjob.yaml`: the TrainingRuntime and the TrainJob, with its files and the claims of its folders."""
    command, queue = training.trainer(deployment), training.queue_label(deployment)
    spec = training.run_pod(deployment, command, name=CONTAINER)
    (main,) = spec["containers"]
    container = {"image": main["image"], "command": main["command"], "env": main["env"]}
    main |= {"env": []}
    del main["command"]
    one = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": parts.metadata(deployment, more=queue),
        "spec": {
            **({"suspend": True} if queue else {}),
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": f"{deployment.name}-runtime",
            },
            "trainer": {
                **container, "numNodes": deployment.num_nodes, "numProcPerNode": deployment.gpus_per_node,
                "resourcesPerNode": main["resources"],
            },
        },
    }  # fmt: skip
    return parts.manifests(
        "trainjob.yaml", *parts.config_map(deployment, command), *training.run_claims(deployment),
        _runtime(deployment, spec), one,
        assumptions=(
            *command.assumptions, *training.run_notes(deployment),
            "Kubeflow Trainer 2.3 is installed; its torch policy gives each pod its rank and the first pod's address",
        ),
    )  # fmt: skip


def _runtime(deployment: Deployment, spec: Object) -> Object:
    """The runtime: one indexed job over the machines, which starts again as a whole."""
    job = {
        "template": {"metadata": {"labels": parts.labels(deployment)}, "spec": spec}, "backoffLimit": 0,
    }  # fmt: skip
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
        "metadata": parts.metadata(deployment, "runtime", {"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": deployment.num_nodes, "torch": {}},
            "template": {
                "spec": {
                    "failurePolicy": {"maxRestarts": training.restarts(deployment)},
                    "replicatedJobs": [
                        {"name": GROUP, "replicas": 1, "template": {"metadata": {"labels": STEP}, "spec": job}}
                    ],
                },
            },
        },
    }  # fmt: skip
