"""`flopwise memory`: does it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, questions
from flopwise.cli.render import Screen, bars, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.api.memory import MemoryAnswer

_SERVING_ONLY = ("weights", "kv_dtype", "engine", "memory_fraction", "concurrency", "context")
_TRAINING_ONLY = (
    "batch", "seq", "grad_accum", "cp", "zero", "fsdp", "shard", "recompute", "recompute_every",
    "recompute_first", "interleave", "schedule", "stage_layers", "sequence_parallel", "offload",
    "precision", "optimizer", "stack", "attention", "grad_dtype", "master_weights", "lora", "qlora", "lora_targets",
)  # fmt: skip


@options.command(
    "memory",
    "flopwise memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp --seq 8192",
    "flopwise memory Llama-3.1-8B --task serve --gpu a100-80gb --weights fp8 --concurrency 64 --context 8192",
)
@options.model_argument
@click.option(
    "--task",
    type=options.Choice(["train", "serve"]),
    default="train",
    show_default=True,
    help="What the memory is for.",
)
@click.option("--gpu", type=options.Name("gpu"), help="Accelerator to fit into, in any common spelling.")
@click.option("--batch", type=options.BATCH, default=1, show_default=True, help="Micro-batch: sequences of one pass.")
@options.seq_option
@click.option("--grad-accum", type=options.BATCH, default=1, show_default=True, help="Micro-batches of a step.")
@questions.layout_options
@questions.recipe_options
@questions.serving_options
@click.option("--concurrency", type=options.BATCH, help="Serving: sequences in the cache at once (default 1).")
@click.option("--context", type=options.TOKENS, help="Serving: tokens of each sequence.")
@questions.model_options
@options.explain_option
def command(**given: Any) -> None:
    """Memory per accelerator, item by item, and what would make it fit.

    Of the fullest rank. Training: --batch is the micro-batch. Serving: --concurrency sequences of --context tokens.
    The answer is a size: the exit code is 0 whether it fits or not, and `fits` of --json says which.
    """
    explained = given.pop("explain")
    check(given, click.get_current_context())
    answer = question(**given)
    questions.told(answer, document, lines, explained=explained)


def check(given: dict[str, Any], context: click.Context) -> None:
    """Options of the other task are errors, not silently ignored."""
    wrong = _TRAINING_ONLY if given["task"] == "serve" else _SERVING_ONLY
    for name in wrong:
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            spelling = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{spelling} does not go with --task {given['task']}", context)


def question(**given: Any) -> MemoryAnswer:
    """The answer to the parameters of this command."""
    from flopwise.api.memory import memory

    common = {"task": given["task"], "gpu": given["gpu"], **questions.model_arguments(given)}
    if given["task"] == "serve":
        return memory(given["model"], deployment=questions.deployment(given), **common)
    how = questions.method({**given, "micro_batch": given["batch"]})
    return memory(given["model"], seq=given["seq"], grad_accum=given["grad_accum"], how=how, **common)


def document(answer: MemoryAnswer, *, explained: bool = False) -> dict[str, Any]:
    """The answer as the JSON that scripts rely on."""
    found: dict[str, Any] = {
        "model": answer.model.name,
        "task": answer.task,
        "gpu": None if answer.accelerator is None else answer.accelerator.name,
        "per_gpu_bytes": answer.per_gpu_bytes,
        "low_bytes": answer.low_bytes,
        "high_bytes": answer.high_bytes,
        "items": [{"name": name, "bytes": size} for name, size in answer.items],
        "worst_rank": answer.worst_rank,
        "moments": [{"name": name, "bytes": size} for name, size in answer.moments],
        "host_bytes": answer.host_bytes,
        "capacity_bytes": answer.capacity_bytes,
        "usable_bytes": answer.usable_bytes,
        "margin_bytes": answer.margin_bytes,
        "fits": answer.fits,
        "fits_probability": answer.fits_probability,
        "remedies": [{"change": r.change, "saves_bytes": r.saves_bytes, "fits": r.fits} for r in answer.remedies],
        "interval": {"class": answer.band.name, "rows": answer.band.rows, "source": answer.band.source},
        "kv_capacity_tokens": answer.kv_capacity_tokens,
        "max_concurrency": answer.max_concurrency,
        "max_whole_contexts": answer.max_whole_contexts,
        "quick": quick(answer.quick),
        "settings": dict(answer.settings),
        "assumptions": list(answer.assumptions),
    }
    if explained:
        found["provenance"] = questions.provenance(answer)
    return found


def quick(rules: Any) -> list[dict[str, Any]]:
    """Rules of thumb as JSON."""
    return [
        {
            "name": r.name,
            "formula": r.formula,
            "unit": r.unit,
            "value": r.value,
            "estimate": r.estimate,
            "error": r.error_frac,
        }
        for r in rules
    ]


def lines(answer: MemoryAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    doing = "training" if answer.task == "train" else "serving"
    where = "" if answer.accelerator is None else f" on {answer.accelerator.name}"
    yield heading(f"Memory per accelerator: {doing} {answer.model.name}{where}", paper)
    yield pairs([*answer.settings, ("fullest", answer.worst_rank)], paper)
    yield items_table(answer, paper)
    yield pairs(verdict(answer), paper)
    if answer.remedies:
        yield remedies_table(answer, paper)
    yield questions.quick_table(answer.quick, paper)
    yield questions.assumption_list(answer.assumptions)


def items_table(answer: MemoryAnswer, paper: Screen) -> str:
    """Item by item, with bars."""
    rows = [(name, size, units.format_gib(size)) for name, size in answer.items if size > 0]
    return bars([*rows, ("total", answer.per_gpu_bytes, units.format_gib(answer.per_gpu_bytes))], paper)


def verdict(answer: MemoryAnswer, *, capacity: bool = True) -> list[tuple[str, Any]]:
    """Total with interval, device, margin, and with `capacity` how many sequences fit."""
    low, high = units.format_gib(answer.low_bytes), units.format_gib(answer.high_bytes)
    rows: list[tuple[str, Any]] = [
        ("total", f"{units.format_gib(answer.per_gpu_bytes)} ({low} to {high} in 8 of 10 cases)")
    ]
    if answer.moments:
        (name, _), *others = answer.moments
        backward = next(((n, b) for n, b in others if "backward" in n), None)
        beside = "" if backward is None or "backward" in name else f"; {backward[0]}: {units.format_gib(backward[1])}"
        rows.append(("peak", f"{name}{beside}"))
    if answer.host_bytes:
        rows.append(("in host memory", units.format_gib(answer.host_bytes)))
    if answer.capacity_bytes is not None and answer.margin_bytes is not None:
        fits = "fits" if answer.fits else "does not fit"
        rows += [
            ("device", units.format_gib(answer.capacity_bytes)),
            *_usable(answer),
            ("margin", f"{units.format_gib(answer.margin_bytes)}: it {fits}"),
        ]
    if capacity and answer.max_concurrency is not None:
        cached = f"; cache of {answer.kv_capacity_tokens:,.0f} tokens" if answer.kv_capacity_tokens is not None else ""
        rows.append(("at most", f"{answer.max_concurrency:,.0f} sequences{cached}"))
    return rows


def _usable(answer: MemoryAnswer) -> list[tuple[str, Any]]:
    """What the engine takes of the device, where that is less."""
    if answer.usable_bytes is None or answer.usable_bytes == answer.capacity_bytes:
        return []
    return [("the engine uses", units.format_gib(answer.usable_bytes))]


def remedies_table(answer: MemoryAnswer, paper: Screen) -> str:
    """Single changes, the largest saving first."""
    return table(
        ["change", ">saves", "enough"],
        [(r.change, units.format_gib(r.saves_bytes), r.fits) for r in answer.remedies],
        paper,
    )
