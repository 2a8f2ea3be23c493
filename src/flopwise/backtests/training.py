"""Rows of published training runs, predicted: tokens per second and GPU."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from itertools import chain
from typing import Literal, TypedDict

from flopwise.backtests.prediction import (
    DENSE,
    Prediction,
    Row,
    choice,
    flag,
    lora_targets,
    model_by_size,
    models_by_size,
    number,
    prediction_of,
    stated_model,
    whole,
)
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.cost.spec import with_power_limit
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Attend, Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.catalog import TYPICAL
from flopwise.facts.models.config import model_from_config
from flopwise.facts.software import Optimizer
from flopwise.ops.tensors import parameters
from flopwise.training.documents import Documents, lognormal
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import memory_table
from flopwise.training.layout import Attention, Layout, Lora, Recipe
from flopwise.training.memory import memory_band, step_memory
from flopwise.training.on_device import recipe_on
from flopwise.training.unstated import other_jobs, unstated_inputs, with_unstated_inputs
from flopwise.values import replace

UNIT = "tokens/s/GPU"
NODE = 8
"""GPUs of a node, which share its network."""
PRECISIONS = {name: name for name in TRAINING_PRECISIONS}
ATTENTION: dict[str, Attention] = {"flash": "flash", "eager": "eager"}
RECOMPUTE = {"none": 0, "selective": 1, "alternate": 1, "operations": 1, "full": 2, "plain": 2}
ZERO = {"0": 0, "1": 1, "2": 2, "3": 3}
BUCKETED = ("1", "2")
"""ZeRO stages that people run DeepSpeed for in transformers' Trainer."""
OF_MEGATRON = ("megatron-te", "nemo")
"""Stacks of Megatron-Core, as people run it and as NVIDIA's recipes do."""
WITH_DROPOUT = ("megatron", "nemo", "deepspeed", "hf-trainer")
"""Software in which a GPT has dropout unless it is told otherwise: Megatron-LM and what grew from it, transformers."""
RECIPES = re.compile(
    r"performance[-_ /]*(summary|recipe|guide)|summary_archive|scripts[./]performance|dgxc-benchmarking", re.IGNORECASE
)
"""How a source says that NVIDIA's performance recipes ran: its performance pages, the scripts behind them."""
MIXTURE_KERNELS = 2026, 6
"""Year and month from which on releases of Megatron and PyTorch have the stacks `megatron-2026`, `nemo-2026` and
`fsdp-compile-2026`: Megatron-Bridge 0.5. A row of that year without a month is of before."""
COMPILED_LOSS = 2025, 4
"""Year and month from which on torchtitan compiles its loss and has fused optimizers (`fsdp-compile-2025`): its pull
request 1033. A row of that year without a month is of before."""
FLASH_2_YEAR = 2024
"""The first whole year of flash attention 2; FSDP runs before it have the stack `fsdp-2023`."""
OWN_CHOICE, OWN_CHOICE_YEAR = {"hf-trainer": "hf-trainer-2026", "fsdp-eager": "fsdp-eager-2026"}, 2026
"""Stacks whose attention is PyTorch's own choice of kernels, from the year of PyTorch 2.11 on, which takes cuDNN's."""
CHECKPOINTING = ("torchtune", "unsloth")
"""Stacks that recompute whole layers unless they are told not to: torchtune's recipes, Unsloth's get_peft_model."""
CHECKPOINTING_QLORA = "hf-trainer"
"""Those that do so with a quantised base alone: PEFT's documentation prepares it with prepare_model_for_kbit_training,
whose use_gradient_checkpointing is true; all publishers of such rows that state it recompute."""
MODES = ((0, 1), (1, 1), (2, 4), (2, 3), (2, 2), (2, 1))
"""Recompute from least to most: its mode, and of every how many blocks."""
MODULES = (("mla_up_proj",), ("layernorm", "activation"), ("core_attn", "moe"))
"""Modules that recipes of mixtures on Megatron-Core compute again, from least to most, each set with those before it:
NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs, 2025-2026."""
DISPATCH: dict[str, Literal["expert", "device", "node"]] = {"node": "node", "device": "device", "all-to-all": "expert"}
"""How often a token is sent, by the names of rows."""
RUNS_WITH = 0.1
"""Probability to fit from which a layout may be what somebody ran."""
USUAL_TOKENS, USUAL_STAGE_TOKENS = 12_288, 6_144
"""Tokens of a micro-batch as people run it, and in a pipeline: about the medians over the publishers that state it in
benchmarks/truth/training.csv (57 and 12; their middle halves reach from 7,000 to 20,000 and from 4,000 to 8,000)."""
FILLING = 4
"""Micro-batches of a step for each stage of a pipeline from which its bubble hardly counts: Huang et al. 2019
(arXiv 1811.06965), section 2.3. Whoever builds a pipeline makes micro-batches smaller until there are as many."""
DOCUMENT_TOKENS = {"squad": 190.0}
"""Mean tokens of a document with question and answer: SQuAD has paragraphs of 120 words (Rajpurkar et al. 2016,
arXiv 1606.05250) and questions and answers of about 15, at 1.4 tokens of Llama a word."""
DOCUMENT_SPREAD = 0.4
"""Standard deviation of their lengths over the mean (assumed)."""
LORA_RANK, LORA_TARGETS = 16, "attention"
"""Adapters of a row that does not state them."""
DTYPES: dict[str, str | None] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
ADAPTER_DTYPES: dict[str, Literal["fp32", "bf16"]] = {"fp32": "fp32", "bf16": "bf16"}
"""What is trained of a row with adapters, in the types that they may have."""
PEFT_STACKS, UPCAST_YEAR = ("hf-trainer", "deepspeed", "axolotl"), 2025
"""Software whose adapters are PEFT's, and the first whole year of its 0.12, which has them in fp32 over a base in 16
bits by default (get_peft_model, autocast_adapter_dtype)."""
SHAPE = ("num_layers", "hidden", "num_heads", "num_kv_heads", "inter", "vocab", "seq_len", "head_dim")


@lru_cache(maxsize=512)
def _dense_model(name: str, shape: tuple[int, ...], *, gated: bool, tied: bool = False, dropout: float = 0.1) -> Model:
    """A dense model of a shape in the order of `SHAPE`: Llama-like when gated, else GPT-like.

    Without a gate, and with heads that GPT cannot have (grouped, or of another dimension): Nemotron-like.
    `dropout`: probability of a GPT, whose configuration has 0.1 unless it is told otherwise.
    """
    layers, width, heads, kv_heads, inner, vocab, longest, head_dim = shape
    if gated:
        config: dict[str, object] = {
            "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab,
            "max_position_embeddings": longest, "tie_word_embeddings": tied, "head_dim": head_dim,
        }  # fmt: skip
    elif kv_heads < heads or head_dim * heads != width:
        config = {
            "model_type": "nemotron", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab, "head_dim": head_dim,
            "max_position_embeddings": longest, "tie_word_embeddings": tied,
        }  # fmt: skip
    else:
        config = {
            "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": inner,
            "vocab_size": vocab, "n_positions": longest,
            **dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), dropout),
        }  # fmt: skip
    return model_from_config(config, name=name)


HEAD_DIMS = (128, 64, 256, 96, 80, 192)
"""Dimensions of a head that dense models have, commonest first."""
SAME_SIZE = 0.01
"""Relative difference of parameters within which a shape is that of a row."""


def row_model(row: Row, facts: Facts) -> Model:
    """The model of a row: by its configuration, its printed shape when it is dense, its name, else its printed size.

    Raises: SpecError: a cell of the shape is not a number, or as `model_by_size`.
    """
    total, active = number(row, "params"), number(row, "active_params")
    mixture = total is not None and active is not None and active < DENSE * total
    shape = _printed_shape(row, facts)
    if mixture or not all(shape) or row.get("config"):
        model = model_by_size(row, facts)
        return model if model.source == TYPICAL else _first_layers(model, whole(row, "num_layers", 0))
    gated, name, dropout = flag(row, "gated", default=True), row.get("model", ""), _gpt_dropout(row)
    model = _dense_model(name, shape, gated=gated, dropout=dropout)
    if total is None or abs(parameters(model) / total - 1) <= SAME_SIZE:
        return model
    dims = shape[-1:] if row.get("head_dim") else (shape[-1], *HEAD_DIMS)
    others = (
        _dense_model(name, (*shape[:-1], dim), gated=gated, tied=tied, dropout=dropout)
        for dim in dims
        for tied in (True, False)
    )
    return next((other for other in others if abs(parameters(other) / total - 1) <= SAME_SIZE), model)


def _gpt_dropout(row: Row) -> float:
    """Dropout of a GPT whose shape a row prints: none in pre-training, but for software whose default it is.

    Source: nanoGPT, train.py (0 for pre-training); llm-foundry, models/mpt/configuration_mpt.py (resid_pdrop,
    attn_config.attn_pdrop 0); MaxText, configs/base.yml (dropout_rate 0); Megatron-LM, arguments.py (--hidden-dropout
    and --attention-dropout 0.1); transformers, GPT2Config (0.1).
    """
    pretrains = row.get("task") in {"pretrain", "", None}
    return 0.0 if pretrains and not row.get("software", "").startswith(WITH_DROPOUT) else 0.1


def _printed_shape(row: Row, facts: Facts) -> tuple[int, ...]:
    """The shape that a row prints; heads of keys and values and their dimension of the named model if it is of it.

    Else as many as there are query heads, which together are as wide as the model. 0: not known.
    """
    width, layers, heads = (whole(row, column, 0) for column in ("hidden", "num_layers", "num_heads"))
    usual = {"num_kv_heads": heads, "head_dim": width // max(heads, 1)}
    try:
        stack = stated_model(row, facts).stacks[0]
        first = next((i for kind in stack.kinds for i in kind.items if isinstance(i, Attend)), None)
        if first is not None and (stack.width, stack.num_layers, first.heads) == (width, layers, heads):
            usual = {"num_kv_heads": first.kv_heads, "head_dim": first.qk_dim}
    except FlopwiseError:
        pass  # a shape without a name of the catalog
    return tuple(whole(row, column, usual.get(column, 0)) for column in SHAPE)


def _first_layers(model: Model, layers: int) -> Model:
    """The model cut to its first `layers` layers, as people run mixtures on few devices; whole if it has no more."""
    first, *others = model.stacks
    if not 0 < layers < first.num_layers:
        return model
    return replace(model, stacks=(replace(first, order=first.order[:layers]), *others))


def usual_micro_batch(seq_len: int, stages: int, sequences: int | None) -> int:
    """Sequences of a micro-batch where nobody states it: the power of two nearest to the usual tokens.

    `sequences`: those of a replica and step, which whole micro-batches make up, in a pipeline `FILLING` a stage or as
    many as there are; None: not known.

    Source: `USUAL_TOKENS`, `FILLING`. Assumes: it fits the device.
    """
    tokens = USUAL_STAGE_TOKENS if stages > 1 else USUAL_TOKENS
    size: int = 2 ** max(0, round(math.log2(tokens / seq_len)))
    fewest = FILLING * stages if stages > 1 else 1
    while sequences is not None and size > 1 and (sequences % size or sequences < fewest * size):
        size //= 2
    return size


class OffloadFields(TypedDict):
    """Fields of `Layout` for what is kept in host memory."""

    offload_optimizer: bool
    offload_parameters: bool
    offload_activations: bool
    offload_layers: int | None


def offloads(row: Row) -> OffloadFields:
    """The fields of what a row keeps in host memory: optimizer, parameters, activations, of how many layers.

    Raises: SpecError: the number of layers is not a whole number.
    """
    named = row.get("offload", "").split()
    return OffloadFields(
        offload_optimizer="optimizer" in named,
        offload_parameters="parameters" in named,
        offload_activations="activations" in named,
        offload_layers=whole(row, "offload_layers", 0) or None,
    )


def recomputed_modules(row: Row) -> tuple[str, ...]:
    """The modules of Megatron-Core that a row names as computed again."""
    return tuple(row.get("recompute_modules", "").split())


class RecipeFields(TypedDict):
    """Fields of `Recipe` for the optimizer, the types of what stays on the device, and the parts of the loss."""

    optimizer: Optimizer
    weights_dtype: str | None
    grad_dtype: str | None
    states_dtype: str | None
    loss_chunks: int | None


def resident(row: Row, facts: Facts) -> RecipeFields:
    """The optimizer, types and parts of the loss that a row states; AdamW and the stack's where it does not.

    Raises: FlopwiseError: a cell is not one of its values.
    """
    return RecipeFields(
        optimizer=facts.optimizer(row.get("optimizer") or defaults.OPTIMIZER),
        weights_dtype=choice(row, "weights_dtype", DTYPES, None),
        grad_dtype=choice(row, "grad_dtype", DTYPES, None),
        states_dtype=choice(row, "states_dtype", DTYPES, None),
        loss_chunks=whole(row, "loss_chunks", 1) if row.get("loss_chunks") else None,
    )


def row_layout(row: Row) -> Layout:
    """The row's layout; degrees that it leaves out are 1, dp is what is left of its GPUs.

    Raises: SpecError: a cell is not one of its values.
    """
    tp, pp, cp, ep = (whole(row, c, 1) for c in ("tp", "pp", "cp", "ep"))
    dp = max(1, whole(row, "gpus", 1) // (tp * pp * cp))
    software = row.get("software", "")
    quantised = row.get("task") == "qlora" and software.startswith(CHECKPOINTING_QLORA)
    zero = choice(row, "zero", ZERO, 0 if software in {"megatron-2021", ""} else 1)
    if software.startswith(OF_MEGATRON):  # what NVIDIA calls ddp keeps its distributed optimizer: ZeRO 1
        zero = max(zero, 1)
    own, rest = divmod(whole(row, "global_batch", 0), dp)
    usual = usual_micro_batch(whole(row, "seq_len", 2048), pp, None if rest or not own else own)
    return Layout(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=zero if dp * cp > 1 else 0, shard=whole(row, "shard", 0),
        micro_batch=whole(row, "micro_batch", usual),
        interleave=whole(row, "interleave", 1) if pp > 1 else 1,
        recompute=choice(row, "recompute", RECOMPUTE, 2 if software.startswith(CHECKPOINTING) or quantised else 0),
        sequence_parallel=flag(row, "sequence_parallel", default=tp > 1 and "2021" not in software),
        **offloads(row),
    )  # fmt: skip


def row_recipe(row: Row, model: Model, layout: Layout, facts: Facts) -> Recipe:
    """The row's recipe. Raises SpecError: a cell is not one of its values."""
    base = {"lora": "bf16", "qlora": "nf4"}.get(row.get("task", ""))
    lora = None
    if base:
        targets = lora_targets(row.get("lora_targets") or LORA_TARGETS)
        narrow = row_stack(row).startswith(PEFT_STACKS) and whole(row, "year", UPCAST_YEAR) < UPCAST_YEAR
        adapters = choice(row, "weights_dtype", ADAPTER_DTYPES, "bf16" if narrow else Lora().adapter_dtype)
        rank, form = whole(row, "lora_rank", LORA_RANK), facts.weight_format(base)
        lora = Lora(rank=rank, targets=targets, base=form, adapter_dtype=adapters)
    replicas = int(layout.dp) * int(layout.micro_batch)
    seq, stack = whole(row, "seq_len", 2048), facts.stack(row_stack(row))
    if row.get("dispatch"):
        stack = replace(stack, dispatch=choice(row, "dispatch", DISPATCH, stack.dispatch))
    if row.get("recompute") == "plain":
        stack = replace(stack, holds_inputs=False)
    return Recipe(
        seq_len=seq,
        documents=None if row.get("task") in {"pretrain", "", None} else packed_documents(row, seq),
        global_batch=max(whole(row, "global_batch", replicas), replicas),
        precision=choice(row, "precision", PRECISIONS, "bf16"),
        stack=stack,
        attention=choice(row, "attention", ATTENTION, stack.usual_attention(model)),
        lora=lora,
        capacity_factor=number(row, "capacity"),
        selective="alternate" if row.get("recompute") == "alternate" else None,
        modules=recomputed_modules(row),
        **resident(row, facts),
    )


def packed_documents(row: Row, seq: int) -> Documents | None:
    """Documents that are packed into the row's sequences, of a data set or a mean length; attention stays in each.

    Raises: SpecError: neither a data set that is known nor a number of tokens.
    """
    mean = DOCUMENT_TOKENS.get(row.get("packed_data", "")) or number(row, "packed_data")
    return lognormal(min(mean, seq), DOCUMENT_SPREAD, seq, "packed") if mean else None


def row_stack(row: Row) -> str:
    """The row of data/stacks.json: the software of that month, compiled or not."""
    name, compiled = row.get("software") or defaults.STACKS[0], flag(row, "compiled", default=False)
    if name == "megatron-te" and RECIPES.search(row.get("source", "")):
        name = "nemo"
    year = whole(row, "year", 0)
    time = year, whole(row, "month", 0)
    if name in OF_MEGATRON and time >= MIXTURE_KERNELS:
        return f"{name.partition('-')[0]}-2026"
    if name == "fsdp-eager" and whole(row, "year", FLASH_2_YEAR) < FLASH_2_YEAR:
        return "fsdp-2023"
    if name == "hf-trainer" and row.get("zero") in BUCKETED:
        return "deepspeed-zero2"
    if name in OWN_CHOICE and year >= OWN_CHOICE_YEAR and not compiled:
        return OWN_CHOICE[name]
    if compiled and name in {"fsdp-eager", "torchtune-eager"}:
        name = name.replace("eager", "compile")
    return _compiled_stack(row, time) if name == "fsdp-compile" else name


def _compiled_stack(row: Row, time: tuple[int, int]) -> str:
    """The generation of `fsdp-compile` of a year and month."""
    if time >= MIXTURE_KERNELS:
        return "fsdp-compile-2026"
    if flag(row, "async_tp", default=False):
        return "fsdp-compile-async-tp"
    return "fsdp-compile-2025" if time >= COMPILED_LOSS else "fsdp-compile"


def row_job(row: Row, facts: Facts) -> TrainJob:
    """The job of a row, in nodes of eight where links between nodes are stated; a single device needs no link.

    Raises: FlopwiseError: the row names what is not known, or a layout that cannot be.
    """
    gpu, network, layout = facts.resolve(row.get("gpu", "")), number(row, "node_bytes_per_s"), row_layout(row)
    limit_w = number(row, "power_limit_w")
    chip = gpu.accelerator if limit_w is None else with_power_limit(gpu.accelerator, limit_w)[0]
    model = row_model(row, facts)
    recipe = recipe_on(row_recipe(row, model, layout, facts), chip)[0]
    if (fixed := model.stacks[0].tokens_per_sample) is not None:
        if (stated := whole(row, "seq_len", fixed)) != fixed:
            raise SpecError(f"{model.name} encodes every sample as {fixed:,} tokens, but seq_len is {stated:,}")
        recipe = replace(recipe, seq_len=fixed)
    job = TrainJob(
        model=model,
        recipe=recipe,
        layout=layout,
        cluster=cluster(
            chip,
            gpus_per_node=1 if layout.num_gpus == 1 else None,
            ambiguous=gpu.note,
            network_bytes_per_s_per_gpu=network and network / NODE,
        ),
    )
    return _as_it_fits(row, job)


def _as_it_fits(row: Row, job: TrainJob) -> TrainJob:
    """The job with the least recompute, and the largest of usual micro-batches, that fit, where the row states neither.

    What was measured was possible. Where nothing fits, the first of `_leaner` that does; where none does, memory is not
    what decides: the job as it is.
    """
    fitting = (_that_fits(row, other) for other in (job, *_leaner(row, job)))
    return next((found for found in fitting if found is not None), job)


def _leaner(row: Row, job: TrainJob) -> list[TrainJob]:
    """The job with settings that people take where memory lacks and that the row leaves open, each with those before.

    Source: NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md, whose column FSDP is 0 or 1; Megatron-LM,
    --grad-reduce-in-bf16 and --use-precision-aware-optimizer; for stacks with fp32 weights, a model in bf16 throughout.
    """
    megatron, recipe = job.recipe.stack.name.startswith(OF_MEGATRON), job.recipe
    if recipe.lora is not None or recipe.precision == "fp32":
        return []
    if not megatron:
        stated = any(row.get(f"{part}_dtype") for part in ("weights", "grad", "states"))
        if stated or recipe.stack.weights_dtype != "fp32":
            return []
        return [replace(job, recipe=replace(recipe, weights_dtype="bf16", grad_dtype="bf16", states_dtype="bf16"))]
    others = [job]
    if not row.get("zero") and int(job.layout.dp) > 1 and int(job.layout.pp) == 1:
        others.append(replace(job, layout=replace(job.layout, zero=3)))
    if not row.get("grad_dtype"):
        others.append(replace(others[-1], recipe=replace(others[-1].recipe, grad_dtype="bf16")))
    if not row.get("states_dtype"):
        others.append(replace(others[-1], recipe=replace(others[-1].recipe, states_dtype="bf16")))
    return others[1:]


def _that_fits(row: Row, job: TrainJob) -> TrainJob | None:
    """The job with the least recompute and the largest micro-batch that fit, as far as the row leaves them; or None."""
    usual, chip, kept = int(job.layout.micro_batch), job.cluster.accelerator, bool(row.get("recompute"))
    ways = [(int(job.layout.recompute), 1, job.recipe.modules)] if kept else _recomputes(job)
    sizes = [usual] if row.get("micro_batch") else [usual >> n for n in range(usual.bit_length())]
    band = memory_band(job.recipe, chip.calibration, chip)
    recipes = {modules: replace(job.recipe, modules=modules) for _, _, modules in ways}
    tables = {modules: memory_table(job.model, recipe) for modules, recipe in recipes.items()}
    for size in sizes:
        for mode, every, modules in ways:
            tried, recipe = (
                replace(job.layout, micro_batch=size, recompute=mode, recompute_every=every),
                recipes[modules],
            )
            needs = step_memory(job.model, recipe, tried, table=tables[modules], device_kind=chip.kind)
            floor = float(needs.floor_bytes)
            if band.probability_at_most(float(needs.total_bytes), chip.hbm_bytes, floor=floor) >= RUNS_WITH:
                return replace(job, layout=tried, recipe=recipe)
    return None


def _recomputes(job: TrainJob) -> list[tuple[int, int, tuple[str, ...]]]:
    """Ways to recompute, from least to most: the mode, of every how many blocks, and modules."""
    plain: list[tuple[int, int, tuple[str, ...]]] = [
        (mode, every, ()) for mode, every in MODES if mode >= int(job.layout.recompute)
    ]
    if not job.recipe.stack.name.startswith(OF_MEGATRON) or not job.model.has_experts:
        return plain
    latent = any(i.latent_dim for stack in job.model.stacks for i in stack.items if isinstance(i, Attend))
    added = [modules for modules in MODULES if latent or "mla_up_proj" not in modules]
    sets = [tuple(chain(*added[: n + 1])) for n in range(len(added))]
    return [plain[0], *((1, 1, modules) for modules in sets), *(way for way in plain[1:] if way[0] > 1)]


def absent_inputs(row: Row, job: TrainJob) -> set[str]:
    """The inputs that a row leaves out, as `OTHERS` names them; those that its software has one of are none.

    Source: NVIDIA's performance pages: all their runs have the distributed optimizer.
    """
    columns = {"micro-batch": "micro_batch", "recompute": "recompute", "interleave": "interleave", "sharding": "zero"}
    absent = {name for name, column in columns.items() if not row.get(column)}
    if job.recipe.stack.name.startswith(("megatron", "nemo")):
        absent -= {"sharding"}
    if not row.get("lora_rank") and not row.get("lora_targets"):
        absent |= {"adapters"}
    return absent


def predict_row(row: Row, facts: Facts) -> Prediction:
    """Tokens per second and GPU of one row, with an interval that covers its unstated inputs."""

    def figure() -> tuple[float, ErrorBand]:
        if number(row, "gpus") is None:
            raise SpecError("the number of GPUs (gpus) is missing")
        job = row_job(row, facts)
        result = estimate(job)
        others = other_jobs(job, absent_inputs(row, job))
        if alike := models_by_size(row, job.model):
            others["architecture"] = [replace(job, model=model) for model in alike]
        result = with_unstated_inputs(result, unstated_inputs(result, others))
        return result.tokens_per_s_per_gpu, result.band

    return prediction_of(row, UNIT, "tokens_per_s_per_gpu", figure)
