"""SkyPilot: a managed job that recovers, or a service of replicas, on the plan's machines or others of its layout."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports.command import Command, with_slots
from flopwise.exports.deployment import Deployment, resource_name
from flopwise.exports.emit import command_text, comment_text, yaml_text
from flopwise.exports.exported import Files
from flopwise.exports.node_pools import plan_pool
from flopwise.facts.software import platform
from flopwise.search.answer import Candidate
from flopwise.values import replace

CLOUDS = ("aws", "gcp", "azure", "lambda", "runpod", "oci", "nebius", "paperspace", "vast")
"""Providers that SkyPilot has a cloud of the same name for."""
TYPED = ("aws", "gcp", "azure", "lambda")
"""Those whose instance types it names alike; elsewhere the accelerators say it."""
ACCELERATORS: Mapping[str, str] = {
    "A10": "A10", "A10G": "A10G", "A30": "A30", "A40": "A40", "A100-PCIe-40": "A100", "A100-SXM-40": "A100",
    "A100-PCIe-80": "A100-80GB", "A100-SXM-80": "A100-80GB", "B200": "B200", "B300": "B300",
    "GH200-96": "GH200", "H100-PCIe-80": "H100", "H100-SXM-80": "H100", "H100-NVL-94": "H100", "H200-SXM-141": "H200",
    "K80": "K80", "L4": "L4", "L40": "L40", "L40S": "L40S", "MI300X": "MI300X", "P4": "P4", "P100-PCIe-16": "P100",
    "RTX 3090": "RTX3090", "RTX 4090": "RTX4090", "RTX 5090": "RTX5090", "RTX 6000 Ada": "RTX6000-Ada",
    "RTX A4000": "RTXA4000", "RTX A5000": "RTXA5000", "RTX A6000": "RTXA6000", "T4": "T4", "T4G": "T4g",
    "V100-PCIe-16": "V100", "V100-SXM2-16": "V100", "V100-SXM2-32": "V100-32GB",
}  # fmt: skip
"""Accelerators as SkyPilot calls them. Source: skypilot-catalog v8, common/accelerators.csv @d4d53f0, and the
clouds' vms.csv (read 2026-11-22)."""
OWN_NAMES: Mapping[tuple[str, str], str] = {
    ("runpod", "A100-SXM-80"): "A100-80GB-SXM", ("runpod", "H100-SXM-80"): "H100-SXM",
    ("runpod", "H100-NVL-94"): "H100-NVL", ("runpod", "H200-SXM-141"): "H200-SXM", ("lambda", "RTX A6000"): "A6000",
    ("paperspace", "RTX A4000"): "A4000",
}  # fmt: skip
"""The same, where a cloud has a name of its own."""
TPU = re.compile(r"tpu-v\d+[a-z]*-\d+")
BUCKET = re.compile(r"(s3|gs|https|r2|cos|oci|nebius)://.+")
"""Places that SkyPilot mounts."""
DATA, OUTPUT = "/flopwise-data", "/flopwise-output"
MOST_OTHERS = 10
"""Further candidates that a task names; SkyPilot takes the cheapest that is to be had."""
DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
TITLE = "FLOPWISE_TITLE"
"""Variable that holds what people call the task: names of tasks are letters, digits and hyphens."""
PORT = 29500
"""At which the machines of a run meet."""
SETUP = """\
if ! command -v nginx; then
  $(command -v sudo) apt-get update
  $(command -v sudo) apt-get install -y nginx
fi
"""
START_SLACK = 3
"""Times the estimated start of a server within which it must answer."""
LEAST_DELAY_S = 300


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why SkyPilot cannot run the plan."""
    candidate = deployment.candidate
    if (why := _unknown(candidate, deployment)) is not None:
        yield why
        return
    if deployment.training is not None:
        from flopwise.exports.training_command import training_refusals  # noqa: PLC0415 - only for runs

        yield from training_refusals(deployment)
        return
    try:
        _command(deployment)
    except InfeasibleError as error:
        yield from error.reasons
    if _slot_count(deployment) > 1 and platform(deployment.accelerator) not in DEVICES:
        yield (
            "several replicas on one machine need devices of NVIDIA or AMD; plan with --gpus for one replica per "
            "machine"
        )


def export(deployment: Deployment) -> Files:
    """`task.yaml` and what its commands read; the folder is SkyPilot's working directory."""
    mounted, mounts = _mounts(deployment)
    command = _command(mounted)
    resources, left_out = _resources(mounted, command)
    serves = _serves(mounted)
    document: dict[str, Any] = {"name": mounted.name}
    if serves:
        document["service"] = _service(mounted, command)
    document |= {"workdir": ".", "num_nodes": _nodes(mounted), "resources": resources}
    document["envs"] = {TITLE: mounted.title, **command.env}
    if command.secret_env:
        document["secrets"] = dict.fromkeys(command.secret_env, "")
    if mounts:
        document["file_mounts"] = mounts
    files = dict(command.files)
    if serves and _slot_count(mounted) > 1:
        document["setup"] = SETUP
        files["nginx.conf"] = _balancer(mounted, command)
    document["run"] = "".join(f"{line}\n" for line in _run_lines(mounted, command))
    about = comment_text(f"{deployment.title}: for SkyPilot, from the folder of this file.")
    files["task.yaml"] = f"{about}\n{yaml_text(document)}"
    secrets = "".join(f" --secret {name}" for name in command.secret_env)
    place = deployment.candidate
    service = resource_name(f"{mounted.name} {place.provider} {place.region} {place.instance}")  # of several parts
    launch = f"sky serve up -n {service}" if serves else f"sky jobs launch -n {mounted.name}"
    notes = (*command.assumptions, *_notes(deployment, left_out))
    return Files(files=files, apply=(f"{launch}{secrets} task.yaml",), assumptions=notes)


def _command(deployment: Deployment) -> Command:
    if deployment.training is not None:
        from flopwise.exports.training_command import training_command  # noqa: PLC0415 - only for runs

        return training_command(deployment)
    from flopwise.exports.server import serving_command  # noqa: PLC0415 - only for services

    return serving_command(deployment)


def _serves(deployment: Deployment) -> bool:
    """True if it is a service, without an end."""
    return deployment.task in {"serve", "encode"}


def _slot_count(deployment: Deployment) -> int:
    """Replicas of one machine."""
    if deployment.serving is None or deployment.nodes_per_replica > 1:
        return 1
    return max(1, min(deployment.gpus_per_node // deployment.gpus_per_replica, deployment.replicas))


def _nodes(deployment: Deployment) -> int:
    """Machines that SkyPilot starts together: of a service those of one replica, else all."""
    return deployment.nodes_per_replica if _serves(deployment) else deployment.num_nodes


# Where it runs


def _unknown(candidate: Candidate, deployment: Deployment) -> str | None:
    """Why SkyPilot has no such machine."""
    if candidate.provider not in CLOUDS:
        return f"SkyPilot has no cloud {candidate.provider}; plan again with --provider {', '.join(CLOUDS[:4])}"
    chip = deployment.facts.accelerators[candidate.gpu]
    if chip.kind == "cpu":
        return None if candidate.provider in TYPED else f"SkyPilot has no CPU instance types of {candidate.provider}"
    if chip.kind == "tpu" and TPU.fullmatch(candidate.instance):
        return None
    return None if candidate.gpu in ACCELERATORS else f"SkyPilot's name of the {candidate.gpu} is not known"


def _resources(deployment: Deployment, command: Command) -> tuple[dict[str, Any], int]:
    """Requirements, places and alternatives of a machine; the number of candidates that SkyPilot cannot name.

    Candidates of the same layout on as many machines will all do: SkyPilot takes the cheapest that is to be had.
    """
    chosen = deployment.candidate
    alike = [
        one for one in deployment.plan.plans
        if (one.layout, one.num_gpus, one.num_instances) == (chosen.layout, chosen.num_gpus, chosen.num_instances)
        and one.rank != chosen.rank and _same_software(one, chosen, deployment)
    ][:MOST_OTHERS]  # fmt: skip
    known = [chosen, *(one for one in alike if _unknown(one, deployment) is None)]
    places = [place for one in known for place in _places(one, deployment)]
    places = [place for number, place in enumerate(places) if place not in places[:number]]
    common: dict[str, Any] = {"disk_size": plan_pool(deployment).disk_gb}
    image = deployment.settings.image or command.image or deployment.value("image")
    common["image_id"] = f"docker:{image}"
    if command.port is not None and _serves(deployment):
        common["ports"] = command.port
    if not _serves(deployment):
        common["job_recovery"] = {"strategy": "EAGER_NEXT_REGION"}
    common["labels"] = {"flopwise-pool": deployment.name}
    where = places[0] if len(places) == 1 else {"any_of": places}
    return {**where, **common}, len(alike) + 1 - len(known)


def _same_software(one: Candidate, chosen: Candidate, deployment: Deployment) -> bool:
    """True if the same image and command do for both: those of a server hold bytes of its device."""
    if deployment.training is None:
        return one.gpu == chosen.gpu
    chips = deployment.facts.accelerators
    return platform(chips[one.gpu]) == platform(chips[chosen.gpu])


def _places(candidate: Candidate, deployment: Deployment) -> Iterator[dict[str, Any]]:
    """The machines of a candidate, in each of its regions."""
    provider, count = candidate.provider, candidate.num_gpus // candidate.num_instances
    chip = deployment.facts.accelerators[candidate.gpu]
    machine: dict[str, Any] = {}
    if chip.kind == "tpu":
        machine["accelerators"] = f"{candidate.instance}:1"
    else:
        if provider in TYPED:
            machine["instance_type"] = candidate.instance.partition("+")[0]
        if chip.kind != "cpu":
            machine["accelerators"] = f"{OWN_NAMES.get((provider, candidate.gpu), ACCELERATORS[candidate.gpu])}:{count}"
    for region in candidate.region.split("/"):
        named = re.fullmatch(r"[a-z0-9-]+", region) and region not in {"any", "marketplace"}
        infra = f"{provider}/{region}" if named and provider in {*TYPED, "nebius", "oci"} else provider
        yield {"infra": infra, **machine, "use_spot": candidate.purchase == "spot"}


def _mounts(deployment: Deployment) -> tuple[Deployment, dict[str, Any]]:
    """The deployment with the folders at which its buckets stand, and the mounts that put them there."""
    settings, mounts = deployment.settings, dict[str, Any]()
    if settings.data is not None and BUCKET.fullmatch(settings.data):
        mounts[DATA] = {"source": settings.data, "mode": "MOUNT"}
    if settings.output is not None and BUCKET.fullmatch(settings.output):
        mounts[OUTPUT] = {"source": settings.output, "mode": "MOUNT_CACHED"}
    data = DATA if DATA in mounts else settings.data
    output = OUTPUT if OUTPUT in mounts else settings.output
    return replace(deployment, settings=replace(settings, data=data, output=output)), mounts


# What it runs


def _service(deployment: Deployment, command: Command) -> dict[str, Any]:
    """Replicas of machines, and when one of them counts as ready."""
    count = deployment.num_nodes // deployment.nodes_per_replica
    policy: dict[str, Any] = {"min_replicas": count, "max_replicas": count}
    spot = deployment.candidate.purchase == "spot"
    probe = {"path": command.health_path, "initial_delay_seconds": _delay_s(deployment)}
    return {
        "readiness_probe": probe,
        "replica_policy": {**policy, "dynamic_ondemand_fallback": True} if spot else policy,
    }  # fmt: skip


def _delay_s(deployment: Deployment) -> int:
    """Seconds that a server may take to answer, its image apart."""
    from flopwise.serving.startup import DEFAULT_STORAGE, cold_start  # noqa: PLC0415 - only for services

    start = cold_start(deployment.serve_job, deployment.facts.storage(DEFAULT_STORAGE)).seconds
    return max(LEAST_DELAY_S, math.ceil(START_SLACK * start / 60) * 60)


def _run_lines(deployment: Deployment, command: Command) -> Iterator[str]:
    """The script of each machine, which SkyPilot tells its number and all addresses."""
    if _nodes(deployment) > 1 or deployment.training is not None:
        head = '"$(head -n1 <<< "$SKYPILOT_NODE_IPS")"'
        if deployment.training is not None:
            yield f'export PET_NODE_RANK="$SKYPILOT_NODE_RANK" PET_MASTER_ADDR={head} PET_MASTER_PORT={PORT}'
        else:
            yield f'export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_ADDR={head}'
    slots, text = _slot_count(deployment), command_text(command.args)
    batch = deployment.task == "batch"
    if slots == 1:
        if batch:
            yield 'export REPLICA="$SKYPILOT_NODE_RANK"'
        yield text
        return
    variable, each = DEVICES[platform(deployment.accelerator) or ""], deployment.gpus_per_replica
    text = with_slots(text, command, 1)
    yield f"for slot in {' '.join(str(slot) for slot in range(slots))}; do"
    yield f'export {variable}="$(seq -s, "$((slot * {each}))" "$((slot * {each} + {each - 1}))")"'
    if batch:
        yield f'export REPLICA="$((SKYPILOT_NODE_RANK * {slots} + slot))"'
    yield f"{text} &"
    yield "done"
    if not batch:
        yield 'nginx -c "$PWD/nginx.conf" &'
    yield from ["wait -n"] * (slots if batch else 1)
    if not batch:
        yield "exit 1"


def _balancer(deployment: Deployment, command: Command) -> str:
    """The load balancer of one machine's replicas, which passes answers on as they are made."""
    assert command.port is not None
    servers = "".join(f"    server 127.0.0.1:{command.port + 1 + slot};\n" for slot in range(_slot_count(deployment)))
    return (
        "daemon off;\nworker_processes auto;\nevents { worker_connections 4096; }\nhttp {\n  upstream replicas {\n"
        f"    least_conn;\n{servers}  }}\n  server {{\n    listen {command.port};\n    client_max_body_size 0;\n"
        "    location / {\n      proxy_pass http://replicas;\n      proxy_http_version 1.1;\n"
        "      proxy_buffering off;\n      proxy_read_timeout 3600s;\n    }\n  }\n}\n"
    )


def _notes(deployment: Deployment, left_out: int) -> Iterator[str]:
    if _serves(deployment):
        yield (
            f"a server must answer within {START_SLACK} times its estimated start time, at least {LEAST_DELAY_S} s; "
            "the number of replicas is fixed to the plan's: set target_qps_per_replica and max_replicas to follow "
            "the traffic"
        )
        if _slot_count(deployment) > 1:
            yield f"a replica of SkyServe is a machine: {_slot_count(deployment)} of the plan's, behind nginx"
    elif deployment.settings.output is None or not BUCKET.fullmatch(deployment.settings.output):
        yield (
            "a job that moves to another machine loses local results: give --output a bucket (s3://, gs://), which "
            "SkyPilot mounts"
        )
    if deployment.candidate.purchase.startswith("reserved"):
        yield "SkyPilot uses reserved machines as on-demand ones; the commitment is bought separately"
    if left_out:
        yield f"{left_out} candidates with the same layout are on machines that SkyPilot does not know"
    yield "SkyPilot checks accelerators against its catalog, which it downloads"
