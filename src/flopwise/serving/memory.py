"""Memory of serving a model: weights, key-value cache and what the engine takes, on the fullest GPU.

One layout or a column of them: tp, pp, ep, concurrency and context may be arrays that broadcast against one another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from flopwise.cost.intervals import OTHER_SOFTWARE
from flopwise.cost.spec import USUAL_NODE
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Attend, Experts, Item, Linear, Model, Recurrence
from flopwise.facts.formats import BF16, BF16_CACHE, MXFP4, CacheFormat, WeightFormat
from flopwise.facts.software import BARE_KINDS, CONTEXT, GRAPHS, Engine
from flopwise.ops.cache import kv_bytes_per_token, kv_cache_bytes, state_bytes
from flopwise.ops.columns import ascending, distinct
from flopwise.ops.types import Array, Floats, Ints
from flopwise.ops.weights import end_bytes, layer_prefix_bytes
from flopwise.ops.work import cached_elems_per_token
from flopwise.units import format_bytes
from flopwise.values import dataclass, kept_by_identity, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayout:
    """The layout of one replica over tp x dp x pp GPUs.

    `dp` attention replicas, each on tp ranks with its own sequences, share the experts: these are spread over `ep` of
    the tp x dp ranks, and what is left of the ranks cuts each expert.
    """

    tp: Ints = 1
    pp: Ints = 1
    ep: Ints = 1
    dp: Ints = 1

    @property
    def text(self) -> str:
        """The degrees of one layout on one line; ep and dp of 1 are left out."""
        further = [f"{name} {int(value)}" for name, value in (("ep", self.ep), ("dp", self.dp)) if value > 1]
        return ", ".join([f"tp {int(self.tp)}", f"pp {int(self.pp)}", *further])

    @property
    def expert_tp(self) -> Ints:
        """Ranks that share one expert."""
        return np.maximum(np.asarray(self.tp) * self.dp // self.ep, 1)

    @property
    def num_gpus(self) -> Ints:
        """GPUs of the replica."""
        return self.tp * self.dp * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """Bytes per GPU on the fullest rank, and what the cache can hold; floats, or columns."""

    items: dict[str, Floats]
    total_bytes: Floats  # used with the asked concurrency and context
    usable_bytes: Floats  # what the engine takes of the card at most
    kv_budget_bytes: Floats  # what the engine leaves for the cache when it runs as many whole contexts as fit
    kv_capacity_tokens: Floats  # tokens that fit the budget, sequences of the asked context
    max_whole_contexts: Floats  # sequences that have all of the asked context cached, capped by the engine's batch
    max_concurrency: Floats  # sequences that run while their answers grow, capped likewise
    fits: Array | bool
    max_states: Floats = np.inf  # sequences whose recurrent states have a place in a pool of their own
    doubtful_bytes: Floats = 0.0  # by which the weights may differ: see `WeightFormat.size_error`
    own_bytes_elsewhere: Floats = 0.0  # what the engine takes of its own on a GPU, where its device is of another kind
    assumptions: tuple[str, ...] = ()

    def of_rows(self, rows: slice) -> ServingMemory:
        """The memory of these rows of layouts; what is the same for all stays a number."""

        def part(value: Floats) -> Floats:
            return value[rows] if isinstance(value, np.ndarray) and value.ndim else value

        items = {name: part(value) for name, value in self.items.items()}
        columns: dict[str, Any] = {name: part(getattr(self, name)) for name in COLUMNS}
        return replace(self, items=items, **columns)

    @property
    def exact_bytes(self) -> float:
        """Of a single deployment, weights and cache: bytes that are counted, not estimated."""
        counted = float(sum(np.ravel(self.items.get(name, 0.0))[0] for name in EXACT))
        return counted - float(np.ravel(self.doubtful_bytes)[0])

    def difference_ends(self) -> tuple[float, float]:
        """By how many bytes a single deployment takes less and more than estimated.

        Source: `OWN_ENDS`, and the size error of the format. Assumes: the ends are percentiles 10 and 90; an engine on
        software that nobody measured may take what it takes on a GPU.
        """
        doubtful = float(np.ravel(self.doubtful_bytes)[0])
        own = float(np.ravel(self.total_bytes)[0]) - self.exact_bytes - doubtful
        most = max(own, float(np.ravel(self.own_bytes_elsewhere)[0]))
        return (OWN_ENDS[0] - 1.0) * own - doubtful, OWN_ENDS[1] * most - own + doubtful

    def capacity_ends(self) -> tuple[float, float]:
        """The least and the most that a single deployment's cache holds, over the estimate: what the engine leaves.

        Source: `difference_ends`. Assumes: as there.
        """
        budget = float(np.ravel(self.kv_budget_bytes)[0])
        if budget <= 0.0:
            return 0.0, 1.0
        least, most = (1.0 - difference / budget for difference in reversed(self.difference_ends()))
        return max(least, 0.0), most


EXPERT_TOKENS = 32_768
"""Tokens that a layer of experts takes at once (vLLM, VLLM_FUSED_MOE_CHUNK_SIZE)."""
NOTED_FRAC = 0.05
"""Share of a card above which what a default takes more is noted."""
COLUMNS = (
    "total_bytes", "usable_bytes", "kv_budget_bytes", "kv_capacity_tokens", "max_whole_contexts", "max_concurrency",
    "fits", "max_states", "doubtful_bytes", "own_bytes_elsewhere",
)  # fmt: skip
"""Fields of `ServingMemory` that may be columns of layouts."""
TOWER = "vision tower"
"""Name of what a tower takes that engines load with a checkpoint, of which the model's layers do not tell."""
EXACT = ("weights", TOWER, "KV cache", "draft weights", "adapters", "shared prefix")
"""Items of a deployment's memory that are counted exactly."""
OWN_ENDS = (0.5, 1.5)
"""What an engine takes of its own (activations, graphs, context), over the estimate, at least and at most; see
`flopwise.serving.memory_answer.OWN_SOURCE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A second model that proposes tokens, on the same GPUs; it caches what the first one caches."""

    model: Model
    weights: WeightFormat
    layout: ServingLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of techniques in memory; the defaults change nothing."""

    shared_tokens: int = 0  # of every context, cached once for all sequences
    keeps_prefixes: bool = False  # prompts begin as others did, so that engines keep caches for them
    kept_frac: float = 1.0  # of the tokens of a sequence, those that stay cached
    away_bytes: Floats = 0.0  # weights that stand in the host's memory
    away_cache_frac: float = 0.0  # of the cache, what does
    draft: Draft | None = None
    redundant_experts: int = 0  # copies of popular experts in each layer
    adapter_bytes: Floats = 0.0  # of all adapters on the fullest GPU


UNCHANGED = Changes()


def weights_per_gpu(model: Model, form: WeightFormat, layout: ServingLayout) -> Floats:
    """Weight bytes on the fullest GPU: the first pipeline stage (embedding, towers) or the last (head).

    Source: `flopwise.ops.weights`. Assumes: layers as even as they divide, what is left over on the middle stages.
    Raises: MissingFactError: the network is known by published figures only.
    """
    if not model.stacks:
        raise MissingFactError(
            f"{model.name} is known by published figures only: serving it needs a table of layers (a config.json)"
        )
    (tp, ep, inner), index = distinct(layout.tp, layout.ep, layout.expert_tp)
    prefix = layer_prefix_bytes(model, form, tp, ep, expert_tp=inner)
    before, after, towers = end_bytes(model, form, tp, ep)
    shape = np.zeros(np.shape(tp))
    first, last = before + towers + shape, after + shape
    pp, layers = np.asarray(layout.pp), model.stacks[0].num_layers
    each, left = layers // pp, layers % pp
    on_first = each + (left > np.maximum(pp - 2, 0))
    middle = np.where(pp > 2, on_first + each + (left > 0), on_first)
    one = prefix[on_first, index] + first[index] + np.where(pp == 1, last[index], 0.0)
    two = prefix[middle, index] - prefix[on_first, index]
    three = np.where(pp > 1, prefix[layers, index] - prefix[layers - each, index] + last[index], 0.0)
    fullest: Floats = np.maximum(one, np.maximum(two, three))
    return fullest


def _with_copies(model: Model, redundant: int) -> Model:
    """The model as it is stored with so many copies of experts in each layer."""

    def with_places(item: Item) -> Item:
        return replace(item, experts=item.experts + redundant) if isinstance(item, Experts) else item

    return _with_items(model, with_places)


def _with_items(model: Model, change: Callable[[Item], Item]) -> Model:
    """The model with each item of its first stack's layers changed."""
    stack = model.stacks[0]
    kinds = tuple(replace(kind, items=tuple(map(change, kind.items))) for kind in stack.kinds)
    return replace(model, stacks=(replace(stack, kinds=kinds), *model.stacks[1:]))


def _loaded_bytes(model: Model, row: Engine, form: WeightFormat, layout: ServingLayout) -> Floats:
    """`weights_per_gpu` as an engine lays them out: experts' matrices in mxfp4 in whole tiles; shape of the layout.

    Source: `mxfp4_tiles` of data/engines.json. Assumes: the tiles of Marlin's kernels on every device.
    """
    if not row.mxfp4_tiles or form.name != MXFP4:
        return weights_per_gpu(model, form, layout)
    ranks, loaded = np.asarray(layout.expert_tp), np.asarray(0.0)
    for each in ascending(ranks).tolist():
        loaded = np.where(ranks == each, weights_per_gpu(_in_tiles(model, row.mxfp4_tiles, each), form, layout), loaded)
    return loaded


@kept_by_identity(64)
def _in_tiles(model: Model, tiles: tuple[int, ...], ranks: int) -> Model:
    """The model with experts of which each of `ranks` has whole tiles: (inputs, inner width)."""
    items = (item for kind in model.stacks[0].kinds for item in kind.items)
    inner = {item.inputs for item in items if isinstance(item, Experts) and item.shard == "row"}

    def whole_tiles(size: int, tile: int, parts: int) -> int:
        return -(-size // (tile * parts)) * tile * parts

    def in_tiles(item: Item) -> Item:
        if not isinstance(item, Experts):
            return item
        if item.shard == "row":
            inputs, outputs = whole_tiles(item.inputs, tiles[1], ranks), whole_tiles(item.outputs, tiles[0], 1)
        else:
            gated = 1 if item.outputs in inner else 2  # gate and up in one
            inputs, outputs = whole_tiles(item.inputs, tiles[0], 1), whole_tiles(item.outputs, tiles[1], ranks * gated)
        return replace(item, inputs=inputs, outputs=outputs)

    return _with_items(model, in_tiles)


def prefill_workspace_bytes(
    model: Model, tokens: Floats, sequences: Ints, layout: ServingLayout, gathered: Floats = 1.0
) -> Floats:
    """Bytes of activations while `tokens` tokens run through a layer, and fp32 logits of `sequences` next tokens.

    `gathered`: tokens that experts work on for each of these; attention replicas that share experts gather theirs.

    Source: the profile run of vLLM: largest live tensors of one layer.
    Assumes: 16-bit activations, logits of sampled tokens only.
    """
    inner = tokens * 2.0 * np.maximum(_widest(model) / layout.tp, gathered * _expert_elements(model, layout))
    gathers = tokens * 2.0 * np.where(np.asarray(gathered) > 1, gathered, 0.0) * model.stacks[0].width
    return (
        inner + gathers + tokens * 2 * model.stacks[0].width * 2.0 + np.minimum(sequences, tokens) * model.vocab * 6.0
    )


def _expert_elements(model: Model, layout: ServingLayout) -> Floats:
    """Elements a token of what stands in memory at once in a layer of experts; 0 without any.

    Each of a token's experts has a row of its own: what its first product or its last one makes, whichever is wider, in
    one buffer, and what its last one reads. A rank has rows for all, whether their experts are its own or not. Kernels
    for models published in mxfp4 activate in their first product, which then makes what the last one reads.

    Source: vLLM, layers/fused_moe/fused_moe.py (intermediate_cache13, intermediate_cache2); TensorRT-LLM, moe_gemm/
    moe_kernels.cu (getWorkspaceDeviceBufferSizes), which keeps them apart. Of mxfp4: vLLM 0.32, fused_moe/experts/
    gpt_oss_triton_kernels_moe.py (OAITritonExperts: (M x topk, N / 2), and the rows that its second product scatters).
    Assumes: trtllm-gen's experts as Triton's; Marlin's, of devices without either, have the wider rows of other models.
    """
    widths = _expert_widths(model)
    if widths is None:
        return 0.0
    made, read = widths.made / np.asarray(layout.expert_tp), widths.read / np.asarray(layout.expert_tp)
    rows = widths.result if model.checkpoint_format == MXFP4 else np.maximum(made, widths.result)
    elements: Floats = widths.top_k * (rows + read)
    return elements


class _ExpertWidths(NamedTuple):
    """Elements of a row of experts: what first products make, what last ones read and give; and experts of a token."""

    made: int
    read: int
    result: int
    top_k: int


@kept_by_identity(512)
def _expert_widths(model: Model) -> _ExpertWidths | None:
    """The widths of a model's experts; None without any."""
    experts = [item for item in model.stacks[0].items if isinstance(item, Experts)]
    first, last = ([item for item in experts if item.shard == shard] for shard in ("column", "row"))
    if not first or not last:
        return None
    made, read = max(item.outputs for item in first), max(item.inputs for item in last)
    return _ExpertWidths(made, read, last[0].outputs, last[0].top_k)


@kept_by_identity(512)
def _widest(model: Model) -> int:
    """Elements a token of what stands in memory at once in a layer."""
    outputs = ([i.outputs for i in kind.items if isinstance(i, Linear)] for kind in model.stacks[0].kinds)
    return max(sum(sorted(sizes)[-2:]) for sizes in outputs)


@kept_by_identity(512)
def generates(model: Model) -> bool:
    """True if the model keeps a cache between steps."""
    items = [i for k in model.stacks[0].kinds for i in k.items]
    return any(isinstance(i, Recurrence) or (isinstance(i, Attend) and i.cached) for i in items)


def _cache_bytes(
    model: Model, layout: ServingLayout, row: Engine, dtype: CacheFormat, changes: Changes, context: Ints
) -> Floats:
    """Bytes of a sequence's cache on the fullest rank, its draft's included; blocks are whole."""
    if not generates(model):
        return 0.0 * np.asarray(context)
    layers = model.stacks[0].num_layers
    own = np.asarray(context) - changes.shared_tokens
    if changes.kept_frac < 1.0:
        own = own * changes.kept_frac
    how: dict[str, Any] = {"tp": layout.tp, "scan_bytes": row.scan_bytes_of(model.model_type)}
    pages = _state_pages(model, row, dtype.elem_bytes, how) if row.paged_states else None
    block: Floats = row.block_tokens if pages is None else pages[0]
    padded = -(-own // block) * block
    size = _kept_bytes(model, row, dtype.elem_bytes, padded, how)
    if pages is not None:
        kept = 2 if changes.keeps_prefixes else 1  # the state so far, and that at the last whole block for others
        size = size + kept * pages[1] - sum(state_bytes(model, dtype.elem_bytes, **how))
    share = -(-layers // np.asarray(layout.pp)) / layers
    total: Floats = size * share * (1.0 - changes.away_cache_frac)
    if changes.draft is None:
        return total
    draft = changes.draft
    return total + _cache_bytes(draft.model, draft.layout, row, dtype, replace(changes, draft=None), context)


def _kept_bytes(model: Model, row: Engine, elem_bytes: float, context: Ints, how: dict[str, Any]) -> Floats:
    """Bytes of a sequence's cache on one rank, before it is shared by stages; broadcasts. `how`: tp, scan_bytes.

    Where layers with windows have a pool of their own, a token takes its place in the pool of whole contexts and the
    share of a place in the other that belongs to it, whether a window has it or not.

    Source: `window_pools` and `exploits_windows` of data/engines.json. Assumes: nothing further.
    """
    pool = row.window_pool(model.model_type)
    if pool is None or not pool.tokens_frac:
        whole = not row.exploits_windows and pool is None
        return kv_cache_bytes(model, context, 1, elem_bytes, full_windows=whole, **how)
    states: Floats = sum(state_bytes(model, elem_bytes, **how))
    growing = context * kv_bytes_per_token(model, elem_bytes, tp=how["tp"]) + states
    entire = kv_cache_bytes(model, context, 1, elem_bytes, full_windows=True, **how)
    return growing + pool.tokens_frac * (entire - growing)


def _prompt_share(model: Model, row: Engine, prompt: Ints, context: Ints) -> Floats:
    """Times its own share of memory that a sequence of `context` tokens takes, `prompt` of them a prompt; at least 1.

    A pool of windows that holds the prompts of running sequences whole is full while that of whole contexts is not.

    Source: `window_pools` of data/engines.json. Assumes: windows of answers are short beside prompts.
    """
    pool = row.window_pool(model.model_type)
    if pool is None or not pool.holds_prompts:
        return 1.0
    return np.maximum(1.0, np.asarray(prompt) / (pool.tokens_frac * np.maximum(context, 1)))


NEARLY = 1.5
"""Times as many layers of one kind as of the other up to which vLLM groups by the more."""


def _state_pages(model: Model, row: Engine, elem_bytes: float, how: dict[str, Any]) -> tuple[Floats, Floats] | None:
    """(tokens of a block, bytes of a sequence's states on one rank) where both are pages of one size; broadcasts.

    A page holds the state of a layer, or keys and values of as many tokens as are at least as large, in whole blocks.
    Layers are grouped by as many as the fewer of both kinds are, and groups are full; where they are nearly as many, by
    as many as the more. None: the model has not both, or its keys and values are not all alike. `how`: tp, scan_bytes.

    Source: vLLM 0.32, Platform._align_hybrid_block_size and _get_kv_cache_groups_uniform_page_size; its logs: blocks of
    672 tokens for Nemotron-Nano-9B-v2 (issue 24280), 8,320 for Nemotron-3-Super with an fp8 cache (kaito pull request
    2049), 1,568 for Qwen3.8-27B at tp 2 with one (mitchross/talos-argocd-proxmox pull request 1995).
    Assumes: kernels take blocks of `block_tokens`.
    """
    states, stack = state_bytes(model, elem_bytes, **how), model.stacks[0]
    if not states:
        return None
    attention = [
        item for kind in stack.order for item in stack.kinds[kind].items
        if isinstance(item, Attend) and item.cached and not item.kv_shared
    ]  # fmt: skip
    sizes = {cached_elems_per_token(item, 1) for item in attention}
    if len(sizes) != 1 or any(item.window is not None or item.cross for item in attention):
        return None
    each = cached_elems_per_token(attention[0], how["tp"]) * elem_bytes
    block = row.block_tokens * np.ceil(reduce(np.maximum, states) / (row.block_tokens * each))
    few, many = sorted((len(states), len(attention)))
    group = many if many < NEARLY * few else few
    return block, -(-len(states) // group) * group * block * each


def serving_memory(
    model: Model,
    layout: ServingLayout | None = None,
    *,
    concurrency: Ints | None = 1,
    context: Ints,
    answer: Ints = 0,
    hbm_bytes: Floats | None = None,
    weights: WeightFormat = BF16,
    kv_dtype: CacheFormat = BF16_CACHE,
    engine: Engine,
    memory_frac: float | None = None,
    max_batch: int | None = None,
    prefill_tokens: int | None = None,
    device_kind: str = "gpu",
    changes: Changes = UNCHANGED,
) -> ServingMemory:
    """Memory per GPU with `concurrency` sequences of `context` tokens, and what would fit on a card of `hbm_bytes`.

    `concurrency` None: as many as fit beside weights and activations of so many. `answer`: of the context, the tokens
    made one by one; engines that do not reserve them hold half on average, so that more run than whole contexts fit.

    Source: data/engines.json for the engine's rule; `flopwise.ops.cache` and `flopwise.ops.weights` for the rest.
    Assumes: every sequence is as long as `context` in the end; `concurrency` is of one attention replica; without
    `max_batch` the engine is started for no more sequences than run. A vision tower is cut as layers are, and loaded by
    all but engines for one user, whose files have it apart.
    Raises: SpecError: a fraction outside (0, 1].
    """
    layout, row = layout or ServingLayout(), engine
    share, cap = _share(row, memory_frac), default_batch(model, row, layout.dp) if max_batch is None else max_batch
    step_tokens = row.prefill_tokens if prefill_tokens is None else prefill_tokens
    chunk = rank_budget(row, step_tokens, layout.dp) if step_tokens else context
    stored = _with_copies(model, changes.redundant_experts) if changes.redundant_experts else model
    loaded = _loaded_bytes(stored, row, weights, layout) - changes.away_bytes
    cache = partial(_cache_bytes, model, layout, row, kv_dtype)
    graphs, driver = (0.0, 0.0) if device_kind in BARE_KINDS else (row.graph_bytes, _driver_bytes(row, layout))
    besides: dict[str, Floats] = {GRAPHS: graphs, CONTEXT: driver}
    if (draft := changes.draft) is not None:
        besides["draft weights"] = weights_per_gpu(draft.model, draft.weights, draft.layout)
    if np.any(changes.adapter_bytes):
        besides["adapters"] = changes.adapter_bytes
    if model.tower_parameters and not row.local:
        besides[TOWER] = 2.0 * model.tower_parameters / np.asarray(layout.tp)
    if changes.shared_tokens:
        besides["shared prefix"] = cache(replace(changes, shared_tokens=0), changes.shared_tokens)
    standing = loaded + sum(besides.values())
    cached = context if row.reserves else np.asarray(context) - np.asarray(answer) / 2
    one, entire = (cache(changes, n) * _prompt_share(model, row, context - answer, n) for n in (cached, context))
    card = np.asarray(np.inf if hbm_bytes is None else hbm_bytes)
    steps = StepMemory(model, row, chunk, context, layout, max_batch, row.profiles(device_kind))
    most_bytes = np.minimum(card * share + (graphs if row.graphs_beside else 0.0), card)  # of engines of that rule
    room = (most_bytes if row.memory_rule == "whole" else card) - standing - row.workspace_bytes
    pooled, cache_frac, states = (
        _state_pool(row, room, cache(replace(changes, shared_tokens=0), 0)) if row.state_frac else (0.0, 1.0, np.inf)
    )
    filling = partial(steps.filling, share, room * cache_frac)
    whole = filling(one=entire - pooled)  # what runs must have room to end
    filled = np.where(whole >= 1.0, filling(one=one - pooled), whole) if np.any(answer) else whole
    whole, filled = (np.minimum(sequences, states) for sequences in (whole, filled))
    complete, most = (np.minimum(np.floor(sequences), cap) for sequences in (whole, filled))
    batch = np.maximum(most, 1.0) if concurrency is None else np.minimum(concurrency, cap)
    used, workspace = one * batch, steps.working_bytes(batch)
    elsewhere = _own_on_gpu(steps, layout.dp, batch) if device_kind in OTHER_SOFTWARE else 0.0
    budget = _kv_budget(row, share, card, most_bytes, standing + steps.working_bytes(np.maximum(complete, 1.0)))
    items = {"weights": loaded, "KV cache": used, "activations and workspace": workspace, **besides}
    fits = filled >= batch * (1 - 1e-9)
    cached_budget = np.maximum(budget, 0.0) * cache_frac
    tokens = cached_budget / np.maximum(entire - pooled, 1e-9) * context if generates(model) else 0.0 * filled
    tokens = complete * context if changes.away_cache_frac == 1.0 else tokens  # the host's memory holds all of it
    return ServingMemory(
        items={name: _plain(value) for name, value in items.items()},
        total_bytes=_plain(standing + workspace + used),
        usable_bytes=_plain(_usable(row, share, card, most_bytes, standing + workspace)),
        kv_budget_bytes=_plain(np.maximum(budget, 0.0)),
        kv_capacity_tokens=_plain(np.floor(tokens)),
        max_whole_contexts=_plain(complete),
        max_concurrency=_plain(most),
        fits=bool(fits) if np.ndim(fits) == 0 else fits,
        max_states=_plain(states),
        doubtful_bytes=_plain(weights.size_error * loaded),
        own_bytes_elsewhere=_plain(elsewhere),
        assumptions=() if concurrency is None else _batch_notes(steps, concurrency, cap, batch, card),
    )


def _driver_bytes(row: Engine, layout: ServingLayout) -> Floats:
    """Bytes of the driver's context on a GPU, and of the communicators of several; shape of the layout.

    Source: `context_bytes` and `communicator_bytes` of data/engines.json. Assumes: as many for two GPUs as for eight.
    """
    if not row.communicator_bytes or not row.switch_adds:
        return row.context_bytes
    return row.context_bytes + row.communicator_bytes * (np.asarray(layout.num_gpus) > 1)


def rank_budget(row: Engine, tokens: Floats, dp: Ints) -> Floats:
    """Of prompt tokens that a step takes at most, those of one of `dp` attention replicas; broadcasts. 0: no limit.

    Source: `divides_budget` of data/engines.json (SGLang, enable_dp_attention: chunked_prefill_size over the replicas).
    Assumes: nothing further.
    """
    return np.maximum(tokens // np.asarray(dp), np.minimum(tokens, 1)) if row.divides_budget else tokens


def _largest_budget(row: Engine, dp: Ints) -> Floats:
    """Prompt tokens of a step of one of `dp` attention replicas on the device that takes most; 0: no limit."""
    if not row.prefill_tokens:
        return 0
    return rank_budget(row, max([0, *(limits.prefill_tokens for limits in row.step_limits)]), dp)


def default_batch(model: Model, row: Engine, dp: Ints = 1) -> Ints:
    """Sequences that one of `dp` attention replicas runs at once where nobody says; shape of `dp`.

    Source: data/engines.json. Assumes: a cap on a family of models is shared evenly by the attention replicas.
    """
    if model.model_type not in row.capped_families:
        return row.max_batch
    share: Ints = np.clip(row.capped_batch // np.asarray(dp), 1, row.max_batch)
    return share


def _share(row: Engine, memory_frac: float | None) -> float:
    """Share of the memory that the engine may use: as asked, or its own."""
    share = row.memory_frac if memory_frac is None else memory_frac
    if not 0 < share <= 1:
        raise SpecError(f"memory fraction {share} is out of range; allowed: above 0, up to 1")
    return share


def _state_pool(row: Engine, room: Floats, state: Floats) -> tuple[Floats, Floats, Floats]:
    """(bytes of a sequence's recurrent states, the share of `room` left for keys and values, sequences with a place).

    Source: SGLang, KV cache configurator: a pool takes its share of what loading leaves, and a running request has
    several states there, as finished prefixes keep theirs for reuse.
    Assumes: a model without recurrent layers has no such pool.
    """
    has_states = np.asarray(state) > 0
    places = np.floor(np.maximum(room, 0.0) * row.state_frac / np.maximum(row.state_slots * np.asarray(state), 1.0))
    return state, 1.0 - row.state_frac * has_states, np.where(has_states, places, np.inf)


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The inputs of the activations of a replica's steps; floats, or columns."""

    model: Model
    row: Engine
    chunk: Ints  # tokens of prompts that run through at once
    context: Ints
    layout: ServingLayout
    cap: int | None  # sequences that it is started for; None: as many as run
    profiled: bool  # the engine runs the largest step before it allocates the cache

    def working_bytes(self, sequences: Floats) -> Floats:
        """Activations and workspace of so many sequences, whose prompts run through in chunks.

        Source: `profile_bytes` of data/engines.json. Assumes: in the run before the cache is allocated the last layer's
        result stays while the sampler runs, and every rank has the logits of the whole vocabulary.
        """
        if self.profiled:
            sampled = self._results + (sequences if self.cap is None else self._most) * self._logits
            return self.row.workspace_bytes + np.maximum(self._prompts, sampled) + 0.0 * np.asarray(sequences)
        tokens = np.minimum(self.chunk, np.asarray(sequences) * self.context)
        logits = sequences if generates(self.model) else 0
        return self.row.workspace_bytes + self._layer(tokens, logits)

    @property
    def _prompts(self) -> Floats:
        """Bytes while a whole chunk runs through a layer."""
        return self._layer(self.chunk, 0)

    def _layer(self, tokens: Floats, sequences: Ints) -> Floats:
        """Bytes while tokens of one attention replica run through a layer, and others run through theirs."""
        return prefill_workspace_bytes(self.model, tokens, sequences, self.layout, self._expert_share)

    @property
    def _expert_share(self) -> Floats:
        """Tokens that the experts of a rank work on for each of its own, at most `EXPERT_TOKENS` at once.

        Of engines whose share of the memory is for weights and cache alone (SGLang's mem_fraction_static) 0: what their
        experts make is beside it.

        Source: `tries_step` of data/engines.json; `Runner.messages_s`: ranks gather the tokens of all, but where
        kernels send them to their experts. Assumes: engines that have such kernels use them beyond a node of eight, and
        ranks have equal shares there.
        """
        dp, ranks = np.asarray(self.layout.dp), np.asarray(self.layout.tp) * self.layout.dp
        sends = self.row.dispatch_kernels & (ranks > USUAL_NODE)
        each = np.where(sends, 1.0, np.maximum(np.minimum(dp, EXPERT_TOKENS / np.maximum(self.chunk, 1)), 1.0))
        return each * self.row.tries_step

    @property
    def _results(self) -> Floats:
        """Bytes of a whole chunk's last results."""
        return self.chunk * self.model.stacks[0].width * 2.0

    @property
    def _most(self) -> Ints:
        """Sequences of the run before the cache is allocated: each has a token at least."""
        return np.minimum(self.cap or 0, self.chunk)

    @property
    def _logits(self) -> float:
        """Bytes that a sampler takes for each sequence in the run before the cache is allocated."""
        return self.model.vocab * self.row.profile_bytes if generates(self.model) else 0.0

    def filling(self, share: float, room: Floats, *, one: Floats) -> Floats:
        """Sequences of `one` byte each whose activations and cache fill `room`; 0 where not even a part of one does.

        Activations grow with the tokens of the batch up to a chunk, logits and cache with the sequences: two straight
        lines that meet where the batch makes a whole chunk.
        """
        cached = one / share if self.row.memory_rule == "free" else one
        filled = self._profiled_filling(room, cached) if self.profiled else self._filling(room, cached)
        return np.clip(filled, 0.0, 1e12)

    def _profiled_filling(self, room: Floats, cached: Floats) -> Floats:
        """`filling` beside the largest step: where prompts, and where the sampler takes most."""
        fixed, each = (0.0, self._logits) if self.cap is None else (self._most * self._logits, 0.0)
        of_prompts = (room - self._prompts) / np.maximum(cached, 1e-9)
        return np.minimum(of_prompts, (room - self._results - fixed) / np.maximum(cached + each, 1e-9))

    def _filling(self, room: Floats, cached: Floats) -> Floats:
        """`filling` beside the step of what runs."""
        model, chunk, context = self.model, self.chunk, np.asarray(self.context)
        token = self._layer(1.0, 0)
        each = cached + (self._layer(1.0, 1) - token if generates(model) else 0.0)
        knee = chunk / context
        beyond = (room - chunk * token) / np.maximum(each, 1e-9)
        below = room / (context * token + each)
        return np.where(room >= chunk * token + knee * each, beyond, below)


def _usable(row: Engine, share: float, card: Array, most_bytes: Array, taken: Floats) -> Floats:
    """The share of a card's memory that the engine takes at most."""
    if row.memory_rule == "whole":
        return most_bytes
    if row.memory_rule == "free":
        return np.where(card > taken, taken + (card - taken) * share, card)
    return card


def _own_on_gpu(steps: StepMemory, dp: Ints, sequences: Floats) -> Floats:
    """Bytes that the engine takes of its own on the GPU that takes most prompts at once."""
    row, largest = steps.row, np.maximum(steps.chunk, _largest_budget(steps.row, dp))
    on_gpu = replace(steps, chunk=largest, profiled=row.profiles("gpu"))
    return row.graph_bytes + row.context_bytes + on_gpu.working_bytes(sequences)


def _batch_notes(steps: StepMemory, concurrency: Ints, cap: Ints, batch: Floats, card: Array) -> tuple[str, ...]:
    """Notes that the engine runs fewer sequences than requested, and what more its default takes: `NOTED_FRAC`."""
    most, largest, name, notes = int(np.max(concurrency)), int(np.max(cap)), steps.row.name, []
    if most > largest:
        whose = "the batch limit that was given" if steps.cap is not None else f"the default batch limit of {name}"
        notes = [
            f"of {most:,} sequences requested, {largest:,} run at once ({whose}); the others wait and use no cache"
        ]
    if steps.profiled and steps.cap is None:
        more = float(np.max(replace(steps, cap=largest).working_bytes(batch) - steps.working_bytes(batch)))
        if more >= NOTED_FRAC * float(np.min(card)):
            started = f"{name} is started for no more sequences than run (--max-batch)"
            notes.append(
                f"{started}; for {largest:,}, its default, it keeps {format_bytes(more)} more free of the cache"
            )
    return tuple(notes)


def _kv_budget(row: Engine, share: float, card: Array, most_bytes: Array, taken: Floats) -> Floats:
    """Bytes that the engine leaves for the cache; negative where the weights do not fit."""
    if row.memory_rule == "whole":
        return most_bytes - taken
    if row.memory_rule == "free":
        return np.where(card > taken, (card - taken) * share, card - taken)
    return card - taken


def _plain(value: Floats) -> Floats:
    return float(value) if np.ndim(value) == 0 else value
