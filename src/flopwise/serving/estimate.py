"""One deployment of a model, estimated: latencies, throughput, memory, what bounds it and what tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.energy import device_watts, facility_joules
from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.cost.money import usd_per_million_tokens
from flopwise.errors import SpecError
from flopwise.facts.architecture import Experts, Model
from flopwise.facts.formats import cache_elem_bytes
from flopwise.facts.software import engine
from flopwise.serving.iteration import Runner, StepTime, whole_prompts
from flopwise.serving.memory import ServingLayout, ServingMemory, generates, serving_memory
from flopwise.serving.precision import compute_path
from flopwise.serving.steady import Steady, closed_loop, fixed_batch, open_loop

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster

FULL_LOAD = 10**9
"""More requests than any engine runs at once: what memory allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeJob:
    """What is estimated: one replica's layout, its load, and how it is served. `concurrency` None: as many as fit."""

    model: Model
    cluster: Cluster
    layout: ServingLayout = field(default_factory=ServingLayout)
    weights: str = "bf16"
    kv_dtype: str = "bf16"
    engine: str = "vllm"
    input_tokens: int = 1024
    output_tokens: int = 256
    concurrency: int | None = None
    arrivals_per_s: float | None = None  # requests that arrive at random, instead of a fixed number in flight
    static: bool = False  # a fixed batch: all prompts first, then all answers
    memory_frac: float | None = None
    max_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranged:
    """A figure with its 10-90 % interval."""

    value: float
    low: float
    high: float
    band: ErrorBand  # the measured errors that the interval is from


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeEstimate:
    """What one replica delivers. Seconds, tokens per second; tokens of all its GPUs unless said otherwise."""

    job: ServeJob
    ttft_s: Ranged
    tpot_s: Ranged | None  # None for models that do not generate
    e2e_s: float
    requests_per_s: float
    output_tokens_per_s: Ranged
    total_tokens_per_s: float
    concurrency: float
    max_concurrency: int
    kv_capacity_tokens: int
    memory: ServingMemory
    bound: str
    breakdown: tuple[tuple[str, float], ...]  # of one step with its average share of prefill
    lower_bound_s: float  # of that step
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_input_tokens: float | None
    joules_per_output_token: float | None
    assumptions: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of the replica."""
        return int(self.job.layout.num_gpus)


def check(job: ServeJob) -> None:
    """Refuse what cannot be.

    Raises:
        SpecError: says which value and what is allowed.
    """
    model, layout = job.model, job.layout
    if not model.stacks:
        raise SpecError(
            f"{model.name} has no layers in the catalog (published figures only); use `flopwise roofline` for it"
        )
    if int(layout.pp) > model.stacks[0].num_layers:
        raise SpecError(f"pp {layout.pp} is more than the {model.stacks[0].num_layers} layers of {model.name}")
    longest = job.input_tokens + job.output_tokens
    if model.max_position and longest > model.max_position and generates(model):
        raise SpecError(
            f"input {job.input_tokens} + output {job.output_tokens} tokens exceed the context of {model.name} "
            f"({model.max_position}); shorten them"
        )
    if int(layout.tp) * int(layout.dp) % int(layout.ep):
        raise SpecError(
            f"ep {layout.ep} does not divide tp x dp = {int(layout.tp) * int(layout.dp)}, the ranks of the experts"
        )


def runner(job: ServeJob) -> Runner:
    """The job's model, format, engine and device, ready to be asked for step times."""
    path = compute_path(job.model, job.weights, job.cluster.rates)
    return Runner(
        model=job.model,
        rates=job.cluster.rates,
        fabric=job.cluster.fabric,
        engine=engine(job.engine),
        dtype=path.dtype,
        weight_bits=path.weight_bits,
        kv_bytes=cache_elem_bytes(job.kv_dtype),
    )


def estimate(job: ServeJob) -> ServeEstimate:
    """Estimate one replica.

    Raises:
        SpecError: the layout cannot be, or weights and one sequence do not fit the memory.
        MissingFactError: the device lacks a rate that the format needs.
    """
    check(job)
    context = job.input_tokens + job.output_tokens
    asked = None if job.concurrency is None else -(-job.concurrency // int(job.layout.dp))
    memory = serving_memory(
        job.model,
        job.layout,
        concurrency=asked or FULL_LOAD,
        context=context,
        hbm_bytes=job.cluster.accelerator.hbm_bytes,
        weights=job.weights,
        kv_dtype=job.kv_dtype,
        engine_name=job.engine,
        memory_frac=job.memory_frac,
        max_batch=job.max_batch,
    )
    most = int(memory.max_concurrency)
    in_flight = float(min(asked or most, most)) if most else float(asked or 1)
    machine = runner(job)
    if not generates(job.model):
        return _encoded(job, machine, memory, max(in_flight, 1.0))
    waiting_s = 0.0
    if job.arrivals_per_s is not None:
        steady = open_loop(
            machine, job.layout, job.arrivals_per_s / int(job.layout.dp), in_flight, job.input_tokens, job.output_tokens
        )
    else:
        loop = fixed_batch if job.static else closed_loop
        steady = loop(machine, job.layout, max(in_flight, 1.0), job.input_tokens, job.output_tokens)
        if asked and most and asked > most:  # the rest queue for memory
            waiting_s = (asked - most) / float(np.asarray(steady.requests_per_s))
    return _generated(job, memory, steady, waiting_s)


LOCAL_ENGINES = frozenset({"llama.cpp", "mlx", "hf"})
"""Engines for one user on one machine; their errors are of their own kind."""


def serving_class(job: ServeJob, quantity: str, *, queued: bool = False) -> str:
    """The class of predictions whose measured errors a job's quantity (ttft, tpot, throughput) shares.

    `queued`: more requests than memory holds, so that time to the first token is mostly waiting.
    """
    name = quantity.split(".", maxsplit=1)[0]
    if job.engine in LOCAL_ENGINES:
        return f"serving.{name}.local"
    fixed = job.static or not generates(job.model)  # one pass over a batch, as an encoder answers
    if name == "ttft":
        return f"serving.ttft.{'batch' if fixed else 'queued' if queued else 'server'}"
    mixture = any(isinstance(i, Experts) for k in job.model.stacks[0].kinds for i in k.items)
    how = "batch" if fixed else "rate" if job.arrivals_per_s is not None else "server"
    return f"serving.{name}.{how}.{'moe' if mixture else 'dense'}"


def serving_band(job: ServeJob, quantity: str, *, queued: bool = False) -> ErrorBand:
    """The error band of one quantity, wider where the device's variant is a guess or its vendor has no measurements."""
    band = error_band(serving_class(job, quantity, queued=queued))
    if job.cluster.ambiguous:
        band = band.wider(1.5, "the device's variant is a guess")
    if job.cluster.accelerator.vendor != "NVIDIA":
        band = band.wider(1.5, "few measurements on this vendor's devices stand behind it")
    return band


def _ranged(job: ServeJob, quantity: str, value: float, *, queued: bool = False) -> Ranged:
    band = serving_band(job, quantity, queued=queued)
    low, high = band.interval(value)
    return Ranged(value=value, low=float(low), high=float(high), band=band)


def _number(value: object) -> float:
    return float(np.asarray(value).ravel()[0])


def _generated(job: ServeJob, memory: ServingMemory, steady: Steady, waiting_s: float) -> ServeEstimate:
    share = _number(steady.prefill_share)
    step = _mean_step(steady, share)
    ttft_s, tpot_s = _number(steady.ttft_s) + waiting_s, _number(steady.tpot_s)
    replicas = int(job.layout.dp)
    rate, tokens = _number(steady.requests_per_s) * replicas, _number(steady.output_tokens_per_s) * replicas
    return _assembled(
        job,
        memory,
        step,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=ttft_s + (job.output_tokens - 1) * tpot_s,
        requests_per_s=rate,
        output_tokens_per_s=tokens,
        concurrency=_number(steady.batch) * replicas,
    )


def _encoded(job: ServeJob, machine: Runner, memory: ServingMemory, batch: float) -> ServeEstimate:
    """A model that does not generate: one pass over a batch of inputs."""
    step = machine.step(whole_prompts(job.model, batch, job.input_tokens), job.layout)
    latency_s = machine.engine.request_s + _number(step.seconds)
    rate = batch / _number(step.seconds)
    return _assembled(
        job,
        memory,
        step,
        ttft_s=latency_s,
        tpot_s=None,
        e2e_s=latency_s,
        requests_per_s=rate,
        output_tokens_per_s=rate * job.input_tokens,
        concurrency=batch,
    )


def _mean_step(steady: Steady, share: float) -> StepTime:
    """The step between one without prefill and one with, by the share of steps that carry it."""
    return StepTime(
        *(_number(a) + share * (_number(b) - _number(a)) for a, b in zip(steady.decode, steady.mixed, strict=True))
    )


def _assembled(
    job: ServeJob,
    memory: ServingMemory,
    step: StepTime,
    *,
    ttft_s: float,
    tpot_s: float | None,
    e2e_s: float,
    requests_per_s: float,
    output_tokens_per_s: float,
    concurrency: float,
) -> ServeEstimate:
    lines = _lines(step)
    gpus = int(job.layout.num_gpus)
    hourly = None if job.cluster.usd_per_gpu_hour is None else job.cluster.usd_per_gpu_hour * gpus
    per_output = None if hourly is None else float(usd_per_million_tokens(hourly, output_tokens_per_s))
    input_rate = requests_per_s * job.input_tokens
    path = compute_path(job.model, job.weights, job.cluster.rates)
    queued = bool(job.concurrency and 0 < int(memory.max_concurrency) * int(job.layout.dp) < job.concurrency)
    return ServeEstimate(
        job=job,
        ttft_s=_ranged(job, "ttft", ttft_s, queued=queued),
        tpot_s=None if tpot_s is None else _ranged(job, "tpot", tpot_s),
        e2e_s=e2e_s,
        requests_per_s=requests_per_s,
        output_tokens_per_s=_ranged(job, "throughput", output_tokens_per_s),
        total_tokens_per_s=requests_per_s * (job.input_tokens + (job.output_tokens if tpot_s is not None else 0)),
        concurrency=concurrency,
        max_concurrency=int(memory.max_concurrency) * int(job.layout.dp),
        kv_capacity_tokens=int(memory.kv_capacity_tokens) * int(job.layout.dp),
        memory=memory,
        bound=max(lines, key=lambda line: line[1])[0],
        breakdown=lines,
        lower_bound_s=_number(step.floor_s),
        usd_per_hour=hourly,
        usd_per_million_output_tokens=per_output,
        usd_per_million_input_tokens=None if hourly is None else float(usd_per_million_tokens(hourly, input_rate)),
        joules_per_output_token=_joules(job, step, gpus, output_tokens_per_s),
        assumptions=tuple(
            dict.fromkeys(
                s for s in (*job.model.notes, *job.cluster.assumptions, *memory.assumptions, path.note or "") if s
            )
        ),
    )


def _lines(step: StepTime) -> tuple[tuple[str, float], ...]:
    return (
        ("compute", _number(step.compute_s)),
        ("memory bandwidth", _number(step.memory_s)),
        ("communication", _number(step.communication_s)),
        ("host", _number(step.overhead_s)),
    )


def _joules(job: ServeJob, step: StepTime, gpus: int, tokens_per_s: float) -> float | None:
    """Energy at the meter of one output token; None where the power limit is not known."""
    device = job.cluster.accelerator
    if device.tdp_w is None:
        return None
    whole = _number(step.seconds)
    compute, memory, wires = (seconds / whole for _, seconds in _lines(step)[:3])
    watts = device_watts(device.tdp_w, compute, memory, wires)
    return float(facility_joules(device, gpus, watts, 1.0)) / tokens_per_s
