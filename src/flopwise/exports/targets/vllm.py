"""vLLM: its server, or its batch runner, with the layout, the formats and the limits of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from flopwise.exports.command import Command
from flopwise.exports.deployment import DECODE, PREFILL, Deployment
from flopwise.exports.pools import pool_refusals, router_command
from flopwise.exports.replica import (
    PLAIN,
    WeightsSource,
    cache_room,
    caches_prefixes,
    context_limit,
    draft_source,
    engine_refusals,
    from_hub,
    image,
    memory_frac,
    offloaded_gib,
    request_notes,
    weights_source,
)
from flopwise.exports.server import BATCH_SHARE, IDLE_S, batch_places, on_each_machine
from flopwise.facts.software import BARE_KINDS
from flopwise.serving.job import ServeJob

PORT = 8000
RPC_PORT = 13345
"""Of the engines of data-parallel attention that stand on other machines."""
ONLINE = {
    "fp8": ("--quantization", "fp8_per_channel"),
    "fp8-tensor": ("--quantization", "fp8_per_tensor"),
    "fp8-block": ("--quantization", "fp8_per_block"),
    "mxfp8": ("--quantization", "mxfp8"),
    "mxfp4": ("--quantization", "mxfp4"),
    "nf4": ("--quantization", "bitsandbytes"),
    "nf4-dq": ("--quantization", "bitsandbytes"),
}
"""What it makes of 16-bit weights while it loads them."""
PLUGINS = {"nf4": "vllm-bnb-plugin", "nf4-dq": "vllm-bnb-plugin", "llm-int8": "vllm-bnb-plugin"}
"""Packages beside vLLM that formats need; of GGUF files `vllm-gguf-plugin`."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM 0.32.0 has places for (--max-lora-rank)."""
CACHE = {"fp8": "fp8", "int8": "int8_per_token_head", "int4": "int4_per_token_head", "nvfp4": "nvfp4"}


CONNECTOR = "NixlConnector"
"""What moves caches from servers for prompts to those that answer.

Source: vLLM, docs/features/nixl_connector_usage.md and nixl_connector_compatibility.md; vllm/v1 and
vllm/distributed/kv_transfer/kv_connector/v1/nixl of vLLM 0.32.0.
"""
ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer"}
SIDE_PORT = 5600
"""Of the connector's handshake; each attention replica takes one."""
SENT_CACHES = (*PLAIN, "fp8")
"""Caches that the connector moves: others have scales of each token, which stay behind."""
ROUTER_IMAGE = "vllm/vllm-router:v0.1.17"


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why vLLM cannot run the plan."""
    if len(deployment.pools) > 1:
        yield from pool_refusals(deployment, refusals)
        return
    yield from engine_refusals(deployment, "vllm")
    job = deployment.serve_job
    tp, dp, ep = int(job.layout.tp), int(job.layout.dp), int(job.layout.ep)
    if ep not in {1, tp * dp}:
        yield (
            f"experts are spread over {ep} of {tp * dp} devices; vLLM spreads them over all devices, or splits each "
            "over all: plan with --engine sglang, or take another candidate (--rank)"
        )
    if job.techniques.adapters and job.techniques.adapter_rank > LORA_RANKS[-1]:
        yield f"vLLM serves adapters up to rank {LORA_RANKS[-1]}: plan with a lower --adapter-rank, or --engine sglang"
    if job.kv_dtype.name not in {*PLAIN, *CACHE}:
        yield f"vLLM has no cache in {job.kv_dtype.name}: plan with --kv-dtype {', '.join(('bf16', *CACHE))}"
    if deployment.pool and job.kv_dtype.name not in SENT_CACHES:
        yield f"{CONNECTOR} does not send caches in {job.kv_dtype.name}: plan with --kv-dtype bf16 or fp8"
    if deployment.pool and int(job.layout.pp) > 1:
        yield f"{CONNECTOR} sends no caches to pipelines (pp {int(job.layout.pp)}): take another candidate (--rank)"


def command(deployment: Deployment) -> Command:
    """The server of one replica, or the runner of its share of a batch."""
    job = deployment.serve_job
    source = weights_source(deployment, ONLINE)
    limit, notes = context_limit(deployment)
    args = [*_parallel(job), *_formats(job, source), *_limits(deployment, limit), *_techniques(deployment)]
    batch = deployment.task == "batch"
    start = ["vllm", "run-batch", "--model"] if batch else ["vllm", "serve"]
    listening = ["--enable-metrics"] * batch + ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - a container's
    args = [*start, source.id, *args, *listening]
    made = Command(
        args=(*BATCH_SHARE, *args) if batch else tuple(args),
        env=batch_places(deployment) if batch else {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": IDLE_S},
        secret_env=from_hub(source.id), image=image(deployment), port=PORT,
        health_path="" if batch else "/health", metrics_path="/metrics",
        assumptions=(*source.notes, *notes, *_plugin_notes(job), *request_notes(job, "--lora-modules")),
        **_connection(deployment),
    )  # fmt: skip
    return on_each_machine(made, deployment.nodes_per_replica, _machines(deployment))


def _connection(deployment: Deployment) -> dict[str, Any]:
    """Fields of a command whose server exchanges caches with another pool."""
    if not deployment.pool:
        return {}
    dp = int(deployment.candidate.layout["dp"])
    return {
        "address_env": "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "port_env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": (SIDE_PORT, dp)},
    }


def router(deployment: Deployment) -> Command:
    """The router of a plan with separate servers for prompts, without their addresses.

    Source: vllm-project/router, docs/cli_reference.md and docs/model-routing/pd-disaggregation.md (0.1.17).
    """
    return router_command(deployment, ("vllm-router", "--vllm-pd-disaggregation"), ROUTER_IMAGE, PORT)


def _parallel(job: ServeJob) -> list[str]:
    """Options of the layout. `max_batch` is of one attention replica, as --max-num-seqs is."""
    layout = job.layout
    args = ["--tensor-parallel-size", str(layout.tp)]
    for degree, option in ((layout.pp, "--pipeline-parallel-size"), (layout.dp, "--data-parallel-size")):
        args += [option, str(degree)] if degree > 1 else []
    return [*args, "--enable-expert-parallel"] if layout.ep > 1 else args


def _formats(job: ServeJob, source: WeightsSource) -> list[str]:
    """Options of the formats of weights and cache; 16-bit caches follow 16-bit weights by themselves."""
    plain = PLAIN.get(job.weights.name)
    args = ["--dtype", plain] if plain else []
    cache = CACHE.get(job.kv_dtype.name) or (None if plain else PLAIN[job.kv_dtype.name])
    return [*args, *source.options, *(["--kv-cache-dtype", cache] if cache else [])]


def _limits(deployment: Deployment, limit: int | None) -> list[str]:
    """Sequences, tokens of a step, tokens of a sequence, memory."""
    job, most = deployment.serve_job, deployment.candidate.layout["max_batch"]
    step = job.software.prefill_tokens
    if deployment.task == "encode":  # inputs are read whole, as many at once as the plan has
        step = max(step, most * job.context, limit or deployment.model.max_position or 0)
    args = ["--max-num-seqs", str(most), "--max-num-batched-tokens", str(max(step, most))]
    args += [] if limit is None else ["--max-model-len", str(limit)]
    if deployment.accelerator.kind in BARE_KINDS:
        args += ["--kv-cache-memory-bytes", str(cache_room(deployment).bytes), "--enforce-eager"]
    else:
        args += ["--gpu-memory-utilization", f"{memory_frac(deployment):g}"]
    return [*args, "--scheduling-policy", job.policy]


def _techniques(deployment: Deployment) -> list[str]:
    """Prefix cache, draft, weights in the host's memory, and what an encoder is."""
    args = ["--enable-prefix-caching" if caches_prefixes(deployment) else "--no-enable-prefix-caching"]
    if (how := draft_source(deployment)) is not None:
        method = {"model": "draft_model"}.get(how.kind, how.kind)
        config: dict[str, Any] = {"method": method, "num_speculative_tokens": how.tokens}
        config |= {"model": how.id} if how.id else {}
        args += ["--speculative-config", json.dumps(config)]
    if away := offloaded_gib(deployment):
        args += ["--cpu-offload-gb", f"{away:g}"]
    techniques = deployment.serve_job.techniques
    if techniques.adapters:
        rank = next(rank for rank in LORA_RANKS if rank >= techniques.adapter_rank)
        args += ["--enable-lora", "--max-loras", str(techniques.adapters), "--max-lora-rank", str(rank)]
    if deployment.pool:
        config = {"kv_connector": CONNECTOR, "kv_role": ROLES[deployment.pool]}
        args += ["--kv-transfer-config", json.dumps(config)]
    if deployment.task == "encode":
        args += ["--runner", "pooling"]
        args += ["--convert", "embed"] if deployment.model.kind == "decoder" else []
    return args


def _machines(deployment: Deployment) -> str:
    """Further options of the command on each of a replica's machines."""
    job, nodes = deployment.serve_job, deployment.nodes_per_replica
    local = int(job.layout.dp) // nodes
    workers = '$([ "$NODE_RANK" = 0 ] || echo --headless)'
    if int(job.layout.dp) % nodes == 0:
        return (
            f'--data-parallel-size-local {local} --data-parallel-start-rank "$((NODE_RANK * {local}))" '
            f'--data-parallel-address "$MASTER_ADDR" --data-parallel-rpc-port {RPC_PORT} {workers}'
        )
    return f'--nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" {workers}'


def _plugin_notes(job: ServeJob) -> tuple[str, ...]:
    """The package that the weights' format needs beside vLLM."""
    package = "vllm-gguf-plugin" if job.weights.kind == "gguf" else PLUGINS.get(job.weights.name)
    return () if package is None else (f"weights in {job.weights.name} need the package {package} in the image",)


OF_A_SERVER = {"--host", "--port", "--enable-metrics", "--model"}
"""Options of vLLM's programs that its engine does not have."""


def engine_options(args: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(weights, engine arguments) from the words of vLLM's command, whose options have the same names."""
    words, options, model = list(args[args.index("vllm") + 2 :]), dict[str, Any](), ""
    while words:
        word = words.pop(0)
        value = words.pop(0) if word.startswith("--") and words and not words[0].startswith("--") else None
        if not word.startswith("--") or word == "--model":
            model = value or word
        elif word not in OF_A_SERVER:
            off = value is None and word.startswith("--no-")
            name = word.removeprefix("--no-" if off else "--").replace("-", "_")
            options[name] = not off if value is None else _plain(value)
    return model, options


def _plain(text: str) -> Any:
    """A number or an object if the text is one, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
