"""Prompts on some devices, answers on others: what each pool sustains, and the cache that travels between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.cost.collectives import p2p_s
from flopwise.facts.formats import CacheFormat
from flopwise.ops.cache import kv_cache_bytes
from flopwise.serving.iteration import StepLoad
from flopwise.serving.memory import ServingLayout
from flopwise.serving.open_loop import PERCENTILES, Percentile
from flopwise.serving.steady import Steady, front_end_s, micro_batches, most_served_per_s
from flopwise.serving.techniques import per_token, percentile_tpot_s, request_work, tokens_a_round

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.ops.types import Array, Floats, Ints
    from flopwise.serving.iteration import Runner, StepTime
    from flopwise.serving.job import ServeJob

TAILS = {"mean": None, "p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}
"""Share of requests beyond a percentile."""
GRID = 512
"""Points on which the number that decode is looked up."""
FULLEST = 0.999
"""Share of what the prefill pool sustains up to which its queue is followed."""


class Prompts(NamedTuple):
    """One prefill instance."""

    latency_s: Floats  # of one prompt that waits for nobody
    each_s: Floats  # between prompts when they follow one another
    step: StepTime  # a full one


class Pools(NamedTuple):
    """Both pools as seen by one attention replica; requests per second."""

    prompts: Prompts
    servers: Floats  # prefill instances
    most_per_s: Floats  # prompts that they work through
    transfer_s: Floats


def transfer_bytes(model: Model, tokens: Ints, kv_dtype: CacheFormat, tp: Ints, pp: Ints = 1) -> Floats:
    """Bytes of the cache of one prompt that one rank hands over; broadcasts.

    Source: `flopwise.ops.cache`; Zhong et al. 2024 (arXiv:2401.09670) section 3.3.
    Assumes: both pools cut the model alike, so that each rank sends to one other.
    """
    return kv_cache_bytes(model, tokens, 1, kv_dtype.elem_bytes, tp=tp) / np.asarray(pp)


def moved_s(job: ServeJob, tokens: int) -> float:
    """`transfer_s` of a single layout."""
    return float(transfer_s(job, tokens))


def transfer_s(job: ServeJob, tokens: int) -> Floats:
    """Seconds in which the cache of `tokens` prompt tokens goes from a prefill instance to where it is decoded.

    Shape of the layout's degrees.

    The innermost link that joins a prefill rank to the decoding rank it feeds carries it: the fast one where both
    pools fit its domain, else the network. Infinite where no link is known.

    Source: `transfer_bytes`, `flopwise.cost.collectives.p2p_s`. Assumes: each transfer has its own links.
    """
    layout = prefill_layout(job)
    nbytes = transfer_bytes(job.model, tokens, job.kv_dtype, layout.tp, layout.pp)
    return p2p_s(job.cluster.fabric, nbytes, stride=job.layout.num_gpus)


def prefill_layout(job: ServeJob) -> ServingLayout:
    """The layout of one prefill instance: that of the others, without attention replicas.

    Source: `ServingLayout`. Assumes: experts are spread over its own ranks only.
    """
    return ServingLayout(tp=job.layout.tp, pp=job.layout.pp, ep=np.gcd(job.layout.tp, job.layout.ep))


def prompts_alone(machine: Runner, layout: ServingLayout, input_tokens: Floats) -> Prompts:
    """Prompts without decoding beside them.

    Source: as `flopwise.serving.steady`: chunks up to the engine's budget; short prompts share a step.
    Assumes: pipeline stages work on prompts that follow one another; text only.
    """
    budget = float(machine.engine.prefill_tokens or input_tokens)
    together = np.maximum(budget // input_tokens, 1.0)
    rounds = np.maximum(input_tokens / budget, 1.0)
    length = input_tokens / rounds
    seen = (input_tokens + length) / 2  # pieces see half of what is not theirs
    one = machine.step(StepLoad(prefill_tokens=length, prefill_context=seen), layout)
    full = machine.step(StepLoad(prefill_tokens=length * together, prefill_context=seen, prompts=together), layout)
    stages = np.asarray(layout.pp)
    each = np.minimum(full.seconds / together, one.seconds) * rounds / stages
    return Prompts((rounds + stages - 1.0) / stages * one.seconds, each, full)


def pools(job: ServeJob, machine: Runner) -> Pools:
    """The prefill pools before decoding.

    Source: Zhong et al. 2024 (arXiv:2401.09670) section 4.3 for the placement; Patel et al. 2023 (arXiv:2311.18677)
    section 4.2 for the transfer.
    Assumes: the transfer starts when the prompt is done, and the first token waits for it; each has its own links.
    """
    tokens, _ = request_work(job)
    layout = prefill_layout(job)
    alone = prompts_alone(machine, layout, tokens)
    servers = job.techniques.prefill_gpus / (layout.num_gpus * job.layout.dp)
    each_per_s = np.minimum(1.0 / alone.each_s, most_served_per_s(machine.engine, tokens, 0.0))
    return Pools(alone, servers, servers * each_per_s, transfer_s(job, job.input_tokens))


def queue_s(busy: Floats, servers: Floats, each_s: Floats) -> Floats:
    """Mean wait at `servers` instances, busy for a share `busy` of the time, with constant service; broadcasts.

    Source: Sakasegawa 1977 (doi:10.1007/BF02911639), equation 2.10 halved for constant service; exact for one server.
    Assumes: Poisson arrivals.
    """
    rho = np.minimum(busy, FULLEST)
    power = np.sqrt((servers + 1.0) * 2.0) - 1.0
    idle = (1.0 - rho) * servers
    wait_s: Floats = 0.5 * each_s * rho**power / idle
    return wait_s


def percentile_wait_s(name: str, mean_s: Floats, waits_frac: Floats) -> Floats:
    """A percentile of waits of which `waits_frac` of all prompts have any, and whose mean over all is `mean_s`.

    Source: an exponential tail, as of M/M/c queues. Assumes: that of a constant service is near enough.
    """
    tail = TAILS[name]
    if tail is None:
        return mean_s
    some = np.maximum(waits_frac, 1e-9)
    wait_s: Floats = mean_s / some * np.log(np.maximum(some / tail, 1.0))
    return wait_s


def _decoding(job: ServeJob, machine: Runner, batch: Array) -> StepTime:
    """Steps of so many sequences without prompts beside them."""
    tokens, rounds = request_work(job)
    parts = micro_batches(machine, job.layout, batch)
    return machine.step(StepLoad(decode_batch=batch / parts, decode_context=tokens + rounds / 2.0), job.layout)


def _round_s(job: ServeJob, machine: Runner, batch: Array) -> Floats:
    """Seconds between rounds of so many sequences: a step, or what their tokens take in the front end."""
    return _shown_s(job, machine, batch, _decoding(job, machine, batch))


def _shown_s(job: ServeJob, machine: Runner, batch: Array, step: StepTime) -> Floats:
    """As `_round_s`, of a step that is known."""
    return np.maximum(step.seconds, batch * tokens_a_round(job) * machine.engine.stream_s)


def _rates(job: ServeJob, machine: Runner, most: Array, before: Pools) -> tuple[Array, Array, Array]:
    """(numbers that decode, up to `most`, the requests per second that they make, how many the prefill pool sustains).

    Of each layout a column; the last has one number for each.
    """
    _, rounds = request_work(job)
    alone = _decoding(job, machine, np.ones(most.shape))
    slowest = 0.5 * FULLEST * before.most_per_s * rounds * alone.seconds  # half the prefill pool's rate
    batch: Array = np.geomspace(np.minimum(np.minimum(most, 1.0) / 64.0, slowest), most, GRID)
    rate = np.maximum.accumulate(batch / (rounds * _round_s(job, machine, np.maximum(batch, 1.0))), axis=0)
    return batch, rate, np.maximum((rate <= FULLEST * before.most_per_s).sum(axis=0), 1)


def _alone_s(machine: Runner, before: Pools) -> Floats:
    """Seconds to the first token of a request that waits for nobody."""
    return machine.engine.request_s + before.prompts.latency_s + before.transfer_s


class PooledUsers(NamedTuple):
    """Replicas with prefill pools and users who wait for their answers, of one attention replica each."""

    ttft_s: Array
    round_s: Array  # between rounds of what decodes
    per_s: Array  # requests
    decoding: Array
    decode: StepTime
    pools: Pools  # of each layout


def pooled_users(job: ServeJob, machine: Runner, in_flight: Array) -> PooledUsers:
    """Users in a closed loop, so many in flight; shape (sizes, layouts) of `in_flight`, sizes ascending.

    Source: Little's law over both pools; `queue_s` for the wait at the first.
    Assumes: requests of one length; what the prefill pool does not take waits before it; nobody waits for himself.
    """
    before, (_, rounds) = pools(job, machine), request_work(job)
    most, ahead = in_flight.max(axis=0), _alone_s(machine, before)
    batch, rate, ends = _rates(job, machine, most, before)
    pool_per_s, servers, each_s, ahead_s = (
        np.broadcast_to(np.asarray(one, dtype=float), most.shape)
        for one in (before.most_per_s, before.servers, before.prompts.each_s, ahead)
    )
    decoding, per_s, ttft_s = (np.empty(in_flight.shape) for _ in range(3))
    for n, end in enumerate(ends.tolist()):
        there, served, users = batch[:end, n], rate[:end, n], np.maximum(in_flight[:, n], 1.0)[:, None]
        met = served * (users - 1.0) / users
        waits_s = queue_s(met / pool_per_s[n], servers[n], each_s[n])
        waits_s = waits_s + front_end_s(machine.engine, job.input_tokens, met / servers[n], 0.0)
        inside = there + served * (ahead_s[n] + waits_s)
        for size, wait_s in enumerate(np.asarray(waits_s)):
            inner = float(np.interp(in_flight[size, n], inside[size], there))
            decoding[size, n], per_s[size, n] = inner, np.interp(inner, there, served)
            ttft_s[size, n] = ahead_s[n] + np.interp(inner, there, wait_s)
    running = np.maximum(decoding, 1.0)
    step = _decoding(job, machine, running)
    round_s = np.broadcast_to(_shown_s(job, machine, running, step), running.shape)
    ttft_s = np.maximum(ttft_s, in_flight / per_s - (rounds - 1.0) * round_s)  # Little: the rest waits
    return PooledUsers(ttft_s, round_s, per_s, decoding, step, before)


def disaggregated_steady(job: ServeJob, machine: Runner, in_flight: float) -> Steady:
    """One attention replica that decodes, and its share of the prefill pool, with `in_flight` requests at most.

    Source: `pooled_users`; of arrivals the number that decodes is that whose rate they are. Assumes: as there.
    """
    load = pooled_users(job, machine, np.array([[in_flight]]))
    decoding, per_s, ttft_s = (float(one[0, 0]) for one in (load.decoding, load.per_s, load.ttft_s))
    if job.arrivals_per_s is not None:
        decoding, per_s, ttft_s = _arrivals(job, machine, in_flight, load.pools)
    running = np.maximum(np.asarray(decoding), 1.0)
    one = _decoding(job, machine, running)
    round_s = float(_shown_s(job, machine, running, one))
    decode, before = type(one)(*(float(np.asarray(part)) for part in one)), load.pools.prompts
    steady = Steady(
        ttft_s, round_s, per_s, per_s * job.output_tokens, decoding, before.each_s, 0.0, before.step.seconds, decode,
        decode,
    )  # fmt: skip
    return per_token(job, steady)


def _arrivals(job: ServeJob, machine: Runner, in_flight: float, before: Pools) -> tuple[float, float, float]:
    """(sequences that decode, requests per second, seconds to the first token) of random arrivals at the job's rate."""
    assert job.arrivals_per_s is not None
    numbers, rates, (end,) = _rates(job, machine, np.array([in_flight]), before)
    batch, rate = (np.append(0.0, one[:end, 0]) for one in (numbers, rates))
    waits_s = queue_s(rate / before.most_per_s, before.servers, before.prompts.each_s)
    waits_s = waits_s + front_end_s(machine.engine, job.input_tokens, rate / before.servers, 0.0)
    decoding = float(np.interp(job.arrivals_per_s / int(job.layout.dp), rate, batch))
    ttft_s = float(_alone_s(machine, before) + np.interp(decoding, batch, waits_s))
    return decoding, float(np.interp(decoding, batch, rate)), ttft_s


class PooledReplicas(NamedTuple):
    """Replicas with prefill pools, in a table of sizes x layouts: of one attention replica each."""

    job: ServeJob
    machine: Runner
    batch: Array  # sequences that decode at most, ascending
    decode: StepTime  # steps of as many sequences as each row holds
    step_s: Array
    rate: Array  # of requests whose answers are made in these steps
    pools: Pools  # of each layout

    @classmethod
    def of(cls, job: ServeJob, machine: Runner, batch: Array) -> PooledReplicas:
        """Replicas of a column of layouts; `batch` has shape (sizes, layouts).

        Source: as `disaggregated_percentiles`. Assumes: as there.
        """
        (_, rounds), decode = request_work(job), _decoding(job, machine, batch)
        step_s = np.broadcast_to(_shown_s(job, machine, batch, decode), batch.shape)
        rate = np.maximum.accumulate(batch / (rounds * step_s), axis=0)
        return cls(job, machine, batch, decode, step_s, rate, pools(job, machine))

    @property
    def sustained_per_s(self) -> Array:
        """Requests a second that both pools sustain."""
        return np.minimum(self.rate, self.pools.most_per_s)

    def load(self, arrivals_per_s: Array, names: Sequence[str]) -> PooledLoad:
        """The load by so many arrivals at an attention replica of each row.

        Source: as `disaggregated_percentiles`; steps between the sizes on a straight line. Assumes: as there.
        """
        job, machine, batch, before, rate = self.job, self.machine, self.batch, self.pools, self.rate
        layouts = range(batch.shape[1])

        def along(where: Array, known: Array, values: Array) -> Array:
            return np.stack([np.interp(where[:, n], known[:, n], values[:, n]) for n in layouts], axis=1)

        none = np.zeros((1, batch.shape[1]))
        decoding = along(arrivals_per_s, np.concatenate([none, rate]), np.concatenate([none, batch]))
        busy: Array = np.minimum(arrivals_per_s / before.most_per_s, FULLEST)
        mean_s = queue_s(busy, before.servers, before.prompts.each_s)
        waits = busy ** (np.sqrt(2.0 * (before.servers + 1.0)) - 1.0)
        front_s = front_end_s(machine.engine, job.input_tokens, busy * before.most_per_s / before.servers, 0.0)
        ahead_s = machine.engine.request_s + front_s + before.prompts.latency_s + before.transfer_s

        def at(name: str) -> Array:
            met: Array = decoding + PERCENTILES[name] * np.sqrt(decoding)
            return along(np.maximum(met, 1.0), batch, self.step_s)

        figures, middle_s = {}, at("mean")
        for name in names:
            wait_s = percentile_wait_s(name, mean_s, waits)
            figures[name] = Percentile(ahead_s + wait_s, percentile_tpot_s(job, at(name), middle_s, name))
        return PooledLoad(busy, decoding, figures)


class PooledLoad(NamedTuple):
    """The load of replicas with prefill pools: shape of their table."""

    busy: Array  # share of their time that prefill instances work
    decoding: Array  # sequences at once
    percentiles: dict[str, Percentile]


def disaggregated_percentiles(
    job: ServeJob, machine: Runner, most_in_flight: float, arrivals_per_s: float, names: Sequence[str]
) -> tuple[float, dict[str, Percentile]]:
    """(requests per second that both pools sustain, TTFT and TPOT by percentile) of one attention replica.

    Source: the slower of two stages; percentiles as `flopwise.serving.steady.OpenLoop.percentile`, waits at the
    prefill pool only.
    Assumes: as there, with at most `most_in_flight` requests that decode at once.
    """
    before, (_, rounds) = pools(job, machine), request_work(job)
    full_s = float(_round_s(job, machine, np.asarray(max(most_in_flight, 1.0))))
    sustained = float(min(most_in_flight / (rounds * full_s), float(before.most_per_s)))
    busy = min(arrivals_per_s / float(before.most_per_s), FULLEST)
    mean_s = float(queue_s(busy, before.servers, before.prompts.each_s))
    waits = busy ** (np.sqrt(2.0 * (before.servers + 1.0)) - 1.0)  # share of prompts that wait
    batch = float(np.asarray(disaggregated_steady(job, machine, most_in_flight).batch))
    front_s = front_end_s(machine.engine, job.input_tokens, busy * before.most_per_s / before.servers, 0.0)
    ahead_s = machine.engine.request_s + front_s + before.prompts.latency_s + before.transfer_s

    def step_s(name: str) -> Floats:
        return _round_s(job, machine, np.asarray(max(batch + PERCENTILES[name] * np.sqrt(batch), 1.0)))

    figures = {}
    for name in names:
        tpot_s = percentile_tpot_s(job, step_s(name), step_s("mean"), name)
        figures[name] = Percentile(ahead_s + percentile_wait_s(name, mean_s, waits), tpot_s)
    return sustained, figures
