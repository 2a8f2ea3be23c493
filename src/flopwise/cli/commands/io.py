"""`flopwise io`: which storage bandwidth training needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.options import add, flags
from flopwise.cli.render import Screen, bars, heading, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import choice
from flopwise.storage.spec import SampleSpec, StorageRequest
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.storage.bandwidth import StorageAnswer


@options.command(
    "io",
    "flopwise io cosmoflow --gpu v100",
    "flopwise io resnet50 --gpu a100 --gpus 64 --records compressed --dataset 150GB --cache 64GB",
    "flopwise io Llama-3.1-8B --gpu h100 --gpus 64 --seq 8192 --checkpoint-interval 30min --restore-within 5min --json",
    "flopwise io --flops-per-sample 4.2T --sample-bytes 56MB --gpu v100 --achieved 14TFLOP/s --storage nfs",
    most_used="gpu gpus batch seq sample_bytes records dataset_bytes storage storage_bytes_per_s cache_bytes",
)
@options.argument("model", required=False)
@flags(MachineSpec, "gpu", section="")
@flags(SharedSpec, "gpus")
@flags(SampleSpec)
@flags(StorageRequest)
@flags(MachineSpec, without="gpu")
@flags(SourceSpec)
@add("--units", choice("si", "binary"), "GB/s or GiB/s in the text.", field="base", default="si")
@options.explain_flag
def command(*, model: str | None, base: str, explain: bool, **given: Any) -> None:
    """Storage bandwidth per accelerator, node and cluster, and which storage keeps up.

    MODEL is a workload (cosmoflow, deepcam, resnet50, unet3d, tiramisu, bert) or any model; or give --flops-per-sample
    and --sample-bytes. The bandwidth is bytes per FLOP times the achieved FLOP/s, which are estimated unless you give
    them.
    """
    from flopwise.api.io import io
    from flopwise.storage.bandwidth import StorageAnswer

    answer = io(model, **options.values(given))

    options.answer(
        answer, lambda result, paper: lines(result, paper, base), figure=StorageAnswer.figure if explain else None,
        further={} if explain else {"Where the figures come from": f"{options.command_line('io')} --explain"},
    )  # fmt: skip


ORIGINS = {
    "layers": "estimated from the layers",
    "training estimate": "the training estimate",
    "published share": "the share of the peak of published runs",
    "given": "given",
}


LEAST_DRAWN = 0.01
"""Share of the slowest storage from which the need is seen beside it in a chart."""


def rate_text(value: float, base: str) -> str:
    """Bytes/s in decimal or binary units."""
    return f"{units.format_bytes(value)}/s" if base == "binary" else units.format_rate(value)


def size_text(value: float, base: str) -> str:
    """Bytes in decimal or binary units."""
    return units.format_bytes(value) if base == "binary" else units.format_rate(value, "B")


def lines(answer: StorageAnswer, paper: Screen, base: str = "si") -> Iterator[str]:
    """The answer as people read it."""

    def rate(value: float) -> str:
        return rate_text(value, base)

    yield heading(
        f"Storage for {answer.workload.name} on {answer.num_gpus:,} x {answer.cluster.accelerator.name}", paper
    )
    yield pairs(answer.settings, paper)
    yield pairs(_demand_rows(answer, base), paper)
    if answer.deliveries:
        needed = answer.read_bytes_per_s_per_node
        yield heading(f"Read by a node: {rate(needed)} needed", paper)
        if needed > LEAST_DRAWN * min(d.read_bytes_per_s for d in answer.deliveries):
            shown = [("NEEDED", needed, rate(needed))]
            shown += [(d.name, d.read_bytes_per_s, rate(d.read_bytes_per_s)) for d in answer.deliveries]
            yield bars(shown, paper)
        yield _deliveries(answer, rate, paper)
    yield pairs(_checkpoint_rows(answer, base), paper)
    yield parts.assumption_list(answer.assumptions)


def _demand_rows(answer: StorageAnswer, base: str) -> list[tuple[str, Any]]:
    work, speed = answer.workload, answer.rate
    share = answer.efficiency_frac
    of_peak = "" if share is None else f", {units.format_percent(share)} of the {speed.precision} peak"
    each = rate_text(answer.read_bytes_per_s_per_gpu, base)
    if answer.low is not None and answer.high is not None:
        each += f" {units.format_interval(answer.low, answer.high, partial(rate_text, base=base))}"
    per_tera, per_peta = size_text(answer.bytes_per_flop * 1e12, base), rate_text(answer.bytes_per_flop * 1e15, base)
    rows: list[tuple[str, Any]] = [
        ("a sample", f"{units.format_flops(work.flops_per_sample)}, {size_text(answer.read_bytes, base)} read"),
        ("bytes per FLOP", f"{per_tera} per TFLOP, or {per_peta} per PFLOP/s"),
        ("achieved", f"{units.format_rate(answer.achieved_flops_per_s, 'FLOP/s')}{of_peak} ({ORIGINS[speed.origin]})"),
        ("samples", f"{format_number(speed.samples_per_s, 4)}/s per accelerator"),
        ("per accelerator", each),
        (f"per node of {answer.gpus_per_node}", rate_text(answer.read_bytes_per_s_per_node, base)),
        ("total", rate_text(answer.read_bytes_per_s_total, base)),
    ]
    if answer.epoch_s is not None:
        rows.append(("an epoch", units.format_seconds(answer.epoch_s)))
    if answer.request.cache_bytes is not None:
        later = rate_text(answer.later_read_bytes_per_s_per_node, base)
        rows.append(
            ("later epochs", f"{later} per node: caches serve {units.format_percent(answer.hit_frac)} of the reads")
        )
    return rows


def _deliveries(answer: StorageAnswer, rate: Callable[[float], str], paper: Screen) -> str:
    """The table of training on each kind of storage."""
    cached = answer.request.cache_bytes is not None
    needed = answer.read_bytes_per_s_per_node
    headers = [
        "storage", ">delivers", ">times the need", *(["first epochs", "later epochs"] if cached else ["training"]),
        ">write a checkpoint", ">read it", ">load weights", "confidence",
    ]  # fmt: skip
    rows = []
    for d in answer.deliveries:
        verdicts = [_verdict(d.first_epoch_frac), _verdict(d.later_epochs_frac)][: 2 if cached else 1]
        times = (d.checkpoint_write_s, d.restore_s, d.load_s)
        rows.append((
            d.name, rate(d.read_bytes_per_s), _times(d.read_bytes_per_s / needed), *verdicts,
            *(None if t is None else units.format_seconds(t) for t in times), d.confidence,
        ))  # fmt: skip
    return table(headers, rows, paper)


def _times(ratio: float) -> str:
    """A ratio for a column: `231,000x`, `48.1x`, `0.43x`, `0.009x`."""
    digits = 0 if ratio >= 99.95 else 1 if ratio >= 9.995 else 2 if ratio >= 0.095 else 3
    return f"{ratio:,.{digits}f}x"


def _verdict(share: float) -> str:
    """`keeps up`, or the factor by which storage slows training down."""
    return "keeps up" if share >= 1 else f"I/O-bound: {_times(1 / share)} slower"


def _checkpoint_rows(answer: StorageAnswer, base: str) -> list[tuple[str, Any]]:
    """Checkpoints and loading, as far as asked."""
    rows: list[tuple[str, Any]] = []
    saved = answer.checkpoints
    if saved is not None:
        rows.append(("a checkpoint", f"{size_text(saved.nbytes, base)}: {saved.origin}"))
        if saved.write_bytes_per_s is not None and saved.interval_s is not None:
            every, share = units.format_seconds(saved.interval_s), units.format_percent(saved.stall_frac)
            each = rate_text(saved.write_bytes_per_s / answer.num_nodes, base)
            written = rate_text(saved.write_bytes_per_s, base)
            how = f"{written} in total, {each} per node, for one every {every} that takes {share} of the time"
            assumed = "; the interval is the one that loses least (--checkpoint-interval)"
            rows.append(("to write", how + assumed * saved.interval_assumed))
        if saved.restore_bytes_per_s is not None and saved.restore_within_s is not None:
            within = units.format_seconds(saved.restore_within_s)
            each = rate_text(saved.restore_bytes_per_s / answer.num_nodes, base)
            total = rate_text(saved.restore_bytes_per_s, base)
            rows.append(("to restore", f"{total} in total, {each} per node: within {within}"))
    within_s = answer.request.load_within_s
    if answer.weights_bytes is not None and within_s is not None:
        size, within = size_text(answer.weights_bytes, base), units.format_seconds(within_s)
        wanted = answer.weights_bytes / within_s
        rows.append(
            ("to load weights", f"{rate_text(wanted, base)} per node: {size} of 16-bit weights within {within}")
        )
    return rows
