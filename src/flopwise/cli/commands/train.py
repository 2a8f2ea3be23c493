"""`flopwise train`: how fast does it train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, questions
from flopwise.cli.commands import memory as memory_command
from flopwise.cli.render import Screen, heading, pairs
from flopwise.cli.views import run as run_view
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.api.train import TrainAnswer

NOT_COMPARED = ("tokens", "samples", "epochs", "storage", "storage_bandwidth", "token_bytes")
"""Options that mean nothing to --compare."""


@options.command(
    "train",
    "flopwise train Llama-3.1-8B --gpu h100 --gpus 64 --seq 8192 --tokens 1T",
    "flopwise train Llama-3.1-8B --gpu a100-80gb --gpus 16 --tp 2 --zero 1 --global-batch 256 --provider aws --json",
    "flopwise train Llama-3.1-8B --gpu l40s --qlora --seq 2048 --tokens 50M --explain",
    "flopwise train Llama-3.1-8B --gpu h100 --gpus 256 --seq 8192 --global-batch 512 --compare",
)
@options.model_argument
@click.option("--gpu", type=options.Name("gpu"), help="Accelerator, in any common spelling (or --instance).")
@options.gpus_option
@options.seq_option
@click.option("--global-batch", type=options.BATCH, help="Sequences of one optimizer step.")
@click.option("--global-batch-tokens", type=options.COUNT, help="The same in tokens: 4M.")
@click.option("--micro-batch", type=options.BATCH, help="Sequences of one pass of a replica.")
@click.option("--tokens", type=options.COUNT, help="Tokens of the whole run: 2T.")
@click.option("--storage", type=options.Name("kind"), help="What the data are read from: nfs, lustre, nvme, s3 ...")
@click.option("--storage-bandwidth", type=options.BANDWIDTH, help="What storage delivers to a node, instead: 3GB/s.")
@click.option("--token-bytes", type=options.BYTES, help="Bytes of a stored token (default: 2 or 4).")
@click.option(
    "--power-limit", type=options.WATTS, help="Of one accelerator, below its own: 500W. Products run at lower clocks."
)
@click.option("--compare", is_flag=True, help="Instead: how data, ZeRO, FSDP, tensor, pipeline ... layouts scale.")
@click.option("--weak", is_flag=True, help="With --compare: the global batch grows with the accelerators.")
@questions.run_options
@questions.layout_options
@questions.recipe_options
@questions.price_options
@questions.model_options
@options.explain_option
def command(**given: Any) -> None:
    """Step time, throughput, utilisation, memory, and the run's cost.

    Without --dp, --tp, --pp, --cp, --ep, --zero, --fsdp, --shard the fastest layout that fits is taken. A layout that
    does not fit is estimated all the same; the exit code is then 1.
    """
    explained = given.pop("explain")
    if given.pop("compare"):
        compared(given, explained=explained)
        return
    if given.pop("weak"):
        raise SpecError("--weak says how --compare scales the batch; give that, too")
    answer = question(**given)
    questions.told(answer, document, lines, explained=explained)
    if not answer.fits:
        click.get_current_context().exit(1)


def compared(given: dict[str, Any], *, explained: bool) -> None:
    """Answer `--compare`.

    Raises:
        SpecError: an option of a single layout or of a run is given.
    """
    from flopwise.api.compare import compare
    from flopwise.cli.views import compare as view

    run = [*questions.surroundings(given).said, *(n for n in NOT_COMPARED if given[n] is not None)]
    if run or explained:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in (*run, *(["explain"] if explained else [])))
        raise SpecError(f"--compare is of steps in all layouts; leave out {named}")
    answer = compare(
        given["model"],
        gpus=given["gpus"],
        seq=given["seq"],
        global_batch=given["global_batch"],
        global_batch_tokens=given["global_batch_tokens"],
        weak=given["weak"],
        machines=questions.machines(given),
        how=questions.method(given),
        **questions.model_arguments(given),
    )
    options.answer(lambda: view.document(answer), lambda paper: view.blocks(answer, paper))


def question(**given: Any) -> TrainAnswer:
    """The answer to the parameters of this command."""
    from flopwise.api.train import train

    return train(
        given["model"],
        gpus=given["gpus"],
        seq=given["seq"],
        global_batch=given["global_batch"],
        global_batch_tokens=given["global_batch_tokens"],
        tokens=given["tokens"],
        samples=given["samples"],
        epochs=given["epochs"],
        around=questions.surroundings(given),
        storage=given["storage"],
        storage_bytes_per_s=given["storage_bandwidth"],
        token_bytes=given["token_bytes"],
        machines=questions.machines(given),
        how=questions.method(given),
        **questions.model_arguments(given),
    )


def document(answer: TrainAnswer, *, explained: bool = False) -> dict[str, Any]:
    """The answer as the JSON that scripts rely on."""
    from flopwise.training.schedules import NAMES

    found = answer.estimate
    layout: dict[str, Any] = {name: int(getattr(found.job.layout, name)) for name in
              ("dp", "tp", "pp", "cp", "ep", "zero", "shard", "micro_batch", "interleave", "recompute")}  # fmt: skip
    layout["recompute_every"] = int(found.job.layout.recompute_every)
    layout["recompute_first"] = found.job.layout.recompute_first
    layout["stage_layers"] = list(found.job.layout.stage_layers)
    layout["schedule"] = NAMES[int(found.job.layout.schedule)]
    plain: dict[str, Any] = {
        "model": found.job.model.name,
        "gpu": found.job.cluster.accelerator.name,
        "num_gpus": found.num_gpus,
        "step_s": found.step_s,
        "tokens_per_s": found.tokens_per_s,
        "useful_tokens_per_s": found.useful_tokens_per_s,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "low": found.low,
        "high": found.high,
        "lower_bound_s": found.lower_bound_s,
        "upper_bound_s": found.upper_bound_s,
        "mfu_frac": found.mfu_frac,
        "mfu_full_attention_frac": found.mfu_full_attention_frac,
        "hfu_frac": found.hfu_frac,
        "bound": found.bound,
        "dropped_frac": found.dropped_frac,
        "breakdown": [{"name": name, "seconds": seconds} for name, seconds in found.breakdown],
        "memory": memory_command.document(answer.memory),
        "fits": answer.fits,
        "run": run_view.document(answer),
        "layout": layout,
        "laid_out": answer.laid_out,
        "seq_len": int(found.job.recipe.seq_len),
        "global_batch": int(found.job.recipe.global_batch),
        "usd_per_gpu_hour": found.job.cluster.usd_per_gpu_hour,
        "price_source": found.job.cluster.price_source or None,
        "interval": {"class": found.band.name, "rows": found.band.rows, "source": found.band.source},
        "quick": memory_command.quick(answer.quick),
        "settings": dict(answer.settings),
        "assumptions": list(answer.assumptions),
    }
    if explained:
        plain["provenance"] = questions.provenance(answer)
    return plain


def lines(answer: TrainAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    found = answer.estimate
    yield heading(
        f"Training {found.job.model.name} on {found.num_gpus:,} x {found.job.cluster.accelerator.name}", paper
    )
    if not answer.fits:
        yield paper.paint(
            "WARNING: this layout does not fit the memory; the figures are of a run that would fail.", "red"
        )
    yield pairs(answer.settings, paper)
    yield pairs(_speed(answer), paper)
    yield heading(f"One step: {units.format_seconds(found.step_s)}, bound by {found.bound}", paper)
    yield questions.shares(found.breakdown, units.format_seconds, paper)
    yield heading("Memory per accelerator", paper)
    yield memory_command.items_table(answer.memory, paper)
    yield pairs(memory_command.verdict(answer.memory), paper)
    if answer.memory.remedies:
        yield memory_command.remedies_table(answer.memory, paper)
    if found.run is not None:
        yield from run_view.blocks(answer, paper)
    yield questions.quick_table(answer.quick, paper)
    yield questions.assumption_list(answer.assumptions)


def _speed(answer: TrainAnswer) -> list[tuple[str, Any]]:
    found = answer.estimate
    least, most = units.format_seconds(found.lower_bound_s), units.format_seconds(found.upper_bound_s)
    interval = f"({found.low:,.0f} to {found.high:,.0f} in 8 of 10 cases; {found.band.rows} measured rows)"
    share = found.useful_tokens_per_s / found.tokens_per_s
    useful = (
        ""
        if found.job.recipe.documents is None
        else (f", of them {found.useful_tokens_per_s:,.0f} of documents ({units.format_percent(share)})")
    )
    causal, full = units.format_percent(found.mfu_frac), units.format_percent(found.mfu_full_attention_frac)
    return [
        ("step", f"{units.format_seconds(found.step_s)} (bounds: {least} to {most})"),
        ("throughput", f"{found.tokens_per_s:,.0f} tokens/s{useful}"),
        ("per accelerator", f"{found.tokens_per_s_per_gpu:,.0f} tokens/s {interval}"),
        ("MFU", f"{causal} (causal attention counted half); {full} (attention in full)"),
        ("HFU", f"{units.format_percent(found.hfu_frac)} (recomputed operations included)"),
    ]
