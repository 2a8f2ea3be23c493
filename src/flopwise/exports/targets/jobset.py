"""A run on several machines of a Kubernetes cluster: a JobSet that starts again as a whole, in a queue of Kueue."""

from __future__ import annotations

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_training as training
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files
from flopwise.exports.kubernetes import Object

refusals = training.run_refusals
GROUP = "node"


def export(deployment: Deployment) -> Files:
    """`jobset.yaml`: the JobSet, with its files and the claims of its folders."""
    command = training.trainer(deployment)
    more = {
        "PET_NODE_RANK": training.INDEX, "PET_MASTER_ADDR": f"{deployment.name}-{GROUP}-0-0.{deployment.name}",
        "PET_MASTER_PORT": str(training.PORT),
    }  # fmt: skip
    spec = training.run_pod(deployment, command, more=more)
    template = {"metadata": {"labels": parts.labels(deployment)}, "spec": spec}
    queue = {training.QUEUE_LABEL: deployment.value("queue")}
    one = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": parts.metadata(deployment, more=queue),
        "spec": {
            "suspend": True, "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"}, "failurePolicy": _failures(deployment),
            "replicatedJobs": [{"name": GROUP, "replicas": 1, "template": {"spec": _job(deployment, template)}}],
        },
    }  # fmt: skip
    return parts.manifests(
        "jobset.yaml", *parts.config_map(deployment, command), *training.run_claims(deployment), one,
        assumptions=(
            *command.assumptions, *training.run_notes(deployment),
            "JobSet 0.8 and Kueue are installed; the set waits until its queue admits it (suspend)",
        ),
    )  # fmt: skip


def _failures(deployment: Deployment) -> Object:
    """The failures after which the run restarts: disruptions always, others so many times."""
    rule = {
        "name": "disruption", "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }  # fmt: skip
    return {"maxRestarts": training.restarts(deployment), "rules": [rule]}


def _job(deployment: Deployment, template: Object) -> Object:
    """The job of all machines: the first failure of a pod ends it, as the others wait for that one."""
    nodes = deployment.num_nodes
    ends = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "backoffLimit": 0,
        "podFailurePolicy": {"rules": [ends]}, "template": template,
    }  # fmt: skip
