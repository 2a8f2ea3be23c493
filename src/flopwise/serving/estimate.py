"""One deployment of a model, estimated: latencies, throughput, memory, what bounds it and what tokens cost."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flopwise.cost.energy import device_watts, facility_joules
from flopwise.cost.intervals import OTHER_SOFTWARE
from flopwise.cost.money import usd_per_million_tokens
from flopwise.errors import SpecError
from flopwise.facts.accelerators import SHARED_KINDS
from flopwise.facts.architecture import Model
from flopwise.facts.models.positions import check_length
from flopwise.ops.degrees import check_expert_parallel, check_expert_ranks, check_pipeline, check_tensor_parallel
from flopwise.ops.types import Array
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.disaggregated import disaggregated_steady, pools
from flopwise.serving.iteration import (
    Runner,
    StepLoad,
    StepTime,
    decodes_in_blocks,
    prompt,
    shares_calls,
    whole_prompts,
)
from flopwise.serving.job import Offload, Ranged, ServeEstimate, ServeJob, in_its_class, latency_band, serving_band
from flopwise.serving.memory import (
    ServingLayout,
    ServingMemory,
    default_batch,
    generates,
    rank_budget,
    serving_memory,
)
from flopwise.serving.open_loop import SteadyCurves, batch_sizes
from flopwise.serving.precision import conversion_note, product_path
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT, RequestSpec, mean_tokens
from flopwise.serving.steady import Steady, fixed_batch, least_prompt_s
from flopwise.serving.technique_rules import check_techniques, technique_assumptions
from flopwise.serving.techniques import host_rates, memory_changes, per_token, request_work, runner, tokens_a_round
from flopwise.serving.waiting_batches import WaitingBatches, one_pass_latency_s
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.formats import CacheFormat
    from flopwise.facts.software import Engine

START_TOKENS = 4
"""Tokens that start a transcript: language, task, timestamps (Whisper)."""
FREE_BYTES = 2**30
"""What llama.cpp leaves free of a device that cannot take all layers (--fit-target, 1,024 MiB)."""
SHORT_ANSWER = 100
"""Tokens below which an answer takes so few steps that no mean says how many prompts of others it meets: with 8 users
the closed form is up to 11 % off the simulator at 64 tokens, 46 % at 16 (benchmarks/serve_and_simulate.py)."""
CAPACITIES = 5
"""Sizes of a cache between its ends, over which the time of a run in waves is averaged."""


def check(job: ServeJob) -> None:
    """Refuse what cannot be.

    Raises: SpecError: says which value and what is allowed.
    """
    model = job.model
    if not model.stacks:
        raise SpecError(
            f"{model.name} has no layers in the catalog (published figures only); use `flopwise roofline` for it"
        )
    check_layout(model, job.layout, job.techniques.redundant_experts)
    if job.decodes and not job.engine.answers:
        raise SpecError(f"{job.engine.name} does not generate text: give --encode, or another engine")
    check_request(model, job.input_tokens, job.output_tokens)
    check_techniques(job)


def check_layout(model: Model, layout: ServingLayout, redundant_experts: int = 0) -> None:
    """Refuse a layout that the model's heads, experts (and copies of them) or layers do not allow.

    Raises: SpecError: says which degree and what is allowed.
    """
    check_tensor_parallel(model, int(layout.tp))
    check_expert_parallel(model, int(layout.ep), redundant_experts)
    check_pipeline(model, int(layout.pp))
    check_expert_ranks(int(layout.ep), int(layout.tp) * int(layout.dp), "tp x dp")


def check_request(model: Model, input_tokens: int, output_tokens: int) -> tuple[str, ...]:
    """The assumptions made where a request is longer than the model's context.

    Raises: SpecError: the request is longer than the model can process.
    """
    if model.stacks[0].tokens_per_sample is not None:
        return ()
    request = prompt(model, input_tokens)
    answer = output_tokens if generates(model) else 0
    if request.own == 1 and request.encoder:  # text on either side
        return check_length(model, max(input_tokens, answer), what="an input or an answer")
    return check_length(model, input_tokens + answer, what="a request" if answer else "an input")


def request_tokens(
    model: Model, request: RequestSpec, *, encode: bool, images: int = 0
) -> tuple[int, int, tuple[str, ...]]:
    """(tokens of a prompt, of an answer, what was assumed): as given, else the default as far as the context goes.

    `images`: tokens of those in a prompt, which the default text stands beside.
    """
    drawn = [text for text in (request.input_tokens, request.output_tokens) if isinstance(text, str)]
    lengths = " and ".join(drawn)
    mean = (f"closed forms, steps and memory are of the mean length of requests ({lengths}); simulated ones are drawn",)
    inputs, outputs = (
        None if tokens is None else mean_tokens(tokens) for tokens in (request.input_tokens, request.output_tokens)
    )
    notes = mean if drawn else ()
    own, made = model.stacks[0].tokens_per_sample, model.max_position
    if own is not None:
        fixed_length = f"{model.name} encodes every input as {own:,} tokens, whatever length is given"
        return own, 0, () if inputs in (None, own) else (fixed_length,)
    if encode and generates(model):
        return min(inputs or DEFAULT_INPUT, made or DEFAULT_INPUT), 0, notes
    usual = DEFAULT_INPUT + images
    most, decodes, reads = made or usual + DEFAULT_OUTPUT, generates(model), prompt(model, 2)
    fixed, apart = reads.own == 2 and reads.encoder, reads.own == 1  # sound beside the text; text on either side
    answer = outputs or (DEFAULT_OUTPUT if apart or fixed else min(DEFAULT_OUTPUT, max(1, most // 4)))
    room = most if apart or not decodes else max(1, most - answer)
    tokens = inputs or min(START_TOKENS if fixed else usual, room)
    if outputs is None and (apart or tokens < most):  # a longer prompt is refused or stretched, with its whole answer
        answer = min(answer, most if apart else most - tokens)
    answer = answer if decodes else 0
    plain = (inputs or usual, outputs or (DEFAULT_OUTPUT if decodes else 0))
    if (tokens, answer) == plain or (not decodes and tokens == plain[0]):
        return tokens, answer, notes
    shape = f"requests of {tokens:,} tokens in" + (f" and {answer:,} out" if decodes else "")
    return tokens, answer, (f"{shape}, because the context of {model.name} is {most:,} tokens", *notes)


def default_lengths(
    model: Model, inputs: int | str | None, outputs: int | str | None, shared: int = 0, images: int = 0
) -> tuple[int | str, int | str, tuple[str, ...]]:
    """Lengths of prompts and answers, drawn or not, and what was assumed: as given, else as far as the context goes.

    `shared`: tokens that stand before each prompt; `images`: as of `request_tokens`.

    Source and assumptions: `request_tokens`.
    """
    if inputs and outputs:
        return inputs, outputs, ()
    given = {name: mean_tokens(n) for name, n in (("input_tokens", inputs), ("output_tokens", outputs)) if n}
    tokens, answer, notes = request_tokens(model, RequestSpec(**given), encode=False, images=images)
    if not inputs and shared and model.max_position is not None and tokens > model.max_position - answer - shared:
        tokens = max(1, model.max_position - answer - shared)
        before = f"{tokens:,} tokens in behind the {shared:,} that are shared and {answer:,} out"
        notes = (f"a request of {before}, as {model.name} is made for {model.max_position:,}",)
    return inputs or tokens, outputs or answer, notes


class RunMeans(NamedTuple):
    """Mean latencies of the requests of a run with an end, and the requests that a replica answered a second."""

    ttft_s: float
    tpot_s: float  # of answers that are a token long: anything
    requests_per_s: float


class Draw(NamedTuple):
    """Devices that spend a share of all time on steps of one kind."""

    gpus: int
    step: StepTime
    running_frac: float

    def watts(self, limit_w: float) -> float:
        """Mean draw of one of them, with a power limit of `limit_w`."""
        step, running = self.step, self.running_frac / _number(self.step.seconds)
        computing_s = step.compute_s + step.conversion_s
        parts_s = (computing_s, step.memory_s, step.communication_s)
        compute, memory, wires = (_number(part) * running for part in parts_s)
        return float(device_watts(limit_w, compute, memory, wires))


class JobSteady:
    """The steady state of a job that decodes and what it is made from, each computed once, where it is asked for."""

    def __init__(self, job: ServeJob) -> None:
        self.job = job

    @cached_property
    def machine(self) -> Runner:
        """As of `runner`."""
        return runner(self.job)

    @cached_property
    def memory(self) -> ServingMemory:
        """As of `job_memory`."""
        return job_memory(self.job)

    @cached_property
    def curves(self) -> SteadyCurves:
        """Closed loops of one attention replica, of up to as many users as its memory holds."""
        in_flight = _in_flight(self.job, self.memory)
        return SteadyCurves.up_to(self.machine, self.job.layout, in_flight, *request_work(self.job))

    @cached_property
    def state(self) -> tuple[Steady, float]:
        """As of `steady_state`."""
        job = self.job
        open_loop = job.arrivals_per_s is not None and not job.techniques.prefill_gpus
        return steady_state(job, self.machine, self.memory, self.curves if open_loop else None)


def estimate(
    job: ServeJob, run: RunMeans | None = None, burst: int | None = None, *, known: JobSteady | None = None
) -> ServeEstimate:
    """Estimate one replica in its steady state; `run`: what a run with an end gave instead of that.

    `burst`: requests that are all there at the start; the rate is then that of all of them, to the last one. `known`:
    what was computed of the job before.

    Raises:
        SpecError: the layout cannot be, or weights and one sequence do not fit the memory.
        MissingFactError: the device lacks a rate that the format needs.
    """
    check(job)
    known = known or JobSteady(job)
    memory, machine = known.memory, known.machine
    if not job.decodes:
        return _encoder_estimate(job, machine, memory, run)
    steady, waiting_s = known.state
    if burst is not None:
        per_s = burst_rate(job, machine, memory, burst)
        run = RunMeans(_number(steady.ttft_s) + waiting_s, _number(steady.tpot_s), per_s)
    sustained_per_s, running = None, min(1.0, job.users or 1.0)
    if job.arrivals_per_s is not None and not job.techniques.prefill_gpus:
        ranks = int(job.layout.dp)
        sustained_per_s = known.curves.most_per_s * ranks if job.requests is None else None
        alone = known.curves.at(np.array([[job.arrivals_per_s / ranks]])).running_frac
        running = 1.0 - (1.0 - _number(alone)) ** ranks
    return _decoder_estimate(job, machine, memory, steady, waiting_s, run, sustained_per_s, running)


def burst_per_s(
    runner: Runner, layout: ServingLayout, requests: float, most_in_flight: Array, input_tokens: float,
    output_tokens: float,
) -> float:  # fmt: skip
    """Requests per second of one replica that answers `requests`, all there at the start, to the last one.

    Those that run together began together and end together: waves of as many as fit, and what is left over, which
    takes nearly as long as a full one where weights bound the steps. `most_in_flight`: sizes of a wave that are as
    likely as each other, over which the time is averaged.

    Source: counting; `closed_loop` for the time of a wave, whose prompts and steps are those of as many users.
    Assumes: requests of one length; prompts of a wave are read before most of its answers end.
    """
    full = np.clip(most_in_flight, 1.0, max(requests, 1.0))
    waves = np.floor(requests / full)
    rest = requests - waves * full
    sizes = np.concatenate([full, np.maximum(rest, 1.0)])
    rates = np.asarray(closed_loop(runner, layout, sizes, input_tokens, output_tokens, alike=True).requests_per_s)
    full_s, rest_s = np.split(sizes / rates, 2)
    return float(requests / np.mean(waves * full_s + rest_s * np.minimum(rest, 1.0)))


def burst_rate(job: ServeJob, machine: Runner, memory: ServingMemory, requests: int) -> float:
    """Requests per second of a replica that answers so many, an equal share on each of its attention replicas.

    How many run together is as uncertain as the memory that the engine leaves for its cache.

    Source: `burst_per_s`; `ServingMemory.capacity_ends`. Assumes: as there.
    """
    ranks, most = int(job.layout.dp), _in_flight(job, memory)
    capped = job.max_batch is not None and most >= job.max_batch
    ends = (1.0, 1.0) if capped else memory.capacity_ends()
    sizes = np.floor(most * np.linspace(*ends, CAPACITIES))
    each = burst_per_s(machine, job.layout, requests / ranks, sizes, *request_work(job))
    return each * ranks


def outgrows_cache(job: ServeJob) -> bool:
    """True if there are more users than the cache has room for, and the engine starts them all the same.

    Their answers outgrow it, and those who came last give their blocks back and are read again: no mean describes how
    often. Where the engine's own limit is less than the cache, the others wait for a place.

    Source: vLLM, `Scheduler.schedule`: a waiting prompt starts where its blocks are free, and the last of the running
    is preempted where there are none (its documentation, optimization and tuning: recompute).
    """
    users = _replica_concurrency(job)
    steady = job.engine.preempts and not job.static and job.requests is None and not job.techniques.prefill_gpus
    if users is None or not steady or not job.growing or job.arrivals_per_s is not None:
        return False
    return 0 < int(job_memory(job).max_concurrency) < min(users, engine_limit(job))


def engine_limit(job: ServeJob) -> int:
    """Sequences that the engine runs at once on one attention replica at most, as given or by default."""
    return job.max_batch or int(default_batch(job.model, job.software, job.layout.dp))


def step_limit_text(job: ServeJob, step_tokens: int | None = None) -> str:
    """Tokens and sequences that a step of one attention replica takes at most, and where they are from, in words.

    `step_tokens`: the tokens, where they are given.
    """
    row = job.software
    tokens = int(rank_budget(row, row.prefill_tokens, job.layout.dp)) if step_tokens is None else step_tokens
    budget = f"up to {tokens:,} tokens" if tokens else "whole prompts"
    if step_tokens is not None:
        budget += " (as given)"
    sequences = f"{engine_limit(job):,} sequences" + (" (as given)" if job.max_batch is not None else "")
    of = "a step of each attention replica" if int(job.layout.dp) > 1 else "a step"
    text = f"{of} takes {budget} and {sequences}"
    if step_tokens is not None and job.max_batch is not None:
        return text
    engine, device = job.engine, job.cluster.accelerator
    if engine.limits_on(device) is None:
        return f"{text}: the defaults of {engine.name}"
    return f"{text}: the defaults of {engine.name} on {device.name} ({engine.limits_source}; read {engine.limits_date})"


def answers_are_short(job: ServeJob) -> bool:
    """True if several requests share a replica and their answers take few steps (`SHORT_ANSWER`)."""
    several = job.arrivals_per_s is not None or (job.concurrency or 0) > 1
    return several and 0 < job.growing < SHORT_ANSWER and job.requests is None and not job.techniques.prefill_gpus


def least_offload(job: ServeJob, facts: Facts) -> Offload | None:
    """The fewest layers on the host with which one sequence of a job fits its device, the usual host computing them.

    None where no layer has to go, all of them are too few, or the device has no memory of its own.

    Source: llama.cpp, --fit (its default since December 2025; pull request 16653), which leaves `FREE_BYTES` of the
    device free; ollama does alike. Assumes: whole layers, experts among them (llama.cpp moves those first).
    """
    chip, layers = job.cluster.accelerator, job.model.stacks[0].num_layers
    if chip.kind in SHARED_KINDS or chip.hbm_bytes is None or job_memory(job, concurrency=1).fits:
        return None
    host, room = host_rates(None, chip, facts), chip.hbm_bytes - FREE_BYTES

    def offload(away: int) -> Offload:
        return Offload(frac=away / layers, host=host)

    def fits(away: int) -> bool:
        techniques = replace(job.techniques, offload=offload(away))
        memory = job_memory(replace(job, techniques=techniques), concurrency=1)
        return bool(memory.fits) and float(memory.total_bytes) <= room

    counts = range(1, layers + 1)
    first = bisect.bisect_left(counts, x=True, key=fits)
    return offload(counts[first]) if first < layers else None


def job_memory(job: ServeJob, **load: Any) -> ServingMemory:
    """Memory of the fullest GPU under the job's load, and how much load it takes; `load`: another one.

    Keywords and errors: as `serving_memory`.
    """
    chip = job.cluster.accelerator
    usual: dict[str, Any] = {
        "concurrency": _replica_concurrency(job), "context": job.context, "answer": job.growing,
        "prefill_tokens": job.prefill_tokens, "changes": memory_changes(job),
    }  # fmt: skip
    return serving_memory(
        job.model, job.layout, hbm_bytes=chip.hbm_bytes, weights=job.weights, kv_dtype=job.kv_dtype,
        engine=job.software, memory_frac=job.memory_frac, max_batch=job.max_batch, device_kind=chip.kind,
        **(usual | load),
    )  # fmt: skip


def requests_held(job: ServeJob, most: int) -> int:
    """Requests in flight of one attention replica, of `most` that all hold at once; 1 where these hold none."""
    return max(1, min(job.concurrency or most, most) // int(job.layout.dp))


def _replica_concurrency(job: ServeJob) -> int | None:
    """Concurrent requests for each attention replica; None where as many run as fit."""
    return None if job.concurrency is None else -(-job.concurrency // int(job.layout.dp))


def _in_flight(job: ServeJob, memory: ServingMemory) -> float:
    """Requests of one attention replica that run at once; 1 where memory holds none."""
    most, wanted = int(memory.max_concurrency), _replica_concurrency(job)
    return float(min(wanted or most, most)) if most else float(wanted or 1)


def _there_frac(job: ServeJob, memory: ServingMemory, run: RunMeans | None) -> float:
    """Of the requests in flight that a replica is computed with, those that are there on average.

    Users are shared by replicas and their ranks, each of which is computed with whole ones; a `run` has them all.
    """
    if job.users is None or job.concurrency is None or job.requests is not None or run is not None:
        return 1.0
    return min(1.0, job.users / int(job.layout.dp) / _in_flight(job, memory))


def steady_state(
    job: ServeJob, machine: Runner, memory: ServingMemory, curves: SteadyCurves | None = None
) -> tuple[Steady, float]:
    """The steady state of one attention replica under the job's load, and seconds that requests wait for memory.

    `curves`: those of `JobSteady`, where they are known.
    """
    in_flight, shape = _in_flight(job, memory), request_work(job)
    if job.techniques.prefill_gpus:
        return disaggregated_steady(job, machine, max(in_flight, 1.0)), 0.0
    if job.arrivals_per_s is not None:
        arrivals = job.arrivals_per_s / int(job.layout.dp)
        curves = curves or SteadyCurves.up_to(machine, job.layout, in_flight, *shape)
        return per_token(job, _open_loop(curves, arrivals, in_flight)), 0.0
    if job.static:
        steady = fixed_batch(machine, job.layout, max(in_flight, 1.0), *shape)
    else:
        steady = closed_loop(machine, job.layout, max(in_flight, 1.0), *shape)
    steady = per_token(job, steady)
    most, wanted = int(memory.max_concurrency), _replica_concurrency(job)
    waiting = (wanted - most) / _number(steady.requests_per_s) if wanted and 0 < most < wanted else 0.0
    return steady, waiting


def _open_loop(curves: SteadyCurves, arrivals_per_s: float, most_in_flight: float) -> Steady:
    """Requests that arrive at random at one replica; where it cannot keep up, what it does with all its memory full.

    Source: `SteadyCurves.at`; mean waits as `OpenLoop.percentile`. Assumes: Poisson arrivals of requests of one length.
    """
    if arrivals_per_s >= curves.most_per_s:
        shape = curves.input_tokens, curves.output_tokens
        return closed_loop(curves.runner, curves.layout, max(most_in_flight, 1.0), *shape)
    loop = curves.at(np.array([[arrivals_per_s]]))
    mean = loop.percentile("mean")
    return loop.steady._replace(
        ttft_s=mean.ttft_s, tpot_s=mean.tpot_s, requests_per_s=arrivals_per_s,
        output_tokens_per_s=arrivals_per_s * curves.output_tokens,
    )  # fmt: skip


def _figure(
    job: ServeJob, quantity: str, value: float, *, least: float | None = None, most: float | None = None, **how: bool
) -> Ranged:
    """`value` with its 10-90 % interval, cut at the physical limit: `least` for times, `most` for rates.

    On devices of `OTHER_SOFTWARE` what is cut off one end is added to the other: they may be as much slower as physics
    forbids them to be faster.
    """
    band = serving_band(job, quantity, **how)
    low, high = band.interval(value, floor=least, ceiling=most)
    if job.cluster.accelerator.kind in OTHER_SOFTWARE and value > 0.0:
        whole_low, whole_high = band.interval(value)
        low, high = low * high / whole_high, high * low / whole_low
    return Ranged(value=value, low=float(low), high=float(high), band=band, bound=most if least is None else least)


def _number(value: object) -> float:
    return float(np.asarray(value).ravel()[0])


def _decoder_estimate(
    job: ServeJob, machine: Runner, memory: ServingMemory, steady: Steady, waiting_s: float, run: RunMeans | None,
    sustained_per_s: float | None, running_frac: float,
) -> ServeEstimate:  # fmt: skip
    share = _number(steady.prefill_share)
    step = _mean_step(steady, share)
    replicas = int(job.layout.dp)
    ttft_s, tpot_s = _number(steady.ttft_s) + waiting_s, _number(steady.tpot_s)
    rate, decoding = _number(steady.requests_per_s) * replicas, _number(steady.batch) * replicas
    if run is not None:
        ttft_s, waiting_s, rate = run.ttft_s, 0.0, run.requests_per_s
        tpot_s = run.tpot_s if job.output_tokens > 1 else tpot_s
        decoding = rate * (job.output_tokens - 1) * tpot_s if job.output_tokens > 1 else decoding  # Little's law
    there_frac = _there_frac(job, memory, run)
    rate, decoding = rate * there_frac, decoding * there_frac
    least_token_s = _number(steady.decode.floor_s) / tokens_a_round(job)
    if job.requests is not None:  # of which fewer may be there than in the steady state
        least_token_s = min(least_token_s, least_tpot_s(job))
    e2e_s = ttft_s + (job.output_tokens - 1) * tpot_s
    beside: tuple[Draw, ...] = ()
    if job.techniques.prefill_gpus:  # the share of the bill, too
        on_prompts = job.techniques.prefill_gpus / job.num_gpus
        before = pools(job, machine)
        reading = min(1.0, rate / replicas / _number(before.most_per_s))
        beside = (Draw(job.techniques.prefill_gpus, before.prompts.step, reading),)
        running_frac = min(1.0, decoding) if job.arrivals_per_s is None else -math.expm1(-decoding)  # M/G/infinity
    elif job.output_tokens == 1:  # which the prompt's own pass makes
        on_prompts = 1.0
    elif job.static:
        on_prompts = _number(steady.ttft_s) / (e2e_s - waiting_s)
    else:
        on_prompts = share * (_number(steady.mixed.seconds) - _number(steady.decode.seconds)) / _number(step.seconds)
    pace = _ReplicaPace(
        ttft_s=ttft_s, least_ttft_s=_number(least_prompt_s(machine, job.layout, request_work(job)[0])),
        tpot_s=tpot_s, least_tpot_s=least_token_s, e2e_s=e2e_s, requests_per_s=rate,
        most_per_s=_most_per_s(job, steady, step) * replicas, sustained_per_s=sustained_per_s, concurrency=decoding,
        prefill_frac=min(1.0, on_prompts), running_frac=running_frac,
    )  # fmt: skip
    return _serve_estimate(job, memory, step, pace, beside)


def _encoder_estimate(
    job: ServeJob, machine: Runner, memory: ServingMemory, run: RunMeans | None = None
) -> ServeEstimate:
    """A model that does not generate: one pass over a batch of inputs; what a batch does not take waits for the next.

    `run`: as of `estimate`.

    Source: Little's law for inputs that wait, and for users who send their next input when they have an answer.
    """
    in_flight = max(_in_flight(job, memory), 1.0)
    batch = min(in_flight, machine.engine.most_inputs(_number(prompt(job.model, job.input_tokens).tokens)))
    step = machine.step(whole_prompts(job.model, batch, job.input_tokens), job.layout)
    step, concurrency = StepTime(*(_number(part) for part in step)), float(_replica_concurrency(job) or in_flight)
    latency_s, floor_s = (
        _number(machine.engine.request_s + step.seconds * max(concurrency / batch, 1.0)),
        float(step.floor_s),
    )
    ranks, least_s, running = int(job.layout.dp), floor_s, 1.0
    inputs, rate = batch * ranks, batch * ranks / float(step.seconds)
    if job.concurrency is not None and not job.static:  # the machine waits while few are handed over
        rate = min(rate, concurrency * ranks / (machine.engine.request_s + float(step.seconds)))
    sustained_per_s = None
    if job.arrivals_per_s is not None:
        batches = waiting_batches(job, machine)
        rate = sustained_per_s = _number(batches.sustained_per_s) * ranks
        if job.arrivals_per_s < rate:
            rate, running = job.arrivals_per_s, _number(batches.running_frac)
            latency_s = _number(one_pass_latency_s(machine.engine, batches, job.input_tokens, "mean"))
        alone = machine.step(whole_prompts(job.model, 1.0, job.input_tokens), job.layout)
        least_s = min(floor_s, _number(alone.floor_s))  # of those that find nobody else
    if run is not None:
        latency_s, rate = run.ttft_s, run.requests_per_s
    rate *= _there_frac(job, memory, run)
    pace = _ReplicaPace(
        ttft_s=latency_s, least_ttft_s=least_s, tpot_s=None, least_tpot_s=None, e2e_s=latency_s, requests_per_s=rate,
        most_per_s=max(inputs / floor_s, rate), sustained_per_s=sustained_per_s, concurrency=inputs, prefill_frac=1.0,
        running_frac=running,
    )  # fmt: skip
    return _serve_estimate(job, memory, step, pace)


def largest_batch(job: ServeJob) -> int:
    """Inputs that one attention replica takes in one pass at most."""
    most = max(1, int(job_memory(job, concurrency=None).max_concurrency))
    return int(min(most, job.engine.most_inputs(float(np.max(prompt(job.model, job.input_tokens).tokens)))))


def waiting_batches(job: ServeJob, machine: Runner) -> WaitingBatches:
    """The queue of a model that answers in one pass, before each attention replica, at the job's rate; one column."""
    sizes = batch_sizes(largest_batch(job))
    step_s = machine.step(whole_prompts(job.model, sizes, job.input_tokens), job.layout).seconds
    each_per_s = np.array([(job.arrivals_per_s or 0.0) / int(job.layout.dp)])
    return WaitingBatches(sizes[:, None], np.broadcast_to(step_s, sizes.shape)[:, None], each_per_s)


def _mean_step(steady: Steady, share: float) -> StepTime:
    """The step between one without prefill and one with, by the share of steps that carry it."""
    return StepTime(
        *(_number(a) + share * (_number(b) - _number(a)) for a, b in zip(steady.decode, steady.mixed, strict=True))
    )


def _most_per_s(job: ServeJob, steady: Steady, step: StepTime) -> float:
    """Requests per second if steps took what datasheet rates allow and nothing else took time; one attention replica.

    A fixed batch takes its prompts and then its answers; else each step gives a token to every sequence that decodes.
    What arrives by itself arrives at its rate.
    """
    batch, (_, rounds) = _number(steady.batch), request_work(job)
    if job.static:
        prompts_s = _number(steady.ttft_s) * _number(steady.mixed.floor_s) / _number(steady.mixed.seconds)
        return batch / (prompts_s + (rounds - 1.0) * _number(steady.decode.floor_s))
    most = batch / (rounds * _number(step.floor_s))
    return most if job.arrivals_per_s is None else max(most, job.arrivals_per_s / int(job.layout.dp))


class _ReplicaPace(NamedTuple):
    """Latencies, rates and shares of time of a queue model, of all attention replicas of one replica together."""

    ttft_s: float
    least_ttft_s: float  # what one prompt takes at datasheet rates
    tpot_s: float | None
    least_tpot_s: float | None  # what a step without prompts takes at datasheet rates
    e2e_s: float
    requests_per_s: float
    most_per_s: float  # of requests, at datasheet rates
    sustained_per_s: float | None  # of requests that arrive at a rate, however fast they come
    concurrency: float
    prefill_frac: float
    running_frac: float


def _serve_estimate(
    job: ServeJob, memory: ServingMemory, step: StepTime, pace: _ReplicaPace, beside: tuple[Draw, ...] = ()
) -> ServeEstimate:
    """The estimate of a replica at a pace; `beside`: devices whose work is not in `step`."""
    ttft_s, tpot_s, e2e_s = pace.ttft_s, pace.tpot_s, pace.e2e_s
    rate, lines, gpus, ranks = pace.requests_per_s, step_lines(step), job.num_gpus, int(job.layout.dp)
    paid = job.cluster.usd_per_gpu_hour
    hourly = None if paid is None else paid * (gpus if job.paid_gpus is None else job.paid_gpus)
    inputs = int(prompt(job.model, job.input_tokens).tokens) if not job.decodes else job.input_tokens
    outputs = job.output_tokens if tpot_s is not None else 0
    most = int(memory.max_concurrency) * ranks
    queued = bool(job.concurrency and 0 < most < job.concurrency)
    floors = pace.least_ttft_s, (outputs - 1) * (pace.least_tpot_s or 0.0)
    like = in_its_class(job, rate)
    e2e_low, e2e_high = latency_band(like, queued=queued).interval(ttft_s, e2e_s, floors=floors)
    throughput = _figure(like, "throughput", rate, most=pace.most_per_s)
    if job.arrivals_per_s is not None:  # in the long run no more is answered than arrives, and no less if it keeps up
        low = throughput.low * max(1.0, (pace.sustained_per_s or 0.0) / rate)
        throughput = replace(
            throughput, low=min(low, rate), high=min(throughput.high, max(rate, job.arrivals_per_s))
        )  # fmt: skip
    elif job.concurrency == 1 and job.requests is None:  # one answer after another: as long as each takes
        high = min(rate * e2e_s / e2e_low, max(rate, pace.most_per_s))
        throughput = replace(throughput, low=rate * e2e_s / e2e_high, high=high)
    draws = (Draw(gpus - sum(one.gpus for one in beside), step, pace.running_frac), *beside)
    watts, rates = _mean_watts(job, draws), job.cluster.rates
    joules = None if watts is None else float(facility_joules(job.cluster.accelerator, gpus, watts, 1.0))
    peak = rates.peak_flops_per_s(product_path(job.model, job.weights, rates).dtype)  # of the matrix products
    return ServeEstimate(
        job=job,
        ttft_s=_figure(like, "ttft", ttft_s, least=pace.least_ttft_s, queued=queued),
        tpot_s=None if tpot_s is None else _figure(like, "tpot", tpot_s, least=pace.least_tpot_s),
        e2e_s=e2e_s,
        e2e_low=e2e_low,
        e2e_high=e2e_high,
        requests_per_s=rate,
        throughput=throughput,
        output_tokens_per_s=_times(throughput, outputs) if outputs else None,
        total_tokens_per_s=rate * (inputs + outputs),
        concurrency=pace.concurrency,
        max_whole_contexts=int(memory.max_whole_contexts) * ranks,
        max_concurrency=most,
        kv_capacity_tokens=int(memory.kv_capacity_tokens) * ranks,
        memory=job_memory(job, concurrency=requests_held(job, most)) if (job.concurrency or 0) > most else memory,
        bound=max(lines, key=lambda line: line[1])[0],
        breakdown=lines,
        lower_bound_s=_number(step.floor_s),
        mfu_frac=_number(step.flops) / (_number(step.seconds) * peak),
        usd_per_hour=hourly,
        prefill_frac=pace.prefill_frac,
        running_frac=pace.running_frac,
        watts=watts,
        usd_per_million_output_tokens=_price(hourly, 1.0 - pace.prefill_frac, rate * outputs),
        usd_per_million_input_tokens=_price(hourly, pace.prefill_frac, rate * inputs),
        joules_per_request=None if joules is None else joules / rate,
        joules_per_output_token=None if joules is None or not outputs else joules / (rate * outputs),
        assumptions=_assumptions(job, memory),
    )


def _times(rate: Ranged, count: int) -> Ranged:
    """A rate of requests as one of their tokens."""
    bound = None if rate.bound is None else rate.bound * count
    return Ranged(value=rate.value * count, low=rate.low * count, high=rate.high * count, band=rate.band, bound=bound)


def _price(hourly: float | None, share: float, tokens_per_s: float) -> float | None:
    """USD per million tokens that take `share` of the bill; None where they take none of it, or have no price."""
    if hourly is None or not tokens_per_s or not share:
        return None
    return float(usd_per_million_tokens(hourly * share, tokens_per_s))


def _assumptions(job: ServeJob, memory: ServingMemory) -> tuple[str, ...]:
    """The assumptions of the estimate, each once."""
    path = product_path(job.model, job.weights, job.cluster.rates)
    converted = conversion_note(job.kv_dtype, job.cluster.rates) if job.decodes else None
    split = ("the cost is split between input and output tokens in proportion to the time of prefill and decoding",)
    priced = job.cluster.usd_per_gpu_hour is not None and int(memory.max_concurrency) >= 1
    assumptions = (
        *job.model.assumptions,
        *check_request(job.model, job.input_tokens, job.output_tokens),
        *job.cluster.assumptions,
        *memory.assumptions,
        *technique_assumptions(job),
        *(note for note in (path.note, converted) if note),
        *(_mixed_notes(job.software, job.model, job.kv_dtype) if job.decodes and job.output_tokens > 1 else ()),
        *(split if job.decodes and job.output_tokens > 1 and priced else ()),
    )
    return tuple(dict.fromkeys(assumptions))


def _mixed_notes(engine: Engine, model: Model, cache: CacheFormat) -> tuple[str, ...]:
    """The assumptions on steps that read prompts and decode: what decodes runs in kernels for prompts."""
    attention = (
        f"one call of FlashAttention 2 has prompts and decoding here ({engine.name}): beside prompts each query head "
        "that decodes computes a block of its own"
    )
    rule = f"{engine.name} computes a block of tokens for each sequence that decodes beside prompts (delta rules)"
    notes = (attention, shares_calls(engine, model, cache)), (rule, decodes_in_blocks(engine, model))
    return tuple(note for note, holds in notes if holds)


def step_lines(step: StepTime) -> tuple[tuple[str, float], ...]:
    """The parts of the time of a step, in seconds.

    Source: `StepTime`. Assumes: it is the step of one job, not a column.
    """
    names = ("compute", "memory bandwidth", "communication", "host")
    lines = tuple(zip(names, map(_number, step[1:5]), strict=True))
    converting = _number(step.conversion_s)
    return (*lines, ("cache conversion", converting)) if converting else lines


def _mean_watts(job: ServeJob, draws: Sequence[Draw]) -> float | None:
    """Mean draw of a device, which idles between steps, in W; None where the power limit is not known."""
    limit_w = job.cluster.accelerator.tdp_w
    return None if limit_w is None else sum(one.gpus * one.watts(limit_w) for one in draws) / job.num_gpus


def least_tpot_s(job: ServeJob) -> float:
    """No answer's tokens come faster than a step of it alone at datasheet rates brings them.

    Source: `Runner.step`, its floor. Assumes: nothing of the answer is cached yet.
    """
    alone = StepLoad(decode_batch=1.0, decode_context=float(job.input_tokens))
    return float(runner(job).step(alone, job.layout).floor_s) / tokens_a_round(job)
