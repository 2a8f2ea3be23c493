"""A Ray cluster on Kubernetes: a head without tasks, a pod for each machine of the plan, and its launcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flopwise.exports import kubernetes
from flopwise.exports import kubernetes_service as serving
from flopwise.exports import kubernetes_training as training
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import json_text
from flopwise.exports.server import program_text
from flopwise.values import replace

HEAD = {"cpu": "2", "memory": "8Gi"}
PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "serve": 8000}
RAY_VERSION = "2.52.0"
LAUNCHER = "ray_launch.py"
ENTRYPOINT = f"python {kubernetes.FOLDER}/{LAUNCHER}"
NOTES = (
    f"KubeRay 1.3 or later is installed; the image has Ray {RAY_VERSION}, or rayVersion is set to that of the image",
    f"the head takes {HEAD['cpu']} CPUs and {HEAD['memory']} of a machine in addition to those of the plan",
)


def ray_cluster(deployment: Deployment, command: Command) -> dict[str, Any]:
    """The spec of a RayCluster with a head that has no tasks; the environment is that of the command."""
    worker = kubernetes.pod(deployment, command, deployment.gpus_per_node, name="ray-worker")
    head = {key: value for key, value in worker.items() if key not in ("nodeSelector", "affinity", "tolerations")}
    (work,) = worker["containers"]
    del work["command"]  # Ray starts what runs in it
    work.pop("ports", None)
    main = work | {
        "name": "ray-head", "resources": {"requests": HEAD, "limits": {"memory": HEAD["memory"]}},
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
    }  # fmt: skip
    labels = kubernetes.labels(deployment)
    return {
        "rayVersion": RAY_VERSION,
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0", "num-gpus": "0"},  # noqa: S104 - a pod's
            "template": {"metadata": {"labels": labels}, "spec": head | {"containers": [main]}},
        },
        "workerGroupSpecs": [{
            "groupName": "machines", "replicas": deployment.num_nodes, "minReplicas": deployment.num_nodes,
            "maxReplicas": deployment.num_nodes, "rayStartParams": {},
            "template": {"metadata": {"labels": labels}, "spec": worker},
        }],
    }  # fmt: skip


def launch_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why a Ray cluster cannot run the plan."""
    if deployment.training is not None:
        yield from training.run_refusals(deployment)
        return
    if deployment.nodes_per_replica > 1:
        yield (
            f"a replica takes {deployment.nodes_per_replica} machines, and its share must run on one: plan with "
            "larger machines"
        )
    yield from serving.server_refusals(deployment)


def launch_command(deployment: Deployment) -> Command:
    """The command of a run or a batch, with the launcher that starts it on each machine or for each share."""
    runs = deployment.training is not None
    command = training.trainer(deployment) if runs else serving.server(deployment)
    devices = deployment.gpus_per_node if runs else deployment.gpus_per_replica
    counted = {} if kubernetes.device_resource(deployment) is None else {"GPU": devices}
    plan = {
        "args": list(command.args), "parts": deployment.num_nodes if runs else deployment.replicas,
        "resources": {"CPU": 1, **counted}, "strategy": "STRICT_SPREAD" if runs else "PACK",
        "number": "PET_NODE_RANK" if runs else "REPLICA", "first": "PET_MASTER_ADDR" if runs else "",
    }  # fmt: skip
    files = {**command.files, LAUNCHER: program_text(LAUNCHER), "ray_launch.json": json_text(plan)}
    return replace(command, files=files)


def launch_notes(deployment: Deployment, command: Command) -> tuple[str, ...]:
    """Assumptions on a run on Ray."""
    more = training.run_notes(deployment) if deployment.training is not None else (
        *kubernetes.placement_notes(deployment), *training.folder_notes(deployment)
    )  # fmt: skip
    return (*command.assumptions, *more, *NOTES)
