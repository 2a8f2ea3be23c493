"""Scripts that start a server or a batch, with the numbers of machine and replica as variables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from importlib import import_module, resources

from flopwise.errors import InfeasibleError
from flopwise.exports.command import Command, with_slots
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import command_text, comment_text, script_text
from flopwise.exports.exported import Files
from flopwise.exports.replica import one_kind_refusals
from flopwise.facts.software import platform
from flopwise.values import replace

_SHARE = '--input-file "$DATA/requests-${REPLICA:-0}.jsonl" --output-file "$OUTPUT/results-${REPLICA:-0}.jsonl"'
BATCH_SHARE = ("bash", "-c", f'exec "$@" {_SHARE}', "replica")
"""Runs the following words on one replica's share of a batch; REPLICA counts from 0."""
IDLE_S = "620"
"""Seconds for which a server keeps an idle connection: longer than the proxies before it, which would otherwise send a
request on a connection that is being closed and answer 502. nginx and AWS's load balancers keep one 60 s, Google's
600 s, and its documents require 620 s from servers; uvicorn's default is 5 s (vllm-project/vllm#18472,
sgl-project/sglang#24323)."""
DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}
"""The variable that selects the devices of a process on a machine with several replicas."""


def on_each_machine(command: Command, nodes: int, more: str) -> Command:
    """The command on each of a replica's machines; `more`: options in bash's words, of NODE_RANK and MASTER_ADDR."""
    if nodes == 1:
        return command
    check = ': "${NODE_RANK:?number of this machine, from 0}" "${MASTER_ADDR:?address of machine 0}"'
    return replace(command, args=("bash", "-c", f'{check}; exec "$@" {more}', "replica", *command.args))


def with_batch_client(deployment: Deployment, command: Command) -> Command:
    """A server with a client that sends one replica's share of a batch and stops the server after the last answer."""
    most = deployment.candidate.layout["max_batch"] * int(deployment.candidate.layout.get("dp", 1))
    client = f"python3 batch_client.py --url http://127.0.0.1:{command.port} --concurrency {most}"
    text = f"""\"$@\" & server=$!; trap 'kill "$server"' EXIT; {client} {_SHARE}"""
    return replace(
        command, args=("bash", "-c", text, "replica", *command.args), env={**command.env, **batch_places(deployment)},
        files={**command.files, "batch_client.py": program_text("batch_client.py")},
    )  # fmt: skip


def batch_places(deployment: Deployment) -> dict[str, str]:
    """The folders of the shares of a batch and of its answers, as variables."""
    return {"DATA": deployment.value("data"), "OUTPUT": deployment.value("output")}


def program_text(name: str) -> str:
    """The text of a program that accompanies exported files."""
    return resources.files("flopwise.exports").joinpath("programs", name).read_text(encoding="utf-8")


def server_files(deployment: Deployment, command: Command) -> Files:
    """The script of a command with its files, and for a batch an example of its requests."""
    batch = deployment.task == "batch"
    name = "run-batch.sh" if batch else "serve.sh"
    about = comment_text(f"One of the {deployment.replicas:,} replicas of {deployment.title}.")
    script = script_text(about, *script_lines(deployment, command))
    files, apply = {name: script, **command.files}, [f"bash {name}"]
    if batch:
        files["requests.example.jsonl"] = _request_lines(deployment)
        files["split-requests.sh"] = split_script(deployment.replicas)
        folder = shlex.quote(deployment.value("data"))
        apply = [f"bash split-requests.sh requests.jsonl {folder}", *apply]
        if deployment.replicas > 1:
            apply[1:] = [f"REPLICA={number} bash {name}" for number in range(deployment.replicas)]
    if deployment.nodes_per_replica > 1:
        apply = [f"NODE_RANK={rank} MASTER_ADDR=machine-0 bash {name}" for rank in range(deployment.nodes_per_replica)]
    return Files(files=files, apply=tuple(apply), assumptions=command.assumptions)


def split_script(count: int) -> str:
    """The script that distributes requests over `count` files."""
    return script_text(
        comment_text(f"Distributes requests over {count} files, one per share."),
        'requests="${1:?file of requests, one JSON object per line}"',
        'folder="${2:?folder for the shares}"',
        f'awk -v count={count} -v folder="$folder" '
        '\'{ print > (folder "/requests-" (NR - 1) % count ".jsonl") }\' "$requests"',
    )


def script_lines(deployment: Deployment, command: Command) -> Iterator[str]:
    """The lines that start a replica; with several on a machine, each on its own devices and ports."""
    variables = [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
    if command.address_env:
        variables.append(f'{command.address_env}="${{ADDRESS:?address of this machine for the other servers}}"')
        variables.append(f"export {command.address_env}")
    if variables:
        yield "\n".join(variables)
    text = f"exec {command_text(command.args)}"
    if command.args[0] == "bash":
        text = f"# shellcheck disable=SC2016  # the variables are those of the inner shell\n{text}"
    packed, each = deployment.gpus_per_node // deployment.gpus_per_replica, deployment.gpus_per_replica
    variable = DEVICES.get(platform(deployment.accelerator) or "")
    slots = packed > 1 and variable is not None
    if slots:
        yield f'slot="${{SLOT:-0}}"  # of this machine: 0 to {packed - 1}, each with {each} devices'
        yield f'{variable}="$(seq -s, "$((slot * {each}))" "$((slot * {each} + {each - 1}))")"\nexport {variable}'
        text = with_slots(text, command)
    for name, (first, ports) in command.port_env.items():
        times = "" if ports == 1 else f" * {ports}"
        yield f'export {name}="$(({first} + slot{times}))"' if slots else f"export {name}={first}"
    yield text


def _request_lines(deployment: Deployment) -> str:
    """Two requests in the layout of OpenAI's batch files, with the plan's longest answers."""
    body = {
        "model": deployment.model_id, "messages": [{"role": "user", "content": "..."}],
        "max_completion_tokens": deployment.workload.output_tokens,
    }  # fmt: skip
    lines = (
        {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in (1, 2)
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


SERVERS = {
    "vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llamacpp", "tgi": "tgi",
    "tei": "tei",
}  # fmt: skip
"""Engines with the module of their target."""


def serving_command(deployment: Deployment) -> Command:
    """The server of one replica of a service, or of its share of a batch.

    A replica on several machines is started on each, with NODE_RANK, its number from 0, and MASTER_ADDR, the address of
    the first; a share of a batch with REPLICA, its number from 0.

    Raises: InfeasibleError: no server is exported for the engine, or it cannot run the plan; gives the reasons.
    """
    engine, title = deployment.serve_job.engine.name, repr(deployment.title[:80])
    if engine not in SERVERS:
        reason = f"no server is exported for {engine}: plan again with --engine {', '.join(SERVERS)}"
        raise InfeasibleError(f"no server for {title}", [reason])
    server = import_module(f"flopwise.exports.targets.{SERVERS[engine]}")
    if reasons := list(one_kind_refusals(deployment)) or list(server.refusals(deployment)):
        raise InfeasibleError(f"{engine} cannot run {title}", reasons)
    made: Command = server.command(deployment)
    return made
