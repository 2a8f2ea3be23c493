"""Techniques of serving: what they save and add in the steps of a job, and what they change in its memory.

Prefixes that are cached already, eviction from the cache, drafts that propose tokens, layers in the host's memory.
Prompts on devices of their own: see `disaggregated`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.cost.fabric import Fabric, host_link_bytes_per_s
from flopwise.cost.kernels import pointwise_s
from flopwise.cost.rates import rates as rates_of
from flopwise.cost.sustained import limited_rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.accelerators import SHARED_KINDS
from flopwise.facts.architecture import Attend, Linear, Model, Norm
from flopwise.facts.formats import BF16, WeightFormat
from flopwise.facts.models.families import STEERED
from flopwise.ops.columns import distinct
from flopwise.ops.routing import usual_skew
from flopwise.ops.types import Floats, Ints
from flopwise.ops.weights import layer_prefix_bytes
from flopwise.serving.adapters import Adapters, adapter_bytes
from flopwise.serving.iteration import Runner, StepLoad, StepTime
from flopwise.serving.job import Offload, ServeJob, Speculation, Techniques
from flopwise.serving.memory import Changes, Draft, ServingLayout
from flopwise.serving.open_loop import PERCENTILES
from flopwise.serving.precision import product_path
from flopwise.serving.spec import ADAPTER_RANK, BLOCK_DRAFTS, DRAFT_TOKENS, NGRAM_DRAFTS, TechniqueRequest
from flopwise.serving.steady import Steady
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Item
    from flopwise.facts.catalog import Facts
    from flopwise.facts.software import Engine

STREAM_TOKENS = 32
"""Tokens in a step from which llama.cpp copies weights to the device instead of computing on the host (GGML_CUDA,
`min_batch_size` of its pull request 6083)."""
MASK_S, GRAMMAR_S = 47e-6, 1.6e-3
"""Host time for the mask of one token, and to compile a schema: means of LLGuidance 0.6.7 over 10,163 JSON schemas
(guidance-ai/jsonschemabench, maskbench; XGrammar 0.1.10: 292 us with a median of 8 us, and 4.1 s)."""
LOGIT_BYTES = 2 * 4 + 1 / 8
"""Bytes moved per vocabulary entry to mask the tokens that a grammar forbids: fp32 in and out, one bit."""
DESKTOP_HOST, SERVER_HOST = "Ryzen 9 7950X", "Xeon Platinum 8480+"
"""Processors that compute offloaded layers where none is named: beside GeForce and Radeon cards, and beside others."""


def resolve_techniques(
    request: TechniqueRequest, job: ServeJob, facts: Facts, load: Callable[[str], Model]
) -> Techniques:
    """The techniques of `request` for a job without any: draft model, formats and host looked up; `load` by a name.

    Raises:
        SpecError: a value that cannot be, or one that goes with another that is not given.
        UnknownNameError: no such draft model or processor.
    """
    request.check()
    return Techniques(
        shared_tokens=request.shared_prefix or 0,
        hit_frac=request.prefix_hit or 0.0,
        kept_frac=1.0 if request.kv_keep is None else request.kv_keep,
        speculation=_speculation(request, job, facts, load),
        offload=_offload(request, job, facts),
        prefill_gpus=request.prefill_gpus or 0,
        expert_skew=request.expert_skew,
        redundant_experts=request.redundant_experts or 0,
        overlap=bool(request.overlap),
        adapters=request.adapters or 0,
        adapter_rank=(request.adapter_rank or ADAPTER_RANK) if request.adapters else 0,
        images=request.images or 0,
        image_tokens=_image_tokens(request, job) if request.images else 0,
        structured_frac=request.structured or 0.0,
        mask_s=(MASK_S if request.mask_time is None else request.mask_time) if request.structured else 0.0,
    )


def _image_tokens(request: TechniqueRequest, job: ServeJob) -> int:
    """Prompt tokens of one image: as given, else what the model makes of one at its own resolution.

    Raises: SpecError: the model sees no images.
    """
    usual = model_image_tokens(job.model)
    if not usual:
        raise SpecError(
            f"{job.model.name} has no image tower in the catalog: leave --images out, or take a model that sees images "
            "(flopwise models VL)"
        )
    return request.image_tokens or usual


def tokens_of_images(request: TechniqueRequest, model: Model) -> int:
    """Prompt tokens of a request's images; 0 without images, or where the model sees none.

    Source: `model_image_tokens`. Assumes: nothing further.
    """
    return (request.images or 0) * (request.image_tokens or model_image_tokens(model))


def model_image_tokens(model: Model) -> int:
    """Prompt tokens that the model makes of one image; 0 where it sees none.

    Source: `Stack.tokens_per_sample` of the projector, or of the tower where there is none. Assumes: one tile.
    """
    if model.kind != "vision-text":
        return 0
    return next((tokens for stack in reversed(model.stacks[1:]) if (tokens := stack.tokens_per_sample)), 0)


def _speculation(
    request: TechniqueRequest, job: ServeJob, facts: Facts, load: Callable[[str], Model]
) -> Speculation | None:
    """The draft: n-grams of the text so far, a block of the model, or a model of its own."""
    if request.draft is None or request.acceptance is None:
        return None
    name = request.draft.lower()
    tokens = DRAFT_TOKENS if request.draft_tokens is None else request.draft_tokens
    how = Speculation(name=name, tokens=tokens, acceptance=request.acceptance)
    form = None if request.draft_weights is None else facts.weight_format(request.draft_weights)
    tp = job.layout.tp
    if name in NGRAM_DRAFTS:
        return replace(how, name="n-grams")
    if name in BLOCK_DRAFTS:
        usual = job.weights if name in {"mtp", "nextn"} else BF16
        return replace(how, draft=block_draft(job.model), weights=form or usual, tp=tp, shares_ends=True)
    draft = load(request.draft)
    if not draft.stacks:
        raise MissingFactError(
            f"{draft.name} has no layers in the catalog, only published figures, so it cannot be a draft"
        )
    form = form or facts.weight_format(draft.checkpoint_format or BF16.name)
    return replace(how, name=draft.name, draft=draft, weights=form, tp=draft_tp(draft, tp))


def _offload(request: TechniqueRequest, job: ServeJob, facts: Facts) -> Offload | None:
    """The layers in the host's memory, as a share or as the number that stays."""
    model, chip, engine, stay = job.model, job.cluster.accelerator, job.engine, request.gpu_layers
    layers = model.stacks[0].num_layers
    if stay is not None and stay > layers:
        raise SpecError(f"{stay} layers on the accelerator; {model.name} has {layers}: allowed: 0 to {layers}")
    frac = request.offload_weights if stay is None else 1.0 - stay / layers
    if not frac:
        if request.host is not None:
            raise SpecError("a host is given, but no layers for it (--offload-weights, --gpu-layers)")
        return None
    if engine.offload == "none":
        raise SpecError(
            f"{engine.name} keeps all weights on the device; engines that offload: "
            f"{', '.join(name for name, row in facts.engines.items() if row.offload != 'none')}"
        )
    if chip.kind in SHARED_KINDS:
        raise SpecError(f"{chip.name} shares the host's memory, so there is nothing to offload to")
    if engine.offload != "stream":
        return Offload(frac=frac, host=host_rates(request.host, chip, facts))
    if request.host is not None:
        raise SpecError(f"{engine.name} brings offloaded weights to the device; only llama.cpp computes on the host")
    return Offload(frac=frac)


def host_rates(name: str | None, chip: Accelerator, facts: Facts) -> Rates:
    """Rates of the processor beside a device: the named one, or what such devices usually stand beside.

    Raises: SpecError: it is no processor.
    """
    desktop = chip.name.startswith(("RTX", "GTX", "Radeon", "Arc"))
    host = facts.resolve(name or (DESKTOP_HOST if desktop else SERVER_HOST)).accelerator
    if host.kind != "cpu":
        raise SpecError(f"{host.name} is not a processor of a host; give one of kind cpu (flopwise gpus --kind cpu)")
    return rates_of(host)


def block_draft(model: Model) -> Model:
    """The draft that EAGLE and multi-token prediction are: one more block like the last, and the model's own head.

    Its input is the target's last hidden state joined with the embedding of the token: a projection of twice the width.

    Source: Li et al. 2024 (arXiv:2401.15077) section 4; DeepSeek-V3 report (arXiv:2412.19437) section 2.2.
    Assumes: the whole vocabulary (EAGLE-3 heads with a reduced one are cheaper); a chain, not a tree.
    """
    stack = model.stacks[0]
    last = stack.kinds[stack.order[-1]]
    joined: tuple[Item, ...] = (
        Norm(name="joined_norm", dim=stack.width, groups=2),
        Linear(name="joined", inputs=2 * stack.width, outputs=stack.width),
    )
    one = replace(stack, before=joined, kinds=(last,), order=(0,))
    return replace(model, name=f"block like the last of {model.name}", stacks=(one,))


def draft_tp(draft: Model, tp: Ints) -> Ints:
    """Degree at which a draft is cut: as its target where its heads divide, else not at all; shape of `tp`.

    Source: vLLM, draft_tensor_parallel_size: that of the target, or 1. Assumes: as there.
    """
    heads = [item.heads for kind in draft.stacks[0].kinds for item in kind.items if isinstance(item, Attend)]
    cut: Ints = np.where(np.all([np.asarray(h) % tp == 0 for h in heads], axis=0), tp, 1) if heads else tp
    return int(cut) if np.ndim(cut) == 0 else cut


def tokens_per_step(acceptance: Floats, draft_tokens: Ints) -> Floats:
    """Tokens that a sequence gets from one verification of `draft_tokens` proposals; broadcasts.

    (1 - a^(k + 1)) / (1 - a): proposals up to the first that is refused, and one token of the target's own.

    Source: Leviathan et al. 2023 (arXiv:2211.17192) equation 1.
    Assumes: proposals are accepted independently with one probability; they form a chain, not a tree.
    """
    a = np.asarray(acceptance, dtype=float)
    k = np.asarray(draft_tokens) + 1.0
    return np.where(a < 1.0, (1.0 - a**k) / np.where(a < 1.0, 1.0 - a, 1.0), k)


def tokens_variance(acceptance: Floats, draft_tokens: Ints) -> Floats:
    """Variance of the tokens of one verification, whose mean is `tokens_per_step`; broadcasts.

    E[X^2] is the sum of (2 j - 1) P(X >= j), and P(X >= j) = a^(j - 1) for j up to k + 1: by parts with b = 1 - a,
    (1 + a - (2 k + 3) a^(k + 1) + (2 k + 1) a^(k + 2)) / b^2.

    Source: as `tokens_per_step`. Assumes: as there.
    """
    a, k = np.asarray(acceptance, dtype=float), np.asarray(draft_tokens) * 1.0
    sure = a > 1.0 - 1e-6
    b = np.where(sure, 1.0, 1.0 - a)
    squares = (1.0 + a - (2.0 * k + 3.0) * a ** (k + 1.0) + (2.0 * k + 1.0) * a ** (k + 2.0)) / b**2
    return np.where(sure, 0.0, np.maximum(squares - tokens_per_step(a, k) ** 2, 0.0))


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
    cached: Floats = np.maximum(whole, np.asarray(input_tokens) * hit_frac)
    return np.minimum(cached, np.asarray(input_tokens) - 1.0)


def tokens_a_round(job: ServeJob) -> float:
    """Tokens that a decoding sequence gets from one step: 1 without speculation."""
    how = job.techniques.speculation
    return 1.0 if how is None else float(tokens_per_step(how.acceptance, how.tokens))


def prefix_tokens(job: ServeJob) -> float:
    """Tokens of each prompt that the cache holds already; a column where the share that is found is one."""
    shared, hit, block = job.techniques.shared_tokens, job.techniques.hit_frac, job.engine.block_tokens
    if not (shared or np.any(hit)):
        return 0.0
    found: Any = cached_tokens(job.input_tokens, shared_tokens=shared, hit_frac=hit, block_tokens=block)
    return found if np.ndim(found) else float(found)


def request_work(job: ServeJob) -> tuple[float, float]:
    """(prompt tokens to compute, steps until its answer is whole) of one request; a column as `prefix_tokens`.

    Source: `cached_tokens`, `tokens_per_step`.
    Assumes: the first token comes with the prompt.
    """
    found = prefix_tokens(job)
    if job.techniques.speculation is None and not np.any(found):
        return job.input_tokens, job.output_tokens
    return job.input_tokens - found, 1.0 + (job.output_tokens - 1.0) / tokens_a_round(job)


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
    keeps_up = np.isfinite(middle_s)
    apart = np.where(keeps_up, step_s, 1.0) / np.where(keeps_up, middle_s, 1.0) - 1.0
    token_s: Floats = middle_s / each * (1.0 + np.sqrt(apart**2 + PERCENTILES[percentile] ** 2 * own))
    return token_s


def layer_bytes(model: Model, weights: WeightFormat, layout: ServingLayout) -> Floats:
    """Bytes of the layers' weights on one GPU, without embedding, head and towers; shape of the layout.

    Source: `flopwise.ops.weights`. Assumes: layers are spread evenly over pipeline stages.
    """
    (tp, ep, inner), index = distinct(layout.tp, layout.ep, layout.expert_tp)
    prefix = layer_prefix_bytes(model, weights, tp, ep, expert_tp=inner)
    size: Floats = prefix[-1, index] / np.asarray(layout.pp)
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueRunner(Runner):
    """A runner with techniques. Loads are as for a plain one, of what is left to compute and of whole rounds."""

    cached_tokens: float = 0.0  # of each prompt: seen, not computed; or a column
    grown_tokens: float = 0.0  # by which an answer is longer on average than the rounds that made it
    kept_frac: float = 1.0  # of a context, what decoding reads
    proposals: int = 0  # tokens that a draft proposes a round
    draft: Runner | None = None
    draft_layout: ServingLayout = ServingLayout()
    away_frac: float = 0.0  # layers in the host's memory
    away_bytes: Floats = 0.0  # weights of all layers on one GPU
    host: Runner | None = None  # computes the layers that are away
    adapters: int = 0  # low-rank ones of this rank, each sequence with one of them
    adapter_rank: int = 0
    images_per_token: float = 0.0  # of a prompt
    image_tokens: int = 0  # in a prompt, of one image
    structured_frac: float = 0.0  # of sequences, those that follow a grammar
    mask_s: float = 0.0

    @property
    def speculates(self) -> bool:
        """True where a draft proposes tokens, also at the end of the step that reads a prompt."""
        return self.proposals > 0

    def step(self, load: StepLoad, split: ServingLayout) -> StepTime:
        """Time of one step, or of one round of proposals and their verification.

        Source: `Runner.step`; `cached_tokens`, `tokens_per_step`.
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
        if self.images_per_token and np.any(load.prefill_tokens):
            whole = whole.plus(self._image(load, split))
        if self.structured_frac and np.any(load.decode_batch):
            whole = self._with_masks(whole, seen)
        return whole if self.draft is None else self._with_draft(whole, self.draft, load, seen)

    def sent_s(self, load: StepLoad, split: ServingLayout) -> Floats:
        """As of `Runner`, with those of a draft that reads prompts, too. Source, Assumes: the same."""
        seconds = Runner.sent_s(self, load, split)
        return seconds if self.draft is None else seconds + self.draft.sent_s(load, self.draft_layout)

    def added_kernels(self, load: StepLoad, split: ServingLayout) -> StepTime | None:
        """The kernels of adapters. Source and assumptions: `Adapters.step`."""
        return Adapters(self.adapters, self.adapter_rank).step(self, load, split) if self.adapters else None

    def _image(self, load: StepLoad, split: ServingLayout) -> StepTime:
        """The image tower and its projector for the images of a step; of less than one that share of one.

        Source: the towers' layers, as `Runner.step` has those of an encoder; vLLM, multimodal inputs: an image is
        encoded once, before the step that reads its tokens. Assumes: patches grow with the tokens of an image; images
        of a prompt are encoded with its pieces, and those of a cached prefix not again.
        """
        images = self.images_per_token * load.prefill_tokens
        usual, whole = model_image_tokens(self.model), np.maximum(images, 1.0)
        total: StepTime | None = None
        for tower in self.model.stacks[1:]:
            tokens = (tower.tokens_per_sample or usual) * self.image_tokens / usual
            encoded = StepLoad(
                prefill_tokens=whole * tokens, prefill_context=tokens, prompts=whole, every=True,
                only_seconds=load.only_seconds,
            )  # fmt: skip
            one = self._stack(tower, encoded, split)
            one = one._replace(seconds=one.seconds + self.engine.layer_s * tower.num_layers)
            total = one if total is None else total.plus(one)
        assert total is not None, "a model that sees images has a tower"
        return StepTime(*(part * np.minimum(images, 1.0) for part in total))

    def _with_masks(self, step: StepTime, load: StepLoad) -> StepTime:
        """A step whose sampling waits for masks of the tokens that grammars allow, and sets the others aside.

        Source: vLLM, structured outputs: the host fills the masks of all sequences, one after another, while the
        device runs the model; `MASK_S`, `LOGIT_BYTES`. Assumes: one core fills them; proposals of a draft have a mask
        each.
        """
        masks = self.structured_frac * load.decode_batch * load.decode_tokens
        applied = self.among_others(pointwise_s(self.own_rates, masks * self.model.vocab * LOGIT_BYTES))
        waits_s = np.maximum(masks * self.mask_s - step.seconds, 0.0)
        some = np.asarray(load.decode_batch) > 0
        added_s = np.where(some, waits_s + applied.seconds, 0.0)
        return step._replace(seconds=step.seconds + added_s, overhead_s=step.overhead_s + added_s)

    def _with_offload(self, step: StepTime, load: StepLoad, split: ServingLayout) -> StepTime:
        """A step of which some layers are in the host's memory: they bring their weights, or the host computes them.

        Layers that bring their weights take as long as they compute or as their weights are under way, whichever is
        longer; one after the other where they are not prefetched.

        Source: Sheng et al. 2023 (arXiv:2303.06865) section 4.1: of loading and computing a layer the slower counts;
        vLLM, --cpu-offload-gb, and accelerate read alike. llama.cpp, --n-gpu-layers: device and host take turns.
        Assumes: pinned memory; all weights of such a layer travel, those of experts that nobody chose too; each GPU
        has its lanes for itself; layers are alike.
        Raises: MissingFactError: the link to the host is not known.
        """
        frac, link = self.away_frac, host_link_bytes_per_s(self.rates)
        moved_s = frac * self.away_bytes / link
        added_s = np.maximum(moved_s - frac * step.seconds, 0.0) if self.host is None else moved_s
        floor_s = frac * self.away_bytes / (self.rates.host_link_bytes_per_s or np.inf)
        brought = step._replace(
            seconds=step.seconds + added_s,
            communication_s=step.communication_s + added_s,
            floor_s=np.maximum(step.floor_s, floor_s),
        )
        if self.host is None:
            return brought
        tokens = load.decode_batch * load.decode_tokens + load.prefill_tokens
        there = Runner.step(self.host, load, ServingLayout(pp=split.pp))
        mixed = StepTime(*((1.0 - frac) * a + frac * b for a, b in zip(step, there, strict=True)))
        hops_s = 2.0 * tokens * self.model.stacks[0].width * self.plain_bytes / link
        mixed = mixed._replace(seconds=mixed.seconds + hops_s, communication_s=mixed.communication_s + hops_s)
        many = np.asarray(tokens) >= STREAM_TOKENS
        return StepTime(*(np.where(many, a, b) for a, b in zip(brought, mixed, strict=True)))

    def _with_draft(self, step: StepTime, draft: Runner, load: StepLoad, seen: StepLoad) -> StepTime:
        """A round: the draft proposes token after token, and reads prompts once as the model does."""
        layout = self.draft_layout
        if np.any(load.decode_batch):
            alone = StepLoad(decode_batch=load.decode_batch, decode_context=seen.decode_context)
            step = step.plus(draft.step(alone, layout), self.proposals)
        if np.any(load.prefill_tokens):
            read = replace(seen, decode_batch=0, decode_tokens=1)
            step = step.plus(draft.step(read, layout), np.minimum(1.0, load.prefill_tokens))
        return step


def _engine_fabric(links: Fabric, engine: Engine) -> Fabric:
    """The links with what the engine's own all-reduce kernels reach over them."""
    if not engine.pcie_all_reduce:
        return links
    limited = (replace(at, direct_devices=engine.pcie_all_reduce) if at.kind == "pcie" else at for at in links.levels)
    return replace(links, levels=tuple(limited))


def expert_skew(job: ServeJob) -> float:
    """Tokens of the most popular expert over the mean of all: as the job states it, else as usual; 1 without experts.

    Source: `flopwise.ops.routing.usual_skew`. Assumes: as there.
    """
    stated, item = job.techniques.expert_skew, job.model.stacks[0].largest_experts
    if stated is not None or item is None:
        return stated or 1.0
    return usual_skew(item.experts, item.top_k, steered=job.model.model_type in STEERED)


def runner(job: ServeJob) -> Runner:
    """The job's model, format, engine and device, with its techniques: gives the times of steps."""
    how, rates = job.techniques, limited_rates(job.cluster.rates)
    plain = Runner(
        model=job.model,
        rates=rates,
        fabric=_engine_fabric(job.cluster.fabric, job.engine),
        engine=job.software,
        **_formats(job.model, job.weights, rates),
        kv_dtype=job.kv_dtype,
        direct=job.engine.custom_all_reduce,
        graph_batches=job.graph_batches,
        expert_skew=expert_skew(job),
    )
    if not np.any(how.hit_frac) and replace(how, hit_frac=0.0, expert_skew=None) == Techniques(
        prefill_gpus=how.prefill_gpus
    ):
        return plain
    _, rounds = request_work(job)
    if how.structured_frac:  # a schema is compiled before its first token
        later_s = plain.engine.request_s + how.structured_frac * GRAMMAR_S
        plain = replace(plain, engine=replace(plain.engine, request_s=later_s))
    changed: dict[str, Any] = {
        "adapters": how.adapters,
        "adapter_rank": how.adapter_rank,
        "images_per_token": how.images / job.input_tokens,
        "image_tokens": how.image_tokens,
        "structured_frac": how.structured_frac,
        "mask_s": how.mask_s,
        "redundant_experts": how.redundant_experts,
        "overlaps": how.overlap,
        "cached_tokens": prefix_tokens(job),
        "grown_tokens": (job.output_tokens - rounds) / 2.0,
        "kept_frac": how.kept_frac,
    }
    # Neither a draft nor the layers on a host have a scheduling of their own.
    bare = replace(plain, engine=replace(plain.engine, step_s=0.0, sequence_s=0.0))
    if how.speculation is not None:
        changed["proposals"] = how.speculation.tokens
        draft = how.speculation.draft
        if draft is not None:
            formats = _formats(draft, how.speculation.weights, rates)
            changed["draft"] = replace(bare, model=draft, **formats)
            changed["draft_layout"] = ServingLayout(tp=how.speculation.tp)
    if how.offload is not None:
        changed |= {"away_frac": how.offload.frac, "away_bytes": layer_bytes(job.model, job.weights, job.layout)}
        host = how.offload.host
        if host is not None:
            stack = job.model.stacks[0]
            layers = replace(job.model, stacks=(replace(stack, before=(), after=()), *job.model.stacks[1:]))
            changed["host"] = replace(bare, model=layers, rates=host, **_formats(job.model, job.weights, host))
    return TechniqueRunner(**{f.name: getattr(plain, f.name) for f in fields(Runner) if f.init} | changed)


def _formats(model: Model, form: WeightFormat, rates: Rates) -> dict[str, Any]:
    """Keywords of `Runner`: how products of the model's weights run on a device; where in fp32, all else does, too.

    Source: vLLM, csrc/quantization (marlin, gguf), and llama.cpp, ggml-cuda: kernels that unpack integers are launched
    without programmatic dependence on the one ahead.
    """
    path = product_path(model, form, rates)
    other = "fp32" if path.dtype in ("fp32", "tf32") else "bf16"
    return {
        "dtype": path.dtype, "weight_bits": path.weight_bits, "wide": path.wide, "eight": path.eight,
        "head_bits": path.head_bits,
        "other_dtype": other, "chains": not form.has_zeros,
    }  # fmt: skip


def memory_changes(job: ServeJob) -> Changes:
    """The changes in memory by the techniques of a job."""
    how, block, draft = job.techniques, job.engine.block_tokens, None
    away, drafts = how.offload, how.speculation
    if drafts is not None and drafts.draft is not None:
        model = drafts.draft
        if drafts.shares_ends:  # head and final norm are the target's: they take no further memory
            model = replace(model, stacks=(replace(model.stacks[0], after=()),))
        draft = Draft(model=model, weights=drafts.weights, layout=ServingLayout(tp=drafts.tp))
    return Changes(
        shared_tokens=min(how.shared_tokens, job.input_tokens - 1) // block * block if how.shared_tokens else 0,
        keeps_prefixes=bool(how.shared_tokens or np.any(how.hit_frac)),
        kept_frac=how.kept_frac,
        away_bytes=offloaded_bytes(job),
        away_cache_frac=0.0 if away is None or away.host is None else away.frac,
        draft=draft,
        redundant_experts=how.redundant_experts,
        adapter_bytes=adapter_bytes(job.model, how.adapters, how.adapter_rank, job.layout) if how.adapters else 0.0,
    )


def offloaded_bytes(job: ServeJob) -> Floats:
    """Bytes of a device's weights that stand in the host's memory; shape of the layout."""
    away = job.techniques.offload
    return 0.0 if away is None else away.frac * layer_bytes(job.model, job.weights, job.layout)


def host_bytes(job: ServeJob) -> float:
    """Bytes that a replica keeps in the host's memory."""
    return float(offloaded_bytes(job)) * int(job.layout.num_gpus)
