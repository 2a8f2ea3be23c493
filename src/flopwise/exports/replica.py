"""Settings of a replica for any server: weights, longest request, memory, draft."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from flopwise.errors import SpecError
from flopwise.exports.deployment import Deployment
from flopwise.exports.spec import PLACEHOLDERS
from flopwise.facts.software import platform
from flopwise.serving.job import ServeJob
from flopwise.serving.sessions import SessionTraffic
from flopwise.serving.spec import BLOCK_DRAFTS, NGRAM_DRAFTS, SHORTEST
from flopwise.units import GIB
from flopwise.values import dataclass, replace

PLAIN = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""PyTorch's names of formats without scales, which can be loaded from one another."""
DRAWS, MOST_TURNS = 10_000, 1_000_000
"""Number of lengths drawn from an unbounded distribution, or of sessions, and of their turns at most: the longest is
the server's limit."""
SLOWEST = "hdd"
"""The slowest storage that weights are expected to come from: the upper end of the start time."""
TEMPLATE_TOKENS = 64
"""Tokens that chat templates and special tokens add to the longest request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """The source of weights: a hub id, a path or a placeholder; and options that quantise them while loading."""

    id: str
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def weights_source(deployment: Deployment, online: Mapping[str, tuple[str, ...]]) -> WeightsSource:
    """The weights of a deployment; `online`: options by format into which the server quantises 16-bit weights."""
    job, model, given = deployment.serve_job, deployment.model, deployment.settings.model_path
    form, published = job.weights.name, model.checkpoint_format or "bf16"
    if given is not None:
        note = f"the weights at {given} are assumed to be in {form}, as planned"
        return WeightsSource(id=given, notes=() if form in PLAIN else (note,))
    if model.hf_id is None:
        return WeightsSource(id=deployment.model_id)
    if form == published or (form in PLAIN and published in PLAIN):
        return WeightsSource(id=model.hf_id)
    if form in online and published in PLAIN:
        note = (
            f"{model.hf_id} is published in {published}; the server converts it to {form} while loading. With a "
            f"checkpoint in {form} (--model-path) it reads less and starts sooner"
        )
        return WeightsSource(id=model.hf_id, options=online[form], notes=(note,))
    note = (
        f"the plan has weights in {form}; {model.hf_id} is published in {published}, and the server does not convert "
        f"it: --model-path must name a checkpoint of {model.name} in {form} ({job.weights.meaning or 'see its docs'})"
    )
    return WeightsSource(id=PLACEHOLDERS["model_path"], notes=(note,))


def from_hub(source: str) -> dict[str, str]:
    """The variable of the hub's token with the setting of its secret, if weights come from the hub."""
    local = source.startswith(("/", ".")) or "://" in source or source == PLACEHOLDERS["model_path"]
    return {} if local else {"HF_TOKEN": "weights_secret"}


def longest_request(deployment: Deployment) -> tuple[int, int] | None:
    """Tokens of the longest prompt and of the longest answer; None if their trace can no longer be read."""
    workload = deployment.workload
    if workload.trace is not None:
        from flopwise.serving.sim.trace import read_trace_columns  # noqa: PLC0415 - few workloads have one

        try:
            columns = read_trace_columns(Path(workload.trace))
        except SpecError:
            return None
        return int(columns["prompt_tokens"].max()), int(columns["output_tokens"].max())
    if workload.sessions is not None:
        return _longest_turn(workload.sessions)
    varies = deployment.task == "serve"  # as the plan's requests are simulated: around what is given as one number
    prompt, answer = (
        math.ceil((2.0 - SHORTEST) * tokens) if varies else tokens
        for tokens in (workload.input_tokens, workload.output_tokens)
    )
    return _longest(workload.inputs, prompt), _longest(workload.outputs, answer)


def _longest_turn(sessions: SessionTraffic) -> tuple[int, int]:
    """The longest prompt of a session, its last, which has all turns before it; and the longest answer."""
    from flopwise.serving.sim.lengths import Lengths  # noqa: PLC0415 - few workloads draw

    rng, parts = np.random.default_rng(0), (sessions.turns, sessions.input_tokens, sessions.output_tokens)
    turns, prompts, answers = (Lengths.parse(str(part)) for part in parts)
    counts = turns.draw(max(1, min(DRAWS, int(MOST_TURNS / sessions.mean_turns))), rng)
    ends = np.cumsum(counts)
    made = answers.draw(int(ends[-1]), rng)
    each = prompts.draw(int(ends[-1]), rng) + made
    histories = np.add.reduceat(each, ends - counts) - made[ends - 1]
    return int(histories.max()), _longest(str(sessions.output_tokens), int(made.max()))


def _longest(lengths: str | None, alike: int) -> int:
    """The maximum of a distribution, or the longest of `DRAWS`."""
    if lengths is None:
        return alike
    from flopwise.serving.sim.lengths import Lengths  # noqa: PLC0415 - few workloads draw

    drawn = Lengths.parse(lengths)
    if drawn.most is not None:
        return round(drawn.most)
    return int(drawn.draw(DRAWS, np.random.default_rng(0)).max())


def context_limit(deployment: Deployment) -> tuple[int | None, tuple[str, ...]]:
    """Maximum tokens of a sequence, with notes; None: the model's own limit."""
    longest, own = longest_request(deployment), deployment.model.max_position
    if longest is None:
        lost = f"{deployment.workload.trace} cannot be read, so sequences may be as long as the model allows"
        return None, (lost,)
    tokens = longest[0] + (0 if deployment.task == "encode" else longest[1]) + TEMPLATE_TOKENS
    if own is not None and tokens >= own:
        return None, ()
    workload, sessions = deployment.workload, deployment.workload.sessions
    own_lengths = () if sessions is None else (sessions.turns, sessions.input_tokens, sessions.output_tokens)
    drawn = map(str, (workload.inputs, workload.outputs, *own_lengths))
    unbounded = workload.trace is None and any(lengths.startswith("lognormal") for lengths in drawn)
    what = f"the longest of {DRAWS:,} drawn" if unbounded else "the longest"
    why = f"{what} of the workload plus {TEMPLATE_TOKENS} for the template"
    job = deployment.serve_job
    prompts = deployment.candidate.layout["max_batch"] * job.input_tokens  # for which the plan's cache has room
    if deployment.task != "encode" and tokens > prompts:
        most = max(cache_room(deployment).tokens, job.context + TEMPLATE_TOKENS)  # a server without room does not start
        if tokens > most:
            tokens, why = most, f"as many as the cache holds, fewer than {why}, {tokens:,}"
    return tokens, (f"requests are limited to {tokens:,} tokens: {why}",)


def memory_frac(deployment: Deployment) -> float:
    """Share of the device's memory for the server: from the workload, else the engine's default."""
    return deployment.workload.limits.memory_fraction or deployment.serve_job.engine.memory_frac


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """Memory for the KV cache in the plan: bytes per device, tokens of all sequences."""

    bytes: int
    tokens: int


def cache_room(deployment: Deployment) -> CacheRoom:
    """The cache of one attention replica."""
    from flopwise.serving.estimate import job_memory  # noqa: PLC0415 - few servers need the size of their cache

    memory = job_memory(deployment.serve_job)
    return CacheRoom(bytes=int(memory.kv_budget_bytes), tokens=int(memory.kv_capacity_tokens))


def offloaded_gib(deployment: Deployment) -> float:
    """GiB of weights per device in host memory."""
    job = deployment.serve_job
    if job.techniques.offload is None:
        return 0.0
    from flopwise.serving.techniques import offloaded_bytes  # noqa: PLC0415 - few plans offload

    return round(float(offloaded_bytes(job)) / GIB, 2)


def caches_prefixes(deployment: Deployment) -> bool:
    """True if the plan assumes prompts with common prefixes."""
    techniques = deployment.serve_job.techniques
    return bool(techniques.shared_tokens or techniques.hit_frac)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSource:
    """Speculation of a replica: ngram, suffix, eagle, eagle3, mtp or model; and the source of the draft's weights."""

    kind: str
    tokens: int
    id: str = ""


def draft_source(deployment: Deployment) -> DraftSource | None:
    """The draft of a deployment, or None."""
    job, settings = deployment.serve_job, deployment.settings
    if (how := job.techniques.speculation) is None:
        return None
    name = (deployment.workload.techniques.draft or how.name).lower()
    if name in NGRAM_DRAFTS or name == "n-grams":
        return DraftSource(kind="suffix" if name == "suffix" else "ngram", tokens=how.tokens)
    if name in {"mtp", "nextn"}:
        return DraftSource(kind="mtp", tokens=how.tokens)
    if name in BLOCK_DRAFTS:
        place = settings.draft_path or PLACEHOLDERS["draft_path"]
        return DraftSource(kind="eagle" if name == "eagle" else "eagle3", tokens=how.tokens, id=place)
    place = settings.draft_path or (how.draft.hf_id if how.draft is not None else None) or PLACEHOLDERS["draft_path"]
    return DraftSource(kind="model", tokens=how.tokens, id=place)


def image(deployment: Deployment) -> str:
    """The container image: from the settings, else the engine's own for the device, if known."""
    engine = deployment.serve_job.engine
    own = {
        "nvidia": engine.nvidia_image, "amd": engine.amd_image, "intel": engine.intel_image,
        "gaudi": engine.gaudi_image, "cpu": engine.cpu_image,
    }.get(platform(deployment.accelerator) or "", "")  # fmt: skip
    return deployment.settings.image or own or PLACEHOLDERS["image"]


QUEUES = {"vllm": ("fcfs", "priority"), "sglang": ("fcfs", "priority")}
"""Orders of waiting requests that a server can be started with, where there is a choice.

Source: vLLM, --scheduling-policy; SGLang, --enable-priority-scheduling.
"""
POOLED = ("vllm", "sglang")
"""Engines that are exported with separate servers for prompts."""
POOLED_TARGETS = ("vllm", "sglang", "kubernetes", "leaderworkerset")
"""Targets that write both pools and their router."""
SERVE_ADAPTERS = ("vllm", "sglang")
"""Engines whose exported commands serve low-rank adapters on one base model."""


def _queue_refusals(job: ServeJob) -> Iterator[str]:
    """Reasons why a server does not order or preempt requests as the plan does."""
    engine, orders = job.engine.name, QUEUES.get(job.engine.name, ("fcfs",))
    if job.policy not in orders:
        yield f"{engine} orders its queue by {' or '.join(orders)}, not by {job.policy}: plan with another --policy"
    if job.preempt != "recompute":
        yield f"{engine} computes preempted sequences again: plan without --preempt {job.preempt}"


def request_notes(job: ServeJob, adapter_option: str) -> tuple[str, ...]:
    """Notes on what requests state: the class of a queue with an order of its own, and the adapter.

    `adapter_option`: the server's, which names the files of adapters.
    """
    notes = []
    if job.policy == "priority":
        notes.append(
            "each request states its class in the field `priority` of its body; those without one are of class 0"
        )
    if count := job.techniques.adapters:
        notes.append(
            f"the server has room for {count:,} adapters and loads none: add {adapter_option} NAME=PATH of each"
        )
    return tuple(notes)


def one_kind_refusals(deployment: Deployment) -> Iterator[str]:
    """The reason why one kind of server cannot run a plan with separate servers for prompts."""
    if len(deployment.pools) > 1:
        yield (
            "separate prefill GPUs (--prefill-gpus) take two pools of servers and a router, and this target has one "
            f"kind of server: export {', '.join(POOLED_TARGETS)}, or plan without them"
        )


def engine_refusals(deployment: Deployment, engine: str) -> Iterator[str]:
    """Reasons why an engine's server cannot run a plan, whatever its layout."""
    job = deployment.serve_job
    if job.engine.name != engine:
        yield f"the plan is for {job.engine.name}; plan again with --engine {engine}"
        return
    sessions = deployment.workload.sessions
    if sessions is not None and sessions.kv_stores is not None:
        yield "stores below the KV cache (traffic.kv_stores) are not exported: plan without them"
    yield from _queue_refusals(job)
    if job.techniques.kept_frac < 1.0:
        yield "servers do not evict parts of a KV cache: plan without --kv-keep"
    if job.techniques.adapters and engine not in SERVE_ADAPTERS:
        yield f"adapters are not exported for {engine}: plan again with --engine {' or '.join(SERVE_ADAPTERS)}"
    yield from one_kind_refusals(deployment)
    if deployment.pool and engine not in POOLED:
        yield f"{engine} with separate prefill GPUs is not exported: plan again with --engine {' or '.join(POOLED)}"
    if deployment.pool and deployment.accelerator.kind != "gpu":
        yield f"pools of GPUs alone send caches, not of {deployment.accelerator.name}: plan without --prefill-gpus"
    if deployment.task == "batch" and deployment.nodes_per_replica > 1:
        yield (
            f"a replica takes {deployment.nodes_per_replica} machines, and the batch runner works on one machine: "
            "plan with larger machines, smaller formats (--weights), or as a service"
        )


def start_ends_s(deployment: Deployment) -> tuple[float, float]:
    """Time from a container's start to its first answer, in seconds: weights from a local drive or the slowest storage.

    Source: `flopwise.serving.startup.cold_start`, data/storage.csv. Assumes: the image is on the machine.
    """
    from flopwise.serving.startup import DEFAULT_STORAGE, cold_start  # noqa: PLC0415 - scripts need it not

    job, facts, network = deployment.serve_job, deployment.facts, deployment.offer.network_bytes_per_s
    slow = facts.storage(SLOWEST)
    slow = replace(slow, read_bytes_per_s=min(slow.read_bytes_per_s, network or math.inf))
    fast, late = cold_start(job, facts.storage(DEFAULT_STORAGE)).seconds, cold_start(job, slow).seconds
    return min(fast, late), max(fast, late)
