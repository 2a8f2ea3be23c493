"""Parts of runs on Kubernetes: a pod for each machine, restart limits, and volumes of data and results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from flopwise.exports import kubernetes
from flopwise.exports.command import Command
from flopwise.exports.deployment import Deployment
from flopwise.exports.kubernetes import Object
from flopwise.facts.formats import BF16
from flopwise.ops.weights import weight_bytes
from flopwise.training.goodput import DEFAULT_RELIABILITY, interruptions_per_s
from flopwise.training.job import TrainJob
from flopwise.training.run import job_goodput
from flopwise.training.storage import stored_token_bytes
from flopwise.values import replace

PORT = 29500
"""Port of torchrun's rendezvous on the first machine."""
TEXT_BYTES_PER_TOKEN, RECORD_BYTES = 6, 512
"""Bytes of requests and answers as lines of JSON: per token (an upper limit for most languages) and per line."""
KEPT = 2
"""Checkpoints that the volume has space for: the last one, and the one being written."""
LEAST_RESTARTS = 3
DEVIATIONS = 3
INDEX = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
"""The number of a pod in an indexed job."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def trainer(deployment: Deployment) -> Command:
    """The command of each machine of a run."""
    from flopwise.exports.training_command import training_command  # noqa: PLC0415 - refusals of others need it not

    return training_command(deployment)


def run_refusals(deployment: Deployment) -> Iterator[str]:
    """Reasons why pods cannot run the plan."""
    from flopwise.exports.training_command import training_refusals  # noqa: PLC0415 - as above

    yield from kubernetes.node_refusals(deployment)
    yield from training_refusals(deployment)


def restarts(deployment: Deployment) -> int:
    """Maximum number of restarts: expected interruptions plus three standard deviations, at least three.

    Source: a Poisson process at the rate of `training.goodput.interruptions_per_s`. Assumes: interruptions are
    independent.
    """
    job, chosen = deployment.training, deployment.candidate
    reliability = DEFAULT_RELIABILITY if job is None else job.conditions.reliability
    if job is None and chosen.purchase == "spot":
        taken = deployment.facts.spot(chosen.provider, chosen.gpu).interruptions_per_s
        reliability = replace(reliability, interruptions_per_s=taken, gpus_per_node=deployment.gpus_per_node)
    rate = float(interruptions_per_s(chosen.num_gpus, reliability))
    expected = rate * (chosen.seconds_high or chosen.seconds)
    return max(LEAST_RESTARTS, math.ceil(expected + DEVIATIONS * math.sqrt(expected)))


def queue_label(deployment: Deployment) -> dict[str, str]:
    """The label of Kueue's queue, if one is given."""
    return {} if deployment.settings.queue is None else {QUEUE_LABEL: deployment.settings.queue}


def run_pod(
    deployment: Deployment, command: Command, *, name: str = "main", more: dict[str, Any] | None = None
) -> Object:
    """The spec of a pod that uses one machine for its part of a run."""
    spec = kubernetes.pod(deployment, command, deployment.gpus_per_node, name=name, more=more)
    (main,) = spec["containers"]
    if deployment.num_nodes > 1:  # memory of the devices and of the network's cards is locked
        main["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"add": ["IPC_LOCK"]}}
    return {"restartPolicy": "Never", **spec}


def run_claims(deployment: Deployment) -> list[Object]:
    """Volume claims for the folders of a run with their sizes: tokens, checkpoints and base weights."""
    job = deployment.training
    sizes = {"weights": float(weight_bytes(deployment.model, BF16))}
    if job is not None:
        sizes |= {"data": _data_bytes(job), "output": KEPT * job_goodput(job)[0]}
    else:
        work, requests = deployment.workload, deployment.workload.requests or 0.0
        sizes |= {
            name: requests * (TEXT_BYTES_PER_TOKEN * tokens + RECORD_BYTES)
            for name, tokens in (("data", work.input_tokens), ("output", work.output_tokens))
        }
    return kubernetes.claims(deployment, sizes)


def _data_bytes(job: TrainJob) -> float:
    """Bytes of the tokens that a run reads."""
    return 0.0 if job.tokens is None else job.tokens * stored_token_bytes(job.model, float(job.recipe.seq_len))


def restart_policy(number: int) -> Object:
    """Fields of a job with a restart limit, which does not count failed nodes and preemptions."""
    return {
        "backoffLimit": number,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}],
        },
    }


def run_notes(deployment: Deployment) -> Iterator[str]:
    """Assumptions on a run."""
    yield from kubernetes.placement_notes(deployment)
    yield (
        f"a run may restart {restarts(deployment)} times from its last checkpoint: the expected number of machine "
        "failures plus three standard deviations"
    )
    if deployment.num_nodes > 1 and (cards := kubernetes.network_cards(deployment)):
        names = " and ".join(f"{count} {name}" for name, count in cards.items())
        yield f"pods request all network cards of their node, {names}, under the names of the provider's device plugin"
    elif deployment.num_nodes > 1:
        yield (
            "pods communicate over the cluster network: request cards for InfiniBand or TCPX as the provider "
            "documents; without them, messages between machines take longer than planned"
        )
    yield from folder_notes(deployment)


def folder_notes(deployment: Deployment) -> Iterator[str]:
    """Assumptions on folders of data and results."""
    if any(place.startswith("/") for place in (deployment.value("data"), deployment.value("output"))):
        several = ", and several nodes must be able to mount them" if deployment.num_nodes > 1 else ""
        yield (
            f"folders are volume claims named {deployment.name}-data and -output of the default storage class"
            f"{several}: fill the data volume first"
        )
