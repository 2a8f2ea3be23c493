"""How a model is trained, as people say it: shared by the questions `memory` and `train`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from flopwise.errors import SpecError, nearest_names
from flopwise.facts import defaults

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.training.documents import Documents, Packing
    from flopwise.training.layout import Layout, Lora, Recipe

DEFAULT_RANK = 16
"""LoRA rank where none is given."""
OTHER_STACKS = ("xla", "hf-trainer")
"""Where the usual one does not run."""
OFFLOADS = ("optimizer", "parameters", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Recipe and layout of a training step. None: not said, so the default or the automatic choice holds."""

    precision: str = "bf16"
    optimizer: str = defaults.OPTIMIZER
    stack: str | None = None
    attention: str = "flash"
    grad_dtype: str | None = None
    master_weights: bool | None = None
    lora: int | None = None  # rank
    qlora: bool = False
    lora_targets: str | None = None  # qv, attention, all-linear, or q,k,v,...
    expert_skew: float = 1.0  # tokens of the most popular expert over the mean of all
    capacity_factor: float | None = None  # experts compute so many times the mean and drop the rest
    packing: str | None = None  # padded, packed; None: every sequence is full
    mean_length: float | None = None  # of a document, in tokens
    length_spread: float = 1.0  # standard deviation of lengths over their mean
    lengths: Path | str | None = None  # a file of them, instead
    freeze: str | None = None  # embedding, head, towers, first:N, all-but-last:N, separated by commas
    recompute: str | None = None  # none, selective, full
    recompute_every: int | None = None  # full recompute of every n-th block
    recompute_first: int | None = None  # full recompute of the first blocks of each virtual stage
    micro_batch: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero: int | None = None
    fsdp: bool = False
    shard: int | None = None  # HSDP: ranks over which ZeRO shards, replicated beyond
    interleave: int | None = None
    schedule: str | None = None  # 1f1b, interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v
    stage_layers: tuple[int, ...] = ()  # of each pipeline stage, or virtual stage
    sequence_parallel: bool = True
    offload: tuple[str, ...] = ()

    @property
    def recomputes_some(self) -> bool:
        """Whether some blocks only are computed again."""
        return (self.recompute_every or 1) > 1 or bool(self.recompute_first)

    @property
    def laid_out(self) -> bool:
        """Whether the question says how the model is spread; else the best layout is looked for."""
        degrees = (self.dp, self.tp, self.pp, self.cp, self.ep, self.zero, self.shard, self.interleave, self.schedule)
        said = bool(self.offload or self.stage_layers or self.recomputes_some)
        return self.fsdp or said or any(d is not None for d in degrees)

    def on(self, accelerator: Accelerator, facts: Facts) -> Method:
        """The method with a training stack that runs on a device, where none is named and the usual one does not."""
        if self.stack is not None or facts.stack(self._usual_stack).runs_on(accelerator):
            return self
        return replace(self, stack=next((s for s in OTHER_STACKS if facts.stack(s).runs_on(accelerator)), None))

    @property
    def _usual_stack(self) -> str:
        return defaults.ADAPTER_STACK if self.qlora or self.lora is not None else defaults.STACK

    def recipe(self, seq_len: int, global_batch: int, facts: Facts) -> Recipe:
        """The recipe for sequences of `seq_len` tokens, `global_batch` of them a step.

        Raises:
            SpecError: a choice that does not exist.
        """
        from flopwise.training.frozen import frozen_of
        from flopwise.training.layout import Attention, Precision, Recipe

        adapters = self._lora(facts)
        name = self.stack or self._usual_stack
        precision: Precision = _one_of("precision", self.precision, get_args(Precision))
        attention: Attention = _one_of("attention", self.attention, get_args(Attention))
        if self.grad_dtype is not None:
            _one_of("gradient dtype", self.grad_dtype, ("fp32", "bf16", "fp16"))
        return Recipe(
            seq_len=seq_len,
            global_batch=global_batch,
            precision=precision,
            optimizer=facts.optimizer(self.optimizer),
            stack=facts.stack(name),
            attention=attention,
            grad_dtype=self.grad_dtype,
            master_weights=self.master_weights,
            lora=adapters,
            expert_skew=self.expert_skew,
            capacity_factor=self.capacity_factor,
            documents=self._documents(seq_len),
            frozen=None if self.freeze is None else frozen_of(self.freeze),
        )

    def _documents(self, seq_len: int) -> Documents | None:
        if self.packing is None and self.mean_length is None and self.lengths is None:
            return None
        from flopwise.training.documents import PACKINGS, from_file, lognormal

        if self.packing is None:
            raise SpecError(f"lengths of documents are given; say how they make sequences: {' or '.join(PACKINGS)}")
        _one_of("packing", self.packing, PACKINGS)
        packing: Packing = "padded" if self.packing == "padded" else "packed"
        if (self.mean_length is None) == (self.lengths is None):
            raise SpecError("packing needs the lengths of documents: a mean length, or a file of lengths, one of them")
        if self.lengths is not None:
            return from_file(self.lengths, seq_len, packing)
        return lognormal(self.mean_length or 0.0, self.length_spread, seq_len, packing)

    def _lora(self, facts: Facts) -> Lora | None:
        from flopwise.training.layout import TARGET_SETS, Lora

        if self.lora is None and not self.qlora:
            if self.lora_targets is not None:
                raise SpecError("LoRA targets are given, but neither a LoRA rank nor QLoRA")
            return None
        asked = self.lora_targets or "all-linear"
        targets = TARGET_SETS.get(asked) or tuple(t.strip() for t in asked.split(",") if t.strip())
        return Lora(
            rank=self.lora or DEFAULT_RANK, targets=targets, base=facts.weight_format("nf4" if self.qlora else "bf16")
        )

    def layout(self, model: Model, seq_len: int, num_gpus: int | None = None) -> Layout:
        """The layout as said, degrees that are not said being 1; with `num_gpus` replicas fill them.

        Raises:
            SpecError: a degree does not divide what it has to; says which would.
        """
        from flopwise.training.layout import RECOMPUTE, Layout
        from flopwise.training.stages import check_stages

        ranks = (self.tp or 1) * (self.pp or 1) * (self.cp or 1)
        dp = self.dp or 1
        if num_gpus is not None:
            dp = self._replicas(ranks, num_gpus)
        _check_degrees(self, model, seq_len, dp)
        recompute = self.recompute or ("full" if self.recomputes_some else "none")
        _one_of("recompute", recompute, RECOMPUTE)
        for part in self.offload:
            _one_of("offload", part, OFFLOADS)
        zero = self._zero()
        if "parameters" in self.offload and zero != 3:
            raise SpecError(f"offloaded parameters need ZeRO 3 or FSDP, not ZeRO {zero}")
        layout = Layout(
            dp=dp,
            tp=self.tp or 1,
            pp=self.pp or 1,
            cp=self.cp or 1,
            ep=self.ep or 1,
            zero=zero,
            shard=self._shard(dp * (self.cp or 1), zero),
            micro_batch=self.micro_batch or 1,
            interleave=self.chunks,
            schedule=self._schedule(),
            recompute=RECOMPUTE.index(recompute),
            recompute_every=self.recompute_every or 1,
            recompute_first=self.recompute_first or 0,
            stage_layers=self.stage_layers,
            sequence_parallel=self.sequence_parallel,
            offload_optimizer="optimizer" in self.offload,
            offload_parameters="parameters" in self.offload,
            offload_activations="activations" in self.offload,
        )
        check_stages(layout, model.stacks[0].num_layers)
        return layout

    def _schedule(self) -> int:
        """The place of the pipeline schedule among `flopwise.training.schedules.SCHEDULES`."""
        from flopwise.training.schedules import schedule_code

        if self.schedule is None:
            return 0
        code = schedule_code(self.schedule)
        if (self.pp or 1) == 1:
            raise SpecError(f"schedule {self.schedule} needs pipeline stages; give pp above 1")
        return code

    @property
    def chunks(self) -> int:
        """Virtual stages of a rank: as said, or the fewest that make a schedule interleaved."""
        from flopwise.training.schedules import ALIASES

        name = (self.schedule or "").strip().lower()
        if name == "1f1b" and (self.interleave or 1) > 1:
            raise SpecError(f"schedule 1f1b runs one chunk a stage, not {self.interleave}; say interleaved")
        if name not in ALIASES or not name.startswith("interleaved"):
            return self.interleave or 1
        if self.interleave == 1:
            raise SpecError("schedule interleaved needs at least 2 virtual stages a rank; leave interleave 1 out")
        return self.interleave or 2

    def _zero(self) -> int:
        if self.fsdp and self.zero not in (None, 3):
            raise SpecError(f"FSDP shards fully, as ZeRO 3 does; ZeRO {self.zero} is given, too: give one of them")
        if self.zero is not None and self.zero not in (0, 1, 2, 3):
            raise SpecError(f"ZeRO stage {self.zero} does not exist; allowed: 0, 1, 2, 3")
        return 3 if self.fsdp or (self.shard is not None and self.zero is None) else self.zero or 0

    def _shard(self, ranks: int, zero: int) -> int:
        """Ranks of a sharding group; 0 where all of `ranks` are one."""
        shard = self.shard
        if shard is None:
            return 0
        if not zero:
            raise SpecError(f"shard {shard} needs a ZeRO stage from 1 to 3; with stage 0 every rank holds everything")
        if shard < 1 or ranks % shard:
            from flopwise.ops.degrees import divisor_list

            raise SpecError(f"shard {shard} does not divide the {ranks} ranks of dp x cp; use {divisor_list(ranks)}")
        return 0 if shard == ranks else shard

    def _replicas(self, ranks: int, num_gpus: int) -> int:
        named = f"tp {self.tp or 1} x pp {self.pp or 1} x cp {self.cp or 1}"
        if num_gpus % ranks:
            near = max(ranks, round(num_gpus / ranks) * ranks)
            raise SpecError(f"{num_gpus} GPUs do not divide into {named} = {ranks}; {near} would")
        if self.dp is not None and self.dp * ranks != num_gpus:
            raise SpecError(f"dp {self.dp} x {named} is {self.dp * ranks} GPUs, but {num_gpus} are given")
        return num_gpus // ranks


def _one_of(what: str, given: str, allowed: tuple[str, ...]) -> Any:
    """`given`, as a name of the type that `allowed` are the values of."""
    if given not in allowed:
        near = nearest_names(given, allowed)
        raise SpecError(
            f"unknown {what} {given[:40]!r}{f', nearest: {near[0]}' if near else ''}; allowed: {', '.join(allowed)}"
        )
    return given


def _check_degrees(how: Method, model: Model, seq_len: int, dp: int) -> None:
    from flopwise.ops.degrees import check_expert_parallel, check_pipeline, check_tensor_parallel

    check_tensor_parallel(model, how.tp or 1)
    check_expert_parallel(model, how.ep or 1)
    check_pipeline(model, how.pp or 1)
    cp, ep, pp, interleave = how.cp or 1, how.ep or 1, how.pp or 1, how.chunks
    if seq_len % cp:
        raise SpecError(f"cp {cp} does not divide the sequence of {seq_len} tokens")
    if dp * cp % ep:
        raise SpecError(f"ep {ep} does not divide dp x cp = {dp * cp}: experts are spread over the replicas")
    layers = model.stacks[0].num_layers
    if interleave > 1 and layers < pp * interleave:
        raise SpecError(f"interleave {interleave} x pp {pp} is more than the {layers} layers of {model.name}")


def check_length(model: Model, tokens: int, *, what: str = "a sequence") -> tuple[str, ...]:
    """What is assumed of a sequence longer than the model is made for; SpecError when it cannot be asked."""
    from flopwise.facts.models.positions import check_length

    return check_length(model, tokens, what=what)
