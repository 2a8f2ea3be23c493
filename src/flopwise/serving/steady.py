"""A replica in steady state: what requests see when so many are in flight, or when so many arrive.

Continuous batching: each step decodes one token of every running sequence and works through a chunk of waiting prompts.
All quantities may be columns of candidates.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flopwise.ops.types import Array, Floats, Ints
from flopwise.serving.iteration import Prompt, Runner, StepLoad, StepTime, native, prompt
from flopwise.serving.memory import ServingLayout, rank_budget
from flopwise.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from flopwise.facts.software import Engine

PERCENTILES = {"mean": 0.0, "p50": 0.0, "p90": 1.2816, "p95": 1.6449, "p99": 2.3263}
"""Standard normal quantiles."""
LEAST_S = 1e-30
"""Stands for no time at all where something is divided by it."""
JOINING_STEPS = 30.0
"""Steps for which a prompt waits for those of other attention replicas at most (SGLang,
--prefill-delayer-max-delay-passes; TensorRT-LLM counts steps whether prompts wait or not and lets all go at
attention_dp_config.timeout_iters, so half of these on average: 30 of InferenceX's 60, 25 by default)."""
STEP_IN_PROGRESS = 0.5
"""Share of a step that remains on average when a request arrives."""
ROUNDS = 10
"""Requests of each user in a closed loop of a load generator (SemiAnalysisAI/InferenceX, benchmarks: num-prompts is ten
times max-concurrency, all sent at once; its times to a first token are means over all of them)."""
DRAWN, APART = 0.0642, 3.0
"""Standard deviation of a request's time over its mean, where lengths are drawn between 0.8 and 1 of the nominal ones
(the same benchmarks: random-range-ratio); and the round that stands for all after the first, as users drift apart."""
MET_BESIDE = 3.0
"""Times that the prompts in a prompt's own steps take what is said of them here, where users are simulated: a part of
what they wait too long, as they bunch less than they are assumed to (benchmarks/serve_and_simulate.py)."""
TAILS = {"mean": None, "p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}


class Steady(NamedTuple):
    """Seconds and rates of one replica; `decode` is the step that carries no prefill."""

    ttft_s: Floats
    tpot_s: Floats
    requests_per_s: Floats
    output_tokens_per_s: Floats
    batch: Floats  # sequences decoding at once
    added_s: Floats  # by which one chunk of a prompt makes a step longer
    prefill_share: Floats  # of steps that carry prefill
    bunched_s: Floats  # by which users who drift apart wait less for the prompts of others (`MET_BESIDE`)
    full_s: Floats  # a step that uses all of its prefill budget, in which `batch` decode where steps are shared
    decode: StepTime
    mixed: StepTime

    @property
    def mean_step_s(self) -> Floats:
        """Mean seconds of a step, of those with prompts and those without."""
        longer_s = self.mixed.seconds - self.decode.seconds
        return self.decode.seconds + self.prefill_share * longer_s


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


def chunk_tokens(runner: Runner, layout: ServingLayout, input_tokens: Floats) -> Floats:
    """Tokens of one prompt that one step works through: the whole prompt, or the engine's budget if that is less."""
    return np.minimum(input_tokens, _step_tokens(runner, layout, input_tokens))


def _step_tokens(runner: Runner, layout: ServingLayout, tokens: Floats) -> Floats:
    """Prompt tokens of a step of one attention replica at most: by the engine's budget, or `tokens` without one."""
    most = runner.step_tokens
    whole = most if isinstance(most, np.ndarray) else most or tokens
    return rank_budget(runner.engine, whole, layout.dp)


def _mixed_load(
    one: Prompt, tokens: Floats, batch: Floats = 0, context: Floats = 0, ranks: Floats = np.inf,
) -> StepLoad:  # fmt: skip
    """A step that decodes `batch` sequences and works through `tokens` of prompts, their encoders' tokens included.

    `ranks`: attention replicas that do; infinite: all.
    """
    share = tokens / one.tokens
    return StepLoad(
        decode_batch=batch,
        decode_context=context,
        prefill_tokens=share * one.own,
        prefill_context=one.own * (1.0 + np.minimum(share, 1.0)) / 2,  # pieces see half of what is not theirs
        prompts=np.maximum(share, 1.0),
        encoded=share if np.any(one.encoder) else 0,
        encoder=one.encoder,
        prefill_ranks=ranks,
    )


STACKED = (
    "decode_batch", "decode_context", "prefill_tokens", "prefill_context", "prompts", "encoded", "encoder",
    "prefill_ranks",
)  # fmt: skip
"""Fields of loads that may differ between steps that are timed side by side."""


def _steps(runner: Runner, layout: ServingLayout, *loads: StepLoad, only_seconds: bool) -> list[StepTime]:
    """The times of steps with several loads, side by side: what goes by the layout alone is computed once."""
    columns = {name: [getattr(load, name) for load in loads] for name in STACKED}
    degrees = (layout.tp, layout.pp, layout.ep, layout.dp)
    shape = np.broadcast_shapes(*map(np.shape, (*degrees, *chain.from_iterable(columns.values()))))
    different: dict[str, Any] = {
        name: np.stack([np.broadcast_to(one, shape) for one in column])
        for name, column in columns.items()
        if any(one is not column[0] for one in column)
    }
    whole = runner.step(replace(loads[0], only_seconds=only_seconds, **different), layout)

    def of_load(part: Floats, row: int) -> Floats:
        return part[row] if isinstance(part, np.ndarray) and part.ndim > len(shape) else part

    return [StepTime(*(of_load(part, row) for part in whole)) for row in range(len(loads))]


def least_prompt_s(runner: Runner, layout: ServingLayout, input_tokens: Floats) -> Floats:
    """The lower bound of a first token: one whole prompt at datasheet rates, in s.

    Source: `Runner.step`, its floor.
    Assumes: pieces of a prompt may follow one another through the stages of a pipeline, so that all work at once.
    """
    one = prompt(runner.model, input_tokens)
    pieces = np.ceil(one.tokens / chunk_tokens(runner, layout, one.tokens))
    floor_s = runner.step(_mixed_load(one, 1.0 * one.tokens), layout).floor_s
    least: Floats = floor_s / np.minimum(np.asarray(layout.pp), pieces)
    return least


def closed_loop(
    runner: Runner,
    layout: ServingLayout,
    in_flight: Floats,
    input_tokens: Floats,
    output_tokens: Floats,
    *,
    alike: bool = False,
    only_seconds: bool = False,
) -> Steady:
    """`in_flight` users, each sending its next request when the last is answered; shape of the broadcast.

    Every finished answer brings a prompt: with b sequences decoding, b x input / output prompt tokens fall due a step.
    A step works through the prompts that came during the one before, and at most the engine's budget; where prompts ask
    for more than that, fewer sequences decode and the others wait.

    Load generators start their users together and end after some rounds, so that the prompts of the first of `ROUNDS`
    stand before each other; half of them stand before another on average, in steps that use their whole budget while
    those decode whose prompts are through. In the other rounds a prompt finds those that happen to be there
    (`_others_wait_s`): users drift apart, as far as their lengths differ and their first prompts were read one after
    another. Prompts that came during a step, or since the scheduler looked for them, share the next. A request comes
    while a step runs, and waits for others that the engine takes without it (`steps_unseen`). Nobody waits for a prompt
    or a step of his own: what others cause goes by their share. Attention replicas that share experts step together:
    where any of them has a prompt, all take as long. Where requests are `alike`, all began together and end together,
    on every replica: a step that carries prompts on one does so on all, as where the engine joins their prompts.
    `only_seconds`: of steps with prompts, as of `StepLoad`.

    Source: Agrawal et al. 2024 (arXiv:2403.02310) for chunked prefill; Little's law for the rates; LMSYS, Large-scale
    expert parallelism on 96 H100 (2025-05-05), "DP Attention Imbalance"; `ROUNDS`.
    Assumes: requests of one length; prompts come to attention replicas independently of each other, unless `alike`;
    decoding sequences are on average half way through their answer.
    """
    parts, one = micro_batches(runner, layout, in_flight), prompt(runner.model, input_tokens)
    in_flight = in_flight / parts
    prompt_tokens, chunk = one.tokens, chunk_tokens(runner, layout, one.tokens)
    budget = _prefill_budget(runner, layout, one)
    chunks, context = np.ceil(prompt_tokens / chunk), one.own + output_tokens / 2
    others = np.maximum(in_flight - 1.0, 0.0) / np.maximum(in_flight, 1.0)
    unseen = steps_unseen(runner.engine, in_flight / output_tokens, layout.dp)
    missed = unseen * others  # steps
    wanted = in_flight * output_tokens / (output_tokens + chunks + missed)
    batch = np.maximum(np.minimum(wanted, budget * output_tokens / prompt_tokens), 1.0)
    due = batch * prompt_tokens / output_tokens
    own = _carrying_share(due / chunk, due / budget, in_flight, runner.engine.recv_interval)
    tokens = np.clip(due / np.maximum(own, LEAST_S), chunk, budget)
    ranks = np.asarray(1 if alike or not _reads_apart(runner) else layout.dp)
    share = 1.0 - (1.0 - own) ** ranks
    carrying = ranks * own / np.maximum(share, LEAST_S) if np.any(ranks > 1) else np.inf
    running, first_tokens = parts * np.minimum(batch, in_flight), np.minimum(budget, in_flight * prompt_tokens)
    alone = runner.step(StepLoad(decode_batch=batch, decode_context=context, encoder=one.encoder), layout)
    mixed, first, full = _steps(
        runner, layout,
        _mixed_load(one, tokens, _decoding_beside(runner, batch, in_flight), context, carrying),
        _mixed_load(one, first_tokens, _decoding_beside(runner, batch / 2.0, in_flight), context),
        _mixed_load(one, budget, running * runner.engine.mixes / micro_batches(runner, layout, running), context),
        only_seconds=only_seconds,
    )  # fmt: skip
    mixed = mixed if runner.engine.mixes else mixed.plus(alone)  # a token takes both steps
    decode, mixed = _pipeline_step(runner, alone, parts), _pipeline_step(runner, mixed, parts)
    longer_s, squares = mixed.seconds - decode.seconds, mixed.seconds**2 - decode.seconds**2
    met = 1.0 - (1.0 - others * own) * (1.0 - own) ** (ranks - 1)
    mean_s, tpot_s = decode.seconds + share * longer_s, decode.seconds + met * longer_s
    added_s = longer_s / np.maximum(tokens / chunk, 1.0)
    another_s = added_s if runner.engine.mixes else np.minimum(added_s, first.seconds * chunk / first_tokens)
    each_s = chunks * another_s + prompt_tokens / budget * decode.seconds  # a full step's part for one prompt
    pieces_s = prompt_tokens / chunk * added_s  # the last is no whole one
    alone_s, whole_s = chunks * decode.seconds * runner.engine.mixes + pieces_s, in_flight * each_s
    first_s = np.maximum(_first_round_s(in_flight, first_tokens, prompt_tokens, first.seconds) - alone_s, 0.0)
    away_s = (output_tokens - 1) * tpot_s + missed * mean_s
    apart_s = np.sqrt(12.0 * APART * (DRAWN * (alone_s + away_s)) ** 2 + whole_s**2)
    later_s = _others_wait_s(in_flight, each_s, np.minimum(away_s, apart_s))
    idle = 1.0 - np.minimum(whole_s / (alone_s + later_s + away_s), 1.0)  # who waits for prompts waits for their steps
    longer = (decode.seconds**2 + share * squares) / mean_s**2  # steps that it comes in
    looks = runner.engine.recv_interval - 1.0 + longer  # steps from look to look, one of them that in which it comes
    beside_s = others * idle * looks * due / prompt_tokens * another_s * (1.0 - chunk / budget)
    planned = STEP_IN_PROGRESS + runner.engine.plans_ahead
    waits_s = (
        others * (unseen - planned * (1.0 - idle)) * mean_s + (first_s + (ROUNDS - 1) * (later_s + beside_s)) / ROUNDS
    )
    ttft_s = runner.engine.request_s + waits_s + alone_s
    tpot_s = np.maximum(tpot_s, batch * runner.engine.stream_s)
    # the last step of its prompt brings a request a token
    answer_s, rounds = (output_tokens - 1) * tpot_s, output_tokens - 1.0 + chunks + missed
    each = np.minimum(in_flight / rounds, np.maximum(budget / prompt_tokens, 1.0 / output_tokens)) / mean_s
    each = np.minimum(in_flight / (ttft_s + answer_s), each)
    each = np.minimum(each, most_served_per_s(runner.engine, prompt_tokens, output_tokens) / parts)
    ttft_s = ttft_s + front_end_s(runner.engine, prompt_tokens, others * each, others * batch)
    each = np.minimum(each, in_flight / (ttft_s + answer_s))
    ttft_s = np.maximum(ttft_s, in_flight / each - answer_s)  # Little: the rest is waiting
    rate, bunched_s = parts * each, later_s - MET_BESIDE * beside_s
    return Steady(
        ttft_s, tpot_s, rate, rate * output_tokens, running, added_s, share, bunched_s, full.seconds, decode, mixed
    )


def _decoding_beside(runner: Runner, batch: Floats, in_flight: Floats) -> Floats:
    """Sequences of `batch` that decode in a step that reads prompts: none where the prompt's user is alone.

    Source: counting; `Engine.mixes`. Assumes: a draft's proposals after the prompt take as long as a round of one
    sequence.
    """
    beside = batch * runner.engine.mixes
    return beside if runner.speculates else beside * (in_flight > 1.0)


def _reads_apart(runner: Runner) -> bool:
    """True if attention replicas that step together read prompts in steps of their own."""
    return runner.model.has_experts and not runner.engine.joins_prompts


def _first_round_s(in_flight: Floats, tokens: Floats, prompt_tokens: Floats, step_s: Floats) -> Floats:
    """Until a prompt is read, on average, where all of `in_flight` are there at once; broadcasts.

    Steps of `step_s` take `tokens`, or k prompts, and each prompt is read at the end of its step: (N + k) / 2 prompts.

    Source: counting. Assumes: nothing further.
    """
    prompts = np.maximum(tokens / prompt_tokens, 1.0)
    seconds: Floats = (in_flight + prompts) / 2.0 * step_s * prompt_tokens / tokens
    return seconds


def _others_wait_s(users: Floats, service_s: Floats, away_s: Floats) -> Floats:
    """Mean wait of a prompt for those before it, where `users` are away between requests; broadcasts.

    R = s (1 + a (Q - U / 2)): those whom it finds there, of whom the one in service is half way on average; Q = N R /
    (R + Z) and U = N s / (R + Z), of which one user less, a = (N - 1) / N, is there when he comes. Solved for R, less
    s.

    Source: Bard 1979 and Schweitzer 1979, approximate mean value analysis, with the residual of a constant service.
    Assumes: prompts are read one after another, at the rate of steps that use their whole budget.
    """
    others_s = np.maximum(users - 1.0, 0.0) * service_s
    half = (service_s + others_s - away_s) / 2.0
    response_s: Floats = half + np.sqrt(
        half**2 + np.maximum(service_s * away_s - others_s * service_s / 2.0, -(half**2))
    )
    return np.maximum(response_s - service_s, 0.0)


def _carrying_share(due: Floats, least: Floats, in_flight: Floats, looks: int) -> Floats:
    """Share of steps that carry prefill where `due` pieces of prompts fall due a step; broadcasts.

    The scheduler looks for requests once in `looks` steps. Each of those in flight has sent one since with equal
    chances, so that it finds none with probability (1 - looks due / N)^N. `least`: the share where each step that
    carries any uses its whole budget.

    Source: binomial distribution; SGLang, --scheduler-recv-interval. Assumes: requests end independently of each other.
    """
    users = np.maximum(in_flight, 1.0)
    share: Floats = (1.0 - np.maximum(1.0 - looks * due / users, 0.0) ** users) / looks
    return np.minimum(np.maximum(share, least), 1.0)


def steps_unseen(engine: Engine, prompts_per_step: Floats = 0.0, ranks: Ints = 1) -> Floats:
    """Steps that others take, on average, from a request's arrival to the step that its prompt is in.

    The rest of the one that runs; the next where it is planned already; half of those until the scheduler looks for
    requests again; and those for which prompts wait for each other, from the first of them that is there.

    Source: vLLM, async_scheduling, and TensorRT-LLM, overlap scheduler (a step is planned while the one before it
    runs); SGLang, scheduler: with `--scheduler-recv-interval n` it looks for requests once in n steps; TensorRT-LLM,
    batch_wait_timeout_iters: prompts are held back for n steps, or until they fill most of the budget; SGLang,
    managers/prefill_delayer.py, and TensorRT-LLM, py_executor.py, `_balance_adp_requests`: prompts are held back until
    each attention replica has one.
    Assumes: a request comes at any of these steps with equal chances; prompts that wait do not fill the budget; those
    of the `ranks` attention replicas come independently of each other.
    """
    more = prompts_per_step * engine.batch_wait  # prompts that join the one that waits longest, half as long each
    wait_steps = engine.batch_wait * (1.0 + more / 2.0) / (1.0 + more)
    steps: Floats = STEP_IN_PROGRESS + engine.plans_ahead + (engine.recv_interval - 1) / 2.0 + wait_steps
    if engine.joins_prompts:  # the last of the replicas' prompts comes 1 + 1/2 + ... 1/n times as late as one does
        last = np.cumsum(1.0 / np.arange(1, np.max(ranks) + 1))[np.asarray(ranks) - 1] - 1.0
        steps = steps + np.minimum(last / np.maximum(prompts_per_step, 1e-9), JOINING_STEPS)
    return steps


def front_end_s(engine: Engine, prompt_tokens: Floats, requests_per_s: Floats, batch: Floats) -> Floats:
    """The wait of a first token in an engine's front end, beyond `request_s`, in s; shape of the broadcast.

    Its own prompt's tokens, the requests before it, and the tokens that `batch` others get in the same step.

    Source: Pollaczek-Khinchine for constant service: rho h / (2 (1 - rho)).
    Assumes: Poisson arrivals; requests and tokens do not wait for each other. Where requests come faster than they are
    handled, the wait of those that come at 0.999 of that rate.
    """
    each_s = engine.front_s + engine.front_token_s * prompt_tokens
    busy = np.minimum(requests_per_s * each_s, 0.999)
    front_s: Floats = engine.front_token_s * prompt_tokens + busy * each_s / (2 * (1 - busy)) + batch * engine.stream_s
    return front_s


def most_served_per_s(engine: Engine, prompt_tokens: Floats, output_tokens: Floats) -> Floats:
    """Requests a second that an engine's front end takes and streams; shape of the broadcast.

    Source: `front_s`, `front_token_s` and `stream_s` of data/engines.json. Assumes: it reads requests while it streams.
    """
    taken_s = engine.front_s + engine.front_token_s * prompt_tokens
    return 1.0 / np.maximum(np.maximum(taken_s, engine.stream_s * output_tokens), LEAST_S)


def fixed_batch(
    runner: Runner, layout: ServingLayout, batch: Floats, input_tokens: Floats, output_tokens: Floats
) -> Steady:
    """One batch: all prompts first, then all answers token by token; shape of the broadcast.

    Source: the protocol of benchmarks that fix the batch size: they call the engine, no server stands before it.
    Assumes: no request joins or leaves.
    """
    one = prompt(runner.model, input_tokens)
    prompt_tokens = one.tokens
    budget = rank_budget(runner.engine, runner.engine.prefill_tokens, layout.dp)
    limited = bool(np.all(budget))
    prompts = np.minimum(np.maximum(np.floor(budget / prompt_tokens), 1.0) if limited else 1.0, batch)
    chunk = np.minimum(prompts * prompt_tokens, budget) if limited else prompts * prompt_tokens
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
        ttft_s,
        decode.seconds,
        requests,
        requests * output_tokens,
        batch,
        prefill.seconds - decode.seconds,
        0.0 * batch,
        0.0 * batch,
        prefill.seconds,
        decode,
        prefill,
    )


USUAL_SIZES = np.concatenate([[1.0], np.outer(2.0 ** np.arange(1, 63), [1.0, 1.5]).ravel()])
"""Powers of two, and half way between them from 2 on."""


def batch_sizes(most: float) -> Array:
    """Sizes of a batch up to `most` that figures are looked up between: powers of two, half way between, and `most`.

    Source: no formula; between neighbours, at most half apart, the rate is nearly straight. Assumes: nothing more.
    """
    top = max(1.0, float(most))
    return np.append(USUAL_SIZES[: np.searchsorted(USUAL_SIZES, top)], top)


def in_flight_at(sizes: Array, rates: Array, arrivals_per_s: Array) -> Array:
    """Sequences in flight at an arrival rate, from the rates that batches of `sizes` sustain: shape of the arrivals.

    `sizes` and `rates` have shape (sizes, layouts), ascending; `arrivals_per_s` (any, layouts). Straight between the
    sizes; below the first its share, above the last as the last.

    Source: Little's law, with the response times of `closed_loop`.
    Assumes: a larger batch sustains no lower rate.
    """
    rising = np.maximum.accumulate(rates, axis=0)
    rows, columns = rising.shape
    below = (rising[:, None, :] <= arrivals_per_s[None]).sum(axis=0) - 1
    lower = np.clip(below, 0, rows - 1)
    upper = np.minimum(lower + 1, rows - 1)
    low, high = lower * columns + np.arange(columns), upper * columns + np.arange(columns)
    least, start = sizes.ravel()[low], rising.ravel()[low]
    apart = rising.ravel()[high] - start
    slope = np.where(apart > 0, (sizes.ravel()[high] - least) / np.where(apart > 0, apart, 1.0), 0.0)
    size: Array = slope * np.maximum(arrivals_per_s - start, 0.0) + least
    return size * np.minimum(arrivals_per_s / rising[:1], 1.0)


class Percentile(NamedTuple):
    """The latencies of a percentile of requests."""

    ttft_s: Floats
    tpot_s: Floats


def _prefill_budget(runner: Runner, layout: ServingLayout, one: Prompt) -> Floats:
    """Prompt tokens that one step takes at most: the engine's budget, or a chunk of one prompt if that is more."""
    chunk = chunk_tokens(runner, layout, one.tokens)
    return np.maximum(_step_tokens(runner, layout, chunk), chunk)


class _Spread(NamedTuple):
    """Mean, variance and third central moment of a time; those of independent parts add up. Broadcasts."""

    mean: Floats
    variance: Floats
    third: Floats

    def plus(self, other: _Spread) -> _Spread:
        """The spread of the sum of both."""
        return _Spread(*(a + b for a, b in zip(self, other, strict=True)))

    def at(self, percentile: str) -> Floats:
        """The value at a percentile.

        Source: Cornish and Fisher 1938, the first two terms. Assumes: it is no further from a normal variable than an
        exponential one is.
        """
        if percentile == "mean":
            return self.mean
        sigma, z = np.sqrt(np.maximum(self.variance, LEAST_S**2)), PERCENTILES[percentile]
        skew = np.minimum(self.third / sigma**3, 2.0)
        normals = skew * (z * z - 1.0) / 6.0 + z
        value: Floats = self.mean + sigma * normals
        return value


def _poisson_sum(count: Floats, each: Floats) -> _Spread:
    """A Poisson number, `count` on average, of equal times."""
    return _Spread(count * each, count * each**2, count * each**3)


def _queue_wait(busy: Floats, service_s: Floats) -> _Spread:
    """The wait before a server with constant service, busy for this share of the time, under Poisson arrivals.

    A wait is a geometric number of residual services, whose n-th moment is s^n / (n + 1).

    Source: Pollaczek-Khinchine, as a geometric sum (Asmussen 2003, Applied probability and queues, VIII.5).
    Assumes: first come, first served.
    """
    odds = busy / (1.0 - busy)
    one, two, three = service_s / 2.0, service_s**2 / 3.0, service_s**3 / 4.0
    return _Spread(
        odds * one, odds * two + (odds * one) ** 2, odds * three + 3.0 * odds**2 * one * two + 2.0 * (odds * one) ** 3
    )


class SteadyCurves(NamedTuple):
    """Replicas in closed loops of several sizes, read between them at any arrival rate; arrays of (sizes, layouts).

    Services alike differ in their rate alone: no step is computed again for another one. What arrives at random decodes
    in batches of all sizes around the mean, so that a step which takes another wave of tiles from some size on comes to
    a value between those of its neighbours.

    Source: `closed_loop` at each size; straight lines between neighbours, which `batch_sizes` keeps close.
    Assumes: times of steps, averaged over the batches of a Poisson number, are nearly straight there and beyond.
    """

    runner: Runner
    layout: ServingLayout  # one row
    input_tokens: Floats
    output_tokens: Floats
    sizes: Array  # ascending
    steady: Steady  # its columns are arrays

    @classmethod
    def of(
        cls, runner: Runner, layout: ServingLayout, sizes: Array, steady: Steady, input_tokens: Floats,
        output_tokens: Floats,
    ) -> SteadyCurves:  # fmt: skip
        """The curves of `steady`, closed loops of `sizes`; `layout` and `steady` in columns: all sizes in turn."""
        shape = sizes.shape
        degrees = {
            name: np.broadcast_to(getattr(layout, name), sizes.size).reshape(shape)[:1]
            for name in ("tp", "pp", "ep", "dp")
        }
        tables = _each(steady, lambda column: np.broadcast_to(column, sizes.size).reshape(shape))
        return cls(runner, ServingLayout(**degrees), input_tokens, output_tokens, sizes, tables)

    @classmethod
    def up_to(
        cls, runner: Runner, layout: ServingLayout, most_in_flight: float, input_tokens: Floats, output_tokens: Floats
    ) -> SteadyCurves:
        """The curves of one layout, up to `most_in_flight` at once."""
        sizes = batch_sizes(most_in_flight)
        steady = closed_loop(runner, layout, sizes, input_tokens, output_tokens)
        return cls.of(runner, layout, sizes[:, None], steady, input_tokens, output_tokens)

    @property
    def most_per_s(self) -> float:
        """Requests per second that the best of all sizes and layouts sustains."""
        return float(np.max(self.steady.requests_per_s))

    def at(self, arrivals_per_s: Array) -> OpenLoop:
        """Replicas at an arrival rate each: shape (any, layouts)."""
        table = self.steady
        rates = np.asarray(table.batch / (self.output_tokens * table.mean_step_s))
        batch = in_flight_at(np.asarray(table.batch), rates, arrivals_per_s)
        points, apart = np.asarray(table.batch), np.sqrt(batch)
        below, above = (straight_lines(points, np.maximum(batch + way * apart, points[:1])) for way in (-1.0, 1.0))
        steady = _each(table, lambda column: (below(column) + above(column)) / 2.0)
        more_s = (above(table.decode.seconds) - below(table.decode.seconds)) / (2.0 * np.maximum(apart, LEAST_S))
        return OpenLoop(self, arrivals_per_s, steady._replace(batch=batch), more_s)


class OpenLoop(NamedTuple):
    """Replicas of `curves` at an arrival rate each; arrays of (any, layouts)."""

    curves: SteadyCurves
    arrivals_per_s: Array
    steady: Steady  # means over the batches that decode, as many as the rate asks for
    more_s: Array  # by which one more sequence makes a step longer

    def percentile(self, percentile: str) -> Percentile:
        """TTFT and TPOT at a percentile under Poisson arrivals; infinite where a replica cannot keep up.

        Source: `_first_token`, `_each_token`, their moments. Assumes: as there.
        """
        behind = self._busy >= 1.0
        times = (self._first_token.at(percentile), self._each_token.at(percentile))
        return Percentile(*(np.where(behind, np.inf, time) for time in times))

    @property
    def _one(self) -> Prompt:
        return prompt(self.curves.runner.model, self.curves.input_tokens)

    @property
    def _parts(self) -> Floats:
        return micro_batches(self.curves.runner, self.curves.layout, self.steady.batch)

    @property
    def _busy(self) -> Floats:
        """Share of the engine's prefill budget that is asked for."""
        budget = _prefill_budget(self.curves.runner, self.curves.layout, self._one)
        return self.arrivals_per_s / self._parts * self._one.tokens / budget * self.steady.full_s

    @property
    def _pieces(self) -> Floats:
        """Steps that a prompt goes through."""
        return np.ceil(self._one.tokens / chunk_tokens(self.curves.runner, self.curves.layout, self._one.tokens))

    @property
    def _queue(self) -> _Spread:
        """The wait for prompts before one: M/D/1, where the budget of a step is what serves.

        Source: `_queue_wait`. Assumes: prompts of one length.
        """
        budget = _prefill_budget(self.curves.runner, self.curves.layout, self._one)
        return _queue_wait(np.minimum(self._busy, 0.999), self.steady.full_s * self._one.tokens / budget)

    @property
    def _first_token(self) -> _Spread:
        """The time to a first token: it waits for steps that are planned, and for prompts before it.

        Where a prompt finds none before it, it waits for the rest of a step and for the one that is planned, if any
        answer is under way. In these and in its own step are the prompts that came during a step each, of which it
        meets a longer one than most. What else the engine is ahead of a request, it waits in any case.

        Source: `_queue`; `steps_unseen`. Assumes: a request comes at any moment of a step.
        """
        curves, steady, one = self.curves, self.steady, self._one
        engine, per_s = curves.runner.engine, self.arrivals_per_s / self._parts
        chunk = chunk_tokens(curves.runner, curves.layout, one.tokens)
        alone = 1.0 - chunk / _prefill_budget(curves.runner, curves.layout, one)
        decode_s, mean_s = steady.decode.seconds, steady.mean_step_s
        under_way = -np.expm1(-steady.batch)
        planned = STEP_IN_PROGRESS + engine.plans_ahead
        waits = under_way * (1.0 - np.minimum(self._busy, 0.999)) * planned
        own_s = engine.request_s + front_end_s(engine, one.tokens, per_s, steady.batch / self._parts)
        lone_s = np.minimum(np.asarray(curves.steady.added_s)[:1], steady.added_s)  # a prompt that shares no step
        own_s = own_s + self._pieces * (lone_s + decode_s * engine.mixes) + waits * decode_s
        own_s = own_s + under_way * (steps_unseen(engine, per_s * mean_s) - planned) * mean_s
        step = _Spread(own_s, under_way * decode_s**2 / 12.0, 0.0)
        squares = steady.mixed.seconds**2 - decode_s**2
        longer_s = decode_s**2 + steady.prefill_share * squares
        beside = per_s * (waits + under_way) * longer_s / mean_s * alone
        another_s = steady.added_s
        if not engine.mixes:  # weights are read once for all prompts of a step of their own
            budget = _prefill_budget(curves.runner, curves.layout, one)
            another_s = np.minimum(another_s, self.steady.full_s * one.tokens / budget)
        return step.plus(_poisson_sum(beside, another_s)).plus(self._queue)

    @property
    def _each_token(self) -> _Spread:
        """The mean time of a further token of an answer, which depends on the batch and the prompts that it meets.

        Both come from the same arrivals: of those within an answer's time before its first token and until its last, at
        a distance u of that time, each makes the steps of 1 - u of it longer by `more_s`; of those until its last, each
        adds its prompt besides. Those that came while its own prompt waited and was read follow at once. Answers that
        meet more prompts last longer, and so meet more.

        Source: M/G/infinity (Campbell's theorem for sums over Poisson arrivals); busy periods for what meets more.
        Assumes: answers of one length; an answer sees one sequence more than there are on average, itself.
        """
        steady, steps = self.steady, np.maximum(self.curves.output_tokens - 1.0, 1.0)
        prompt_s, per_s, waits = self._pieces * steady.added_s, self.arrivals_per_s / self._parts, self._queue
        longer = 1.0 / (1.0 - np.minimum(per_s * prompt_s, 0.95))
        batch, slope, each_s = steady.batch / self._parts, self.more_s, prompt_s / steps
        longer_s = steady.mixed.seconds - steady.decode.seconds
        mean = steady.decode.seconds + slope + steady.prefill_share * longer_s
        square = slope**2 * 2 / 3 + slope * each_s + each_s**2
        cube = slope**3 / 2 + slope**2 * each_s + slope * each_s**2 * 3 / 2 + each_s**3
        met = _Spread(mean, batch * square * longer**2, batch * cube * longer**3)
        behind, come = _poisson_sum(per_s * (waits.mean + prompt_s), each_s * longer), per_s * each_s * longer
        return met.plus(behind).plus(_Spread(0.0, waits.variance * come**2, waits.third * come**3))


def _each(steady: Steady, change: Callable[[Floats], Array]) -> Steady:
    """The steady state with `change` applied to every column, those of its steps included."""
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
        if np.size(values) == 1:
            return np.ravel(values)
        flat = np.ravel(values)
        curve: Array = flat[low] + share * (flat[high] - flat[low])
        return curve

    return value_table
