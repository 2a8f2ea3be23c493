"""A runner whose steps carry what the techniques of a job add, and lack what they save; the load that it is given."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.cost.fabric import pcie_bytes_per_s
from flopwise.serving.iteration import ACT_BYTES, Runner, StepLoad, StepTime
from flopwise.serving.memory import Changes, Draft, ServingLayout
from flopwise.serving.offload import STREAM_TOKENS, layer_bytes, on_host, stream
from flopwise.serving.precision import product_path
from flopwise.serving.speculative import tokens_per_step, tokens_variance, without_ends
from flopwise.serving.steady import PERCENTILES

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.ops.types import Floats, Ints
    from flopwise.serving.job import ServeJob
    from flopwise.serving.steady import Steady
    from flopwise.serving.techniques import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueRunner(Runner):
    """A runner with techniques. Loads are as for a plain one, of what is left to compute and of whole rounds."""

    cached_tokens: float = 0.0  # of each prompt: seen, not computed
    grown_tokens: float = 0.0  # by which an answer is longer on average than the rounds that made it
    kept_frac: float = 1.0  # of a context, what decoding reads
    proposals: int = 0  # tokens that a draft proposes a round
    draft: Runner | None = None
    draft_layout: ServingLayout | None = None
    away_frac: float = 0.0  # layers in the host's memory
    away_bytes: Floats = 0.0  # weights of all layers on one GPU
    host: Runner | None = None  # computes the layers that are away

    def step(self, load: StepLoad, split: ServingLayout) -> StepTime:
        """Time of one step, or of one round of proposals and their verification.

        Source: `Runner.step`; `cached_tokens`; `flopwise.serving.speculative` and `offload`.
        Assumes: a draft and the model run one after the other, in one step of the engine.
        """
        before = self.cached_tokens + self.grown_tokens
        seen = replace(
            load,
            decode_context=(load.decode_context + before) * self.kept_frac + self.proposals,
            decode_tokens=1 + self.proposals,
            prefill_context=load.prefill_context + self.cached_tokens,
        )
        whole = Runner.step(self, seen, split)
        if self.away_frac:
            whole = self._with_offload(whole, seen, split)
        return whole if self.draft is None else self._with_draft(whole, load, seen)

    def _with_offload(self, step: StepTime, load: StepLoad, split: ServingLayout) -> StepTime:
        """A step of which some layers are in the host's memory."""
        brought = stream(step, self.away_frac, self.away_bytes, self.rates, prefetched=self.host is None)
        if self.host is None:
            return brought
        tokens = load.decode_batch * load.decode_tokens + load.prefill_tokens
        moved = 2.0 * tokens * self.model.stacks[0].width * ACT_BYTES
        there = Runner.step(self.host, load, ServingLayout(pp=split.pp))
        computed = on_host(step, there, self.away_frac, moved / pcie_bytes_per_s(self.rates))
        many = np.asarray(tokens) >= STREAM_TOKENS
        return StepTime(*(np.where(many, a, b) for a, b in zip(brought, computed, strict=True)))

    def _with_draft(self, step: StepTime, load: StepLoad, seen: StepLoad) -> StepTime:
        """A round: the draft proposes token after token, and reads prompts once as the model does."""
        draft, layout = self.draft, self.draft_layout
        assert draft is not None
        assert layout is not None
        if np.any(load.decode_batch):
            alone = StepLoad(decode_batch=load.decode_batch, decode_context=seen.decode_context)
            step = _sum(step, draft.step(alone, layout), self.proposals)
        if np.any(load.prefill_tokens):
            read = replace(seen, decode_batch=0, decode_tokens=1)
            step = _sum(step, draft.step(read, layout), np.minimum(1.0, load.prefill_tokens))
        return step


def _sum(step: StepTime, other: StepTime, count: Floats) -> StepTime:
    return StepTime(*(a + count * b for a, b in zip(step, other, strict=True)))


def cached_tokens(
    input_tokens: Ints, *, shared_tokens: Ints = 0, hit_frac: Floats = 0.0, block_tokens: int = 1
) -> Floats:
    """Tokens of a prompt that need no computing; broadcasts.

    A shared prefix is found in whole blocks; of what the engine finds at any rate `hit_frac` is the measured share.
    The last token of a prompt is always computed: its result is the first token of the answer.

    Source: Kwon et al. 2023 (arXiv:2309.06180) section 4.4 for shared blocks; vLLM, `get_computed_blocks`, for the
    last token; Zheng et al. 2023 (arXiv:2312.07104) section 3 for the hit rate.
    Assumes: the cache has kept the prefix since it was last used.
    """
    whole = np.asarray(shared_tokens) // block_tokens * block_tokens
    found = np.maximum(whole, np.asarray(input_tokens) * hit_frac)
    cached: Floats = np.minimum(found, np.asarray(input_tokens) - 1.0)
    return cached


def tokens_a_round(job: ServeJob) -> float:
    """Tokens that a decoding sequence gets from one step: 1 without speculation."""
    how = job.techniques.speculation
    return 1.0 if how is None else float(tokens_per_step(how.acceptance, how.tokens))


def prefix_tokens(job: ServeJob) -> float:
    """Tokens of each prompt that the cache holds already."""
    how = job.techniques
    if not (how.shared_tokens or how.hit_frac):
        return 0.0
    block = job.engine.block_tokens
    found = cached_tokens(job.input_tokens, shared_tokens=how.shared_tokens, hit_frac=how.hit_frac, block_tokens=block)
    return float(found)


def request_work(job: ServeJob) -> tuple[float, float]:
    """(prompt tokens to compute, steps until its answer is whole) of one request.

    Source: `cached_tokens`, `speculative.tokens_per_step`.
    Assumes: the first token comes with the prompt.
    """
    if job.techniques.speculation is None and not prefix_tokens(job):
        return job.input_tokens, job.output_tokens
    left = job.input_tokens - prefix_tokens(job)
    return left, 1.0 + (job.output_tokens - 1.0) / tokens_a_round(job)


def per_token(job: ServeJob, steady: Steady) -> Steady:
    """The steady state with its TPOT for each token, not for each round."""
    each = tokens_a_round(job)
    return steady if each == 1.0 else steady._replace(tpot_s=steady.tpot_s / each)


def percentile_tpot_s(job: ServeJob, step_s: Floats, middle_s: Floats, percentile: str) -> Floats:
    """TPOT at a percentile, from the time of a step at that percentile and at the middle; shape of the steps.

    Requests differ in how many rounds their answers take, beside how full the batch is that they meet.

    Source: rounds of an answer by renewal theory: their relative variance is var(X) / (E[X] x tokens), X the tokens of
    a round. Assumes: both are independent and near normal.
    """
    how, each = job.techniques.speculation, tokens_a_round(job)
    if how is None or job.output_tokens < 2:
        return step_s / each
    own = float(tokens_variance(how.acceptance, how.tokens)) / (each * (job.output_tokens - 1))
    apart = step_s / middle_s - 1.0
    token_s: Floats = middle_s / each * (1.0 + np.sqrt(apart**2 + PERCENTILES[percentile] ** 2 * own))
    return token_s


def with_techniques(job: ServeJob, plain: Runner) -> Runner:
    """The runner `plain` with the techniques of `job`; `plain` itself if the job has none."""
    how = job.techniques
    if not how.steps_changed:
        return plain
    held: dict[str, Any] = {f.name: getattr(plain, f.name) for f in fields(Runner) if f.init} | {
        "expert_skew": how.expert_skew
    }
    _, rounds = request_work(job)
    added: dict[str, Any] = {
        "cached_tokens": prefix_tokens(job),
        "grown_tokens": (job.output_tokens - rounds) / 2.0,
        "kept_frac": how.kept_frac,
    }
    if how.speculation is not None:
        added["proposals"] = how.speculation.tokens
        if how.speculation.draft is not None:
            added |= {
                "draft": _draft_runner(job, plain, how.speculation),
                "draft_layout": _draft_layout(how.speculation),
            }
    if how.offload is not None:
        added |= {
            "away_frac": how.offload.frac,
            "away_bytes": layer_bytes(job.model, job.weights, job.layout),
            "host": None if how.offload.host is None else _host_runner(job, plain),
        }
    return TechniqueRunner(**held, **added)


def _draft_layout(how: Speculation) -> ServingLayout:
    return ServingLayout(tp=how.tp)


def _draft_runner(job: ServeJob, plain: Runner, how: Speculation) -> Runner:
    """The draft on the same device: its steps have no scheduling of their own."""
    assert how.draft is not None
    path = product_path(how.draft, how.weights, job.cluster.rates)
    return replace(
        plain,
        model=how.draft,
        engine=replace(plain.engine, step_s=0.0, sequence_s=0.0),
        dtype=path.dtype,
        weight_bits=path.weight_bits,
        head_bits=path.head_bits,
    )


def _host_runner(job: ServeJob, plain: Runner) -> Runner:
    """The layers alone, on the host's processor."""
    away = job.techniques.offload
    assert away is not None
    assert away.host is not None
    path = product_path(job.model, job.weights, away.host)
    stack = job.model.stacks[0]
    alone = replace(job.model, stacks=(replace(stack, before=(), after=()), *job.model.stacks[1:]))
    return replace(
        plain,
        model=alone,
        rates=away.host,
        engine=replace(plain.engine, step_s=0.0, sequence_s=0.0),
        dtype=path.dtype,
        weight_bits=path.weight_bits,
        head_bits=path.head_bits,
    )


def changed_memory(job: ServeJob) -> dict[str, Any]:
    """Keywords of `serving_memory` for the techniques of a job."""
    how = job.techniques
    if how == type(how)():
        return {}
    away = how.offload
    block = job.engine.block_tokens
    spoken = how.speculation
    draft = None
    if spoken is not None and spoken.draft is not None:
        draft = Draft(model=_draft_weights(spoken), weights=spoken.weights, layout=_draft_layout(spoken))
    changes = Changes(
        shared_tokens=min(how.shared_tokens, job.input_tokens - 1) // block * block,
        kept_frac=how.kept_frac,
        away_bytes=0.0 if away is None else away.frac * layer_bytes(job.model, job.weights, job.layout),
        away_cache_frac=0.0 if away is None or away.host is None else away.frac,
        draft=draft,
    )
    return {"changes": changes}


def _draft_weights(how: Speculation) -> Model:
    """The draft model without the weights that it shares with the target."""
    assert how.draft is not None
    return without_ends(how.draft) if how.shares_ends else how.draft


def host_bytes(job: ServeJob) -> float:
    """Bytes that a replica keeps in the host's memory."""
    away = job.techniques.offload
    if away is None:
        return 0.0
    return away.frac * float(layer_bytes(job.model, job.weights, job.layout)) * int(job.layout.num_gpus)
