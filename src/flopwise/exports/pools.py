"""Separate servers for prompts and for answers: where they stand, the router before them, and their scripts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flopwise.exports.command import Command
from flopwise.exports.deployment import DECODE, PREFILL, Deployment
from flopwise.exports.emit import command_text, comment_text, script_text
from flopwise.exports.exported import Files
from flopwise.exports.replica import caches_prefixes, start_ends_s
from flopwise.exports.server import script_lines
from flopwise.exports.spec import PLACEHOLDERS

ROUTER = "router"
ROUTER_METRICS_PORT = 29000
"""Where both routers show their metrics."""
PURPOSES = {PREFILL: "reads prompts", DECODE: "writes answers"}


class Place(NamedTuple):
    """The place of a server of a pool: its first machine and its slot there, both from 0."""

    pool: str
    machine: int
    slot: int


def places(deployment: Deployment) -> list[Place]:
    """The places of the servers of a service: those that answer first, each machine filled before the next.

    A slot counts servers of its own pool, so that slot, devices and ports follow from one number; as servers for
    prompts are no larger than the others and come after them, no two on a machine share a port.
    """
    inside, found = deployment.gpus_per_node, list[Place]()
    machine = device = 0  # the first that is free
    for servers in reversed(deployment.pools):
        each = min(servers.gpus_per_replica, inside)
        for _ in range(servers.replicas):
            slot = -(-device // each)
            if (slot + 1) * each > inside:  # what is left of this machine is too small
                machine, slot = machine + 1, 0
            found.append(Place(servers.pool, machine, slot))
            machine, device = machine + servers.nodes_per_replica - 1, (slot + 1) * each
    return found


def machines_needed(deployment: Deployment) -> int:
    """Number of machines of `places`."""
    nodes = {servers.pool: servers.nodes_per_replica for servers in deployment.pools}
    return max(place.machine + nodes[place.pool] for place in places(deployment))


def pool_refusals(deployment: Deployment, of_server: Callable[[Deployment], Iterator[str]]) -> Iterator[str]:
    """Reasons why the pools of a plan cannot be started: those `of_server`, and too few machines."""
    reasons = dict.fromkeys(reason for servers in deployment.pools for reason in of_server(servers))
    yield from reasons
    if not reasons and (needed := machines_needed(deployment)) > deployment.num_nodes:
        yield (
            f"whole servers of both pools take {needed} machines of {deployment.gpus_per_node} devices, and the plan "
            f"has {deployment.num_nodes}: take another candidate (--rank)"
        )


def addresses(deployment: Deployment, pool: str, port: int) -> list[str]:
    """host:port of the servers of a pool, by `places`; hosts are those of the settings, or placeholders."""
    given = deployment.settings.machines
    named = None if given is None else [one.strip() for one in given.split(",")]
    hosts = named or [f"{PLACEHOLDERS['machines']}-{number}" for number in range(1, deployment.num_nodes + 1)]
    mine = (place for place in places(deployment) if place.pool == pool)
    return [f"{hosts[place.machine]}:{port + place.slot}" for place in mine if place.machine < len(hosts)]


def router_command(
    deployment: Deployment, program: Sequence[str], image: str, port: int, *, bootstrap_port: int | None = None
) -> Command:
    """A router without the addresses of its servers; it takes the port that a single server would have.

    Prompts with a common prefix go where it is cached, others to each server in turn; answers to the less loaded of
    two. It waits for its servers for as long as the slowest start.
    """
    prefill, decode = deployment.pools
    wait_s = math.ceil(max(start_ends_s(servers)[1] for servers in (prefill, decode)))
    args = [
        "--prefill-policy", "cache_aware" if caches_prefixes(deployment) and prefill.replicas > 1 else "round_robin",
        "--decode-policy", "power_of_two" if decode.replicas > 1 else "round_robin",
        "--worker-startup-timeout-secs", str(wait_s), "--prometheus-host", "0.0.0.0",  # noqa: S104 - a container's own
        "--prometheus-port", str(ROUTER_METRICS_PORT), "--host", "0.0.0.0", "--port", str(port),  # noqa: S104 - as above
    ]  # fmt: skip
    return Command(
        args=(*program, *args), image=image, port=port, health_path="/liveness", metrics_path="/metrics",
        metrics_port=ROUTER_METRICS_PORT, bootstrap_port=bootstrap_port,
    )  # fmt: skip


def pool_files(deployment: Deployment, command: Callable[[Deployment], Command], router: Command) -> Files:
    """`serve-prefill.sh` and `serve-decode.sh` for a server of each pool, and `route.sh`."""
    files, apply, notes = dict[str, str](), list[str](), list[str]()
    for servers in deployment.pools:
        made, name = command(servers), f"serve-{servers.pool}.sh"
        about = f"One of the {servers.replicas:,} servers of {deployment.title} that {PURPOSES[servers.pool]}."
        files |= {name: script_text(comment_text(about), *script_lines(servers, made)), **made.files}
        variables = list(_variables(servers, made))
        each = f"each of {servers.replicas:,}"
        if servers.nodes_per_replica > 1:
            each += f", on each of its {servers.nodes_per_replica} machines with its rank"
        apply.append(f"{''.join(f'{one} ' for one in variables)}bash {name}  # {each}")
        notes += made.assumptions
    files["route.sh"] = _route(deployment, router)
    return Files(files=files, apply=(*apply, "bash route.sh"), assumptions=(*notes, *pool_notes(deployment, router)))


def pool_notes(deployment: Deployment, router: Command) -> Iterator[str]:
    """Assumptions of both pools on machines and images."""
    prefill, decode = deployment.pools
    yield (
        f"{prefill.replicas:,} servers read prompts and send their caches to {decode.replicas:,} that write answers: "
        "images of both have NIXL, and their machines reach one another on all ports"
    )
    yield f"clients ask the router alone ({router.image}); on a machine with a server it needs another PORT"


def _variables(servers: Deployment, command: Command) -> Iterator[str]:
    """Variables that a server of a pool is started with."""
    if servers.nodes_per_replica > 1:
        yield "NODE_RANK=0 MASTER_ADDR=machine-0"
    elif servers.gpus_per_node > servers.gpus_per_replica:
        yield "SLOT=0"
    if command.address_env:
        yield "ADDRESS=machine-0"


def _route(deployment: Deployment, router: Command) -> str:
    """The script of the router, with the addresses of the servers."""
    assert router.port is not None
    prefill = [f"http://{address}" for address in addresses(deployment, PREFILL, router.port)]
    if router.bootstrap_port is not None:
        bootstraps = addresses(deployment, PREFILL, router.bootstrap_port)
        prefill = [f"{one} {at.rpartition(':')[2]}" for one, at in zip(prefill, bootstraps, strict=True)]
    decode = [f"http://{address}" for address in addresses(deployment, DECODE, router.port)]
    servers = [f"  --prefill {_words(one)}" for one in prefill] + [f"  --decode {_words(one)}" for one in decode]
    about = comment_text(f"The router of {deployment.title}: it sends prompts to one pool and answers to the other.")
    counted = comment_text("Servers in their order: those that answer fill machines first, slot by slot.")
    listens = f"--port {router.port}"
    start = command_text(router.args).replace(listens, f'--port "${{PORT:-{router.port}}}"')
    return script_text(about, "\n".join([counted, "servers=(", *servers, ")"]), f'exec {start} "${{servers[@]}}"')


def _words(text: str) -> str:
    return " ".join(map(shlex.quote, text.split()))
