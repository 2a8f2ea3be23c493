"""What techniques can be combined with, and what is assumed where they are used."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise import units
from flopwise.errors import SpecError
from flopwise.facts.architecture import Recurrence
from flopwise.facts.models.families import STEERED
from flopwise.ops.routing import LOSS_EXPONENT, balanced_rank_load, hottest_rank_load, touched_frac
from flopwise.serving.disaggregated import prefill_layout
from flopwise.serving.job import PLAIN, ServeJob, Speculation, Techniques
from flopwise.serving.memory import weights_per_gpu
from flopwise.serving.techniques import STREAM_TOKENS, expert_skew

MOST_PROPOSALS = 64
"""Tokens that a draft may propose; engines stop far below."""
FEW_TOKENS = 32
"""Of a step where nobody says how many requests are in flight: what popular experts leave unread is most there."""
SAME_READ = 0.98
"""Share of the experts that even ones would read, from which on nothing is said of it."""
QUALITY = (
    "the loss of quality by eviction is not modelled: at 20 % kept, H2O (arXiv:2306.14048) reports no loss on short "
    "tasks and StreamingLLM (arXiv:2309.17453) forgets what it evicts; SnapKV (arXiv:2404.06654) keeps 1,024 tokens of "
    "16k prompts with small losses on LongBench; long reasoning suffers more (arXiv:2512.12008)"
)


def check_techniques(job: ServeJob) -> None:
    """Refuse what cannot be.

    Raises: SpecError: says which value and what is allowed.
    """
    how = job.techniques
    if how == PLAIN:
        return
    _check_shares(job)
    if how != Techniques(
        expert_skew=how.expert_skew, redundant_experts=how.redundant_experts, overlap=how.overlap
    ):  # fmt: skip
        _check_decoder(job)
    if how.speculation is not None:
        _check_speculation(job, how.speculation)
    if how.prefill_gpus:
        _check_pools(job)
    _check_images(job)
    _check_skew(job)
    if how.overlap and not job.engine.overlaps_batches:
        raise SpecError(
            f"{job.engine.name} does not overlap two micro-batches; engines that do: sglang "
            "(--enable-two-batch-overlap) and vllm (--enable-dbo)"
        )


def _check_shares(job: ServeJob) -> None:
    how = job.techniques
    away = 1.0 if how.offload is None else how.offload.frac
    if not 0 <= how.hit_frac <= 1:
        raise SpecError(f"prefix hit rate {how.hit_frac:g} is out of range; allowed: 0 to 1")
    for name, share in (("share of the cache kept", how.kept_frac), ("share of offloaded layers", away)):
        if not 0 < share <= 1:
            raise SpecError(f"{name} {share:g} is out of range; allowed: above 0, up to 1")
    if how.shared_tokens and how.hit_frac:
        raise SpecError("a shared prefix and a hit rate are both given: the shared tokens are hits; give one")
    if how.shared_tokens < 0 or how.shared_tokens >= max(job.input_tokens, 1):
        raise SpecError(
            f"a shared prefix of {how.shared_tokens:,} tokens in prompts of {job.input_tokens:,}; allowed: fewer than "
            "the prompt has"
        )


def _check_decoder(job: ServeJob) -> None:
    if not job.decodes:
        raise SpecError(
            f"{job.model.name} does not generate: prefixes, eviction, drafts, pools, adapters, images and grammars "
            "need a model that does"
        )
    if job.model.kind == "encoder-decoder":
        raise SpecError(f"{job.model.name} has an encoder and a decoder; these techniques are modelled for decoders")


def _check_speculation(job: ServeJob, how: Speculation) -> None:
    if not 0 <= how.acceptance <= 1:
        raise SpecError(f"acceptance {how.acceptance:g} is out of range; allowed: 0 to 1")
    if not 1 <= how.tokens <= MOST_PROPOSALS:
        raise SpecError(f"{how.tokens} draft tokens; allowed: 1 to {MOST_PROPOSALS}")
    if how.draft is None or how.shares_ends:
        return
    if not how.draft.stacks or how.draft.kind == "encoder-decoder" or how.draft.vocab == 0:
        raise SpecError(f"{how.draft.name} cannot draft: it is not a decoder described layer by layer")
    if abs(how.draft.vocab - job.model.vocab) > 0.02 * job.model.vocab:
        raise SpecError(
            f"{how.draft.name} has a vocabulary of {how.draft.vocab:,}, {job.model.name} of {job.model.vocab:,}: a "
            "draft must have the same vocabulary; use a model of the same family"
        )


def _check_pools(job: ServeJob) -> None:
    one = prefill_layout(job)
    each = int(one.num_gpus)
    if job.techniques.prefill_gpus < 0 or job.techniques.prefill_gpus % each:
        raise SpecError(
            f"{units.format_items(job.techniques.prefill_gpus, 'prefill GPU')}: no whole number of instances of tp "
            f"{int(one.tp)} x pp {int(one.pp)}; allowed: multiples of {each}"
        )
    if job.static:
        raise SpecError(
            "a fixed batch prefills first and then decodes, which leaves prefill GPUs idle: give --static or prefill "
            "GPUs, not both"
        )
    need, there = float(weights_per_gpu(job.model, job.weights, one)), float(job.cluster.accelerator.hbm_bytes)
    if need > there:
        raise SpecError(
            f"a prefill instance of tp {int(one.tp)} needs {units.format_bytes(need)} a GPU for weights alone, and "
            f"there are {units.format_bytes(there)}: give a higher tp"
        )


def _check_images(job: ServeJob) -> None:
    how = job.techniques
    if how.images and how.images * how.image_tokens >= job.input_tokens:
        raise SpecError(
            f"images ({how.images:,} x {how.image_tokens:,} tokens) leave no room for text in prompts of "
            f"{job.input_tokens:,} tokens: --input counts the tokens of images; give a higher one, or --image-tokens"
        )


def _check_skew(job: ServeJob) -> None:
    skew = job.techniques.expert_skew
    if skew is None or skew == 1:
        return
    item = job.model.stacks[0].largest_experts
    if item is None:
        raise SpecError(f"{job.model.name} has no experts; leave out the expert skew")
    most = item.experts / item.top_k
    if not 1 <= skew <= most:
        raise SpecError(
            f"expert skew {skew:g}: each token goes to {item.top_k} of {item.experts} experts of {job.model.name}, so "
            f"the fullest has at most {most:g} times the mean; allowed: 1 to {most:g}"
        )


def technique_settings(job: ServeJob) -> Iterator[tuple[str, str]]:
    """One line for each technique."""
    how = job.techniques
    if how.shared_tokens:
        yield "prefix", f"{how.shared_tokens:,} tokens shared by all prompts"
    if how.hit_frac:
        yield "prefix", f"{units.format_percent(how.hit_frac)} of prompt tokens found in the cache"
    if how.kept_frac < 1:
        yield "eviction", f"{units.format_percent(how.kept_frac)} of the cached tokens are kept"
    if how.speculation is not None:
        s = how.speculation
        yield (
            "drafts",
            f"{s.tokens} tokens by {s.name}, each accepted with probability {units.format_percent(s.acceptance)}",
        )
    if how.prefill_gpus:
        yield "prefill", f"on {how.prefill_gpus:,} separate accelerators"
    if how.offload is not None:
        where = "copied over PCIe in each step" if how.offload.host is None else f"computed by {how.offload.host.name}"
        yield "offloaded", f"{units.format_percent(how.offload.frac)} of the layers, {where}"
    if how.expert_skew is not None and how.expert_skew > 1:
        yield "experts", f"the most popular has {how.expert_skew:g} times the mean"
    if how.redundant_experts:
        yield "redundant", f"{how.redundant_experts:,} copies of popular experts in each layer"
    yield from _request_settings(how)
    if how.overlap:
        yield "overlap", "two micro-batches, each of which computes while the other communicates"


def _request_settings(how: Techniques) -> Iterator[tuple[str, str]]:
    """Settings of techniques that come with requests: adapters, images, grammars."""
    if how.adapters:
        yield "adapters", f"{how.adapters:,} LoRA adapters of rank {how.adapter_rank}"
    if how.images:
        yield "images", f"{how.images:,} a prompt, {how.image_tokens:,} of its tokens each"
    if how.structured_frac:
        yield "grammar", f"{units.format_percent(how.structured_frac)} of answers follow one"


def technique_assumptions(job: ServeJob) -> Iterator[str]:
    """The assumptions of each technique in use."""
    how, row = job.techniques, job.engine
    if how != PLAIN:
        yield "intervals are those of plain serving; the additional error of these techniques is not measured"
    if how.shared_tokens:
        yield f"the shared prefix is cached in whole blocks of {row.block_tokens} tokens and is never evicted"
    if how.hit_frac:
        yield "cached tokens still occupy memory in each sequence (those of a shared prefix do not)"
    recurrent = any(isinstance(i, Recurrence) for k in job.model.stacks[0].kinds for i in k.items)
    if recurrent and (how.shared_tokens or how.hit_frac):
        yield "state-space layers are assumed to have snapshots at the prefix, which few engines keep"
    if how.kept_frac < 1:
        yield f"prompts are computed in full and evicted layer by layer; {row.name} itself has no eviction"
        yield QUALITY
    if how.speculation is not None:
        yield from _speculation_assumptions(how.speculation)
    if how.offload is not None:
        host = how.offload.host
        yield (
            "all weights of offloaded layers are copied over PCIe in each step, overlapped with the layer before"
            if host is None
            else f"{host.name} computes the offloaded layers and their cache; from {STREAM_TOKENS} tokens per step "
            "the GPU does, which copies their weights"
        )
    yield from _request_assumptions(how)
    yield from _expert_assumptions(job)
    if how.prefill_gpus:
        yield "the KV cache of a prompt is transferred after its prefill, and the first token waits for it"


def _expert_assumptions(job: ServeJob) -> Iterator[str]:
    ranks, item = int(job.layout.ep), job.model.stacks[0].largest_experts
    if item is None or job.techniques.expert_skew is not None:
        return
    skew, copies = expert_skew(job), job.techniques.redundant_experts
    popularity = (
        "experts are as popular as those of DeepSeek-R1 were" if job.model.model_type in STEERED
        else f"the popularity of experts falls with the power {LOSS_EXPONENT:g} of their rank"
    )  # fmt: skip
    if ranks > 1:
        load = (
            balanced_rank_load(item.experts, skew, ranks, copies) if copies
            else float(hottest_rank_load(item.experts, skew, ranks))
        )  # fmt: skip
        yield (
            f"{popularity}: the fullest of {ranks:,} ranks has {load:.2f} times the mean of their tokens; "
            "--expert-skew 1 balances them, --redundant-experts copies the popular ones"
        )
        return
    tokens, example = job.concurrency or FEW_TOKENS, "" if job.concurrency else ", for example,"
    read, even = (float(touched_frac(item.experts, item.top_k, tokens, each)) for each in (skew, 1.0))
    if read < SAME_READ * even:
        yield (
            f"{popularity}: a step of {tokens:,} tokens{example} reads {read:.0%} of {item.experts:,}, {even:.0%} if "
            "all were alike (--expert-skew 1)"
        )


def _request_assumptions(how: Techniques) -> Iterator[str]:
    if how.adapters:
        yield "each request uses one adapter, all equally often; all are in device memory; experts have no adapters"
    if how.structured_frac:
        yield "one core fills the masks of grammars while the device runs the model; each answer brings a new schema"


def _speculation_assumptions(how: Speculation) -> Iterator[str]:
    yield (
        "the proposals form a chain, each accepted independently with the same probability; trees accept more for "
        "more work"
    )
    if how.draft is None:
        yield "looking up n-grams takes no time on the device"
    elif not how.shares_ends:
        yield f"the draft {how.draft.name} runs on tp {how.tp} in {how.weights.name}"
