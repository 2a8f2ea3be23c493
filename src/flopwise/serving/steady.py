"""A replica in steady state: its steps with and without prompts, and what delays a request before them.

Continuous batching: each step decodes one token of every running sequence and works through a chunk of waiting prompts.
All quantities may be columns of candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.ops.types import Floats, Ints
from flopwise.serving.iteration import Prompt, Runner, StepLoad, StepTime, native, prompt
from flopwise.serving.memory import ServingLayout, rank_budget

if TYPE_CHECKING:
    from flopwise.facts.software import Engine

LEAST_S = 1e-30
"""Stands for no time at all where something is divided by it."""
JOINING_STEPS = 30.0
"""Steps for which a prompt waits for those of other attention replicas at most (SGLang,
--prefill-delayer-max-delay-passes; TensorRT-LLM counts steps whether prompts wait or not and lets all go at
attention_dp_config.timeout_iters, so half of these on average: 30 of InferenceX's 60, 25 by default)."""
STEP_IN_PROGRESS = 0.5
"""Share of a step that remains on average when a request arrives."""


class Steady(NamedTuple):
    """Seconds and rates of one replica; `decode` is the step that carries no prefill."""

    ttft_s: Floats
    tpot_s: Floats
    requests_per_s: Floats
    output_tokens_per_s: Floats
    batch: Floats  # sequences decoding at once
    added_s: Floats  # by which one chunk of a prompt makes a step longer
    prefill_share: Floats  # of steps that carry prefill
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


def pipeline_step(runner: Runner, step: StepTime, parts: Floats) -> StepTime:
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


def prefill_budget(runner: Runner, layout: ServingLayout, one: Prompt) -> Floats:
    """Prompt tokens that one step takes at most: the engine's budget, or a chunk of one prompt if that is more."""
    chunk = chunk_tokens(runner, layout, one.tokens)
    return np.maximum(_step_tokens(runner, layout, chunk), chunk)


def mixed_load(
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


def least_prompt_s(runner: Runner, layout: ServingLayout, input_tokens: Floats) -> Floats:
    """The lower bound of a first token: one whole prompt at datasheet rates, in s.

    Source: `Runner.step`, its floor.
    Assumes: pieces of a prompt may follow one another through the stages of a pipeline, so that all work at once.
    """
    one = prompt(runner.model, input_tokens)
    pieces = np.ceil(one.tokens / chunk_tokens(runner, layout, one.tokens))
    floor_s = runner.step(mixed_load(one, 1.0 * one.tokens), layout).floor_s
    least: Floats = floor_s / np.minimum(np.asarray(layout.pp), pieces)
    return least


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


def launch_wait_s(runner: Runner, layout: ServingLayout, one: Prompt, step_s: Floats) -> Floats:
    """Seconds for which first tokens of a step of prompts are kept where another such step follows it.

    They go out once that one is launched, which the host begins when it has launched this one: two launches after this
    one began, and not before it ends.

    Source: `tokens_after_launch` of data/engines.json; `Runner.launching_s`. Assumes: prompts have steps of their own,
    of `step_s`; one takes the host as long to launch as another, and graphs, where they hold prompts, no time.
    """
    if not runner.engine.tokens_after_launch or runner.engine.mixes or not np.any(runner.launches_prompts(layout)):
        return 0.0
    load = mixed_load(one, chunk_tokens(runner, layout, one.tokens))
    launch_s = runner.launching_s(runner.device_step(load, layout)[0], load, layout)
    return np.maximum(2.0 * launch_s - step_s, 0.0)


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
    prefill = runner.step(mixed_load(one, chunk), layout)
    parts = micro_batches(runner, layout, batch)
    context = one.own + output_tokens / 2
    alone = StepLoad(decode_batch=batch / parts, decode_context=context, encoder=one.encoder)
    decode = pipeline_step(runner, runner.step(alone, layout), parts)
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
        prefill.seconds,
        decode,
        prefill,
    )
