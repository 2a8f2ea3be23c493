"""A replica in steady state: what requests see when so many are in flight, or when so many arrive.

Continuous batching: each step decodes one token of every running sequence and works through a chunk of waiting prompts.
All quantities may be columns of candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flopwise.ops.types import Array, Floats
from flopwise.serving.iteration import Prompt, Runner, StepLoad, StepTime, native, prompt
from flopwise.serving.memory import ServingLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from flopwise.facts.software import Engine

PERCENTILES = {"mean": 0.0, "p50": 0.0, "p90": 1.2816, "p95": 1.6449, "p99": 2.3263}
"""Standard normal quantiles."""
LEAST_S = 1e-30
"""Stands for no time at all where something is divided by it."""
TAILS = {"mean": None, "p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}


class Steady(NamedTuple):
    """Seconds and rates of one replica; `decode` is the step that carries no prefill."""

    ttft_s: Floats
    tpot_s: Floats
    requests_per_s: Floats
    output_tokens_per_s: Floats
    batch: Floats  # sequences decoding at once
    prefill_s: Floats  # a step with a full chunk of prefill
    prefill_share: Floats  # of steps that carry prefill
    decode: StepTime
    mixed: StepTime


def micro_batches(runner: Runner, layout: ServingLayout, in_flight: Floats) -> Floats:
    """Parts into which the sequences in flight are split so that every pipeline stage has one to work on.

    Source: Agrawal et al. 2024 (arXiv:2403.02310) section 2.3; vLLM and TensorRT-LLM, pipeline parallelism.
    Assumes: stages are even; there are no more parts than sequences.
    """
    if runner.engine.serial:
        return 1.0
    return np.minimum(np.asarray(layout.pp) * 1.0, np.maximum(np.floor(in_flight), 1.0))


def _pipeline_step(runner: Runner, step: StepTime, parts: Floats) -> StepTime:
    """A step of one of `parts` micro-batches that follow one another through the stages, waits included.

    Source: Agrawal et al. 2024 (arXiv:2403.02310) section 3.2, bubbles of unequal steps; the share is calibrated.
    Assumes: it grows with the stages.
    """
    waits = runner.engine.stage_loss * (parts - 1.0) * step.seconds
    return step._replace(seconds=step.seconds + waits, communication_s=step.communication_s + waits)


def chunk_tokens(runner: Runner, input_tokens: Floats) -> Floats:
    """Tokens of one prompt that one step works through: the whole prompt, or the engine's budget if that is less."""
    return np.minimum(input_tokens, runner.engine.prefill_tokens or input_tokens)


def _mixed_load(one: Prompt, tokens: Floats, batch: Floats = 0, context: Floats = 0) -> StepLoad:
    """A step that decodes `batch` sequences and works through `tokens` of prompts, their encoders' tokens included."""
    share = tokens / one.tokens
    return StepLoad(
        decode_batch=batch,
        decode_context=context,
        prefill_tokens=share * one.own,
        prefill_context=one.own * (1.0 + np.minimum(share, 1.0)) / 2,  # pieces see half of what is not theirs
        prompts=np.maximum(share, 1.0),
        encoded=share if np.any(one.encoder) else 0,
        encoder=one.encoder,
    )


def least_prompt_s(runner: Runner, layout: ServingLayout, input_tokens: Floats) -> Floats:
    """What stands before a first token at least: one whole prompt at datasheet rates, and nothing else.

    Source: `Runner.step`, its floor.
    Assumes: pieces of a prompt may follow one another through the stages of a pipeline, so that all work at once.
    """
    one = prompt(runner.model, input_tokens)
    pieces = np.ceil(one.tokens / chunk_tokens(runner, one.tokens))
    floor_s = runner.step(_mixed_load(one, 1.0 * one.tokens), layout).floor_s
    least: Floats = floor_s / np.minimum(np.asarray(layout.pp), pieces)
    return least


def closed_loop(
    runner: Runner,
    layout: ServingLayout,
    in_flight: Floats,
    input_tokens: Floats,
    output_tokens: Floats,
) -> Steady:
    """`in_flight` users, each sending its next request when the last is answered; shape of the broadcast.

    Every finished answer brings a prompt: with b sequences decoding, b x input / output prompt tokens fall due a step.
    One step works through at least a chunk of one prompt and at most the engine's budget; where prompts ask for more
    than that, fewer sequences decode and the others wait.

    Users started together and requests alike end together, so that prompts come in bunches: of the others', the
    engine's `synchrony` stands before a new one, half of it on average. A request comes while a step runs, and engines
    that schedule ahead of the device have planned the next without it: the engine's `steps_ahead`; those that look for
    requests every so many steps only leave it for half of these besides. Nobody waits for a prompt or a step of his
    own: what others cause goes by their share.

    Source: Agrawal et al. 2024 (arXiv:2403.02310) for chunked prefill; Little's law for the rates.
    Assumes: requests of one length; decoding sequences are on average half way through their answer.
    """
    parts = micro_batches(runner, layout, in_flight)
    in_flight = in_flight / parts
    one = prompt(runner.model, input_tokens)
    prompt_tokens = one.tokens
    chunk = chunk_tokens(runner, prompt_tokens)
    budget = _prefill_budget(runner, one)
    chunks = np.ceil(prompt_tokens / chunk)
    context = one.own + output_tokens / 2
    wanted = in_flight * output_tokens / (output_tokens + chunks)
    batch = np.maximum(np.minimum(wanted, budget * output_tokens / prompt_tokens), 1.0)
    due = batch * prompt_tokens / output_tokens
    tokens = np.clip(due, chunk, budget)
    alone = StepLoad(decode_batch=batch, decode_context=context, encoder=one.encoder)
    decode = _pipeline_step(runner, runner.step(alone, layout), parts)
    mixed = _pipeline_step(runner, runner.step(_mixed_load(one, tokens, batch, context), layout), parts)
    share = np.minimum(due / tokens, 1.0)
    others = np.maximum(in_flight - 1.0, 0.0) / np.maximum(in_flight, 1.0)
    mean_s = decode.seconds + share * (mixed.seconds - decode.seconds)
    tpot_s = decode.seconds + others * share * (mixed.seconds - decode.seconds)
    added_s = chunks * (mixed.seconds - decode.seconds)
    ahead = runner.engine.synchrony * (in_flight - 1.0) / 2 / np.maximum(tokens / chunk, 1.0)
    waits_s = steps_unseen(runner.engine) * others * mean_s + np.maximum(ahead, 0.0) * added_s
    ttft_s = runner.engine.request_s + waits_s + chunks * mixed.seconds
    tpot_s = np.maximum(tpot_s, batch * runner.engine.stream_s)
    running_s = ttft_s + (output_tokens - 1) * tpot_s
    each = np.minimum(in_flight / running_s, batch / (output_tokens * mean_s))
    each = np.minimum(each, 1.0 / np.maximum(runner.engine.stream_s * output_tokens, LEAST_S))
    ttft_s = ttft_s + front_end_s(runner.engine, prompt_tokens, others * each, others * batch)
    each = np.minimum(each, in_flight / (ttft_s + (output_tokens - 1) * tpot_s))
    ttft_s = np.maximum(ttft_s, in_flight / each - (output_tokens - 1) * tpot_s)  # Little: the rest is waiting
    rate = parts * each
    running = parts * np.minimum(batch, in_flight)
    return Steady(ttft_s, tpot_s, rate, rate * output_tokens, running, mixed.seconds, share, decode, mixed)


def steps_unseen(engine: Engine) -> float:
    """Steps that others take, on average, from a request's arrival to the step that its prompt is in.

    Source: SGLang, scheduler: with `--scheduler-recv-interval n` it looks for requests once in n steps.
    Assumes: a request comes at any of these steps with equal chances.
    """
    return engine.steps_ahead + (engine.recv_interval - 1) / 2.0


def front_end_s(engine: Engine, prompt_tokens: Floats, requests_per_s: Floats, batch: Floats) -> Floats:
    """What a first token waits in an engine's front end, beyond `request_s`; shape of the broadcast.

    Its own prompt's tokens, the requests before it, and the tokens that `batch` others get in the same step.

    Source: Pollaczek-Khinchine for constant service: rho h / (2 (1 - rho)).
    Assumes: Poisson arrivals; requests and tokens do not wait for each other. Where requests come faster than they are
    handled, the wait of those that come at 0.999 of that rate.
    """
    each_s = engine.front_s + engine.front_token_s * prompt_tokens
    busy = np.minimum(requests_per_s * each_s, 0.999)
    found: Floats = engine.front_token_s * prompt_tokens + busy * each_s / (2 * (1 - busy)) + batch * engine.stream_s
    return found


def fixed_batch(
    runner: Runner, layout: ServingLayout, batch: Floats, input_tokens: Floats, output_tokens: Floats
) -> Steady:
    """One batch: all prompts first, then all answers token by token; shape of the broadcast.

    Source: the protocol of benchmarks that fix the batch size: they call the engine, no server stands before it.
    Assumes: no request joins or leaves.
    """
    one = prompt(runner.model, input_tokens)
    prompt_tokens = one.tokens
    prompts = np.maximum(np.floor((runner.engine.prefill_tokens or prompt_tokens) / prompt_tokens), 1.0)
    prompts = np.minimum(prompts, batch)
    chunk = np.minimum(prompts * prompt_tokens, runner.engine.prefill_tokens or prompts * prompt_tokens)
    rounds = batch * prompt_tokens / chunk
    prefill = runner.step(_mixed_load(one, chunk), layout)
    parts = micro_batches(runner, layout, batch)
    context = one.own + output_tokens / 2
    alone = StepLoad(decode_batch=batch / parts, decode_context=context, encoder=one.encoder)
    decode = _pipeline_step(runner, runner.step(alone, layout), parts)
    ahead = np.asarray(layout.pp) * 1.0 if native(runner.rates, runner.engine) else 1.0
    stages = np.minimum(ahead, np.maximum(rounds, 1.0))  # pieces of prompts follow one another through the stages
    ttft_s = (rounds + stages - 1.0) / stages * prefill.seconds
    whole_s = ttft_s + (output_tokens - 1) * decode.seconds
    requests = batch / whole_s
    return Steady(
        ttft_s, decode.seconds, requests, requests * output_tokens, batch, prefill.seconds, 0.0 * batch, decode, prefill
    )


def batch_sizes(most: float) -> Array:
    """Sizes of a batch up to `most` that figures are looked up between: powers of two, half way between, and `most`.

    Source: no formula; between neighbours, at most half apart, the rate is nearly straight. Assumes: nothing more.
    """
    top = max(1.0, float(most))
    powers = 2.0 ** np.arange(int(np.log2(top)) + 1)
    return np.unique(np.concatenate([powers, 1.5 * powers[1:], [top]]).clip(max=top))


def in_flight_at(sizes: Array, rates: Array, arrivals_per_s: Array) -> Array:
    """Sequences in flight at an arrival rate, from the rates that batches of `sizes` sustain: shape of the arrivals.

    `sizes` and `rates` have shape (sizes, layouts), ascending; `arrivals_per_s` (any, layouts). Straight between the
    sizes; below the first its share, above the last as the last.

    Source: Little's law, with the response times of `closed_loop`.
    Assumes: a larger batch sustains no lower rate.
    """
    rising = np.maximum.accumulate(rates, axis=0)
    columns = [np.interp(arrivals_per_s[:, c], rising[:, c], sizes[:, c]) for c in range(rising.shape[1])]
    found: Array = np.stack(columns, axis=1) * np.minimum(arrivals_per_s / rising[:1], 1.0)
    return found


def open_loop(
    runner: Runner,
    layout: ServingLayout,
    arrivals_per_s: float,
    most_in_flight: float,
    input_tokens: Floats,
    output_tokens: Floats,
) -> Steady:
    """Requests that arrive at random at one replica: in flight as their rate asks for, at most `most_in_flight`.

    Where the replica cannot keep up, what it does with all its memory full.

    Source: Little's law, with the response times of `closed_loop`; mean waits as `open_loop_percentile`.
    Assumes: Poisson arrivals of requests of one length.
    """
    sizes = batch_sizes(most_in_flight)
    rates = np.asarray(closed_loop(runner, layout, sizes, input_tokens, output_tokens).requests_per_s)
    if arrivals_per_s >= rates.max():
        return closed_loop(runner, layout, max(most_in_flight, 1.0), input_tokens, output_tokens)
    in_flight = float(in_flight_at(sizes[:, None], rates[:, None], np.array([[arrivals_per_s]]))[0, 0])
    steady = closed_loop(runner, layout, float(in_flight), input_tokens, output_tokens)
    mean = open_loop_percentile(runner, layout, steady, arrivals_per_s, input_tokens, output_tokens, "mean")
    tokens_per_s = arrivals_per_s * output_tokens
    return steady._replace(
        ttft_s=mean.ttft_s, tpot_s=mean.tpot_s, requests_per_s=arrivals_per_s, output_tokens_per_s=tokens_per_s
    )


def one_pass_latency_s(
    step_s: Floats, request_s: Floats, batch: Floats, arrivals_per_s: Floats, percentile: str
) -> Floats:
    """Time of a request that is one pass over its input, in batches that fill, wait for the device and run; broadcasts.

    Infinite where the replica cannot keep up.

    Source: bulk service: filling takes (b - 1) / (2 x arrivals) on average, the queue is M/D/1 in batches.
    Assumes: inputs of one length.
    """
    capacity, tail = batch / step_s, TAILS[percentile]
    busy = np.minimum(arrivals_per_s / capacity, 0.999)
    queue = busy * step_s / (2 * (1 - busy))
    if tail is not None:
        queue = queue / np.maximum(busy, 1e-9) * np.log(np.maximum(busy / tail, 1.0))
    fill = (batch - 1) / np.maximum(arrivals_per_s, 1e-9) * (0.5 if tail is None else 1 - tail)
    latency: Floats = request_s + step_s + np.where(arrivals_per_s < capacity, queue + fill, np.inf)
    return latency


class Percentile(NamedTuple):
    """What the given percentile of requests sees."""

    ttft_s: Floats
    tpot_s: Floats


def open_loop_percentile(
    runner: Runner,
    layout: ServingLayout,
    steady: Steady,
    arrivals_per_s: Floats,
    input_tokens: Floats,
    output_tokens: Floats,
    percentile: str,
) -> Percentile:
    """TTFT and TPOT at a percentile under Poisson arrivals at one replica; infinite where it cannot keep up.

    Source: `_percentile_latency`, of steps with the mean batch and with that of the percentile. Assumes: as there.
    """
    one = prompt(runner.model, input_tokens)
    parts = micro_batches(runner, layout, steady.batch)
    batch = np.maximum(_percentile_batch(steady.batch, percentile) / parts, 1.0)
    alone = StepLoad(decode_batch=batch, decode_context=one.own + output_tokens / 2, encoder=one.encoder)
    busy_s = _pipeline_step(runner, runner.step(alone, layout), parts).seconds
    full_s = full_step_s(runner, layout, steady.batch, input_tokens, output_tokens)
    return _percentile_latency(runner, layout, steady, arrivals_per_s, input_tokens, full_s, busy_s, percentile)


def _percentile_batch(mean: Floats, percentile: str) -> Floats:
    """Sequences that decode at once at a percentile of moments.

    Source: normal approximation of a Poisson number. Assumes: there is a place for each.
    """
    return mean + PERCENTILES[percentile] * np.sqrt(mean)


def full_step_s(
    runner: Runner, layout: ServingLayout, batch: Floats, input_tokens: Floats, output_tokens: Floats
) -> Floats:
    """Seconds of a step that uses all of its prefill budget while `batch` sequences decode."""
    one = prompt(runner.model, input_tokens)
    parts = micro_batches(runner, layout, batch)
    full = _mixed_load(one, _prefill_budget(runner, one), batch / parts, one.own + output_tokens / 2)
    return runner.step(full, layout).seconds


def _prefill_budget(runner: Runner, one: Prompt) -> Floats:
    """Prompt tokens that one step takes at most: the engine's budget, or a chunk of one prompt if that is more."""
    chunk = chunk_tokens(runner, one.tokens)
    return np.maximum(runner.engine.prefill_tokens or chunk, chunk)


def _percentile_latency(
    runner: Runner, layout: ServingLayout, steady: Steady, arrivals_per_s: Floats, input_tokens: Floats,
    full_s: Floats, busy_s: Floats, percentile: str,
) -> Percentile:  # fmt: skip
    """TTFT and TPOT at a percentile; `full_s`, `busy_s`: steps with a full prefill budget and with the busy batch.

    A prompt waits for the step in progress and for prompts before it: mean wait rho s / (2 (1 - rho)) with an
    exponential tail, where rho is the share of the engine's prefill budget that is asked for. Where an engine plans a
    step while the one before runs, it waits for the planned one too, if any answer is under way. The decoding batch
    fluctuates as a Poisson number does.

    Source: Pollaczek-Khinchine for constant service; Kingman 1962 for the tail in heavy traffic.
    Assumes: prompts of one length; the batch is near its mean plus z standard deviations at the percentile.
    """
    one = prompt(runner.model, input_tokens)
    parts = micro_batches(runner, layout, steady.batch)
    service_s = np.ceil(one.tokens / chunk_tokens(runner, one.tokens)) * steady.prefill_s
    rho = arrivals_per_s / parts * one.tokens / _prefill_budget(runner, one) * full_s
    safe = np.minimum(rho, 0.999)
    mean_wait_s = steady.decode.seconds / 2 + safe * service_s / (2 * (1 - safe))
    tail = TAILS[percentile]
    wait_s = mean_wait_s
    if tail is not None:
        wait_s = np.where(safe > tail, mean_wait_s / np.maximum(safe, 1e-9) * np.log(np.maximum(safe / tail, 1.0)), 0.0)
    prompts_s = steady.prefill_share * (steady.mixed.seconds - steady.decode.seconds)  # that they add to a mean step
    tpot_s = busy_s + prompts_s
    front_s = front_end_s(runner.engine, one.tokens, arrivals_per_s / parts, steady.batch / parts)
    planned_s = (1.0 - np.exp(-steady.batch)) * (steady.decode.seconds + prompts_s) * runner.engine.plans_ahead
    ttft_s = runner.engine.request_s + front_s + planned_s + service_s + wait_s
    behind = rho >= 1.0
    return Percentile(np.where(behind, np.inf, ttft_s), np.where(behind, np.inf, tpot_s))


class SteadyCurves(NamedTuple):
    """Replicas in closed loops of several sizes, read between them at any arrival rate; arrays of (sizes, layouts).

    Services alike differ in their rate alone: no step is computed again for another one.

    Source: `closed_loop` at each size; straight lines between neighbours, which `batch_sizes` keeps close.
    Assumes: times of steps are nearly straight there, and beyond the last size.
    """

    runner: Runner
    layout: ServingLayout  # one row
    input_tokens: Floats
    sizes: Array  # ascending
    steady: Steady
    full_s: Array  # a step that uses all of its prefill budget

    @classmethod
    def of(
        cls, runner: Runner, layout: ServingLayout, sizes: Array, steady: Steady, input_tokens: Floats,
        output_tokens: Floats, full_s: Floats | None = None,
    ) -> SteadyCurves:  # fmt: skip
        """The curves of `steady`, closed loops of `sizes`; `layout` and `steady` in columns: all sizes in turn.

        `full_s`: those of `full_step_s`, where they are at hand.
        """
        if full_s is None:
            full_s = full_step_s(runner, layout, steady.batch, input_tokens, output_tokens)
        shape = sizes.shape
        degrees = {
            name: np.broadcast_to(getattr(layout, name), sizes.size).reshape(shape)[:1]
            for name in ("tp", "pp", "ep", "dp")
        }
        tables = _each(steady, lambda column: np.broadcast_to(column, sizes.size).reshape(shape))
        return cls(runner, ServingLayout(**degrees), input_tokens, sizes, tables, np.reshape(full_s, shape))

    def at(self, arrivals_per_s: Array) -> OpenLoop:
        """Replicas at an arrival rate each: shape (any, layouts)."""
        in_flight = in_flight_at(self.sizes, np.asarray(self.steady.requests_per_s), arrivals_per_s)
        table_at = straight_lines(self.sizes, np.maximum(in_flight, self.sizes[:1]))
        steady = _each(self.steady, table_at)
        running = np.minimum(in_flight, steady.batch)
        return OpenLoop(self, arrivals_per_s, steady._replace(batch=running), table_at(self.full_s))


class OpenLoop(NamedTuple):
    """Replicas of `curves` at an arrival rate each; arrays of (any, layouts)."""

    curves: SteadyCurves
    arrivals_per_s: Array
    steady: Steady  # as many in flight as the rate asks for
    full_s: Array

    def percentile(self, percentile: str) -> Percentile:
        """TTFT and TPOT at a percentile, as `open_loop_percentile`."""
        curves, steady = self.curves, self.steady
        batch = np.maximum(_percentile_batch(steady.batch, percentile), 1.0)
        busy_s = straight_lines(np.asarray(curves.steady.batch), batch)(curves.steady.decode.seconds)
        return _percentile_latency(
            curves.runner, curves.layout, steady, self.arrivals_per_s, curves.input_tokens, self.full_s, busy_s,
            percentile,
        )  # fmt: skip


def _each(steady: Steady, change: Callable[[Floats], Array]) -> Steady:
    """The same with every column changed, those of its steps too."""
    changed: dict[str, Any] = {
        name: StepTime(*map(change, value)) if isinstance(value, StepTime) else change(value)
        for name, value in steady._asdict().items()
    }
    return Steady(**changed)


def straight_lines(points: Array, at: Array) -> Callable[[Floats], Array]:
    """A function from tables of values at `points` (points, columns), ascending, to values at `at`, on straight lines.

    `at` has shape (any, columns). Before the first point the first value; beyond the last the last line goes on.
    """
    rows, columns = points.shape
    below = (points[:, None, :] <= at[None]).sum(axis=0) - 1
    last = (points < points[-1:]).sum(axis=0) - 1  # of the points that differ from the last
    lower = np.clip(np.minimum(below, last), 0, None)
    upper = np.minimum(lower + 1, rows - 1)
    low, high = lower * columns + np.arange(columns), upper * columns + np.arange(columns)
    start, whole = points.ravel()[low], points.ravel()[high] - points.ravel()[low]
    share = np.where(whole > 0, np.maximum(at - start, 0.0) / np.where(whole > 0, whole, 1.0), 0.0)

    def value_table(values: Floats) -> Array:
        flat = np.ravel(values)
        found: Array = flat[low] + share * (flat[high] - flat[low])
        return found

    return value_table
