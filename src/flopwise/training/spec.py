"""What can be said of a training job: its data, recipe and layout, what a run meets, and what it reads from."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flopwise import options, units
from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.spec import StorageSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import OptionError, Spec, option, same
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.software import TrainingStack
    from flopwise.training.documents import Documents, Packing
    from flopwise.training.layout import Attention, GradSync, Layout, Lora, Recipe
    from flopwise.training.storage import Reads

_data = partial(option, section="Data and batches")
_recipe = partial(option, section="Recipe")
_layout = partial(option, section="Layout")

CHOSEN_MICRO_BATCH = "chosen micro-batch"
"""Among open settings: the micro-batch is what fits and is fastest, and so follows the length of sequences."""


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec(Spec):
    """Options of the training data: amount, sequences and batches. None: not stated."""

    tokens: float | None = _data("--tokens", options.COUNT, "Tokens of the whole run: 2T.", key="data.tokens")
    samples: float | None = _data(
        "--samples", options.COUNT, "Sequences of the whole run, instead of tokens.", key="data.samples")
    epochs: float = _data(
        "--epochs", options.quantity("count", units.parse_count, high=1e6), "Passes over the tokens or samples.",
        default=1.0, key="data.epochs")
    seq: int | None = _data("--seq", options.CONTEXT, "Tokens of a sequence: 8k (8,192).", key="data.seq_len")
    global_batch: int | None = _data(
        "--global-batch", options.BATCH, "Sequences of one optimizer step.", key="data.global_batch")
    global_batch_tokens: float | None = _data(
        "--global-batch-tokens", options.quantity("count", units.parse_count, high=1e15),
        "The global batch in tokens: 4M.",
        key="data.global_batch_tokens")
    padded: float = _data(
        "--padded", options.quantity("share", units.parse_share, high=0.99, closed=True),
        "Share of each sequence that is padding, not counted as tokens of the run.",
        default=0.0, key="data.padded_frac")
    packing: str | None = _data(
        "--packing", options.choice("padded", "packed"),
        "Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).",
        key="data.packing")
    mean_length: float | None = _data(
        "--mean-length", options.COUNT, "Mean tokens of a document, with --packing; lognormal.",
        key="data.mean_length")
    length_spread: float = _data(
        "--length-spread", options.quantity("x", units.parse_count, high=100.0, closed=True),
        "Standard deviation of the lengths over their mean.", default=1.0, key="data.length_spread")
    lengths: Path | None = _data(
        "--lengths", options.FILE, "Lengths of documents instead: a file with `tokens` or `tokens,count` per line.",
        key="data.lengths")
    # fmt: on

    def seq_len(self, model: Model, *, tunes: bool = False) -> int:
        """Tokens of a sequence: as given, as the model has it fixed, or the usual as far as the model goes.

        Raises:
            SpecError: more than the model can be asked about.
        """
        from flopwise.facts.models.positions import check_length

        fixed = model.stacks[0].tokens_per_sample
        if fixed is not None:
            return fixed
        if self.seq is None:
            usual = defaults.TUNING_SEQ_LEN if tunes else defaults.SEQ_LEN
            return min(usual, model.max_position or usual)
        check_length(model, self.seq)
        return self.seq

    def sequences(self, seq_len: int) -> int | None:
        """Sequences of a step, as given in sequences or in tokens; None where neither is.

        Raises:
            SpecError: both are, or fewer tokens than one sequence has.
        """
        self.check_batch()
        if self.global_batch_tokens is None:
            return self.global_batch
        if self.global_batch_tokens < seq_len:
            given = f"{self.global_batch_tokens:,.0f} tokens"
            raise OptionError("global_batch_tokens", f"{given} are less than one sequence of {seq_len:,}")
        sequences = self.global_batch_tokens / seq_len
        return int(sequences) if sequences == int(sequences) else divisible_batch(sequences)

    def check_batch(self) -> None:
        """Refuse a batch in sequences and in tokens.

        Raises:
            SpecError: both are given.
        """
        if self.global_batch is not None and self.global_batch_tokens is not None:
            raise OptionError("global_batch_tokens", "the global batch is given in sequences as well; give one of them")

    def batch(
        self, model: Model, seq_len: int, *, tunes: bool, unit: int = 1, least: int | None = None
    ) -> tuple[int, tuple[str, ...]]:
        """Sequences of a step, and what was assumed: as given, else the usual, as a multiple of `unit`.

        Pre-training stays within the critical batch of the run's tokens as far as a multiple of `least` sequences, of
        which `unit` is one, can (None: any).

        Source: `defaults.BATCH_TOKENS`, near the tokens that published runs of the model's size use; `training.rules`.
        Assumes: fine-tuning takes `defaults.TUNING_BATCH` sequences, whatever their length; a run has some steps; where
        nobody has said how many ranks share the batch, those of a machine can.
        """
        sequences = self.sequences(seq_len)
        if sequences is None:
            usual = defaults.TUNING_BATCH if tunes else usual_batch_tokens(model) / seq_len
            whole = self.samples or (self.tokens or math.inf) / seq_len
            usual = min(usual, max(1.0, whole * self.epochs / defaults.LEAST_STEPS))
            sequences = unit * divisible_batch(usual / unit)
            if unit == 1 and sequences % MACHINE_RANKS:
                more = MACHINE_RANKS * round(sequences / MACHINE_RANKS)
                sequences = more if sequences >= MACHINE_RANKS else 2 ** int(math.log2(sequences))
            within, why = (sequences, "") if tunes else self._within_critical(model, seq_len, sequences, unit, least)
            size = units.format_items(within, "sequence")
            note = f"a global batch of {size} by default{why} ({_spelling('global_batch')} sets it)"
            return within, (note,)
        exact = self.global_batch_tokens in (None, sequences * seq_len)
        return sequences, () if exact else (f"a global batch of {sequences:,} sequences, nearest to the given tokens",)

    def _within_critical(
        self, model: Model, seq_len: int, sequences: int, unit: int, least: int | None
    ) -> tuple[int, str]:
        """The most of `sequences` within the critical batch of the run's tokens, and why it is less; as in `batch`."""
        from flopwise.training.rules import applies_to, critical_batch_tokens

        tokens = self.run_tokens(seq_len)
        if tokens is None or not applies_to(model):
            return sequences, ""
        critical = critical_batch_tokens(model, tokens)
        if sequences * seq_len <= critical:
            return sequences, ""
        most = critical / seq_len
        unit = MACHINE_RANKS if unit == 1 and most >= MACHINE_RANKS else unit
        ranks = [n for n in _halves(unit, least or 1) if n <= most]
        within = max((n * _divisible_below(most / n) for n in ranks), default=min(_halves(unit, least or 1)))
        about = f"the critical batch of about {units.format_count(critical)} tokens"
        kept = "within" if within <= most else "the least that the layout can share, above"
        return min(within, sequences), f", {kept} {about} of a run of {units.format_count(tokens)}"

    def open_settings(self, model: Model) -> frozenset[str]:
        """The names of data settings that the options leave open, as `alternatives.other_settings` has them.

        Assumes: who says how long documents are packs or pads them to the default.
        """
        stated = self.seq or self.packing or model.stacks[0].tokens_per_sample
        return frozenset() if stated else frozenset({"sequence length"})

    def length_note(self, model: Model, seq_len: int) -> tuple[str, ...]:
        """The assumption on the length of sequences."""
        fixed = model.stacks[0].tokens_per_sample
        if fixed is not None:
            text = f"{model.name} encodes every sample as {fixed:,} tokens, whatever length is given"
            return () if self.seq in (None, fixed) else (text,)
        return () if self.seq else (f"sequences of {seq_len:,} tokens by default ({_spelling('seq')} sets it)",)

    def run_tokens(self, sample_tokens: float | None) -> float | None:
        """Tokens that the run goes through, padding included; None where no length is given.

        `sample_tokens`: of each sample.

        Raises:
            SpecError: two lengths, samples of unknown size, or epochs of nothing.
        """
        if self.tokens is not None and self.samples is not None:
            raise OptionError("samples", "the run's length is given in tokens as well; give one of them")
        if self.samples is not None and sample_tokens is None:
            raise OptionError("samples", "needs the tokens of one sample (--seq, data.seq_len)")
        once = self.tokens if self.samples is None else self.samples * (sample_tokens or 0.0)
        if once is None and self.epochs != 1:
            raise OptionError("epochs", "needs the number of tokens or samples (--tokens, --samples)")
        return None if once is None else once * self.epochs / (1.0 - self.padded)

    def check_packing(self) -> None:
        """Refuse lengths of documents without a way of packing them, and the other way round.

        Raises:
            SpecError: says what is missing.
        """
        given = [name for name in ("mean_length", "lengths") if getattr(self, name) is not None]
        if self.packing is None and given:
            raise OptionError(given[0], "needs packing as well: documents are padded or packed into sequences")
        if self.packing is not None and len(given) != 1:
            raise OptionError("packing", "needs mean_length, or a file of lengths of documents: one of them")
        if self.packing is not None and self.padded:
            raise OptionError("padded", "follows from packing; leave one of them out")

    def documents(self, seq_len: int) -> Documents | None:
        """The documents that make sequences of `seq_len` tokens; None where every sequence is full."""
        self.check_packing()
        if self.packing is None:
            return None
        from flopwise.training.documents import from_file, lognormal

        packing = cast("Packing", self.packing)
        if self.lengths is not None:
            return from_file(self.lengths, seq_len, packing)
        return lognormal(self.mean_length or 0.0, self.length_spread, seq_len, packing)


def _spelling(option: str) -> str:
    """The spelling of a data option on the command line and in a file."""
    declared = options.options_of(DataSpec)[option]
    return f"{declared.flags[0]} or {declared.key}"


MACHINE_RANKS = 8
"""Accelerators of a large machine, which share a batch where no other degree does."""


def divisible_batch(sequences: float) -> int:
    """A whole batch within an eighth of `sequences` that ranks can share: at most three significant bits."""
    exact = max(1.0, sequences)
    unit = 2 ** max(0, int(math.log2(exact)) - 2)
    return int(max(1, round(exact / unit)) * unit)


def _divisible_below(sequences: float) -> int:
    """The largest whole batch of at most three significant bits that is not above `sequences`, which are 1 or more."""
    unit = 1 << max(0, int(math.log2(sequences)) - 2)
    return int(sequences / unit) * unit


def _halves(number: int, least: int) -> list[int]:
    """`number`, its half and so on, as far as these are multiples of `least`; descending."""
    found = [number]
    while found[-1] % (2 * least) == 0:
        found.append(found[-1] // 2)
    return found


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec(Spec):
    """Recipe and layout of a training step. None: not said, so the default or the automatic choice holds."""

    precision: str = _recipe(
        "--precision", options.choice(*TRAINING_PRECISIONS),
        "Format of the matrix products in training.", default="bf16")
    optimizer: str = _recipe(
        "--optimizer", options.name("optimizer"), "adamw, adamw-8bit, adafactor, sgd, lion, muon ...",
        default=defaults.OPTIMIZER, key="optimizer")
    stack: str | None = _recipe(
        "--stack", options.name("stack"), "Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...")
    attention: str | None = _recipe(
        "--attention", options.choice("flash", "sdpa", "eager"),
        "Attention implementation (default: flash; eager in software that predates it).", key="attention")
    grad_dtype: str | None = _recipe(
        "--grad-dtype", options.choice("fp32", "bf16", "fp16"),
        "Format of the accumulated gradients (default: the stack's).",
        key="grad_dtype")
    master_weights: bool | None = _recipe(
        "--master-weights/--no-master-weights", options.FLAG,
        "Keep a separate fp32 copy of the weights (default: as the stack does).", key="master_weights")
    lora: int | None = _recipe(
        "--lora", options.whole(high=65536), "Train LoRA adapters of this rank on a frozen base.", metavar="RANK")
    finetune: bool = _recipe(
        "--finetune", options.FLAG,
        "Fine-tune all weights of a pretrained model: batches as usual there, weights loaded at the start.",
        default=False)
    qlora: bool = _recipe(
        "--qlora", options.FLAG,
        f"Train adapters on a 4-bit base, of rank {defaults.LORA_RANK} unless --lora sets another.", default=False)
    lora_targets: tuple[str, ...] = _recipe(
        "--lora-targets", options.NAMES, "all-linear (default), attention, qv, or a list such as q,k,v,o.",
        default=(), metavar="TARGETS", key="method.targets")
    base_format: str | None = _recipe(
        "--base-format", options.name("format"),
        "Format of the frozen weights under adapters: nf4, int8 ... (default: bf16).",
        key="method.base_format")
    freeze: str | None = _recipe(
        "--freeze", options.name("parts"),
        "Parts that are not trained, separated by commas: embedding, head, towers, first:N, all-but-last:N (layers).",
        key="method.freeze")
    expert_skew: float | None = same(SharedSpec, "expert_skew", section="Recipe", key="routing.expert_skew")
    capacity_factor: float | None = _recipe(
        "--capacity-factor", options.CAPACITY,
        "Capacity of an expert, in mean loads; tokens above it are dropped (default: none are).",
        key="routing.capacity_factor")
    micro_batch: int | None = _layout("--micro-batch", options.BATCH, "Sequences in one pass of a replica.")
    dp: int | None = same(SharedSpec, "dp")
    tp: int | None = same(SharedSpec, "tp")
    pp: int | None = same(SharedSpec, "pp")
    cp: int | None = _layout("--cp", options.DEGREE, "Context-parallel degree.")
    ep: int | None = same(SharedSpec, "ep")
    expert_tp: int | None = _layout(
        "--expert-tp --expert-tensor-parallel-size", options.DEGREE,
        "Ranks of a tensor-parallel group that share one expert: 1 where experts are whole (default: the stack's).")
    zero: int | None = _layout("--zero", options.whole(low=0, high=3), "ZeRO stage: 0 to 3.")
    fsdp: bool = _layout("--fsdp", options.FLAG, "Shard everything over the replicas, as ZeRO 3.", default=False)
    shard: int | None = _layout(
        "--shard --hsdp", options.DEGREE, "HSDP: ranks that ZeRO shards over (stage 3 by default); replicated beyond "
        "them.")
    grad_sync: str | None = _layout(
        "--grad-sync", options.choice("each", "round", "last"),
        "ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones with the last micro-batch of a chunk's round "
        "(interleaved pipelines) or of the step (default: the stack's).")
    recompute: str | None = _layout(
        "--recompute", options.choice("none", "selective", "full"), "Activation recomputation (checkpointing).")
    recompute_modules: tuple[str, ...] = _layout(
        "--recompute-modules", options.choice(*defaults.RECOMPUTE_MODULES),
        "Recompute these modules alone, as Megatron-Core does: core_attn, layernorm, activation (its moe_act), "
        "mla_up_proj, mlp, moe; attn_proj: the projections around attention.", repeated=True)
    recompute_every: int | None = _layout(
        "--recompute-every", options.DEGREE, "Full recompute of every N-th block only.", metavar="N")
    recompute_first: int | None = _layout(
        "--recompute-first", options.DEGREE, "Full recompute of the first N blocks of each (virtual) stage only.",
        metavar="N")
    interleave: int | None = _layout("--interleave", options.DEGREE, "Virtual stages of each pipeline rank.")
    schedule: str | None = _layout(
        "--schedule", options.name("name"),
        "Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.")
    stage_layers: tuple[int, ...] = _layout(
        "--stage-layers", options.WHOLES_OR_ZERO,
        "Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.", default=())
    sequence_parallel: bool = _layout(
        "--sequence-parallel/--no-sequence-parallel", options.FLAG, "Split norms and residuals within a tp group, too.",
        default=True)
    offload: tuple[str, ...] = _layout(
        "--offload", options.choice("optimizer", "parameters", "activations"),
        "Keep these in host memory.", repeated=True)
    offload_layers: int | None = _layout(
        "--offload-layers", options.DEGREE,
        "Of each pipeline stage, the layers whose activations are in host memory, as Megatron-Core's "
        "cpu-offloading-num-layers (default: all but the last two).", metavar="N")
    # fmt: on

    @property
    def recomputes_some(self) -> bool:
        """True if only some blocks are computed again."""
        return (self.recompute_every or 1) > 1 or bool(self.recompute_first)

    @property
    def says_layout(self) -> bool:
        """True if the layout is given, by a degree or by what is sharded; else the best one is searched.

        What else is said of a layout holds in all that are tried (`searched_alike`).
        """
        degrees = (self.dp, self.tp, self.pp, self.cp, self.ep, self.zero, self.shard)
        return self.fsdp or bool(self.stage_layers) or any(d is not None for d in degrees)

    @property
    def bounds_layout(self) -> bool:
        """True if anything is said of the layout but the micro-batch."""
        pipeline = self.interleave or self.schedule or self.offload or self.expert_tp
        return self.says_layout or bool(pipeline) or self.recompute_mode() is not None

    def least_batch(self, model: Model, seq_len: int, num_gpus: int, facts: Facts) -> int:
        """Sequences whose multiples a batch on `num_gpus` has to be, by the layout or by what a search tries.

        Source: `flopwise.search.space`: pipelines of powers of two, sequences cut while enough tokens are left.
        Assumes: a pipeline that is given is to be filled; a search finds no tensor parallelism.
        """
        each = self.micro_batch or 1
        if self.says_layout:
            ranks = (self.tp or 1) * (self.pp or 1) * (self.cp or 1)
            return max(1, num_gpus // ranks) * each * (self.pp or 1)
        has, most = self.first_stack(facts, model).degrees, 1
        if "pp" in has:
            most *= 2 ** int(math.log2(min(defaults.SEARCHED_STAGES, model.stacks[0].num_layers)))
        if "cp" in has:
            most *= 2 ** int(math.log2(max(1, seq_len // defaults.CONTEXT_TOKENS)))
        shared = 1
        while 2 * shared <= most and num_gpus % (2 * shared) == 0:
            shared *= 2
        return num_gpus // shared * each

    @property
    def open_settings(self) -> frozenset[str]:
        """The settings that people vary and the options leave open, by the names of `alternatives.other_settings`."""
        recompute = self.recompute or self.recomputes_some or self.recompute_modules
        fields = {
            "stack": self.stack, "micro-batch": self.micro_batch, "recompute": recompute,
            "interleave": self.interleave or self.schedule,
        }  # fmt: skip
        left_open = {name for name, value in fields.items() if not value}
        if self.adapts and not (self.lora and self.lora_targets):
            left_open.add("adapter targets" if self.lora else "adapter rank" if self.lora_targets else "adapters")
        return frozenset(left_open)

    @property
    def assumed_settings(self) -> frozenset[str]:
        """The settings that stay open where the layout is searched: of `open_settings`, what is none of a layout."""
        chosen = frozenset() if self.micro_batch else frozenset({CHOSEN_MICRO_BATCH})
        return self.open_settings - {"micro-batch", "recompute", "interleave"} | chosen

    @property
    def adapts(self) -> bool:
        """True if adapters are trained, and not the model."""
        return self.qlora or self.lora is not None

    @property
    def tunes(self) -> bool:
        """True if a pretrained model is trained on, by adapters or as a whole."""
        return self.finetune or self.adapts

    def usual_stacks(self, model: Model | None) -> tuple[str, ...]:
        """The training software where none is named, the usual first; `model`: what is trained, None for any."""
        if self.adapts:
            return defaults.ADAPTER_STACKS
        if model is None or self.tunes or self.beyond_megatron:
            return defaults.STACKS
        from flopwise.ops.tensors import parameters

        return defaults.LARGE_STACKS if parameters(model) >= defaults.LARGE_PARAMETERS else defaults.STACKS

    @property
    def beyond_megatron(self) -> bool:
        """True if what Megatron-Core has not is asked for: sharded gradients or weights, other pipelines' schedules."""
        shards = self.fsdp or self.shard is not None or (self.zero or 0) > 1
        return shards or self._schedule() > 0

    def stack_on(self, accelerator: Accelerator, facts: Facts, model: Model | None) -> TrainingStack | None:
        """The training software on a device: as named, or the usual one that runs there; None where none does.

        Raises:
            UnknownNameError: an unknown one is named.
        """
        return next((stack for stack in self._stacks(facts, model) if stack.runs_on(accelerator)), None)

    def first_stack(self, facts: Facts, model: Model | None) -> TrainingStack:
        """The training software whatever the device: as named, or the most usual.

        Raises:
            SpecError, UnknownNameError: an unknown one is named, or one of another time.
        """
        return next(self._stacks(facts, model))

    def _stacks(self, facts: Facts, model: Model | None) -> Iterator[TrainingStack]:
        """The one that is named, or those that are usual and not younger than the month of the facts."""
        usual = self.usual_stacks(model)
        released = [name for name in usual if facts.is_released(name)]
        return map(facts.stack, released or usual[:1] if self.stack is None else (self.stack,))

    def on(self, accelerator: Accelerator, facts: Facts, model: Model | None) -> TrainingSpec:
        """The spec with the training stack of a device, where none is named."""
        stack = self.stack_on(accelerator, facts, model) if self.stack is None else None
        return self if stack is None else replace(self, stack=stack.name)

    def recipe(
        self, seq_len: int, global_batch: int, facts: Facts, model: Model | None, documents: Documents | None = None
    ) -> Recipe:
        """The recipe for sequences of `seq_len` tokens of a model (None: of any), `global_batch` of them a step.

        Raises:
            SpecError, UnknownNameError: a choice that does not exist.
        """
        from flopwise.training.frozen import Frozen
        from flopwise.training.layout import Recipe

        stack = self.first_stack(facts, model)
        return Recipe(
            seq_len=seq_len, global_batch=global_batch, precision=self.precision,
            optimizer=facts.optimizer(self.optimizer), stack=stack,
            attention=cast("Attention | None", self.attention) or stack.usual_attention(model),
            grad_dtype=self.grad_dtype,
            master_weights=self.master_weights, lora=self.adapters(facts), expert_skew=self.expert_skew or 1.0,
            capacity_factor=self.capacity_factor, documents=documents,
            lengths_vary=documents is not None and documents.packing == "padded",
            frozen=None if self.freeze is None else Frozen.of(self.freeze),
            grad_sync=cast("GradSync | None", self.grad_sync), ranks_per_expert=self.expert_tp,
            modules=self.recompute_modules,
        )  # fmt: skip

    def check_adapters(self) -> None:
        """Refuse what is said of adapters where there are none.

        Raises:
            SpecError: names it.
        """
        for name in ("lora_targets", "base_format"):
            if getattr(self, name) and not self.adapts:
                raise OptionError(name, "needs adapters, and none are given (--lora, --qlora)")

    def adapters(self, facts: Facts) -> Lora | None:
        """The adapters; None where the model itself is trained.

        Raises:
            SpecError: what is said of adapters without any.
        """
        self.check_adapters()
        if not self.adapts:
            return None
        from flopwise.facts.formats import BF16
        from flopwise.training.layout import TARGET_SETS, Lora

        named = self.lora_targets or defaults.LORA_TARGETS
        targets = tuple(t for name in named for t in TARGET_SETS.get(name, (name,)))
        stored = self.base_format or ("nf4" if self.qlora else None)
        base = BF16 if stored is None else facts.weight_format(stored)
        return Lora(rank=self.lora or defaults.LORA_RANK, targets=tuple(dict.fromkeys(targets)), base=base)

    def layout(self, model: Model, num_gpus: int | None = None) -> Layout:
        """The layout as said, degrees that are not said being 1; with `num_gpus` replicas fill them.

        `flopwise.training.layout.check_layout` tells whether a recipe can run on it.

        Raises:
            SpecError: a degree does not divide what it has to; says which would.
        """
        from flopwise.ops.degrees import check_expert_parallel, check_tensor_parallel
        from flopwise.training.stages import check_first_blocks

        tp, pp, cp, ep = self.tp or 1, self.pp or 1, self.cp or 1, self.ep or 1
        dp = self.dp or 1 if num_gpus is None else self._replicas(tp * pp * cp, num_gpus)
        check_tensor_parallel(model, tp)
        check_expert_parallel(model, ep)
        zero = self._zero()
        if "parameters" in self.offload and zero != 3:
            given = "; no stage is given (--zero 3, --fsdp)" if self.zero is None else f", not ZeRO {zero}"
            raise SpecError(f"offloaded parameters need ZeRO 3 or FSDP{given}")
        if pp == 1 and self.pipeline_option is not None:
            raise SpecError(f"{self.pipeline_option} needs pipeline stages; give pp above 1")
        layout = replace(
            self.searched_alike(model), dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=zero, shard=self._shard(dp * cp, zero),
            micro_batch=self.micro_batch or 1, interleave=self.chunks, schedule=self._schedule(),
            stage_layers=self.stage_layers,
        )  # fmt: skip
        check_first_blocks(layout, model)
        return layout

    def searched_alike(self, model: Model) -> Layout:
        """The settings beside the columns of a search, as given: they hold in all layouts that are tried.

        Raises:
            SpecError: options that do not go together, or that name what the model has not.
        """
        from flopwise.facts.software import RECOMPUTE
        from flopwise.training.layout import Layout, check_recompute
        from flopwise.training.stages import check_first_blocks

        self._check_parts(model)
        if self.offload_layers and "activations" not in self.offload:
            raise OptionError("offload_layers", "goes with activations in host memory (--offload activations)")
        layout = Layout(
            recompute=RECOMPUTE.index(self.recompute_mode() or "none"),
            recompute_every=self.recompute_every or 1, recompute_first=self.recompute_first or 0,
            sequence_parallel=self.sequence_parallel, offload_optimizer="optimizer" in self.offload,
            offload_parameters="parameters" in self.offload, offload_activations="activations" in self.offload,
            offload_layers=self.offload_layers,
        )  # fmt: skip
        check_recompute(layout)
        check_first_blocks(layout, model)
        return layout

    @property
    def pipeline_option(self) -> str | None:
        """The option that only a pipeline can heed, in words; None where none is given."""
        if self.schedule is not None:
            self._schedule()
            return f"schedule {self.schedule}"
        return f"interleave {self.interleave}" if (self.interleave or 1) > 1 else None

    def recompute_mode(self) -> str | None:
        """The kind of recompute that is asked for, by its name or by what goes with it; None where nobody says.

        Raises:
            SpecError: modules are named for another kind than selective recompute.
        """
        if self.recompute_modules and (self.recomputes_some or self.recompute not in {None, "selective"}):
            raise OptionError("recompute_modules", "goes with selective recompute only (--recompute selective)")
        return self.recompute or ("selective" if self.recompute_modules else "full" if self.recomputes_some else None)

    def _check_parts(self, model: Model) -> None:
        """Refuse what is said of experts, dense feed-forward parts or latent attention where the model has none."""
        from flopwise.ops.work import of_dense_mlp

        experts = model.has_experts
        if self.expert_tp is not None and not experts:
            raise OptionError("expert_tp", f"{model.name} has no experts; leave it out")
        items = [item for kind in model.stacks[0].kinds for item in kind.items]
        latent, dense = any(getattr(item, "latent_dim", None) for item in items), any(map(of_dense_mlp, items))
        parts = ("moe", "experts", experts), ("mla_up_proj", "latent attention", latent), ("mlp", "dense MLP", dense)
        for module, what, present in parts:
            if module in self.recompute_modules and not present:
                raise OptionError("recompute_modules", f"{module}: {model.name} has no {what}; leave it out")

    def _schedule(self) -> int:
        """The place of the pipeline schedule among `flopwise.training.schedules.SCHEDULES`."""
        from flopwise.training.schedules import schedule_code

        if self.schedule is None:
            return 0
        return schedule_code(self.schedule)

    @property
    def chunks(self) -> int:
        """Virtual stages of a rank: as said, or the fewest that make a schedule interleaved."""
        from flopwise.training.schedules import INTERLEAVED, schedule_name

        name = None if self.schedule is None else schedule_name(self.schedule)
        if name == "1f1b" and (self.interleave or 1) > 1:
            raise SpecError(f"schedule 1f1b runs one chunk a stage, not {self.interleave}; give schedule interleaved")
        if name != INTERLEAVED:
            return self.interleave or 1
        if self.interleave == 1:
            raise SpecError("schedule interleaved needs at least 2 virtual stages a rank; leave out interleave 1")
        return self.interleave or 2

    def _zero(self) -> int:
        if self.fsdp and self.zero not in (None, 3):
            raise SpecError(
                f"FSDP shards fully, as ZeRO 3 does, and ZeRO {self.zero} is given as well; give one of them"
            )
        return 3 if self.fsdp or (self.shard is not None and self.zero is None) else self.zero or 0

    def replication_note(self, layout: Layout) -> tuple[str, ...]:
        """The assumption that ranks hold copies, where a layout is given without a ZeRO stage; none elsewhere."""
        ranks = int(layout.dp) * int(layout.cp)
        if self.zero is not None or layout.zero or ranks == 1:
            return ()
        text = f"the {ranks:,} ranks of dp x cp hold copies of weights and states (--fsdp, --zero)"
        return (f"no ZeRO stage is given: {text}",)

    def _shard(self, ranks: int, zero: int) -> int:
        """Ranks of a sharding group; 0 where all of `ranks` are one."""
        from flopwise.ops.degrees import divisor_list

        shard = self.shard
        if shard is None:
            return 0
        if not zero:
            raise SpecError(f"shard {shard} needs a ZeRO stage from 1 to 3; with stage 0 every rank holds everything")
        if ranks % shard:
            raise SpecError(f"shard {shard} does not divide the {ranks} ranks of dp x cp; use {divisor_list(ranks)}")
        return 0 if shard == ranks else shard

    def _replicas(self, ranks: int, num_gpus: int) -> int:
        named = f"tp {self.tp or 1} x pp {self.pp or 1} x cp {self.cp or 1}"
        if num_gpus % ranks:
            near = max(ranks, round(num_gpus / ranks) * ranks)
            given = units.format_items(num_gpus, "GPU")
            raise SpecError(f"{given} cannot be divided into groups of {named} = {ranks}; {near:,} can")
        if self.dp is not None and self.dp * ranks != num_gpus:
            raise SpecError(f"dp {self.dp} x {named} is {self.dp * ranks} GPUs, but {num_gpus} are given")
        return num_gpus // ranks






# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsSpec(Spec):
    """Options of the storage that training reads from. None: not stated, so data never keep a step waiting."""

    storage: str | None = same(StorageSpec, "storage", section="Data and batches")
    storage_bandwidth: float | None = same(StorageSpec, "storage_bandwidth", section="Data and batches")
    token_bytes: float | None = _data(
        "--token-bytes", options.BYTES, "Bytes per stored token (default: 2, or 4 above 65,536 words).")
    # fmt: on

    def reads(self, model: Model, seq_len: int, facts: Facts) -> Reads | None:
        """The bandwidth of storage for training `model`; None where no storage is given.

        Raises:
            UnknownNameError: there is no such kind of storage.
            SpecError: two options say the same.
        """
        if self.storage is None and self.storage_bandwidth is None:
            if self.token_bytes is not None:
                raise OptionError("token_bytes", "needs the storage that data are read from")
            return None
        from flopwise.training.storage import Reads, stored_token_bytes

        if self.storage is not None and self.storage_bandwidth is not None:
            raise OptionError("storage_bandwidth", "a kind of storage is given as well; give one of them")
        each = self.token_bytes or stored_token_bytes(model, seq_len)
        if self.storage_bandwidth is not None:
            return Reads(storage="given", bytes_per_s=self.storage_bandwidth, token_bytes=each)
        row = facts.storage(self.storage or "")
        return Reads(
            storage=row.name, bytes_per_s=row.read_bytes_per_s, total_bytes_per_s=row.total_read_bytes_per_s,
            token_bytes=each, origin=row.source, date=row.date,
        )  # fmt: skip


def usual_batch_tokens(model: Model) -> float:
    """Tokens of a global batch in pre-training, by the model's size.

    Source: `defaults.BATCH_TOKENS`. Assumes: as there.
    """
    from flopwise.ops.tensors import parameters

    size = parameters(model)
    return next(tokens for below, tokens in defaults.BATCH_TOKENS if size < below)


LAYOUT_SETTINGS = {
    **{name: (name,) for name in ("dp", "tp", "pp", "cp", "ep", "recompute", "interleave")},
    "stages": ("pp",), "ranks": ("tp", "cp", "ep", "dp"), "replicas": ("dp",), "dp x cp": ("dp", "cp"),
    "ranks of experts": ("ep",), "ZeRO stage": ("zero", "fsdp"), "shard": ("shard", "fsdp"),
    "ranks that share the shards": ("shard", "fsdp"), "micro-batch": ("micro_batch",),
    "layers of the stages": ("stage_layers",),
}  # fmt: skip
"""Options that say a layout's settings, by the names of their figures."""
SETTINGS = {
    "sequence length": ("seq",), "global batch": ("global_batch", "global_batch_tokens"), "optimizer": ("optimizer",),
    "spare nodes": ("spares",), "GPUs per node": ("gpus_per_node",), "LoRA rank": ("lora",),
    "base format": ("base_format", "qlora"), "load of the fullest expert over the mean": ("expert_skew",),
    "bytes per token": ("token_bytes",), "batches per validation": ("validate_batches",),
}  # fmt: skip
"""Options of the recipe, the data and the run, by the names of their figures."""
