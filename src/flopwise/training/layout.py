"""How a training step is laid out over GPUs, and with what recipe: the two inputs beside the model.

A `Layout` may hold one candidate (plain numbers) or many (arrays that broadcast against one another); everything under
`flopwise.training` takes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.precisions import FULL_WIDTH
from flopwise.errors import SpecError
from flopwise.facts.formats import BF16, WeightFormat
from flopwise.facts.software import RECOMPUTE, Optimizer, TrainingStack
from flopwise.ops.degrees import check_expert_ranks
from flopwise.ops.flops import stack_shape
from flopwise.ops.types import Floats, Ints
from flopwise.training.schedules import NAMES
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.ops.shapes import Shape
    from flopwise.training.documents import Documents
    from flopwise.training.frozen import Frozen

Attention = Literal["flash", "sdpa", "eager"]
Selective = Literal["attention", "operations", "alternate", "fine", "full"]
GradSync = Literal["each", "round", "last"]

ENDS = 2
"""Units of a pipeline besides its layers: embedding and head, each of which may be all that a (virtual) stage holds.

Source: Llama 3 (arXiv:2407.21783) section 3.3.2; Megatron-LM, account_for_embedding_in_pipeline_split.
"""
COLUMNS = (
    "dp", "tp", "pp", "cp", "ep", "zero", "shard", "micro_batch", "interleave", "schedule", "recompute",
    "recompute_every", "recompute_first",
)  # fmt: skip
"""Fields of a `Layout` that may be arrays."""

ATTENTION_TARGETS = ("q", "k", "v", "o")
ALL_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
TARGET_SETS: dict[str, tuple[str, ...]] = {"qv": ("q", "v"), "attention": ATTENTION_TARGETS, "all-linear": ALL_TARGETS}
"""Names people use for sets of adapted projections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism and what each rank keeps; plain numbers, or arrays of candidates.

    One GPU holds 1/tp of a layer's width, 1/pp of the layers and 1/cp of the sequence; `dp` replicas share the batch.
    Experts are spread over `ep` ranks, which lie inside dp * cp, or tp * dp * cp where they are whole
    (`Recipe.expert_tp`); they have no GPUs of their own: the world is dp * tp * pp * cp.
    """

    dp: Ints = 1
    tp: Ints = 1
    pp: Ints = 1
    cp: Ints = 1
    ep: Ints = 1
    zero: Ints = 0  # 0 all replicated, 1 optimizer states sharded, 2 gradients too, 3 parameters too (FSDP full shard)
    shard: Ints = 0  # ranks over which ZeRO shards, replicated beyond them (HSDP); 0: all of dp x cp
    micro_batch: Ints = 1  # sequences in one forward pass of one replica
    interleave: Ints = 1  # virtual stages (model chunks) a pipeline rank
    schedule: Ints = 0  # place in `schedules.SCHEDULES`: 0 is 1F1B, or interleaved where interleave > 1
    recompute: Ints = 0  # 0 none, 1 selective, 2 full
    recompute_every: Ints = 1  # full recompute of every n-th block only
    recompute_first: Ints = 0  # full recompute of this many first blocks of each virtual stage only; 0: of all
    stage_layers: tuple[int, ...] = ()  # layers of each (virtual) pipeline stage, where not as even as can be
    sequence_parallel: bool = True  # norms and residuals are cut along the sequence inside a tp group
    offload_optimizer: bool = False  # states and master weights live in host memory
    offload_parameters: bool = False  # sharded parameters live in host memory; needs ZeRO 3
    offload_activations: bool = False  # what the layers keep for the backward pass is copied to host memory
    offload_layers: int | None = None  # of each (virtual) pipeline stage, those that do so; None: all but the last two

    @property
    def num_gpus(self) -> Ints:
        """The world size: dp * tp * pp * cp; ep lies within it."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def columns(self) -> tuple[Ints, ...]:
        """The degrees and choices that may be arrays, in the order of the fields."""
        return tuple(getattr(self, name) for name in COLUMNS)

    def with_degrees(self, **degrees: Ints) -> Layout:
        """The layout with other degrees; layers are redistributed if the number of stages changes."""
        layers = () if "pp" in degrees else self.stage_layers
        return replace(self, stage_layers=layers, **degrees)  # type: ignore[arg-type]  # fields by name

    @property
    def offloads(self) -> bool:
        """True if anything lives in host memory."""
        return self.offload_optimizer or self.offload_parameters or self.offload_activations

    @property
    def settings(self) -> dict[str, int | str]:
        """The columns of a single layout in plain values; schedule and recompute by name."""
        numbers = {name: int(value) for name, value in zip(COLUMNS, self.columns, strict=True)}
        return {**numbers, "schedule": NAMES[int(self.schedule)], "recompute": RECOMPUTE[int(self.recompute)]}

    @property
    def recomputes_some(self) -> bool:
        """True if only some blocks of a single layout are computed again."""
        return int(self.recompute_every) > 1 or int(self.recompute_first) > 0

    @property
    def recompute_text(self) -> str:
        """The recompute of a single layout, in words."""
        mode, every = RECOMPUTE[int(self.recompute)], int(self.recompute_every)
        if first := int(self.recompute_first):
            return f"{mode} of the first {f'{first} blocks' if first > 1 else 'block'} of a stage"
        ordinal = {2: "2nd", 3: "3rd"}.get(every, f"{every}th")
        return mode if every == 1 else f"{mode} of every {ordinal} block"

    def shape(self) -> tuple[int, ...]:
        """The shape that the columns broadcast to: () for one candidate."""
        return np.broadcast_shapes(*{np.shape(c) for c in self.columns})

    def take(self, rows: NDArray[np.intp]) -> Layout:
        """Only these candidates of a layout whose columns are of one shape."""
        columns = zip(COLUMNS, self.columns, strict=True)
        return replace(self, **{name: np.asarray(column)[rows] for name, column in columns})  # type: ignore[arg-type]  # fields by name

    def at(self, index: int) -> Layout:
        """Candidate `index`, counted through all axes in order, as plain integers."""
        columns = zip(COLUMNS, np.broadcast_arrays(*self.columns), strict=True)
        return replace(self, **{name: int(column.flat[index]) for name, column in columns})  # type: ignore[arg-type]  # fields by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on a frozen base: two matrices of `rank` beside each projection named in `targets`."""

    rank: int = 8
    targets: tuple[str, ...] = ("q", "v")  # of q k v o gate up down; fused projections count as each of their parts
    base: WeightFormat = BF16  # the frozen weights' (nf4 makes it QLoRA)
    adapter_dtype: Literal["fp32", "bf16"] = "fp32"
    dropout: bool = False  # on the adapters' inputs: a copy and a mask are kept
    method: Literal["lora", "dora", "lora-fa"] = "lora"  # dora: a magnitude an output; lora-fa: the first matrix frozen
    extra_trainable: tuple[Literal["embedding", "head"], ...] = ()  # whole tensors trained beside the adapters
    scales_outputs: bool = False  # every projection's result is scaled by trained figures, and so kept (adapter v2)

    def __post_init__(self) -> None:
        """Raise SpecError for a rank or a target that cannot be."""
        if not 1 <= self.rank <= 65536:
            raise SpecError(f"LoRA rank {self.rank} is out of range; allowed: 1 to 65,536")
        unknown = [t for t in self.targets if t not in ALL_TARGETS]
        if unknown or not self.targets:
            raise SpecError(
                f"LoRA targets {self.targets!r}; allowed: {', '.join(ALL_TARGETS)} or the sets {', '.join(TARGET_SETS)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The training recipe, whatever the layout. None: the stack's own."""

    seq_len: Ints
    global_batch: Ints = 1  # sequences a step, over all replicas
    precision: str = "bf16"  # one of `cost.precisions.TRAINING_PRECISIONS`
    optimizer: Optimizer
    stack: TrainingStack
    attention: Attention = "flash"
    grad_dtype: str | None = None  # of the resident (accumulated) gradients
    master_weights: bool | None = None  # a separate fp32 copy beside 16-bit weights
    weights_dtype: str | None = None  # of the resident weights
    states_dtype: str | None = None  # of the optimizer's full-precision states
    loss_chunks: int | None = None  # the sequence is cut into this many pieces for logits and loss
    selective: Selective | None = None  # recompute: what it keeps
    modules: tuple[str, ...] = ()  # of `RECOMPUTE_MODULES`, those that selective recompute runs again instead
    grad_sync: GradSync | None = None  # micro-batches at which gradients of ZeRO 2 and 3 are reduced
    ranks_per_expert: int | None = None  # of a tensor-parallel group; None: as the stack has it
    optimizer_in_backward: bool = False  # each gradient is used and freed at once
    lora: Lora | None = None
    expert_skew: float = 1.0  # tokens of the most popular expert over the mean of all; 1: balanced
    capacity_factor: float | None = None  # experts compute this many times the mean and drop the rest; None: dropless
    lengths_vary: bool = False  # micro-batches differ in length, so that the allocator's blocks do not serve again
    documents: Documents | None = None  # shorter than a sequence, padded or packed; None: sequences are full
    frozen: Frozen | None = None  # what is not trained; None: everything is, or the adapters are

    def __post_init__(self) -> None:
        """Raise SpecError for routing that cannot be, and for a frozen base frozen again."""
        if self.frozen is not None and self.lora is not None:
            raise SpecError("the base of adapters is frozen already: leave the frozen parts out")
        if not 1 <= self.expert_skew < float("inf"):
            raise SpecError(
                f"expert skew {self.expert_skew:g}; give 1 (balanced) or more: load of the fullest expert over the mean"
            )
        if self.capacity_factor is not None and not 0 < self.capacity_factor < float("inf"):
            raise SpecError(f"capacity factor {self.capacity_factor:g}; give a finite number above 0, such as 1.25")

    @property
    def elem_bytes(self) -> float:
        """Bytes of an element of weights and activations as they are computed with."""
        return 4.0 if self.precision in FULL_WIDTH else 2.0

    def expert_tp(self, tp: Ints, ep: Ints) -> Ints:
        """Ranks that share one expert: as said, one where the stack keeps experts whole, or all of tp; shape of `tp`.

        Source: Liu et al. 2025 (arXiv:2504.14960) section 3: groups of experts need not be those of attention.
        Assumes: experts that no expert parallelism spreads are cut as everything else is.
        """
        if self.ranks_per_expert is not None:
            return np.minimum(tp, self.ranks_per_expert)
        return np.where(np.asarray(ep) > 1, 1, tp) if self.stack.whole_experts else tp

    def expert_ranks(self, tp: Ints, ep: Ints) -> Ints:
        """Ranks that hold all experts once; shape of `tp`.

        Source: as `expert_tp`. Assumes: nothing further.
        """
        return ep * self.expert_tp(tp, ep)

    @property
    def grad_syncs(self) -> tuple[str, str]:
        """The time at which a step reduces sharded gradients, as given or the stack's own: without pipeline, in one."""
        of = self.stack.grad_sync, self.stack.pipeline_grad_sync
        single, piped = (self.grad_sync or each for each in of)
        return "last" if single == "round" else single, piped

    def reductions(self, zero: int, pp: Ints, num_micro: Floats) -> Floats:
        """Gradient reductions of a step of `num_micro` micro-batches: one where gradients are not sharded; broadcasts.

        Source: Narayanan et al. 2021 (arXiv:2104.04473) section 2.2: a stage runs as many micro-batches of a chunk, one
        after the other, as there are stages. Assumes: no further ones.
        """
        if zero < 2:
            return 1.0
        rounds = np.maximum(num_micro / np.asarray(pp), 1.0)
        of_time: dict[str, Floats] = {"last": 1.0, "round": rounds, "each": num_micro}
        single, piped = (of_time[when] for when in self.grad_syncs)
        return np.where(np.asarray(pp) > 1, piped, single)

    def gathers(self, zero: int, pp: Ints, num_micro: Floats) -> Floats:
        """Weight gathers for forward passes of a step of `num_micro` micro-batches; broadcasts.

        Source: Rajbhandari et al. 2019 (arXiv:1910.02054) section 7: once after the update where whole ones are kept.
        Assumes: nothing further.
        """
        return 1.0 if zero < self.shards_weights_from else np.where(self.gathers_once(pp), 1.0, num_micro)

    def gathers_once(self, pp: Ints) -> NDArray[np.bool_]:
        """True where sharded weights, once gathered, stay so through all micro-batches of a step; shape of `pp`."""
        return (np.asarray(pp) > 1) & self.stack.pipeline_gathered

    @property
    def shards_weights_from(self) -> int:
        """The least ZeRO stage that shards weights between steps."""
        return 2 if self.stack.sharded_at_rest else 3

    def zero_stages(self, *, piped: bool) -> tuple[int, ...]:
        """ZeRO stages that a layout with replicas may gain from: all that the stack has, or fewer in a pipeline.

        Gradients that are sharded there and reduced at each micro-batch take more time than they save memory for. FSDP
        that gathers trained weights once and reduces once sends what ZeRO 1 sends, and keeps less: it stands for that.

        Source: Narayanan et al. 2021 (arXiv:2104.04473) section 3.3; `sync` of data/stacks.json. Assumes: no stage
        beyond the second is quicker in a pipeline.
        """
        highest, sync = self.stack.zero, self.grad_syncs[1]
        if not piped:
            return tuple(range(highest + 1))
        if highest < 2 or sync == "each" or self.lora is not None or self.frozen is not None:
            return tuple(range(min(highest, 1) + 1))
        return (0, 2) if sync == "last" and self.stack.sharded_at_rest else (0, 1, 2)

    @property
    def recomputes(self) -> tuple[str, ...]:
        """The kinds of recompute where nobody says, in the order tried: all blocks over a quantised base.

        Source: `recomputes` of data/stacks.json; PEFT, prepare_model_for_kbit_training (use_gradient_checkpointing is
        True); torchtune, its QLoRA recipes (enable_activation_checkpointing: True); LLaMA-Factory, model arguments
        (disable_gradient_checkpointing: False). Assumes: other libraries do as these do.
        """
        quantised = self.lora is not None and self.lora.base.is_quantised
        return ("full",) if quantised else self.stack.recomputes

    @property
    def uneven(self) -> bool:
        """True if experts compute anything but their even share."""
        return self.expert_skew > 1 or self.capacity_factor is not None

    @property
    def text(self) -> str:
        """The recipe on one line."""
        parts = [self.precision, self.optimizer.name, f"{self.attention} attention"]
        if self.lora is not None:
            base = self.lora.base.name
            name = "LoRA" if base in {"bf16", "fp16", "fp32"} else f"QLoRA ({base})"
            parts.append(f"{name} rank {self.lora.rank} on {', '.join(self.lora.targets)}")
        if self.frozen is not None:
            parts.append(f"frozen: {self.frozen.text}")
        if self.modules:
            parts.append(f"recompute of {', '.join(self.modules)}")
        if self.ranks_per_expert is not None:
            parts.append(f"expert tp {self.ranks_per_expert}")
        if self.capacity_factor is not None:
            parts.append(f"expert capacity factor {self.capacity_factor:g}")
        if self.expert_skew > 1:
            parts.append(f"expert skew {self.expert_skew:g}")
        if self.documents is not None:
            parts.append(f"documents of {self.documents.mean:,.0f} tokens, {self.documents.packing}")
        return ", ".join(parts)

    @property
    def useful_tokens(self) -> float:
        """Tokens of a step that are trained on, over all replicas: neither padding nor left empty."""
        each = float(self.seq_len) if self.documents is None else self.documents.per_sequence
        return float(self.global_batch) * each

    def computed_tokens(self, micro_batch: Ints) -> tuple[Floats, Floats]:
        """(tokens of a sequence, tokens that attention works on at a time) as computed; shape of `micro_batch`."""
        if self.documents is None:
            return self.seq_len, self.seq_len
        return self.documents.computed_lengths(micro_batch, masked=self.attention == "flash")

    def shape(self, model: Model, micro_batch: Ints) -> Shape:
        """The shape of one micro-batch through the first stack: `micro_batch` sequences, as tokens are computed."""
        tokens, attended = self.computed_tokens(micro_batch)
        batch: Floats = micro_batch if self.documents is None else micro_batch * tokens / attended
        return stack_shape(model, model.stacks[0], batch, attended)


@dataclass(frozen=True, slots=True)
class Inner:
    """The distinct combinations that set a block's times; arrays of shape (n,)."""

    tp: NDArray[np.int64]
    cp: NDArray[np.int64]
    ep: NDArray[np.int64]
    micro_batch: NDArray[np.int64]

    def take(self, kept: NDArray[np.bool_]) -> Inner:
        """Only these combinations."""
        return Inner(self.tp[kept], self.cp[kept], self.ep[kept], self.micro_batch[kept])


def shard_ranks(shard: Ints, ranks: Ints) -> Ints:
    """Ranks over which ZeRO shards: all `ranks` with the same weights, or the smaller groups of HSDP."""
    if isinstance(shard, int) and not shard:
        return ranks
    return np.where(np.asarray(shard) > 0, np.minimum(shard, ranks), ranks)


def check_layout(layout: Layout, model: Model, recipe: Recipe) -> None:
    """Refuse degrees of a single layout that do not divide what they have to, and stages that cannot be.

    Raises:
        SpecError: says which degree and what would do.
    """
    seq_len, ranks, tp, ep = int(recipe.seq_len), int(layout.dp) * int(layout.cp), int(layout.tp), int(layout.ep)
    cut = recipe.ranks_per_expert or int(recipe.expert_tp(tp, ep))
    if tp % cut:
        raise SpecError(f"expert tp {cut} does not divide tp {tp}: so many ranks of a tensor-parallel group share one")
    named = "dp x cp" if cut == tp else "tp x dp x cp" if cut == 1 else "tp x dp x cp / expert tp"
    check_expert_ranks(ep, tp * ranks // cut, named)
    shard = int(layout.shard)
    if shard and (ranks % shard or not int(layout.zero)):
        raise SpecError(f"shard {shard} has to divide dp x cp = {ranks} and needs a ZeRO stage")
    _check_stages(layout, model)
    if seq_len % int(layout.cp):
        raise SpecError(f"cp {layout.cp} does not divide the sequence of {seq_len} tokens")


def _check_stages(layout: Layout, model: Model) -> None:
    """Refuse more (virtual) stages than a pipeline has units, and layers and blocks of stages that cannot be."""
    stages, chunks, named = int(layout.pp), int(layout.interleave), layout.stage_layers
    layers = model.stacks[0].num_layers
    if stages * chunks > layers + ENDS:
        description = f"pp {stages}" if chunks == 1 else f"interleave {chunks} x pp {stages}"
        raise SpecError(
            f"{description} is more than the {layers} layers of {model.name} with embedding and head; give at most "
            f"{layers + ENDS} (virtual) stages"
        )
    if named and (len(named) not in {stages, stages * chunks} or min(named) < 0 or sum(named) != layers):
        needed = f"{stages} numbers" + (f", or {stages * chunks} for the virtual stages," if chunks > 1 else "")
        raise SpecError(
            f"stage layers {', '.join(map(str, named[:64]))} ({len(named)} of them, {sum(named)} in all); "
            f"give {needed} that add up to the {layers} layers"
        )
    check_recompute(layout)


def check_recompute(layout: Layout) -> None:
    """Refuse blocks to recompute that cannot be.

    Raises:
        SpecError: says what would do.
    """
    if int(layout.recompute_every) < 1 or int(layout.recompute_first) < 0:
        raise SpecError("blocks to recompute: give every n-th (n from 1), or the first n (n from 1)")
    if layout.recomputes_some and RECOMPUTE[int(layout.recompute)] != "full":
        raise SpecError("recompute of some blocks only is a form of full recompute: give recompute full")
    if int(layout.recompute_every) > 1 and int(layout.recompute_first):
        raise SpecError("recompute every n-th block and recompute of the first blocks are both given; give one of them")
