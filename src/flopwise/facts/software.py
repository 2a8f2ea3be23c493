"""Software that trains and serves, as rows of data: optimizers, training stacks and inference engines.

A record says what the software keeps in memory and why, which devices it runs on, and what its steps cost, in few
numbers with a physical meaning; the formulas that use them stand in `flopwise.training` and `flopwise.serving`. What is
documented and what was fitted to measurements stand in sections of their own, each with its source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from functools import lru_cache
from typing import Any, Literal

from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Attend, Model
from flopwise.facts.formats import WeightFormat
from flopwise.facts.tables import ANY, FactTable, words
from flopwise.values import dataclass, kept_by_identity, replace

OF_VENDORS = {
    "nvidia": "nvidia",
    "amd": "amd",
    "intel": "intel",
    "apple": "apple",
    "aws": "neuron",
    "google": "tpu",
    "sambanova": "rdu",
    "huawei": "cann",
}
PARALLELISM = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""Kinds of parallelism besides that of data, by the degree of each."""
RECOMPUTE = ("none", "selective", "full")
"""What a training step computes again, by the place of each in layouts."""
PLAIN_FORMATS = ("bf16", "fp16", "fp32")
"""Unquantised weights, in the order in which they are preferred."""
LARGEST_HEAD = 256
"""Dimension beyond which FlashAttention is not built."""
VOLTA = "Volta"
"""The oldest NVIDIA devices that engines still run on, with fewer formats than later ones."""
OLD_NEURON = "NeuronCore-v1"
"""Inferentia1: compiled models of 2019 run on it, none of the software here does."""


def platform(accelerator: Accelerator) -> str | None:
    """The platform that software is built for on a device; None where no record could know it."""
    if accelerator.kind == "cpu":
        return "cpu"
    if accelerator.architecture == OLD_NEURON:
        return "neuron-v1"
    if accelerator.architecture.startswith("Gaudi"):
        return "gaudi"
    return OF_VENDORS.get(accelerator.vendor.lower())


def beyond_flash(item: Attend) -> bool:
    """True if an attention's heads are larger than FlashAttention is built for: the full layers of Gemma 4.

    A latent, and one tensor that serves all heads as key and value, have kernels of their own.
    """
    own = item.latent_dim is not None or (item.key_is_value and item.kv_heads == 1)
    return not own and max(item.qk_dim, item.v_dim) > LARGEST_HEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The state that an optimizer keeps for each trained parameter, and the cost of its step."""

    name: str
    states: float  # states a parameter in the recipe's state type
    packed_bytes: float  # bytes a parameter of states in a type of their own (8 bit with scales, factored)
    end_states: float  # states a parameter of embedding, head and norms
    newton_schulz_steps: int  # orthogonalisation steps on each matrix (Muon)
    paged: bool  # states may spill to host memory
    source: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The time in which a row describes its software, in days or months as ISO 8601 writes them."""

    name: str  # of a training stack or an engine
    of: str  # the row that stands for all of its generations
    source: str  # of the end, and of the beginning
    since: str = ""  # first month of the software; of the oldest generation alone
    until: str = ""  # first day or month that it does not describe; "": it is the newest


def _by_fit(meaning: str) -> Any:
    """A column of the section `fitted`, which the scripts benchmarks/fit_*.py write, and what it means."""
    return field(metadata={"fitted": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The attributes that training stacks and inference engines share: name, sources, supported devices."""

    name: str
    source: str  # of what is documented
    platforms: frozenset[str]  # that it runs on: see `platform`
    least_compute_capability: float  # of NVIDIA devices; 0: any
    platforms_source: str
    platforms_date: str
    fitted_source: str  # of the values that measurements were fitted to
    fitted_date: str
    aliases: tuple[str, ...] = ()
    meaning: str = ""

    @classmethod
    def fitted_columns(cls) -> dict[str, str]:
        """Names and meanings of the columns that are fitted to measurements."""
        return {f.name: f.metadata["fitted"] for f in fields(cls) if "fitted" in f.metadata}

    def runs_on(self, accelerator: Accelerator) -> bool:
        """True if the software is known to run on a device.

        Assumes: a plugin counts; a device of a vendor that no record knows is never refused, for nobody has said that
        it cannot; one without a compute capability has the least that is needed.
        """
        if not self.is_built_for(accelerator):
            return False
        capability = accelerator.compute_capability
        nvidia = platform(accelerator) == "nvidia"
        return not nvidia or capability is None or float(capability) >= self.least_compute_capability

    def is_built_for(self, accelerator: Accelerator) -> bool:
        """True unless the software is known to have no code for devices of its kind. Assumes: as `runs_on`."""
        return ANY in self.platforms or platform(accelerator) in {None, *self.platforms}

    def unsupported_note(self, accelerator: Accelerator) -> tuple[str, ...]:
        """A note for estimates on a device that the software is not known to run on; empty where it does."""
        if self.runs_on(accelerator):
            return ()
        least = f" from compute capability {self.least_compute_capability:g}"
        known = (name + (least if name == "nvidia" else "") for name in sorted(self.platforms))
        there = f"{accelerator.name} (platforms: {', '.join(known)})"
        return (f"{self.name} is not known to run on {there}: its behaviour there is assumed to be the same",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStack(Software):
    """A training stack: the memory it keeps besides the model's states, its kernels and its limits."""

    activations: Literal["eager", "sdpa", "fused"]  # what its kernels keep for the backward pass
    fp8_inputs: bool  # under fp8 and below, keeps the inputs of linear layers in 8 bits for the backward pass
    hf_modules: bool  # runs the modules of transformers, with their habits
    unnamed: bool = False  # whatever software nobody named: that of one publisher says nothing of another's
    fused_norms: bool = False  # an RMSNorm is one kernel, which keeps its input; else its fp32 operations keep theirs
    joins_norms: bool = False  # norms between convolutions run in the convolutions' kernels, in 16 bits
    weights_dtype: Literal["compute", "fp32"]  # of the resident trained weights
    master_weights: bool  # an fp32 copy besides
    grad_dtype: Literal[
        "compute", "fp16", "bf16", "fp32", "both"
    ]  # of the resident gradients; both: bf16 and an fp32 sum
    lasting_gradients: bool  # they stand through the whole step; else they appear as activations go
    accumulation: Literal[
        "none", "fused", "separate"
    ]  # every micro-batch's gradients are added to those resident: by the product itself, by a kernel after it, or not
    states_dtype: Literal["compute", "fp32"]  # of full-precision optimizer states
    loss_bytes: (
        float  # bytes alive at once for each token and vocabulary entry: logits, their fp32 copies, their gradients
    )
    loss_traffic_bytes: float | None = None  # a token and vocabulary entry, what its kernels write and read again in a
    # step; None: as much as is alive at once
    sharded_loss_bytes: float  # `loss_bytes` on top where the vocabulary is cut over tp: copies a loss in parts makes
    loss_chunks: int  # pieces of the sequence for which logits exist at a time
    chunks_keep_bytes: float = 2.0  # a token and vocabulary entry, what stays whole of a loss in pieces: 16-bit logits,
    # and fp32 log-probabilities where autograd keeps them for each piece
    gathered_units: float  # layers whose full 16-bit weights stand at once under ZeRO 3
    root_gathered: bool  # embeddings and head stay gathered through the step under ZeRO 3
    live_parameters: float = 0.0  # under ZeRO 3, gathered module by module and freed beyond so many; 0: layer by layer
    step_copies: float  # temporary copies of one state during the optimizer step
    buffer_bytes: float  # communication buckets
    bucket_copies: float = 0.0  # copies of all gradients in buckets where replicas hold whole ones (DDP)
    selective: Literal["attention", "operations", "alternate", "fine", "full"]  # what its selective recompute keeps
    frozen_stay_gathered: bool  # under ZeRO 3, to the end of the backward pass: FSDP of before PyTorch 2.1
    quantised_keeps_input: bool  # its products with 4-bit weights keep their input, needed or not
    own_head: bool  # the head is a module of its own even where it is tied, quantised with the layers' products
    fp32_ends: bool  # beside weights of bitsandbytes, those that are not quantised are cast to fp32
    fp32_stream: bool = False  # and norms in fp32 make what passes from layer to layer fp32
    autocasts: bool = False  # fp32 weights that are not gathered in 16 bits, and inputs, are cast product by product:
    # what passes from layer to layer, and norms, are fp32
    holds_inputs: bool = False  # of recomputed layers whose frozen weights FSDP shards, with their gradients, to the
    # end of the backward pass
    joint_dropout: bool  # adapters beside products that read the same tensor share one dropout
    fused_adapters: bool = False  # a gated MLP whose products all have adapters, without dropout, is one operation: it
    # keeps no activated tensor and writes the gradients of both halves over the halves
    fp32_loss: bool  # casts logits to fp32, whatever the weights are in
    quantise_bytes: float  # bytes alive for each element of a weight while it is put into 4 bits on loading
    fragmentation_frac: float  # reserved over allocated memory, minus one
    context_bytes: float  # CUDA context, cuBLAS workspaces, NCCL
    pointwise_traffic: float = _by_fit(
        "Bytes that norms and elementwise operations move, over reading and writing each tensor once."
    )
    tp_overlap: float = _by_fit("Share of tensor-parallel messages hidden behind compute.")
    hides_sequences: bool = False  # it hides those of sequence parallelism alone
    ep_overlap: float = _by_fit("Share of expert all-to-alls hidden behind compute.")
    fp8_dispatch: bool  # under fp8 and below, sends tokens to their experts in 8 bits; results come back in 16
    dispatch: Literal["expert", "device", "node"]  # a token is sent once for each of its experts, for each device that
    # has one of them, or crosses the network once for each node that has (DeepEP, HybridEP)
    whole_experts: bool = False  # beside tp, `ep` spreads whole experts over tp x dp x cp; else tp cuts them, too
    context_messages: Literal[
        "ring", "gather", "all-to-all"
    ]  # of context parallelism: keys and values in a ring beside
    # pieces of attention, gathered before it, or heads exchanged for tokens
    ring_overlap: float = 1.0  # share of a piece of attention behind which the ring's next message hides
    fused_sinks: bool  # its flash kernels know attention sinks; else such attention writes its scores
    whole_grad_hops: bool  # every tensor rank sends gradients between pipeline stages whole, not its share of them
    hides_hops: bool = False  # with several chunks a stage, sends between stages run beside other passes
    dp_overlap: float = _by_fit("Share of compute that gradient and weight messages may hide behind.")
    gathers_after_step: bool = False  # ZeRO 1 and 2: updated weights are gathered before anything else runs
    launch_s: float  # host time to launch one operation
    routing_s: float = _by_fit(
        "Host time to route, permute and launch the experts of one layer, forward and backward, in s."
    )
    counts_s: float = _by_fit(
        "Time for which a layer of experts waits, forward, until the host knows how many tokens each takes, in s."
    )
    optimizer_passes: float  # 1: one fused kernel; AdamW as separate operations on lists of tensors streams 2.9 as much
    recomputes: tuple[str, ...] = RECOMPUTE  # what it computes again where nobody says: searched in this order
    flash: bool  # has flash attention; else its attention writes scores unless it is told otherwise
    attention_kernel: Literal[
        "fa1", "fa2", "cudnn", "cudnn-2026", "sdpa"
    ]  # flash attention 1 or 2, cuDNN's as Transformer Engine has it (from 9.18 on: cudnn-2026), or what PyTorch takes
    # on a device: cuDNN's on Hopper and Blackwell, else flash attention 2
    large_heads: Literal["efficient", "scores"] = "efficient"  # heads beyond `LARGEST_HEAD`: PyTorch's memory-efficient
    # kernel, or scores that are written, as Transformer Engine does where it has no kernel (its issue 3006)
    grouped_kernel: Literal[
        "split", "fused", "fused-fp8", "batched", "ragged", "masked"
    ]  # experts' products one by one, or all of a layer's in one fused kernel: in block-scaled formats, in fp8 too, or
    # in every format as one batched product; ragged: XLA's kernel over uneven groups of rows; masked: plain products of
    # even buffers, which products with masks fill and empty, as XLA has experts with a capacity
    weighted_first: bool = False  # a token's weight for an expert multiplies what the activation makes, so that no
    # gradient reads the result of the expert's last product
    expert_kernels: tuple[str, ...] = ()  # what runs beside experts' products in kernels of its own: "bias", "clamp",
    # "gathered bias" and "plain clamp" of EXPERT_TRAFFIC in training/blocks.py
    trains_predictors: bool = False  # as its users train them: with the model's layers for multi-token prediction
    library_products: bool = False  # they are PyTorch's, of before 2026: the vendor's library as it comes, which has no
    # tuned kernels for AMD's devices
    fused_experts: bool = False  # gated experts whose products are one fused kernel have their activation in it; such
    # steps are recorded as one CUDA graph, and experts' messages run beside the passes of another micro-batch
    pairs_network: bool = False  # experts' messages between nodes run beside the passes of another micro-batch, where
    # stages have several chunks
    cast_passes: float = _by_fit(
        "Passes over operands and results of a product in low precision, to cast and transpose them."
    )
    layer_messages: float  # collectives for one layer's weights or gradients across replicas
    reduce_dtype: Literal["resident", "bf16", "fp32"]  # of gradients on their way between replicas
    message_frac: float = _by_fit("Share of the links' rate that messages between replicas reach.")
    schedules: tuple[
        str, ...
    ]  # of pipelines; Megatron-Core has no zero-bubble, Megatron-DeepSpeed has (its pull request
    # 396), torch.distributed.pipelining has, not for compiled models (pytorch issue 161904)
    grad_sync: Literal["each", "last"]  # micro-batches at which sharded gradients are reduced; `last`: they wait whole
    pipeline_grad_sync: Literal["each", "round", "last"]  # the same in pipelines; round: with the last of a chunk's
    # contiguous micro-batches, as many as there are stages
    sharded_at_rest: bool = False  # ZeRO 2, too, shards weights between steps: each micro-batch gathers them once, for
    # both of its passes (FSDP's SHARD_GRAD_OP, FSDP2 with reshard_after_forward off)
    pipeline_gathered: bool  # in pipelines weights under ZeRO 3 stay gathered from the first micro-batch to the last
    unsharded_grad_dtype: Literal["resident", "compute"]  # of gradients that wait whole
    sync_source: str
    sync_date: str
    zero: int  # highest ZeRO stage: Megatron-Core's distributed optimizer is the first (the stages of Megatron-FSDP, an
    # engine of its own, are not these rows'); DeepSpeed refuses stages 2 and 3 in pipelines; nanotron has the first
    degrees: tuple[str, ...]  # those of PARALLELISM that it has
    degrees_source: str
    degrees_date: str

    def tp_hidden(self, *, sequence_parallel: bool) -> float:
        """Share of tensor-parallel messages that hides behind compute.

        Source: `hides_sequences` of data/stacks.json. Assumes: its overlap is on wherever it can be.
        """
        return self.tp_overlap if sequence_parallel or not self.hides_sequences else 0.0

    def writes_scores(self, items: Iterable[object]) -> bool:
        """True if some of `items` is an attention whose scores it writes, whatever kernels others have."""
        return self.large_heads == "scores" and any(isinstance(i, Attend) and beyond_flash(i) for i in items)

    def usual_attention(self, model: Model | None) -> Literal["flash", "sdpa", "eager"]:
        """The default attention implementation for a model.

        Source: transformers refuses FlashAttention where heads are larger (pull request 7131 of verl): PyTorch's
        attention, its default, is what is left for all layers.
        """
        if not self.flash:
            return "eager"
        items = () if model is None else (item for stack in model.stacks for item in stack.items)
        large = any(isinstance(item, Attend) and beyond_flash(item) for item in items)
        return "sdpa" if self.hf_modules and large else "flash"

    def missing(self, layout: Mapping[str, Any]) -> tuple[str, ...]:
        """The degrees of a layout that the stack does not support: `tensor parallelism (tp 2)`."""
        above = {name: int(layout.get(name, 1)) for name in PARALLELISM if name not in self.degrees}
        return tuple(f"{PARALLELISM[name]} parallelism ({name} {size})" for name, size in above.items() if size > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The default limits of an engine's step on some devices."""

    devices: str  # the beginning of their names, their kind, `from N GiB` of memory, or `others`
    max_batch: int  # sequences that run at once
    prefill_tokens: int  # tokens of one step of a server that hold prompts
    offline_tokens: int  # and where it is called for a list of requests
    graph_batch: int = 0  # sequences of the largest step that only decodes and is captured; 0: as many as run
    wide_graph_batch: int = 0  # and over `WIDE_RANKS` ranks or more

    def are_of(self, accelerator: Accelerator) -> bool:
        """True if the limits are those of a device."""
        if least := _FROM_GIB.fullmatch(self.devices):
            return (accelerator.hbm_bytes or 0.0) >= float(least[1]) * 2**30 and accelerator.kind in {"gpu", "npu"}
        return self.devices in {"others", accelerator.kind} or accelerator.name.startswith(self.devices)


_FROM_GIB = re.compile(r"from (\d+) GiB")
_STEP_LIMITS = re.compile(
    r"(.+): (\d+) sequences, (\d+) tokens(?:, (\d+) offline)?(?:, graphs of (\d+)(?:, of (\d+) from 4 ranks)?)?"
)
WIDE_RANKS = 4
"""Ranks of a replica from which on SGLang captures more."""


def _step_limits(cell: str) -> tuple[StepLimits, ...]:
    """Limits by device, the first that fits counts: `A100: 256 sequences, 2048 tokens, 8192 offline`.

    And at the end of one, where larger steps are not captured: `, graphs of 24, of 80 from 4 ranks`.

    Raises: ValueError: another form.
    """
    limits = []
    for line in words(cell):
        match = _STEP_LIMITS.fullmatch(line)
        if match is None:
            raise ValueError("allowed: `DEVICES: N sequences, N tokens`, `, N offline` and `, graphs of N`, as a list")
        batch, served, offline = (int(n or match[3]) for n in match.groups()[1:4])
        graphs, wide = int(match[5] or 0), int(match[6] or match[5] or 0)
        limits.append(
            StepLimits(
                devices=match[1], max_batch=batch, prefill_tokens=served, offline_tokens=offline, graph_batch=graphs,
                wide_graph_batch=wide,
            )
        )  # fmt: skip
    return tuple(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """The pool in which an engine keeps keys and values of the layers with windows, of models of one type."""

    model_type: str
    tokens_frac: float  # tokens of a pool of their own over those of whole contexts; 0: a window for each sequence
    holds_prompts: bool  # prompts of running sequences stay in that pool whole


_WINDOW_POOL = re.compile(r"(\w+): (?:a window|(0\.\d+|1)( with prompts)?)")


def _window_pools(cell: str) -> tuple[WindowPool, ...]:
    """Pools by type of model: `gpt_oss: 0.8`, `deepseek_v4: 0.1 with prompts`, `other: a window`.

    Raises: ValueError: another form.
    """
    pools = []
    for line in words(cell):
        match = _WINDOW_POOL.fullmatch(line)
        if match is None:
            raise ValueError("allowed: `TYPE: a window`, `TYPE: SHARE` and `TYPE: SHARE with prompts`, as a list")
        pools.append(WindowPool(model_type=match[1], tokens_frac=float(match[2] or 0), holds_prompts=bool(match[3])))
    return tuple(pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(Software):
    """An inference engine: formats, division of a card's memory, start-up, and the cost of its steps.

    Seconds of the start are those of one with nothing compiled before.
    """

    support_source: str  # of formats, all-reduce, offloading and the start
    formats: frozenset[str]  # weight formats, or the words before the first dash of theirs; gguf: all of llama.cpp's
    mxfp4_file: str = ""  # format of the files that it runs checkpoints in mxfp4 from, where it needs such
    ports_source: str = ""  # of the formats of single platforms, with the version of the engine
    ports_date: str = ""
    volta_formats: frozenset[str] | None = None  # those of a platform alone, None: not known to differ
    ampere_formats: frozenset[str] | None = None  # NVIDIA's before units for FP8, but Volta
    amd_formats: frozenset[str] | None = None
    intel_formats: frozenset[str] | None = None
    gaudi_formats: frozenset[str] | None = None
    tpu_formats: frozenset[str] | None = None
    neuron_formats: frozenset[str] | None = None
    cpu_formats: frozenset[str] | None = None
    images_source: str = ""  # of the container images by platform, with their version
    images_date: str = ""
    nvidia_image: str = ""
    amd_image: str = ""
    intel_image: str = ""
    gaudi_image: str = ""
    cpu_image: str = ""
    custom_all_reduce: bool  # kernels of its own for small messages
    pcie_all_reduce: int = 0  # most devices that these join over PCIe; 0: no limit
    dispatch_kernels: bool = (
        False  # that send tokens to their experts' ranks between nodes (DeepEP); else all are gathered
    )
    overlaps_batches: bool = False  # can have two micro-batches hide each other's messages
    offload: Literal["none", "stream", "host"]  # layers in host memory: not at all, brought each step, computed there
    bootstrap_s: float  # process, imports, configuration, communicators
    warmup_s: float  # profiling, cache allocation, first request
    compile_s_per_layer: float  # tracing and compiling the model
    capture_s_per_layer: float  # capturing graphs
    loader_bytes_per_s: float  # most that one rank's default loader reads from a cold file; 0: no limit known
    memory_rule: Literal[
        "whole", "free", "all"
    ]  # memory_frac of the whole card, of what loading leaves, or all there is
    memory_frac: float
    block_tokens: int  # tokens of one cache block
    max_batch: int  # sequences that run at once by default
    graph_batch: int = 0  # sequences of the largest step that only decodes and is captured; 0: as many as run
    wide_graph_batch: int = 0  # and over `WIDE_RANKS` ranks or more
    step_limits: tuple[StepLimits, ...] = ()  # those of devices on which it takes on more or less at once
    limits_source: str = ""
    limits_date: str = ""
    capped_families: frozenset[str] = frozenset()  # of models (by their type), of which fewer run by default:
    capped_batch: int = 0  # so many, over all attention replicas
    fp8_cache_families: frozenset[str] = frozenset()  # of models (by their type), cached in 8 bits unless one says so
    state_frac: float = 0.0  # share of the room for a cache that a pool of recurrent states takes; 0: one room for both
    state_slots: int = 1  # states that one running sequence has in that pool
    scan_bytes: float = 2.0  # of an element of a scan's state; windows of convolutions are as the weights
    wide_scans: frozenset[str] = frozenset()  # models (by their type) whose scans have 4 bytes whatever others have
    paged_states: bool = False  # states are pages as large as a block of keys and values, whose blocks grow to that
    # in steps that read prompts, delta rules compute a block of tokens for each sequence that decodes
    chunks_decoding: bool = False
    states_source: str = ""
    states_date: str = ""
    prefill_tokens: int  # tokens of one chunk of prefill; 0: whole prompts
    pass_tokens: int = 0  # most tokens of one batch of inputs that are only read, padding included; 0: no limit
    static_scales: bool = False  # its 8-bit products have scales found beforehand: 8 bits between kernels, too
    answers: bool = True  # generates text; False: reads inputs and gives embeddings, scores or classes alone
    graph_bytes: float  # captured CUDA graphs
    graphs_beside: bool = False  # captured after the cache is allocated, beside the share of the card that it may use
    context_bytes: float  # CUDA context and NCCL
    communicators_source: str = ""
    communicators_date: str = ""
    # NCCL's on each GPU of a replica of several, where buffers stand ready for a switch that adds up what they send
    communicator_bytes: float = 0.0
    switch_adds: bool = True  # the device that it is started on has such a switch
    workspace_bytes: float  # attention and matmul workspaces
    # the cache is a share of what the largest step leaves, which is run before; else steps have what the share leaves
    tries_step: bool = False
    # multiples to which a rank's inputs and inner width of experts in mxfp4 are padded
    mxfp4_tiles: tuple[int, ...] = ()
    # a sequence and vocabulary entry, in a run before the cache is allocated that samples for as many sequences as may
    # run at once; 0: no such run
    profile_bytes: float = 0.0
    exploits_windows: bool  # windowed layers cache their window only
    window_pools: tuple[WindowPool, ...] = ()  # what windowed layers of some models cache instead
    step_s: float = _by_fit("Host time of one step that the device waits for.")
    layer_s: float = _by_fit("Time a layer and step beyond its kernels and messages.")
    experts_s: float = field(
        default=0.0,
        metadata={"fitted": "Time a layer of experts and step beyond that: kernels that route, sort and sum."},
    )
    pointwise_traffic: float = _by_fit(
        "Bytes that norms and elementwise operations move, over one pass over each tensor."
    )
    hidden_frac: float = _by_fit("Share of a kernel's fixed time that passes while the kernel before it ends.")
    sequence_s: float = _by_fit("Host time a sequence and step that the device waits for.")
    request_s: float = _by_fit("Host time of one request before its first step.")
    passes_source: str = ""  # of inputs that are only read, by a model that generates nothing
    passes_date: str = ""
    pass_request_s: float | None = None  # `request_s` of theirs; None: the same
    host_source: str = ""  # of what its scheduler and its front end do, which handles requests one by one
    host_date: str = ""
    mixes: bool = True  # a step holds prompts and sequences that decode; else prompts go first, in steps of their own
    plans_ahead: bool = False  # decides about a step when the one before it begins
    front_s: float = 0.0  # for one request, of `request_s`; 0: not known to limit anything
    front_token_s: float = 0.0  # and for each token of its prompt, besides
    stream_s: float = 0.0  # for each token of an answer
    one_process: bool = False  # the front end hands out tokens while no step runs
    graphs: bool = True  # steps are captured, and launched whole; else the host launches each operation
    prompt_graphs: bool = True  # so are those that read prompts; else only those that decode alone
    eager_prompts: frozenset[str] = frozenset()  # exceptions: platforms, kinds and types of models, and the words
    # pp, dp, pools, drafts and adapters
    prompt_graph_tokens: int = 0  # tokens of a step with prompts up to which graphs hold it; 0: any number
    piecewise: bool = False  # graphs of steps with prompts leave out attention and recurrences
    compiled_launch_frac: float = 1.0  # host time to launch an operation of compiled code, over `launch_s`
    launch_s: float = _by_fit("Host time to launch one operation where steps are not captured in graphs.")
    tokens_after_launch: bool = False  # a step's tokens are handed out once the next step is launched
    recv_interval: int = 1  # steps from one look for new requests to the next
    joins_prompts: bool = False  # attention replicas read prompts in the same steps, once each of them has one
    divides_budget: bool = False  # the prompt tokens of a step are those of all attention replicas together
    batch_wait: int = 0  # steps for which a prompt waits at most, so that others are read with it
    stream_interval: int = 1  # tokens that are handed out together, after the first
    reserves: bool  # a request starts when its whole answer fits the cache; else the cache grows with the answer
    preempts: bool = False  # starts whatever prompt fits, and takes the cache of the latest where answers outgrow it
    stage_loss: float = _by_fit("Share of a step that each further pipeline stage adds by waiting.")
    block_port_frac: float = field(
        default=1.0,
        metadata={"fitted": "Rate there of experts' products with scales of blocks, over that of other products."},
    )
    serial: bool  # one batch passes through all pipeline stages before the next starts
    port_frac: float = _by_fit("Rate of its kernels on devices of other vendors than those they were written for.")
    intel_source: str = ""  # of what differs on Intel's GPUs
    intel_date: str = ""
    intel_matmul_frac: float = 1.0  # share of their matrix rate that its products reach there
    intel_experts_s: float = 0.0  # time a layer of experts and step there, besides `experts_s`
    grouped_source: str = ""  # of experts that are chosen by groups
    grouped_date: str = ""
    grouped_experts_s: float = 0.0  # time a layer of these and step, besides `experts_s`: kernels that choose and sort
    cuda_source: str = ""  # of what differs on NVIDIA's GPUs
    cuda_date: str = ""
    cuda_experts_frac: float = 1.0  # share of `experts_s` that is left there, where kernels around experts are fused
    delta_s: float = 0.0  # time a layer and step of a delta rule that is many small operations, besides their bytes
    recurrent_s: float = 0.0  # host time a step of models with recurrent states, for which it does not plan ahead
    worker_s: float = 0.0  # host time a step to call each of the tensor-parallel processes, one after another
    worker_sequence_s: float = 0.0  # of it, to serialize each sequence's part of the call
    local: bool  # for one user on one machine
    composed: bool = False  # experts and recurrences are several operations, which the host launches one by one
    triton_experts: bool = False  # its experts run in Triton kernels where the device's maker has none for it
    fused_experts: bool = False  # experts in fewer than 16 bits have kernels of their own: `experts_s` is of wider ones
    library_rows: bool = False  # products of few rows are the library's on AMD devices other than CDNA 2 and later
    grouped_decode: bool  # decoding reads the cache once for all query heads that share it
    copies_cache: bool = False  # each step copies the cache to append to it, and for each query head that shares it
    dots_bytes: bool = False  # few rows are multiplied with packed weights as integers, four bytes an instruction
    sums_source: str = ""  # of the kernels that add up what tensor-parallel ranks have
    sums_date: str = ""
    sums_normalise: bool = False  # they add the residual and normalise, too
    split_s: float = 0.0  # host time a device and product where ranks share nothing but products, one after another
    attention_source: str = ""  # of attention over prompts and over what decodes in one call
    attention_date: str = ""
    one_call_capabilities: frozenset[str] = frozenset()  # compute capabilities of devices on which one call of
    # FlashAttention 2 has both, by the kernel for prompts
    one_call: bool = False  # the device that it is started on is such a one
    joined_source: str = ""  # of experts in one kernel
    joined_date: str = ""
    joined_experts: frozenset[str] = frozenset()  # formats of published models (any: all) whose experts' products are
    # one kernel where the device has such (`joined_grouped_frac` below 1)
    gathers_source: str = ""  # of the format in which attention replicas gather tokens for their experts
    gathers_date: str = ""
    # formats of products (any: all) that tokens are brought into before; else they are gathered in 16 bits
    thin_gathers: frozenset[str] = frozenset({"any"})
    unequal_source: str = ""  # of what attention replicas with unequal tokens gather and sum them by
    unequal_date: str = ""
    grouped_gathers: bool = False  # by a broadcast from each rank and a reduction to each, not by collectives of all
    padded_capabilities: frozenset[str] = frozenset()  # compute capabilities of devices on which they are filled up to
    # as many tokens instead
    blocks_source: str = ""  # of products with scales of blocks
    blocks_date: str = ""
    block_kernel: Literal["best", "triton", "cutlass"] = "best"  # of plain fp8 products with scales of blocks
    unpack_source: str = ""  # of weights that vector units unpack as they are multiplied
    unpack_date: str = ""
    core_unpacks_per_s: float = 0.0  # weights of experts that a core unpacks in a second; 0: as fast as they are read
    rows_source: str = ""  # of products of a few rows with packed weights
    rows_date: str = ""
    # weights a second that a core multiplies by each row but the first, where few rows go one by one; 0: they do not
    core_row_weights_per_s: float = 0.0
    cpu_source: str = ""  # of what differs on processors
    cpu_date: str = ""
    cpu_packs_once: bool = False  # brings weights into the order of its products as it loads them, not at each product
    cpu_attention_keys: int = 0  # keys that its attention over prompts handles at once there; 0: as PyTorch's
    core_bytes_per_cycle: float = _by_fit(
        "Most that one core draws from memory in the engine's own kernels (0: as the calibrated)."
    )
    core_flops_per_s: float = _by_fit("Most that one core computes in them (0: as the calibrated).")

    def formats_on(self, accelerator: Accelerator | None) -> frozenset[str]:
        """Formats that it is documented to run on a device; None: on some."""
        own = {
            "amd": self.amd_formats, "intel": self.intel_formats, "gaudi": self.gaudi_formats, "tpu": self.tpu_formats,
            "neuron": self.neuron_formats, "cpu": self.cpu_formats,
        }.get(platform(accelerator) or "" if accelerator is not None else "")  # fmt: skip
        if accelerator is not None and accelerator.architecture == VOLTA:
            own = self.volta_formats
        elif accelerator is not None and platform(accelerator) == "nvidia" and "fp8" not in accelerator.peak:
            own = self.ampere_formats
        return self.formats if own is None else own & self.formats

    def plain_format(self, accelerator: Accelerator | None) -> str:
        """The unquantised format that it runs on a device, 16 bits where it can."""
        return next((name for name in PLAIN_FORMATS if name in self.formats_on(accelerator)), PLAIN_FORMATS[0])

    def on(self, accelerator: Accelerator | None, *, offline: bool = False) -> Engine:
        """The engine as it is started on a device where nobody sets its limits; `offline`: for a list of requests.

        Source: `limits_source`. Assumes: None, and devices that it tells nothing apart of: as everywhere.
        """
        if accelerator is None:
            return self
        limited = _offline_on(self, accelerator) if offline else _server_on(self, accelerator)
        one_call = accelerator.compute_capability in self.one_call_capabilities
        adds = accelerator.link in ADDING_LINKS or not self.communicator_bytes
        groups = self.grouped_gathers and accelerator.compute_capability not in self.padded_capabilities
        if (adds, one_call, groups) == (self.switch_adds, self.one_call, self.grouped_gathers):
            return limited
        return _with_hardware(limited, adds, one_call, groups)

    def limits_on(self, accelerator: Accelerator) -> StepLimits | None:
        """Its limits of a step on a device; None: those that it has everywhere."""
        return next((row for row in self.step_limits if row.are_of(accelerator)), None)

    def window_pool(self, model_type: str) -> WindowPool | None:
        """The pool of layers with windows, of models of a type; None: they are cached as `exploits_windows` says."""
        return next((pool for pool in self.window_pools if pool.model_type == model_type), None)

    def scan_bytes_of(self, model_type: str) -> float:
        """Bytes of an element of a scan's state, of models of a type."""
        return 4.0 if model_type in self.wide_scans else self.scan_bytes

    def profiles(self, device_kind: str) -> bool:
        """True if the engine leaves room for its largest step beside the cache, whatever runs on such a device."""
        return self.profile_bytes > 0.0 and device_kind not in BARE_KINDS

    def most_inputs(self, tokens: float) -> float:
        """Inputs of `tokens` each that one batch takes where they are only read; at least one."""
        by_tokens = self.pass_tokens // max(tokens, 1.0) if self.pass_tokens else math.inf
        return max(1.0, min(self.max_batch, by_tokens))

    def runs(self, form: WeightFormat, accelerator: Accelerator | None = None) -> bool:
        """True if the engine is documented to run weights of that format on a device; None: on some device."""
        names = {form.name, form.name.split("-")[0], *(("gguf",) if form.kind == "gguf" else ())}
        return bool(names & self.formats_on(accelerator))


@kept_by_identity(2048)
def _server_on(engine: Engine, accelerator: Accelerator) -> Engine:
    """The engine with the limits of a server on a device; a search asks for the same ones thousands of times."""
    limits = engine.limits_on(accelerator)
    return engine if limits is None else _with_limits(engine, limits, limits.prefill_tokens)


@kept_by_identity(2048)
def _offline_on(engine: Engine, accelerator: Accelerator) -> Engine:
    """The engine with its limits on a device where it is called for a list of requests."""
    limits = engine.limits_on(accelerator)
    return engine if limits is None else _with_limits(engine, limits, limits.offline_tokens)


@lru_cache
def _with_limits(engine: Engine, limits: StepLimits, prefill_tokens: int) -> Engine:
    """The engine with these limits: the same object for all devices that have them."""
    return replace(
        engine, max_batch=limits.max_batch, prefill_tokens=prefill_tokens, graph_batch=limits.graph_batch,
        wide_graph_batch=limits.wide_graph_batch,
    )  # fmt: skip


@lru_cache
def _with_hardware(engine: Engine, switch_adds: bool, one_call: bool, grouped_gathers: bool) -> Engine:
    """The engine on a device with such a switch, attention and gathers, or without: the same object for all of them."""
    return replace(engine, switch_adds=switch_adds, one_call=one_call, grouped_gathers=grouped_gathers)


ADDING_LINKS = frozenset({"nvlink4", "nvlink5"})
"""Links whose switches add up what devices send (NCCL's NVLS, from Hopper on)."""
BARE_KINDS = frozenset({"cpu", "tpu", "soc"})
"""Kinds of device without captured graphs, a caching allocator, or a driver context worth counting."""
GRAPHS, CONTEXT = "captured graphs", "driver context and communicators"
"""Names of what a device's software takes, in tables of memory."""

OPTIMIZERS = FactTable(
    file="optimizers.csv", meaning="an optimizer: its states and the work of its step", row=Optimizer, key=("name",),
    dated=("source",),
)  # fmt: skip


def _list_of(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """The reader of a list of some words; it raises ValueError where there is another."""

    def names_of(cell: str) -> tuple[str, ...]:
        names = words(cell)
        if not set(names) <= set(allowed):
            raise ValueError(f"allowed: {', '.join(allowed)}, as a list")
        return names

    return names_of


def _tiles(cell: str) -> tuple[int, ...]:
    """Two numbers of elements. Raises ValueError: another number of them, or none above 0."""
    sizes = tuple(int(size) for size in cell.split(" x "))
    if len(sizes) != 2 or min(sizes) < 1:
        raise ValueError("allowed: two numbers of elements, as 256 x 128")
    return sizes


def _day(cell: str) -> str:
    """A day, a month, or nothing. Raises ValueError: another text."""
    if cell and not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?", cell):
        raise ValueError("allowed: a day or a month, as 2024-01-31 or 2024-01")
    return cell


GENERATIONS = FactTable(
    file="generations.csv", meaning="the time in which a training stack or an engine describes its software",
    row=Generation, key=("name",), dated=("source",), readers={"since": _day, "until": _day},
)  # fmt: skip
STACKS = FactTable(
    file="stacks.json", meaning="a training stack (a record of sections)", row=TrainingStack, key=("name",), dated=(),
    readers={"degrees": _list_of(*PARALLELISM), "recomputes": _list_of(*RECOMPUTE)},
)  # fmt: skip
ENGINES = FactTable(
    file="engines.json", meaning="an inference engine (a record of sections)", row=Engine, key=("name",), dated=(),
    readers={"step_limits": _step_limits, "window_pools": _window_pools, "mxfp4_tiles": _tiles},
)  # fmt: skip
