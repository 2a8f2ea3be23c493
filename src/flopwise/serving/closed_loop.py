"""Users in a closed loop: each sends the next request when the last is answered.

What so many users, or requests in flight, mean to `flopwise serve`, `simulate` and `plan` is what load generators do:
all users begin at the same instant and send `ROUNDS` requests each, whose lengths vary around those given (`SHORTEST`),
and all requests count, those of the first round included.

All quantities of the closed form may be columns of candidates.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from flopwise.ops.types import Floats
from flopwise.serving.iteration import Prompt, Runner, StepLoad, StepTime, prompt
from flopwise.serving.memory import ServingLayout
from flopwise.serving.spec import ROUNDS, SHORTEST
from flopwise.serving.steady import (
    LEAST_S,
    STEP_IN_PROGRESS,
    Steady,
    chunk_tokens,
    front_end_s,
    launch_wait_s,
    micro_batches,
    mixed_load,
    most_served_per_s,
    pipeline_step,
    prefill_budget,
    steps_unseen,
)
from flopwise.values import replace

DRAWN, APART = (1.0 - SHORTEST) / 3.0**0.5, 3.0
"""Standard deviation over the mean of a request's time where its lengths vary by so much; and the round that stands for
all after the first, as users drift apart."""


def closed_loop_text(users: int, requests: int | None = None) -> str:
    """The assumption about users in a closed loop, who send so many requests in all, in words; empty for one user."""
    if users < 2:
        return ""
    each = f"{ROUNDS} requests each" if requests in {None, ROUNDS * users} else f"{requests:,} requests in turn"
    return (
        f"a closed loop as load generators make it: all {users:,} users begin at the same instant and send {each}; "
        "figures are over all requests, those of the first round included"
    )


class _LoopUsers(NamedTuple):
    """Users of one micro-batch of an attention replica, their prompts, and how many of them decode at once."""

    in_flight: Floats
    one: Prompt
    output_tokens: Floats
    chunk: Floats  # tokens of a prompt that one step works through
    budget: Floats  # of all prompts
    chunks: Floats  # steps of a prompt
    others: Floats  # share of the users, for each of them
    unseen: Floats  # steps that others take from a request's arrival to the step that its prompt is in
    wanted: Floats  # sequences that would decode without a budget
    batch: Floats  # that do
    due: Floats  # prompt tokens, a step

    @classmethod
    def of(
        cls, runner: Runner, layout: ServingLayout, in_flight: Floats, input_tokens: Floats, output_tokens: Floats
    ) -> Self:
        """With b sequences decoding, b x input / output prompt tokens fall due a step, at most the engine's budget.

        While a user alone waits for a prompt, none decodes: b may be less than one, but not the batch of a step.
        """
        one = prompt(runner.model, input_tokens)
        chunk, budget = chunk_tokens(runner, layout, one.tokens), prefill_budget(runner, layout, one)
        chunks = np.ceil(one.tokens / chunk)
        others = np.maximum(in_flight - 1.0, 0.0) / np.maximum(in_flight, 1.0)
        unseen = steps_unseen(runner.engine, in_flight / output_tokens, layout.dp)
        wanted = in_flight * output_tokens / (output_tokens + chunks + unseen * others)
        decoding = np.minimum(wanted, budget * output_tokens / one.tokens)
        batch, due = np.maximum(decoding, 1.0), decoding * one.tokens / output_tokens
        return cls(in_flight, one, output_tokens, chunk, budget, chunks, others, unseen, wanted, batch, due)

    @property
    def context(self) -> Floats:
        """Cached tokens of a sequence that decodes: it is half way through its answer."""
        return self.one.own + self.output_tokens / 2

    @property
    def first_tokens(self) -> Floats:
        """Tokens of prompts in a step where those of all users are there."""
        return np.minimum(self.budget, self.in_flight * self.one.tokens)

    @property
    def missed_steps(self) -> Floats:
        """Steps that others take while a request waits for its own."""
        return self.unseen * self.others


STACKED = (
    "decode_batch", "decode_context", "prefill_tokens", "prefill_context", "prompts", "encoded", "encoder",
    "prefill_ranks",
)  # fmt: skip
"""Fields of loads that may differ between steps that are timed side by side."""


def _side_by_side(runner: Runner, layout: ServingLayout, *loads: StepLoad, only_seconds: bool) -> list[StepTime]:
    """The times of steps with several loads: what goes by the layout alone is computed once."""
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


class _LoopSteps(NamedTuple):
    """The steps that users see."""

    decode: StepTime
    mixed: StepTime
    first_s: Floats  # a step of the first round, in which all prompts are there
    full_s: Floats  # a step that uses all of its prefill budget
    share: Floats  # of steps that carry prefill
    added_s: Floats  # by which one chunk makes a step longer
    mean_s: Floats
    tpot_s: Floats  # of the steps of one user, who does not meet his own prompts

    @classmethod
    def of(
        cls, runner: Runner, layout: ServingLayout, users: _LoopUsers, parts: Floats, *, alike: bool, only_seconds: bool
    ) -> Self:
        """Attention replicas that share experts step together: where any of them has a prompt, all take as long.

        Where prompts go in steps of their own, a token takes both steps. `parts`, `alike`, `only_seconds`: as of
        `closed_loop`.

        Source: `Engine.mixes`. Assumes: half of those that decode at all do in the first round.
        """
        one, batch, context, mixes = users.one, users.batch, users.context, runner.engine.mixes
        own = _carrying_share(
            users.due / users.chunk, users.due / users.budget, users.in_flight, runner.engine.recv_interval
        )
        # without digits that rounding errors made, which would begin a tile of their own
        tokens = np.clip(np.round(users.due / np.maximum(own, LEAST_S), 6), users.chunk, users.budget)
        ranks = np.asarray(1 if alike or not _reads_apart(runner) else layout.dp)
        share = 1.0 - (1.0 - own) ** ranks
        carrying = ranks * own / np.maximum(share, LEAST_S) if np.any(ranks > 1) else np.inf
        running = parts * np.minimum(batch, users.in_flight)
        alone = runner.step(StepLoad(decode_batch=batch, decode_context=context, encoder=one.encoder), layout)
        mixed, first, full = _side_by_side(
            runner, layout,
            mixed_load(one, tokens, _decoding_beside(runner, batch, users.in_flight), context, carrying),
            mixed_load(one, users.first_tokens, _decoding_beside(runner, batch / 2.0, users.in_flight), context),
            mixed_load(one, users.budget, running * mixes / micro_batches(runner, layout, running), context),
            only_seconds=only_seconds,
        )  # fmt: skip
        mixed = mixed if mixes else mixed.plus(alone)
        decode, mixed = pipeline_step(runner, alone, parts), pipeline_step(runner, mixed, parts)
        longer_s = np.maximum(mixed.seconds - decode.seconds, 0.0)
        met = 1.0 - (1.0 - users.others * own) * (1.0 - own) ** (ranks - 1)
        added_s = longer_s / np.maximum(tokens / users.chunk, 1.0)
        mean_s, tpot_s = decode.seconds + share * longer_s, decode.seconds + met * longer_s
        return cls(decode, mixed, first.seconds, full.seconds, share, added_s, mean_s, tpot_s)


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

    Every finished answer brings a prompt. A step works through the prompts that came during the one before, and at most
    the engine's budget; where prompts ask for more than that, fewer sequences decode and the others wait. Nobody waits
    for a prompt or a step of his own: what others cause goes by their share. Where requests are `alike`, all began
    together and end together, on every replica: a step that carries prompts on one does so on all, as where the engine
    joins their prompts. Where waits and steps take less than the work of all requests does (`_work_s`), each of them is
    longer in proportion, up to steps that all carry prompts. `only_seconds`: of steps with prompts, as `StepLoad` has.

    Source: Agrawal et al. 2024 (arXiv:2403.02310) for chunked prefill; Little's law for the rates; LMSYS, Large-scale
    expert parallelism on 96 H100 (2025-05-05), "DP Attention Imbalance"; `ROUNDS`, `_waits`, `_work_s`.
    Assumes: requests of one length; prompts come to attention replicas independently of each other, unless `alike`;
    decoding sequences are on average half way through their answer.
    """
    engine, parts = runner.engine, micro_batches(runner, layout, in_flight)
    users = _LoopUsers.of(runner, layout, in_flight / parts, input_tokens, output_tokens)
    in_flight, prompt_tokens = users.in_flight, users.one.tokens
    steps = _LoopSteps.of(runner, layout, users, parts, alike=alike, only_seconds=only_seconds)
    alone_s = _prompt_s(runner, users, steps)
    waits_s, met_frac = _waits(runner, users, steps, alone_s)
    ttft_s = engine.request_s + waits_s + alone_s
    prompts_s = met_frac * (steps.tpot_s - steps.decode.seconds)
    tpot_s = np.maximum(steps.decode.seconds + prompts_s, users.batch * engine.stream_s)
    # the last step of a prompt brings a token; where prompts have steps of their own, none of these is a round
    rounds = np.maximum(output_tokens - 1.0 + users.chunks * engine.mixes + users.missed_steps, LEAST_S)
    least_s = in_flight * _work_s(users, steps, rounds)
    slower = np.maximum(least_s / (ttft_s + (output_tokens - 1.0) * tpot_s), 1.0)
    ttft_s, tpot_s = ttft_s * slower, np.minimum(tpot_s * slower, np.maximum(tpot_s, steps.mixed.seconds))
    answer_s = (output_tokens - 1) * tpot_s
    most = np.maximum(users.budget / prompt_tokens, 1.0 / output_tokens)
    if alike or not engine.mixes:  # they end when all their work is done; and work of steps of their own adds up
        most = np.minimum(in_flight / rounds, most)
    each = np.minimum(in_flight / (ttft_s + answer_s), most / steps.mean_s)
    each = np.minimum(each, most_served_per_s(engine, prompt_tokens, output_tokens) / parts)
    each = np.minimum(each, in_flight / least_s)
    ttft_s = ttft_s + front_end_s(engine, prompt_tokens, users.others * each, users.others * users.batch)
    each = np.minimum(each, in_flight / (ttft_s + answer_s))
    ttft_s = np.maximum(ttft_s, in_flight / each - answer_s)  # Little: the rest is waiting
    launching_s = _mean_launch_wait_s(runner, layout, users, steps)
    ttft_s, tpot_s = ttft_s + launching_s, tpot_s - launching_s / np.maximum(output_tokens - 1.0, 1.0)
    rate, running = parts * each, parts * np.minimum(users.batch, in_flight)
    return Steady(
        ttft_s, tpot_s, rate, rate * output_tokens, running, steps.added_s, steps.share, steps.full_s, steps.decode,
        steps.mixed,
    )  # fmt: skip


def _prompt_s(runner: Runner, users: _LoopUsers, steps: _LoopSteps) -> Floats:
    """Seconds of a prompt's own steps, of which the last piece is no whole one."""
    pieces_s = users.one.tokens / users.chunk * steps.added_s
    prompt_s: Floats = users.chunks * steps.decode.seconds * runner.engine.mixes + pieces_s
    return prompt_s


def _work_s(users: _LoopUsers, steps: _LoopSteps, rounds: Floats) -> Floats:
    """Seconds of steps that a request takes at least: its prompt's part, and its share of `rounds` of all users' steps.

    Source: utilisation law (Denning and Buzen 1978): no more is answered than the steps have time for.
    Assumes: a prompt takes no less than its part of a step that uses its whole budget.
    """
    prompt_tokens = users.one.tokens
    full_s = np.maximum(steps.full_s - steps.decode.seconds, 0.0) * prompt_tokens / users.budget
    prompt_s = np.minimum(prompt_tokens / users.chunk * steps.added_s, full_s)
    work_s: Floats = prompt_s + rounds / users.in_flight * steps.decode.seconds
    return work_s


def _waits(runner: Runner, users: _LoopUsers, steps: _LoopSteps, alone_s: Floats) -> tuple[Floats, Floats]:
    """(mean wait of a prompt for steps and prompts of others, share of those prompts met while decoding); broadcasts.

    `alone_s`: the prompt's own steps. The share is of what `_LoopSteps.tpot_s` counts, in which nobody waits.

    The prompts of the first of `ROUNDS` stand before each other: half of them before another on average, in steps that
    use their whole budget while those decode whose prompts are through. In the other rounds a prompt finds those that
    happen to be there (`_others_wait_s`): users drift apart, as far as their lengths differ and their first prompts
    were read one after another. Prompts that came during a step, or since the scheduler looked for them, share the
    next. A request comes while a step runs, and waits for others that the engine takes without it (`steps_unseen`).

    Each of the others has one prompt for each of a user's own. Those that he waits for make his answer no longer: of
    the first round half of them, later as many as take the time that he waits. Where a full budget holds decoding
    sequences back (`batch`), steps are as long as they can be, and the share is 1; so it is where prompts have steps of
    their own, of which there are more than are counted.

    Source: `ROUNDS`, `_first_round_s`, `_others_wait_s`; counting for the share. Assumes: as there.
    """
    decode_s, mean_s, prompt_tokens = steps.decode.seconds, steps.mean_s, users.one.tokens
    another_s = _another_prompt_s(runner, users, steps)
    each_s = users.chunks * another_s + prompt_tokens / users.budget * decode_s  # a full step's part for one prompt
    whole_s = users.in_flight * each_s
    first_s = np.maximum(_first_round_s(users, steps.first_s) - alone_s, 0.0)
    away_s = (users.output_tokens - 1) * steps.tpot_s + users.missed_steps * mean_s
    apart_s = np.sqrt(12.0 * APART * (DRAWN * (alone_s + away_s)) ** 2 + whole_s**2)
    later_s = _others_wait_s(users.in_flight, each_s, np.minimum(away_s, apart_s))
    idle = 1.0 - np.minimum(whole_s / (alone_s + later_s + away_s), 1.0)  # who waits for prompts waits for their steps
    squares = steps.mixed.seconds**2 - decode_s**2
    longer = (decode_s**2 + steps.share * squares) / mean_s**2  # steps that it comes in
    looks = runner.engine.recv_interval - 1.0 + longer  # steps from look to look, one of them that in which it comes
    alone = 1.0 - users.chunk / users.budget
    beside_s = users.others * idle * looks * users.due / prompt_tokens * another_s * alone
    planned = STEP_IN_PROGRESS + runner.engine.plans_ahead
    unseen_s = users.others * (users.unseen - planned * (1.0 - idle)) * mean_s
    wait_s: Floats = unseen_s + (first_s + (ROUNDS - 1) * (later_s + beside_s)) / ROUNDS
    if not runner.engine.mixes:
        return wait_s, 1.0
    prompt_s = users.chunks * another_s
    waited_for = (later_s * prompt_s / each_s + beside_s) / np.maximum(prompt_s, LEAST_S)
    away = 1.0 - np.minimum(waited_for / np.maximum(users.in_flight - 1.0, 1.0), 1.0)
    met = (0.5 + (ROUNDS - 1) * away) / ROUNDS
    return wait_s, np.minimum(met * users.wanted / users.batch, 1.0)


def _mean_launch_wait_s(runner: Runner, layout: ServingLayout, users: _LoopUsers, steps: _LoopSteps) -> Floats:
    """Mean wait of first tokens for a launch (`launch_wait_s`): in the first round, of all steps but the last.

    Others follow them the sooner: an answer waits for the prompts in any case.

    Source: `ROUNDS`. Assumes: in the other rounds a step of prompts is followed by one as often as any step is.
    """
    step_s = steps.mixed.seconds - steps.decode.seconds
    first = 1.0 - users.first_tokens / (users.in_flight * users.one.tokens)
    followed = (first + (ROUNDS - 1) * users.others * steps.share) / ROUNDS
    waits_s = (users.output_tokens - 1.0) * (steps.tpot_s - steps.decode.seconds)
    return np.minimum(followed * launch_wait_s(runner, layout, users.one, step_s), waits_s)


def _decoding_beside(runner: Runner, batch: Floats, in_flight: Floats) -> Floats:
    """Sequences of `batch` that decode in a step that reads prompts: none where the prompt's user is alone.

    Source: counting; `Engine.mixes`. Assumes: a draft's proposals after the prompt take as long as a round of one
    sequence.
    """
    beside = batch * runner.engine.mixes
    return beside if runner.speculates else beside * (in_flight > 1.0)


def _another_prompt_s(runner: Runner, users: _LoopUsers, steps: _LoopSteps) -> Floats:
    """By which one more prompt's piece makes a step longer that carries others.

    Source: `Engine.mixes`: weights are read once for all prompts of a step of their own. Assumes: all that the budget
    allows go together.
    """
    if runner.engine.mixes:
        return steps.added_s
    another_s: Floats = np.minimum(steps.added_s, steps.first_s * users.chunk / users.first_tokens)
    return another_s


def _reads_apart(runner: Runner) -> bool:
    """True if attention replicas that step together read prompts in steps of their own."""
    return runner.model.has_experts and not runner.engine.joins_prompts


def _first_round_s(users: _LoopUsers, step_s: Floats) -> Floats:
    """Until a prompt is read, on average, where those of all users are there at once; broadcasts.

    Steps of `step_s` take as many as their budget allows, k, and each prompt is read at the end of its step: that of
    (N + k) / 2 prompts.

    Source: counting. Assumes: nothing further.
    """
    prompts = np.maximum(users.first_tokens / users.one.tokens, 1.0)
    seconds: Floats = (users.in_flight + prompts) / 2.0 * step_s * users.one.tokens / users.first_tokens
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
