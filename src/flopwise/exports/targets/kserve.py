"""A service on KServe: an InferenceService whose predictor is the engine's own container."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.exports import kubernetes as parts
from flopwise.exports import kubernetes_service as serving
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Files

CONTAINER = "kserve-container"
"""What KServe calls the container of a predictor."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why no InferenceService can serve the plan."""
    if deployment.nodes_per_replica > 1:
        yield f"a replica takes {deployment.nodes_per_replica} machines: export leaderworkerset instead"
    yield from serving.server_refusals(deployment)


def export(deployment: Deployment) -> Files:
    """`kserve.yaml`: the InferenceService, without Knative."""
    command = serving.server(deployment)
    spec = serving.serving_pod(deployment, command, deployment.gpus_per_replica)
    (main,) = spec["containers"]
    main["name"] = CONTAINER
    predictor = {key: value for key, value in spec.items() if key != "enableServiceLinks"}  # it has no such field
    meta = parts.metadata(deployment)
    meta["annotations"] |= {
        "serving.kserve.io/deploymentMode": "RawDeployment", "serving.kserve.io/autoscalerClass": "none",
    }  # fmt: skip
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    one = {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": meta,
        "spec": {
            "predictor": {
                "minReplicas": deployment.replicas, "maxReplicas": deployment.replicas,
                "timeout": serving.stop_s(deployment), "deploymentStrategy": update, **predictor,
            },
        },
    }  # fmt: skip
    return parts.manifests(
        "kserve.yaml", *parts.config_map(deployment, command), *serving.weight_claims(deployment), one,
        assumptions=(
            *command.assumptions, *parts.placement_notes(deployment), serving.start_note(deployment),
            "KServe 0.15 or later is installed; it keeps the plan's number of replicas and does not scale",
        ),
    )  # fmt: skip
