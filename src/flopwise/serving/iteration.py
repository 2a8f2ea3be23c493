"""One step of a serving engine: decoding sequences and a chunk of prefill go through the model together.

Weights are read once a step whatever the number of tokens; attention is charged apart for decoding (each sequence
reads its own cache) and for prefill. All counts may be columns of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    chain_s,
    grouped_gather_s,
    level_groups,
)
from flopwise.cost.kernels import (
    CORE_UNPACKS,
    DECODE_QUERIES,
    DOT,
    KEYS,
    PACKED_16,
    PACKING,
    PORTED,
    ROW_BY_ROW,
    UNPACKED,
    VECTOR_FRAC,
    Elements,
    Timing,
    block_rates,
    one_call_attention_s,
    pointwise_s,
    work_s,
)
from flopwise.cost.precisions import PRECISIONS
from flopwise.cost.rates import is_zero, precision
from flopwise.facts.architecture import (
    Attend,
    Embedding,
    Experts,
    Item,
    Layer,
    Linear,
    Model,
    Norm,
    Pointwise,
    Recurrence,
    Stack,
)
from flopwise.facts.formats import BF16_CACHE, CacheFormat
from flopwise.facts.software import LARGEST_HEAD, WIDE_RANKS
from flopwise.ops.cache import STATE_BYTES
from flopwise.ops.flops import runs
from flopwise.ops.fusion import Group, fused_groups, merge_works
from flopwise.ops.routing import busiest_rank, fullest_copies
from flopwise.ops.shapes import Shape, Split, Work
from flopwise.ops.types import Floats, Ints
from flopwise.ops.work import item_work, recurrence_flops, touched_experts
from flopwise.serving.memory import generates
from flopwise.serving.precision import CUDA_VENDOR, PartsPath, conversion_note
from flopwise.values import dataclass, kept_by_identity, replace

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.facts.software import Engine
    from flopwise.serving.memory import ServingLayout


RACK = 32
"""Devices from which on a scale-up domain spans nodes."""
BETWEEN = frozenset({"attention", "recurrence", "conv"})
"""Kinds of operations that graphs captured in pieces leave out (vLLM, CompilationConfig.splitting_ops: attention, and
recurrences with the convolution ahead of them)."""
UNCOMPILED = BETWEEN | {"grouped"}
"""Kinds of operations that stay calls of Python where the rest of a layer is compiled: these and experts (vLLM, custom
operations unified_attention, gdn_attention_core and moe_forward)."""
LAUNCHES = {"grouped": 2.5, "recurrence": 8.0}
"""Kernels that the host launches for one operation, where engines compose it of several. Experts: between choosing and
their two products tokens are sorted by expert, in three kernels (vLLM and SGLang, moe_align_block_size). A recurrence
over chunks: norms of queries and keys, sums of decays, products inside a chunk, their triangular solution, weights,
states from chunk to chunk, and outputs (flash-linear-attention, chunk_gated_delta_rule; Mamba-2's has five, and states
that are read and written)."""
PRODUCTS = frozenset({"matmul", "grouped"})
"""Kinds of operations that are matrix products. In 8 or 4 bits a kernel ahead of each quantises what comes in (vLLM,
per_token_group_quant_fp8 and scaled_fp8_quant; SGLang, sglang_per_token_group_quant_fp8), unless scales are static."""
HOST_TIMES = ("request_s", "front_s", "step_s", "layer_s", "sequence_s")
"""Columns of an engine that no kernel depends on."""
DELTA_RULES = frozenset({"delta", "kda"})
"""Kinds of recurrences that follow a delta rule."""
WIDE_BITS = 16.0
"""Bits of a weight that is not quantised."""
DISPATCH_CORES = 24
"""Cores that DeepEP's kernels for prompts keep busy (docs/legacy.md, Buffer.set_num_sms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The tokens and sequences of one step; each a number or a column."""

    decode_batch: Ints = 0  # sequences that get one token
    decode_context: Floats = 0  # mean tokens each of them has cached
    decode_tokens: Ints = 1  # tokens of each of them that go through together: more than one where drafts are verified
    prefill_tokens: Floats = 0  # prompt tokens worked through in this step
    prefill_context: Floats = 0  # tokens that the last of them sees
    prompts: Floats = 1  # prompts that those tokens belong to
    encoded: Floats = 0  # prompts whose encoder (or second tower) runs in this step
    encoder: Floats = 0  # tokens that the encoder makes of a prompt, which cross-attention sees
    prefill_ranks: Floats = np.inf  # attention replicas that work on as many prompt tokens; infinite: all of them
    beside_prompts: bool = False  # prompts that are not counted here are read in the same step
    every: bool = False  # all tokens' results are asked for, not only the last one's: encoders
    only_seconds: bool = False  # of the step's times, only `seconds` is asked for

    @property
    def reads_prompts(self) -> NDArray[np.bool_]:
        """True where the step reads prompts, counted here or not."""
        return self.beside_prompts | (np.asarray(self.prefill_tokens) > 0)


class Prompt(NamedTuple):
    """Tokens of one prompt: those that the first stack works through, and those of an encoder beside it."""

    own: Floats
    encoder: Floats

    @property
    def tokens(self) -> Floats:
        """All tokens of a prompt that an engine has to process."""
        return self.own + self.encoder


def prompt(model: Model, input_tokens: Floats) -> Prompt:
    """The prompt that `input_tokens` make for a model.

    A text encoder reads them and the decoder starts with one token; an encoder of sound or pixels has its own number,
    and they are the decoder's prompt; a vision model has its own number whatever is said.

    Source: the models' own definitions (T5, arXiv 1910.10683; Whisper, arXiv 2212.04356; ViT, arXiv 2010.11929).
    Assumes: one image, or one window of sound, a request.
    """
    own = model.stacks[0].tokens_per_sample
    if model.kind != "encoder-decoder":
        return Prompt(input_tokens if own is None else own, 0)
    fixed = next((s.tokens_per_sample for s in model.stacks[1:] if s.tokens_per_sample is not None), None)
    return Prompt(1, input_tokens) if fixed is None else Prompt(input_tokens, fixed)


def whole_prompts(model: Model, batch: Floats, input_tokens: Floats) -> StepLoad:
    """The load of one pass over `batch` prompts and nothing else."""
    one = prompt(model, input_tokens)
    return StepLoad(
        prefill_tokens=batch * one.own, prefill_context=one.own, prompts=batch, encoded=batch, encoder=one.encoder,
        every=not generates(model),
    )  # fmt: skip


def expert_layers(stack: Stack) -> int:
    """Layers of a stack that have experts."""
    return _layers_with(stack, lambda item: isinstance(item, Experts))


def grouped_layers(stack: Stack) -> int:
    """Layers of a stack whose experts are chosen by groups (DeepSeek-V3)."""
    return _layers_with(stack, lambda item: isinstance(item, Experts) and item.groups > 1)


def delta_layers(stack: Stack) -> int:
    """Layers of a stack whose recurrence follows a delta rule (Gated DeltaNet, Kimi Delta Attention)."""
    return _layers_with(stack, lambda item: isinstance(item, Recurrence) and item.kind in DELTA_RULES)


def recurrent_layers(stack: Stack) -> int:
    """Layers of a stack that keep a state for each sequence (Mamba, Gated DeltaNet, short convolutions)."""
    return _layers_with(stack, lambda item: isinstance(item, Recurrence))


def _layers_with(stack: Stack, is_one: Callable[[Item], bool]) -> int:
    return sum(n for kind, n in layer_kinds(stack) if any(is_one(item) for item in kind.items))


def shares_calls(engine: Engine, model: Model, cache: CacheFormat) -> bool:
    """True if one call of FlashAttention 2 has the prompts of a step and what decodes beside them.

    Source: `one_call_capabilities` of data/engines.json; vLLM, platforms/cuda.py: a cache in 8 bits, and a model with
    sinks, latents or heads beyond its largest in any layer (Gemma 4), have other kernels.
    Assumes: these take prompts and decoding apart.
    """
    return engine.one_call and cache.elem_bytes == WIDE_BITS / 8 and _is_for_flash_attention(model.stacks[0])


@kept_by_identity(64)
def _is_for_flash_attention(stack: Stack) -> bool:
    heads = [item for kind in stack.kinds for item in kind.items if isinstance(item, Attend)]
    plain = (not i.sinks and i.latent_dim is None and max(i.qk_dim, i.v_dim) <= LARGEST_HEAD for i in heads)
    return bool(heads) and all(plain)


def decodes_in_blocks(engine: Engine, model: Model) -> bool:
    """True if sequences that decode beside prompts have a block of tokens each, in layers with a delta rule.

    Source: `chunks_decoding` of data/engines.json. Assumes: nothing further.
    """
    return engine.chunks_decoding and delta_layers(model.stacks[0]) > 0


@kept_by_identity(64)
def layer_kinds(stack: Stack) -> list[tuple[Layer, int]]:
    """The kinds of layers of a tower, and how many there are of each."""
    counts = np.bincount(np.asarray(stack.order, dtype=np.intp), minlength=len(stack.kinds)).tolist()
    return list(zip(stack.kinds, counts, strict=True))


def kernel_groups(items: Iterable[Item]) -> list[Group]:
    """The items of a block in groups that run as one kernel each, in the order in which these run.

    Summing the results of a token's experts is part of their kernels, as these were measured.

    Source: `fused_groups`; aiconfigurator, collector/*/collect_moe.py (whole modules); `grouped_passes` of the
    calibration. Assumes: nothing further.
    """
    return fused_groups([item for item in items if not _sums_experts(item)])


class _TowerGroups(NamedTuple):
    """Groups of items around the layers of a tower, and in each kind of layer; equal ones are one object."""

    ends: list[Group]
    kinds: list[list[Group]]


@kept_by_identity(64)
def _tower(stack: Stack) -> _TowerGroups:
    known: dict[Group, Group] = {}
    kinds = [[known.setdefault(group, group) for group in kernel_groups(kind.items)] for kind in stack.kinds]
    return _TowerGroups(kernel_groups((*stack.before, *stack.after)), kinds)


class TimedKernel(NamedTuple):
    """One kernel of a step: what it does, in which precision, with how many bits a weight, and how long it takes."""

    work: Work
    dtype: str
    weight_bits: float
    timing: Timing
    conversion_s: Floats = 0.0  # after it: cached elements to a format that the device has units for

    @property
    def seconds(self) -> Floats:
        """The kernel with the conversion of what it reads."""
        return self.timing.seconds + self.conversion_s


class _KernelSums(NamedTuple):
    """Seconds, launches and bytes that kernels one after another add to a step; NaN where nobody asks for them."""

    seconds: Floats = 0.0
    launches: Floats = 0.0  # as of `StepTime`
    between: Floats = 0.0
    read_bytes: Floats = 0.0
    conversion_s: Floats = 0.0
    compute_s: Floats = 0.0
    memory_s: Floats = 0.0
    launch_s: Floats = 0.0
    compute_floor_s: Floats = 0.0
    memory_floor_s: Floats = 0.0
    flops: Floats = 0.0

    def plus(self, other: _KernelSums) -> _KernelSums:
        """The sums of both."""
        return _KernelSums(*map(add, self, other))


UNASKED = _KernelSums(*(np.nan for _ in _KernelSums._fields))
"""Sums that nobody asks for."""


class StepTime(NamedTuple):
    """Seconds of one step on one replica and where they go; `floor_s` is the bound at datasheet rates.

    Of a load with `only_seconds`, what `seconds` does not depend on is NaN.
    """

    seconds: Floats
    compute_s: Floats
    memory_s: Floats
    communication_s: Floats
    overhead_s: Floats  # of the host, and launching kernels
    floor_s: Floats
    flops: Floats
    conversion_s: Floats = 0.0  # of cached elements, in software
    launches: Floats = 0.0  # operations that the host starts: kernels and messages
    read_bytes: Floats = 0.0  # weights and cached elements; recurrent states, which are written back, twice
    between: Floats = 0.0  # of the launches, those of attention and recurrences: between the pieces of a graph

    def plus(self, other: StepTime, count: Floats = 1) -> StepTime:
        """This and `count` times the other, one after another."""
        return StepTime(*(a + count * b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Runner:
    """A model in a format, on an engine and a device: all that a step time needs beside its load."""

    model: Model
    rates: Rates
    fabric: Fabric
    engine: Engine
    dtype: str  # precision of the matrix products inside the layers: a key of `cost.precisions.PRECISIONS`
    weight_bits: float  # per weight element of the layers, scales included
    wide: frozenset[str] = frozenset()  # parts of the layers (attention ...), or products, with weights in 16 bits
    eight: PartsPath | None = None  # parts whose weights are in 8 bits, beside experts in fewer
    kv_dtype: CacheFormat = BF16_CACHE
    head_bits: float = 16.0  # per weight element of the head
    other_dtype: str = "bf16"  # embeddings, head, norms, attention
    chains: bool = True  # kernels of the products may start before the one ahead has ended
    direct: bool = True  # custom all-reduce kernels for small messages
    expert_skew: float = 1.0  # tokens of the most popular expert over the mean of all
    redundant_experts: int = 0  # copies of popular experts in each layer
    overlaps: bool = False  # two micro-batches hide each other's messages
    graph_batches: tuple[int, ...] = ()  # numbers of sequences that graphs are captured for, ascending; none: for any
    own_rates: Rates = field(init=False, repr=False)  # the device's, with what the engine's own kernels change

    def __post_init__(self) -> None:
        """Lay what the engine's kernels reach over what the device's best ones do."""
        joined = not self.engine.joined_experts.isdisjoint(("any", self.model.checkpoint_format))
        own = _own_rates(
            self.rates, self.engine, chains=self.chains, generating=generates(self.model), joins_experts=joined
        )
        object.__setattr__(self, "own_rates", own)

    @property
    def step_tokens(self) -> Floats:
        """Prompt tokens that one step takes at most; 0: no limit."""
        return self.engine.prefill_tokens

    @property
    def engine_experts_s(self) -> float:
        """The engine's own seconds a layer of experts and step beyond its kernels, for experts of these weights.

        Source: `experts_s`, `fused_experts` and `cuda_experts_frac` of data/engines.json. Assumes: nothing further.
        """
        fused = self.engine.fused_experts and self.weight_bits < WIDE_BITS
        left = self.engine.cuda_experts_frac if on_cuda(self.rates) else 1.0
        return 0.0 if fused else self.engine.experts_s * left

    @property
    def kv_bytes(self) -> float:
        """Bytes of a cached element."""
        return self.kv_dtype.elem_bytes

    def _cached_bytes(self, work: Work) -> float:
        """Bytes of an element of what one operation reads of the cache, or of a recurrent state.

        Source: as of `flopwise.ops.cache.state_bytes`. Assumes: windows of convolutions are as the state behind them.
        """
        if work.kind != "recurrence":
            return self.kv_bytes
        return max(self.engine.scan_bytes_of(self.model.model_type), STATE_BYTES)

    def step(self, load: StepLoad, split: ServingLayout) -> StepTime:
        """Time of one step; shape of the broadcast of `load` and `split`.

        What graphs do not hold the host launches, operation by operation: the device waits where that takes longer than
        the step itself. Many engines capture only steps that decode, or those of few tokens.

        Source: sum over operations and messages; per-layer and per-step overheads of the engine (`data/engines.json`);
        CUDA C++ programming guide, asynchronous execution: launches queue up while the device is busy.
        Assumes: pipeline stages work on different micro-batches at once, so a step passes through all of them; every
        operation takes the host as long to launch as any other.
        """
        stack, load = self.model.stacks[0], self._captured_load(load)
        total, layers = self.device_step(load, split)
        hops = self.pipeline_s(load, split, stack.width)
        layers_s = self.engine.layer_s * layers * cold_host(self.rates, total.read_bytes / layers)
        experts_s = self.engine_experts_s + self.rates.value["experts_s"] * self.engine.triton_experts
        experts_s += self.engine.intel_experts_s * on_intel(self.rates)
        layers_s = layers_s + experts_s * expert_layers(stack) + self.engine.delta_s * delta_layers(stack)
        layers_s = layers_s + self.engine.grouped_experts_s * grouped_layers(stack)
        if self.engine.local:  # small kernels of its own, one after another
            layers_s = layers_s * self.rates.value["core_slowness"]
        layers_s = layers_s + self.engine.sequence_s * load.decode_batch * cold_host(self.rates, total.read_bytes)
        launching_s = self.launching_s(total, load, split)
        if np.any(launching_s):
            layers_s = layers_s + np.maximum(launching_s - total.seconds - layers_s, 0.0)
        overhead = layers_s + self.between_steps_s(load, split, total.read_bytes) + 0.0 * total.seconds
        return total._replace(
            seconds=total.seconds + hops + overhead,
            communication_s=total.communication_s + hops,
            overhead_s=total.overhead_s + overhead,
        )

    def between_steps_s(self, load: StepLoad, split: ServingLayout, read_bytes: Floats) -> Floats:
        """Seconds of the host that nothing hides: before a step's first kernel and after its last.

        `read_bytes`: what the step reads of the device's memory. Source: `recurrent_s` and `step_s` of
        data/engines.json, `cold_host`. Assumes: nothing further.
        """
        recurs = recurrent_layers(self.model.stacks[0]) > 0
        fixed_s = self.engine.recurrent_s * recurs + self.engine.step_s * cold_host(self.rates, read_bytes)
        return fixed_s + self._calls_s(load, split)

    def _calls_s(self, load: StepLoad, split: ServingLayout) -> Floats:
        """Seconds a step in which the host calls the processes of its tensor-parallel ranks, one after another.

        Source: vLLM pull request 2221 (2023-12): Llama-2-70B on eight A100s does 3.01 requests/s of ShareGPT through
        Ray, 5.08 without; 2.48 and 3.48 with 512 sequences waiting. Assumes: each call holds every sequence anew.
        """
        called = np.where(np.asarray(split.tp) > 1, split.tp, 0)
        sequences = load.decode_batch + load.prompts * (np.asarray(load.prefill_tokens) > 0)
        return called * (self.engine.worker_s + self.engine.worker_sequence_s * sequences)

    def device_step(self, load: StepLoad, split: ServingLayout) -> tuple[StepTime, Floats]:
        """Time on the device of a step, whatever the host takes (`HOST_TIMES`), and the number of layers that run.

        Source: sum over operations and messages. Assumes: nothing further.
        """
        stack = self.model.stacks[0]
        total = self._step_of_halves(load, split) if self.overlaps else self._stack(stack, load, split)
        layers: Floats = stack.num_layers
        for tower in self.model.stacks[1:]:
            if runs(self.model, tower) and np.any(load.encoded):
                total = total.plus(self._stack(tower, self.tower_load(tower, load), split))
                layers = layers + tower.num_layers * np.minimum(load.encoded, 1.0)
        return total if (added := self.added_kernels(load, split)) is None else total.plus(added), layers

    @property
    def speculates(self) -> bool:
        """True where a draft proposes tokens, also at the end of the step that reads a prompt."""
        return False

    def launches_prompts(self, split: ServingLayout) -> NDArray[np.bool_]:
        """True where the host launches steps with prompts operation by operation.

        Source: `graphs`, `prompt_graphs` and `eager_prompts` of data/engines.json. Assumes: of the last, only what
        belongs to the layout is not decided yet.
        """
        engine, (pp, dp) = self.engine, (np.asarray(split.pp) > 1, np.asarray(split.dp) > 1)
        eager = not (engine.graphs and engine.prompt_graphs)
        return eager | (pp & ("pp" in engine.eager_prompts)) | (dp & ("dp" in engine.eager_prompts))

    def largest_graph(self, split: ServingLayout) -> Ints:
        """Sequences of an attention replica in the largest step that only decodes and is captured; 0: as many as run.

        Source: `step_limits` of data/engines.json; SGLang, ServerArgs: tp_size counts all attention replicas.
        Assumes: nothing further.
        """
        wide = np.asarray(split.tp) * split.dp >= WIDE_RANKS
        return np.where(wide, self.engine.wide_graph_batch, self.engine.graph_batch)

    def launching_s(self, total: StepTime, load: StepLoad, split: ServingLayout) -> Floats:
        """Seconds that the host takes to launch operations of a step one by one; `total`: of the step.

        Source: `launches_prompts`, `largest_graph`; `prompt_graph_tokens`, `piecewise` and `launch_s` of
        data/engines.json.
        Assumes: where an engine captures steps for as many sequences as run, those beyond keep the device busy.
        """
        engine = self.engine
        if self.rates.compiles:  # XLA's programs run whole
            return 0.0
        whole, on_device = self.launches_prompts(split), not self.rates.is_host  # a processor launches for itself
        if engine.prompt_graph_tokens and on_device:
            tokens = load.decode_batch * load.decode_tokens + load.prefill_tokens
            whole = whole | (np.asarray(tokens) > engine.prompt_graph_tokens)
        pieces = total.between * (engine.piecewise and on_device)
        prompts, most = np.asarray(load.prefill_tokens) > 0, self.largest_graph(split)
        outgrown = ~prompts & (most > 0) & (np.asarray(load.decode_batch) > most)
        launched = prompts | outgrown | (not engine.graphs)
        return np.where(whole | outgrown, total.launches, pieces) * launched * engine.launch_s

    def added_kernels(self, load: StepLoad, split: ServingLayout) -> StepTime | None:
        """The kernels that a technique adds to the layers, launched and read with them; None without one.

        Source: the technique's own. Assumes: nothing further.
        """
        del load, split
        return None

    def _captured_load(self, load: StepLoad) -> StepLoad:
        """The step as it is launched: one that only decodes is filled up with empty sequences to a captured size.

        Source: TensorRT-LLM, tech blog 20 (tuning CUDA graph batch sizes). Assumes: those beyond the last size, and
        steps that read prompts, are launched as they are; empty sequences have nothing cached.
        """
        if not self.graph_batches:
            return load
        sizes, batch = np.array([*self.graph_batches, np.inf]), np.asarray(load.decode_batch)
        captured = sizes[np.searchsorted(sizes, batch)]
        full = np.where((captured < np.inf) & ~load.reads_prompts, captured, batch)
        return replace(load, decode_batch=full, decode_context=load.decode_context * batch / np.maximum(full, 1e-9))

    def _stack(self, stack: Stack, load: StepLoad, split: ServingLayout) -> StepTime:
        """All blocks of one tower, one after another; kernels that kinds of layers have in common are timed once."""
        tower = _tower(stack)
        (total,) = self.kernels_times([tower.ends], load, split, inside=False)
        times = self.kernels_times(tower.kinds, load, split, inside=True)
        messages_s = self.messages_s([kind.items for kind in stack.kinds], load, split, stack.width)
        for (kind, count), kernels, sent_s in zip(layer_kinds(stack), times, messages_s, strict=True):
            launches = kernels.launches + _launched_messages(kind.items, split)
            block = kernels._replace(seconds=kernels.seconds + sent_s, communication_s=sent_s, launches=launches)
            total = total.plus(block, count)
        return total

    def _step_of_halves(self, load: StepLoad, split: ServingLayout) -> StepTime:
        """All layers for two halves of a step, one of which computes while the other's messages are under way.

        Messages of prompts keep `DISPATCH_CORES` busy, which compute nothing meanwhile. Those of decoding are written
        and read by kernels that have all cores for themselves, before and after they are under way.

        Source: LMSYS, Large-scale expert parallelism on 96 H100 (2025-05-05), two-batch overlap; DeepEP,
        docs/legacy.md.
        Assumes: halves are equal; at its ends a step waits for half of one layer's messages.
        """
        stack = self.model.stacks[0]
        half = replace(
            load, decode_batch=load.decode_batch / 2, prefill_tokens=load.prefill_tokens / 2, prompts=load.prompts / 2,
            encoded=load.encoded / 2,
        )  # fmt: skip
        both = self._stack(stack, half, split)
        both = both.plus(both)
        sent_s, computed_s = both.communication_s, both.seconds - both.communication_s
        reading = np.asarray(load.prefill_tokens) > 0
        taken = np.minimum(DISPATCH_CORES / np.maximum(self.rates.num_sms, 1), 1.0) * np.minimum(sent_s, computed_s)
        slower_s = computed_s + np.where(reading, taken, np.minimum(self._packing_s(half, split), sent_s))
        shown_s = np.maximum(sent_s - slower_s, 0.0) + np.minimum(sent_s, slower_s) / (2.0 * stack.num_layers)
        return both._replace(
            seconds=slower_s + shown_s, communication_s=shown_s, overhead_s=both.overhead_s + slower_s - computed_s
        )

    def _packing_s(self, half: StepLoad, split: ServingLayout) -> Floats:
        """Time of kernels that write and read the messages of two halves, all layers: of DeepEP's low-latency mode.

        Four kernels a layer with experts: tokens are read in 16 bits and written once for each expert, moved on from
        where they arrive, results written and moved likewise, read once for each expert and summed.

        Source: counting; DeepEP, csrc/kernels/internode_ll.cu (send and receive phases of dispatch and combine).
        Assumes: they run at the rate of norms.
        """
        p, total = precision(self.dtype), 0.0 * np.asarray(half.decode_batch)
        thin = p.act_bits / 8 if p.quantised else self.plain_bytes
        for kind, count in layer_kinds(self.model.stacks[0]):
            for item in kind.items:
                if isinstance(item, Experts) and item.shard == "row":
                    each = 2.0 * self.plain_bytes + item.top_k * (3.0 * thin + 3.0 * self.plain_bytes)
                    tokens = half.decode_batch * half.decode_tokens / split.tp
                    moved_s = pointwise_s(self.own_rates, tokens * item.outputs * each).memory_s
                    total = total + 2.0 * count * (4.0 * self.own_rates.value["kernel_s"] + moved_s)
        return np.where(np.asarray(split.dp) > 1, total, 0.0)

    def tower_load(self, tower: Stack, load: StepLoad) -> StepLoad:
        """The load of a tower beside the first stack: whole prompts, of its own number of tokens."""
        tokens = load.encoder if tower.tokens_per_sample is None else tower.tokens_per_sample
        prompts = np.maximum(load.encoded, 1.0)
        return StepLoad(prefill_tokens=load.encoded * tokens, prefill_context=tokens, prompts=prompts, every=True)

    def kernels_times(
        self, blocks: Sequence[Sequence[Group]], load: StepLoad, split: ServingLayout, *, inside: bool
    ) -> list[StepTime]:
        """The time of the kernels of each block, one after another, without its messages; `inside`: as of `kernels_of`.

        Source: `flopwise.cost.kernels`. Assumes: as there.
        """
        cut, ranks = self._shares(load, split)
        known: dict[int, list[_KernelSums]] = {}
        for group in (group for block in blocks for group in block):
            if id(group) not in known:
                kernels = self._group_kernels(group, load, cut, ranks, inside=inside)
                known[id(group)] = [self._kernel_sums(kernel, load) for kernel in kernels]
        return [self._step_time(one for group in block for one in known[id(group)]) for block in blocks]

    def _step_time(self, kernels: Iterable[_KernelSums]) -> StepTime:
        whole = reduce(_KernelSums.plus, kernels, _KernelSums())
        return StepTime(
            whole.seconds, whole.compute_s, whole.memory_s, 0.0, whole.launch_s,
            np.maximum(whole.compute_floor_s, whole.memory_floor_s), whole.flops, whole.conversion_s, whole.launches,
            whole.read_bytes, whole.between,
        )  # fmt: skip

    def _kernel_sums(self, kernel: TimedKernel, load: StepLoad) -> _KernelSums:
        """The sums of one kernel."""
        work, dtype, bits, timing, conversion_s = kernel
        starts: Floats = 1.0 if work.kind not in BETWEEN else np.asarray(work.flops) > 0  # not where a step has none
        quantises = work.kind in PRODUCTS and precision(dtype).quantised and not self.engine.static_scales
        single = ((LAUNCHES.get(work.kind, 1.0) if self.engine.composed else 1.0) + quantises) * starts
        launches = single if work.kind in UNCOMPILED else single * self.engine.compiled_launch_frac
        sums = UNASKED._replace(
            seconds=kernel.seconds * starts, launches=launches, between=single * (work.kind in BETWEEN)
        )
        if load.only_seconds and not self.rates.is_host:  # whose host's own work waits for what is read (`cold_host`)
            return sums
        nbytes = work.weight_elems * bits / 8 + work.kv_elems * self._cached_bytes(work)
        if load.only_seconds:
            return sums._replace(read_bytes=nbytes)
        parts = kernel_parts(self.own_rates, work, dtype, timing)
        return sums._replace(
            read_bytes=nbytes, conversion_s=conversion_s * starts, compute_s=parts.compute_s * starts,
            memory_s=parts.memory_s * starts, launch_s=parts.launch_s * starts,
            compute_floor_s=work.causal_flops / self._most_flops_per_s(dtype),
            memory_floor_s=nbytes / self.rates.hbm_bytes_per_s, flops=work.causal_flops,
        )  # fmt: skip

    def kernels_of(
        self, items: Sequence[Item], load: StepLoad, split: ServingLayout, *, inside: bool
    ) -> Iterator[TimedKernel]:
        """The kernels of one block, in the order in which they run; `inside`: of a layer, not before or after them.

        Source: `kernel_groups`. Assumes: nothing further.
        """
        cut, ranks = self._shares(load, split)
        for group in kernel_groups(items):
            yield from self._group_kernels(group, load, cut, ranks, inside=inside)

    def _shares(self, load: StepLoad, split: ServingLayout) -> tuple[Split, _ExpertRanks]:
        """The split of a layer over ranks, and the ranks that hold its experts."""
        cut = Split(tp=split.tp, ep=split.ep, expert_tp=split.expert_tp, sequence_parallel=False, ep_own_tokens=False)
        return cut, _ExpertRanks(_tokens_of_all(load, split.dp), cut, self.expert_skew, self.redundant_experts)

    def _group_kernels(
        self, group: Group, load: StepLoad, cut: Split, ranks: _ExpertRanks, *, inside: bool
    ) -> Iterator[TimedKernel]:
        for counted in _works(group, load, cut, ranks, inside=inside):
            work = self._in_blocks(group[0], self._as_read(counted), load)
            dtype, bits = self._format(work, inside=inside)
            act_bytes = self._act_bytes if inside else self.plain_bytes
            elements = Elements(dtype, bits, act_bytes, self._cached_bytes(work))
            timing = self._in_one_call(work_s(self.own_rates, work, elements), work, load, elements)
            timing = self.among_others(self._fusion(work, timing))
            yield TimedKernel(work, dtype, bits, timing, self._conversion_s(work))

    @property
    def _act_bytes(self) -> float:
        """Of an activation inside the layers, between kernels.

        Source: TensorRT demo/BERT, plugins with INT8 inputs and outputs. Assumes: all kernels take what comes.
        """
        p = precision(self.dtype)
        return p.act_bits / 8 if p.quantised and self.engine.static_scales else self.plain_bytes

    @property
    def plain_bytes(self) -> float:
        """Of what is not quantised."""
        return precision(self.other_dtype).act_bits / 8

    def _as_read(self, work: Work) -> Work:
        """Decoding by kernels that know no groups: each query head reads the keys and values it shares.

        Where a token is appended by copying what is cached, this is read and written once more; and where heads share
        it, read again and written for each of them.

        Source: `grouped_decode` and `copies_cache` of data/engines.json; transformers, cache_utils.py (torch.cat) and
        repeat_kv. Assumes: nothing of it is found in the L2 cache.
        """
        if self.engine.grouped_decode or work.kind != "attention" or np.any(np.asarray(work.query) > 1):
            return work
        passes = shared = work.heads / work.kv_heads
        if self.engine.copies_cache:
            passes = 3.0 + np.where(np.asarray(shared) > 1, 2.0 * shared, 0.0)
        return replace(work, kv_heads=work.heads, kv_elems=work.kv_elems * passes)

    def _in_blocks(self, item: Item, work: Work, load: StepLoad) -> Work:
        """Sequences that decode, in a step with prompts: each as a block of tokens of the rule's parallel form.

        Source: `chunks_decoding` of data/engines.json. Assumes: tokens that are not there are computed and not moved.
        """
        if not (self.engine.chunks_decoding and isinstance(item, Recurrence) and item.kind in DELTA_RULES):
            return work
        beside = (np.asarray(work.query) == 1) & load.reads_prompts
        tokens = 1.0 * work.batch * work.heads * item.chunk
        scan, counted = (tokens * each for each in recurrence_flops(item, item.chunk))
        flops, causal_flops = np.where(beside, counted, work.flops), np.where(beside, scan, work.causal_flops)
        return replace(work, flops=flops, causal_flops=causal_flops)

    def _in_one_call(self, alone: Timing, work: Work, load: StepLoad, elements: Elements) -> Timing:
        """Few queries of each sequence, by a kernel of their own (`alone`) or in one call with the prompts of a step.

        One query a sequence has a kernel of its own where no prompt is read, heads share keys and there is no window.

        Source: `shares_calls`; flash-attention, csrc/flash_attn/flash_api.cpp (seqlenq_ngroups_swapped).
        Assumes: as of `one_call_attention_s`.
        """
        if work.kind != "attention" or not shares_calls(self.engine, self.model, self.kv_dtype):
            return alone
        query = np.asarray(work.query)
        shares_keys = np.asarray(work.heads) > work.kv_heads
        packed = (query == 1) & shares_keys & (work.window is None) & ~load.reads_prompts
        joins = (query <= DECODE_QUERIES) & ~packed
        if not np.any(joins):
            return alone
        joined = one_call_attention_s(self.own_rates, work, elements)
        return Timing(*(np.where(joins, a, b) for a, b in zip(joined, alone, strict=True)))

    def _fusion(self, work: Work, timing: Timing) -> Timing:
        """Norms and elementwise operations that share passes with others; eager ones repeat them.

        Source: `pointwise_traffic` of data/engines.json, calibrated. Assumes: they are bound by memory.
        """
        if work.kind != "pointwise":
            return timing
        saved_s = (1.0 - self.engine.pointwise_traffic) * timing.memory_s
        return Timing(timing.seconds - saved_s, timing.compute_s, timing.memory_s - saved_s)

    def _conversion_s(self, work: Work) -> Floats:
        """Decoding from an 8-bit floating cache on a device without such units: each query head converts what it reads.

        Source: emulated conversions of CUDA's fp8 types; operations an element are calibrated.
        Assumes: they run on the vector units, after the reads.
        """
        rates = self.own_rates
        if (
            conversion_note(self.kv_dtype, rates) is None
            or work.kind != "attention"
            or np.any(np.asarray(work.query) > 1)
        ):
            return 0.0
        return rates.value["cache_convert_flops"] * work.causal_flops / 2.0 / rates.peak["fp32"]

    def among_others(self, timing: Timing) -> Timing:
        """A kernel among others: part of its fixed time passes while the one before it ends.

        Source: CUDA programming guide, programmatic dependent launch; the share is the engine's.
        Assumes: never less than computing or moving takes.
        """
        if not self.engine.hidden_frac:
            return timing
        hidden_s = self.engine.hidden_frac * self.own_rates.value["kernel_s"]
        least = np.maximum(timing.compute_s, timing.memory_s)
        return timing._replace(seconds=np.maximum(np.minimum(least, timing.seconds), timing.seconds - hidden_s))

    def _format(self, work: Work, *, inside: bool) -> tuple[str, float]:
        part, is_product = work.name.split("/")[0], work.kind in PRODUCTS
        if inside and is_product and self.eight is not None and part in self.eight.parts:
            return self.eight.dtype, self.eight.weight_bits
        if inside and is_product and part not in self.wide and work.name not in self.wide:
            return self.dtype, self.weight_bits
        if not inside and work.kind == "matmul" and self.head_bits < UNPACKED * 16.0:
            return "int4_wo" if self.head_bits < 6 else "int8_wo", self.head_bits
        return self.other_dtype, 8.0 * self.plain_bytes

    def _most_flops_per_s(self, dtype: str) -> Floats:
        """The rate that no kernel exceeds: few rows may run on the vector units, which old devices have more of."""
        vector = VECTOR_FRAC * self.rates.peak.get("fp32", 0.0)
        return np.asarray(np.maximum(self.rates.peak_flops_per_s(dtype), vector))

    def sent_s(self, load: StepLoad, split: ServingLayout) -> Floats:
        """Seconds of all messages of a step of text, one after another; shape of the broadcast.

        Source: `messages_s`, `pipeline_s`. Assumes: as there.
        """
        stack, seconds = self.model.stacks[0], 0.0 * np.asarray(load.prefill_tokens)
        each_s = self.messages_s([kind.items for kind in stack.kinds], load, split, stack.width)
        for (_, count), layer_s in zip(layer_kinds(stack), each_s, strict=True):
            seconds = seconds + count * layer_s
        return seconds + self.pipeline_s(load, split, stack.width)

    def messages_s(
        self, kinds: Sequence[Sequence[Item]], load: StepLoad, split: ServingLayout, width: int
    ) -> list[Floats]:
        """All-reduces behind row-parallel products of a layer, and what attention replicas send to share experts.

        A token travels once to each rank that holds one of its experts, in the precision of their products, and comes
        back in 16 bits. Between nodes it does so by kernels that send it once to each node, or while answers are made,
        where graphs allow no counts, straight to each expert. Where experts are cut over ranks, the engine has no such
        kernels, or all ranks are in one node, where engines do not use them by default, all ranks gather the tokens, in
        16 bits where they are quantised only then (`thin_gathers` of data/engines.json), and sum what comes out. Ranks
        with prompts have unequal numbers of them, for which several engines group a broadcast from each rank and a
        reduction to each (`grouped_gathers`); steps that only decode are filled up to one captured size.

        Norms over all heads (MiniMax-M2, OLMo 2) sum their squares over the ranks that hold them, in one message of
        four bytes for each norm and token, which parts a kernel in two. Where the kernel that sums adds the residual
        and normalises, too, the pass behind it starts no kernel of its own (`sums_normalise` of data/engines.json).

        Source: Shoeybi et al. 2019 (arXiv:1909.08053) section 3; DeepSeek-V3 report (arXiv:2412.19437) section 3.4;
        vLLM pull request 31493 (one all-reduce for the norms of queries and keys); DeepEP, docs/legacy.md (normal and
        low-latency kernels); TensorRT-LLM, fused_moe_cutlass.py (all-to-all only where NVLink joins nodes), vLLM,
        envs.py (VLLM_ALL2ALL_BACKEND), SGLang, server_args.py (moe_a2a_backend); NVIDIA, LatentMoE
        (research.nvidia.com, 2026): tokens are sent in the experts' width.
        Assumes: without attention replicas every rank holds all tokens, so experts need no dispatch, only the sum;
        experts are chosen independently.
        """
        if self.engine.split_s:
            return [self._split_s(items, split) for items in kinds]
        tokens, groups = (
            load.decode_batch * load.decode_tokens + load.prefill_tokens,
            level_groups(self.fabric, split.tp),
        )

        def summed_s(nbytes: Floats) -> Floats:
            return all_reduce_s(self.fabric, nbytes, split.tp, direct=self.direct, groups=groups)

        each_s = summed_s(tokens * width * self.plain_bytes)
        if self.engine.sums_normalise:
            start_s = (1.0 - self.engine.hidden_frac) * self.own_rates.value["kernel_s"]
            each_s = np.where(np.asarray(split.tp) > 1, np.maximum(each_s - start_s, 0.0), each_s)
        found, shared = list[Floats](), dict[Experts, Floats]()
        for items in kinds:
            experts = [i for i in items if isinstance(i, Experts) and i.shard == "row"]
            seconds = (_row_parallel(items) - len(experts)) * each_s
            if norms := norms_over_ranks(items):
                starts_s = self.own_rates.value["kernel_s"] * (np.asarray(split.tp) > 1)
                seconds = seconds + summed_s(4.0 * norms * tokens) + starts_s
            if experts and experts[0] not in shared:
                shared[experts[0]] = self._experts_s(experts[0], load, split, each_s)
            found.append(seconds + shared[experts[0]] if experts else seconds)
        return found

    def _experts_s(self, experts: Experts, load: StepLoad, split: ServingLayout, summed_s: Floats) -> Floats:
        """Messages of a layer's experts: the sum of results, in `summed_s`, or what attention replicas send."""
        if not np.any(np.asarray(split.dp) > 1):
            return summed_s
        ranks, ep = np.asarray(split.tp) * split.dp, np.asarray(split.ep)
        tokens = load.decode_batch * load.decode_tokens + load.prefill_tokens
        routed = experts.outputs * self.plain_bytes  # of a token: as wide as the experts, which may be less
        whole, groups = _tokens_of_all(load, split.dp) * routed, level_groups(self.fabric, ranks)
        thin = not self.engine.thin_gathers.isdisjoint(("any", self.dtype))
        shared_s = self._there_and_back_s(
            lambda part: all_gather_s(self.fabric, whole * part, ranks, groups=groups), thin=thin
        )
        if self.engine.grouped_gathers and not self.rates.compiles and np.any(load.reads_prompts):
            unequal_s = self._there_and_back_s(
                lambda part: grouped_gather_s(self.fabric, whole * part, ranks, groups=groups), thin=thin
            )
            shared_s = np.where(load.reads_prompts, unequal_s, shared_s)
        sends = self.overlaps | (ranks > self.fabric.domain) | (self.fabric.domain >= RACK)
        spread_here = (ep == ranks) & self.engine.dispatch_kernels & sends
        if np.any(spread_here):
            shared_s = np.where(spread_here, self._spread_s(experts, tokens * routed / split.tp, load, ep), shared_s)
        return np.where(np.asarray(split.dp) > 1, shared_s, summed_s)

    def _there_and_back_s(self, sent_s: Callable[[float], Floats], *, thin: bool = True) -> Floats:
        """A message and, likewise, its answer in 16 bits; `sent_s`: by share of these.

        `thin`: the message is in the precision of the products.

        Source: `messages_s`; reduce-scatter is the way of all-gather back. Assumes: as there.
        """
        p = precision(self.dtype)
        share = p.act_bits / 8 / self.plain_bytes if thin and p.quantised else 1.0
        there_s = sent_s(share)
        return there_s + (there_s if share == 1.0 else sent_s(1.0))

    def _split_s(self, items: Sequence[Item], split: ServingLayout) -> Floats:
        """Host time of the products of a layer, each of which goes from device to device.

        For each of them the host copies what comes in, starts two kernels and copies the result back, and it waits for
        all before the next product.

        Source: `split_s` of data/engines.json. Assumes: experts are split as other products are.
        """
        products = sum(1 for i in items if isinstance(i, Linear | Experts))
        tp = np.asarray(split.tp)
        return np.where(tp > 1, products * self.engine.split_s * tp, 0.0)

    def _spread_s(self, experts: Experts, nbytes: Floats, load: StepLoad, ep: Ints) -> Floats:
        """Tokens of `nbytes` of one rank to their experts and back."""
        copies, groups = experts.top_k, level_groups(self.fabric, ep)
        if self.expert_skew > 1:
            nbytes = nbytes * self._fuller(experts, load, ep)
        routed = nbytes * ep * (1.0 - (1.0 - 1.0 / np.asarray(ep)) ** copies)
        inside = self._there_and_back_s(lambda part: all_to_all_s(self.fabric, routed * part, ep, groups=groups))
        if np.all(np.asarray(ep) <= self.fabric.domain):
            return inside
        reading = np.any(np.asarray(load.prefill_tokens) > 0)
        once = {"copies": copies, "pools": experts.groups, "top_pools": experts.top_groups} if reading else {}
        across = self._there_and_back_s(
            lambda part: all_to_all_s(self.fabric, nbytes * copies * part, ep, direct=True, groups=groups, **once)
        )
        return np.where(np.asarray(ep) <= self.fabric.domain, inside, across)

    def _fuller(self, experts: Experts, load: StepLoad, ep: Ints) -> Floats:
        """Tokens of the rank with the most popular experts, over those if all experts were as popular.

        Source: `fullest_copies`. Assumes: the rank that is sent most sets the time, and so it does with even experts.
        """
        among = experts.experts, experts.top_k, _tokens_of_all(load, ep), ep
        even, skewed = fullest_copies(*among), fullest_copies(*among, self.expert_skew, self.redundant_experts)
        fuller: Floats = skewed / np.maximum(even, 1e-9)
        return fuller

    def pipeline_s(self, load: StepLoad, split: ServingLayout, width: int) -> Floats:
        """The time of messages between pipeline stages in a step, in s."""
        nbytes = (load.decode_batch * load.decode_tokens + load.prefill_tokens) * width * self.plain_bytes / split.tp
        return chain_s(self.fabric, nbytes, split.pp, split.tp)


def _launched_messages(items: Sequence[Item], split: ServingLayout) -> Floats:
    """Messages of a layer that the host starts."""
    cut, shared = np.asarray(split.tp) > 1, np.asarray(split.dp) > 1
    experts = sum(1 for i in items if isinstance(i, Experts) and i.shard == "row")
    launches: Floats = _row_parallel(items) * cut + experts * shared * (2 - cut)  # there and back
    return launches


def _row_parallel(items: Sequence[Item]) -> int:
    """Products of a layer whose results ranks add up."""
    return sum(1 for i in items if isinstance(i, Linear | Experts) and i.shard == "row")


def norms_over_ranks(items: Sequence[Item]) -> int:
    """Norms of a layer over all heads that column-parallel products give, of which each rank has some.

    Source: MiniMax-M2 and OLMo 2. Assumes: a norm over one head stays on its rank.
    """
    cut = {i.name for i in items if isinstance(i, Linear) and i.shard == "column"}
    head = max((max(i.qk_dim, i.v_dim) for i in items if isinstance(i, Attend)), default=0)
    return sum(1 for i in items if isinstance(i, Norm) and i.reads in cut and i.groups == 1 and i.dim > head)


STARTS = ("kernel_s", "grouped_s", "attention_s", "decode_s")
"""Fixed times of kernels."""
NO_CYCLES = 1e-6
"""What `byte_dot_cycles` is below on devices that multiply four bytes at once."""
NATIVE = ("NVIDIA", "Apple")
"""Vendors for whose devices engines' kernels are written first; others' run them ported."""


def native(rates: Rates, engine: Engine) -> bool:
    """True if the engine's kernels are as good on this device as on those they were written for.

    Source: `port_frac` of data/engines.json. Assumes: one share for all ports of a generation; what runs on processors
    was written for them, whoever made these.
    """
    return engine.port_frac == 1.0 or rates.is_host or rates.vendor in ("", *NATIVE)


def on_intel(rates: Rates) -> bool:
    """True on a GPU of Intel."""
    return rates.vendor == "Intel" and not rates.is_host


def on_cuda(rates: Rates) -> bool:
    """True on a GPU of NVIDIA."""
    return rates.vendor == CUDA_VENDOR and not rates.is_host


def cold_host(rates: Rates, nbytes: Floats) -> Floats:
    """The slowdown of the host's own work on a processor that has read `nbytes` since it last did the same.

    What is read displaces the host's code and objects from the caches that both share: 1 where nothing was read, 2
    where all comes from memory again.

    Source: `benchmarks/cold_host.py` (a Xeon, 2026-11-26, three times): an eager layer of PyTorch and pure Python take
    2 to 3.7 times as long after reading 64 MiB as after 4, twice that of a core's cache; inside vLLM's worker
    scheduling takes 1.5 times as long between steps of 32 and of 71 MB of weights as between steps of 10.
    Assumes: half of it is displaced by as many bytes as the last cache has; the fitted times are those of small reads.
    """
    if not rates.is_host or is_zero(rates.l2_bytes):
        return 1.0
    return 1.0 + nbytes / (nbytes + rates.l2_bytes)


@kept_by_identity(512)
def _own_rates(rates: Rates, engine: Engine, *, chains: bool, generating: bool, joins_experts: bool) -> Rates:
    """The device's rates, no higher than what each core reaches in the engine's own kernels.

    Where devices start a kernel before the one ahead of it has ended, the engine captures its steps in graphs, and its
    kernels wait for nothing but their inputs (`chains`), part of each start is hidden, and cores that a narrow product
    leaves idle fetch what the next kernel reads. Engines that generate text draw part of the bandwidth where their
    kernels are not the device's best. Experts' products that are one kernel (`joins_experts`) share its fixed time.
    Kernels that were ported multiply more slowly, and read more slowly where waves are wider than CUDA's warps.

    Source: `port_reads`; columns of data/engines.json; CUDA C++ programming guide, programmatic dependent launch (its
    graph edges are captured), which FlashInfer and TensorRT-LLM use from compute capability 9.0 on; the share is
    calibrated.
    Assumes: all its matrix kernels are written alike; idle cores win back as large a share as starts.
    """
    value = dict(rates.value)
    if generating:
        value["dram_frac"] *= value["served_dram_frac"]
    if engine.library_rows:
        value["dram_frac"] *= value["library_dram_frac"]
    if engine.dots_bytes and value["byte_dot_cycles"] > NO_CYCLES and rates.clock_hz:
        value[DOT] = value["byte_dot_cycles"] / (rates.num_sms * rates.clock_hz)
    if rates.is_host and engine.cpu_packs_once:
        value |= dict.fromkeys((*PACKING.values(), PACKED_16), 0.0)
    if rates.is_host and engine.cpu_attention_keys:
        value[KEYS] = float(engine.cpu_attention_keys)
    if not native(rates, engine):
        value["dram_frac"] *= engine.port_frac ** value["port_reads"]
        value |= {k: v * engine.port_frac for k, v in value.items() if k.startswith("matmul_frac.")}
    if rates.vendor not in ("", *NATIVE):
        value[PORTED + "fp8_block"] = engine.block_port_frac
    if on_intel(rates):
        value |= {k: v * engine.intel_matmul_frac for k, v in value.items() if k.startswith("matmul_frac.")}
    value["grouped_s"] *= value["joined_grouped_frac"] ** joins_experts
    value |= block_rates(value, engine.block_kernel)
    if engine.graphs and chains:
        kept = 1.0 - value["chained_frac"]
        value |= {name: value[name] * kept for name in STARTS} | {"core_bytes_per_s": value["core_bytes_per_s"] / kept}
    value = _core_limited(value, rates, engine)
    return rates if value == rates.value else replace(rates, value=value)


def _core_limited(value: dict[str, float], rates: Rates, engine: Engine) -> dict[str, float]:
    """The parameters `value` of a device, no higher than what each of its cores reaches in the engine's own kernels."""
    value = dict(value)
    if engine.core_unpacks_per_s and rates.vendor == CUDA_VENDOR:
        value[CORE_UNPACKS] = engine.core_unpacks_per_s
    if engine.core_row_weights_per_s and not rates.is_host:
        value[ROW_BY_ROW] = 1.0 / (engine.core_row_weights_per_s * rates.num_sms)
    if engine.core_bytes_per_cycle and rates.num_sms > 1 and rates.clock_hz:
        most = engine.core_bytes_per_cycle * rates.clock_hz * rates.num_sms
        value["dram_frac"] = min(value["dram_frac"], most / rates.hbm_bytes_per_s)
    if engine.core_flops_per_s and rates.num_sms > 1:
        dots = value["dot_core_flops_per_s"] if engine.dots_bytes else np.inf
        most = min(engine.core_flops_per_s, dots) * rates.num_sms
        for dtype, p in PRECISIONS.items():
            name, kind = f"matmul_frac.{p.rate}", rates.peak_dtype(dtype)
            if kind in rates.peak and name in value:
                value[name] = min(value[name], most / rates.peak[kind])
    return value


def _works(group: Group, load: StepLoad, cut: Split, ranks: _ExpertRanks, *, inside: bool) -> list[Work]:
    """One work on all rows of the step, or for attention one for decoding and one for prefill.

    What a step never carries (decoding, prefill, a prompt that is encoded) starts no kernel; in a column of which
    some steps carry it, the others' has no FLOPs. Embeddings are looked up for every token; else before and after
    the layers of a decoder only the rows that make a token count: one a sequence. Keys and values of cross-
    attention are made once a prompt. Experts see the tokens of all attention replicas; of their `ranks` the fullest
    is described, since the others wait for it.
    """
    first = group[0]
    if isinstance(first, Attend | Recurrence):
        parts: list[tuple[Ints, Ints, Floats]] = []  # sequences, new tokens of each, and what these see
        if np.any(load.decode_batch):
            parts.append((load.decode_batch, load.decode_tokens, load.decode_context))
        if np.any(load.prefill_tokens):
            per_prompt = load.prefill_tokens / np.maximum(load.prompts, 1e-9)
            parts.append((load.prompts, per_prompt, np.maximum(load.prefill_context, per_prompt)))
        shapes = (Shape(batch=b, query=q, context=c, encoder=load.encoder) for b, q, c in parts)
        works = (item_work(first, shape, cut) for shape in shapes)
        return [work for work in works if work is not None]
    stream = getattr(first, "stream", "tokens")
    if stream == "encoder":
        if not np.any(load.encoded):
            return []
        shape = Shape(batch=load.encoded, query=1, context=1, encoder=load.encoder)
    else:
        every = stream != "samples" and (inside or load.every or isinstance(first, Embedding))
        rows = load.prefill_tokens if every else np.minimum(load.prefill_tokens, load.prompts)
        tokens = load.decode_batch * load.decode_tokens + rows
        if isinstance(first, Experts):
            tokens, cut = ranks.tokens, ranks.fullest(first)
        shape = Shape(batch=tokens, query=1, context=1)
    whole = [work for work in (item_work(item, shape, cut) for item in group) if work is not None]
    return [merge_works(whole)] if whole else []


def _sums_experts(item: Item) -> bool:
    """True of the weighted sum of what a token's experts made."""
    return isinstance(item, Pointwise) and item.per_expert > 0 and item.kind == "scale"


def _tokens_of_all(load: StepLoad, replicas: Ints) -> Floats:
    """Tokens of a step of all attention replicas, each of which decodes as many sequences."""
    prefill = np.where(np.isinf(load.prefill_ranks), replicas, load.prefill_ranks)
    tokens: Floats = load.decode_batch * load.decode_tokens * replicas + load.prefill_tokens * prefill
    return tokens


class _ExpertRanks:
    """The ranks that hold the experts of a block, in a step of `tokens` over all attention replicas.

    `skew`: tokens of the most popular expert over the mean; `redundant`: copies of popular experts.
    """

    def __init__(self, tokens: Floats, cut: Split, skew: float, redundant: int) -> None:
        self.tokens, self.cut, self.skew, self.redundant = tokens, cut, skew, redundant
        self._known: dict[tuple[int, int], Split] = {}

    def fullest(self, item: Experts) -> Split:
        """The rank with most copies of the tokens and with most experts that have one, over even ones' mean.

        Source: `flopwise.ops.routing.busiest_rank`. Assumes: as there.
        """
        key = item.experts, item.top_k
        if key not in self._known:
            self._known[key] = self._fullest(*key)
        return self._known[key]

    def _fullest(self, experts: int, top_k: int) -> Split:
        tokens, cut = self.tokens, self.cut
        if np.all(np.asarray(cut.ep) == 1) and self.skew <= 1:
            return cut
        local_experts = np.ceil(experts / np.asarray(cut.ep))
        copies, touched = busiest_rank(experts, top_k, tokens, cut.ep, self.skew, self.redundant)
        mean = touched_experts(experts, top_k, tokens, local_experts)
        return replace(
            cut, expert_load=copies / np.maximum(tokens * top_k * local_experts / experts, 1e-9),
            touched_load=touched / np.maximum(mean, 1e-9),
        )  # fmt: skip


class KernelParts(NamedTuple):
    """Seconds of one kernel; their sum is its time."""

    compute_s: Floats
    memory_s: Floats
    launch_s: Floats


def kernel_parts(rates: Rates, work: Work, dtype: str, timing: Timing) -> KernelParts:
    """Split `timing` into launch (its fixed time) and the rest, which goes to what bounds the kernel.

    A tile that a few rows leave half empty, or a weight that is unpacked for one token, takes time for the weights
    that pass through it and not for the operations asked for. So intensity decides: the operations at the rate that
    the kernels sustain in full tiles against the bytes at the rate that memory sustains.

    Source: roofline model (Williams 2009) at sustained rates.
    Assumes: beyond the longer of computing and moving, up to one fixed time is launching, filling and draining.
    """
    slack_s = np.maximum(timing.seconds - np.maximum(timing.compute_s, timing.memory_s), 0.0)
    launch_s = np.minimum(slack_s, _fixed_s(rates, work))
    rest_s = timing.seconds - launch_s
    computing = _useful_s(rates, work, dtype, timing) >= timing.memory_s
    return KernelParts(np.where(computing, rest_s, 0.0), np.where(computing, 0.0, rest_s), launch_s)


def _fixed_s(rates: Rates, work: Work) -> float:
    if work.kind == "grouped":
        return rates.value["grouped_s"]
    if work.kind == "attention":
        return rates.value["attention_s" if np.any(np.asarray(work.query) > 1) else "decode_s"]
    return rates.value["kernel_s"]


def _useful_s(rates: Rates, work: Work, dtype: str, timing: Timing) -> Floats:
    """Seconds of the operations asked for, in full tiles."""
    if work.kind in PRODUCTS:
        return work.causal_flops / rates.matmul_flops_per_s(dtype)
    if work.kind == "attention":
        return work.causal_flops / (rates.peak_flops_per_s(dtype) * rates.value["attention_frac"])
    return timing.compute_s
