"""`flopwise io`: which storage bandwidth training needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, questions
from flopwise.cli.render import Screen, bars, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.storage.bandwidth import StorageAnswer

_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50}


def _flops(value: object, what: str) -> float:
    """FLOP or FLOP/s: `35T`, `35TFLOP/s`, `247Gi` (base 2)."""
    text = str(value).strip()
    lower = text.lower()
    for ending in ("flop/s", "flops/s", "flops", "flop"):
        if lower.endswith(ending):
            text = text[: -len(ending)].strip()
            break
    scale = _BINARY.get(text[-2:].lower(), 1.0)
    return units.parse_count(text if scale == 1.0 else text[:-2], what) * scale


_ORIGINS = {
    "layers": "estimated from the layers",
    "training estimate": "the training estimate",
    "published share": "the share of the peak of published runs",
    "given": "given",
}
FLOPS = options.Quantity("flop", _flops, high=1e36)


@options.command(
    "io",
    "flopwise io cosmoflow --gpu v100",
    "flopwise io resnet50 --gpu a100 --gpus 64 --records compressed --dataset 150GB --cache 64GB",
    "flopwise io Llama-3.1-8B --gpu h100 --gpus 64 --seq 8192 --checkpoint-interval 30min --restore-within 5min --json",
    "flopwise io --flops-per-sample 4.2T --sample-bytes 56MB --gpu v100 --achieved 14TFLOP/s --storage nfs",
)
@click.argument("model", type=options.Name("model"), required=False)
@click.option("--gpu", type=options.Name("gpu"), help="Accelerator, in any common spelling (or --instance).")
@click.option("--gpus", type=options.DEGREE, help="Number of accelerators (default: one whole node).")
@options.seq_option
@click.option("--batch", type=options.BATCH, help="Samples of one accelerator and step.")
@click.option(
    "--precision",
    type=options.Choice(["tf32", "bf16", "fp16", "fp8", "fp32"]),
    help="Of the matrix products (default: the workload's reference implementation, else bf16).",
)
@click.option("--flops-per-sample", type=FLOPS, help="Forward and backward: 4.2T, 247Gi (base 2).")
@click.option("--sample-bytes", type=options.BYTES, help="Bytes of a sample as fed: 16MiB.")
@click.option(
    "--token-bytes", type=options.BYTES, help="Bytes of a stored token (default: 2, or 4 above 65,536 words)."
)
@click.option(
    "--records",
    type=options.Choice(["raw", "compressed"]),
    default="raw",
    show_default=True,
    help="Samples as fed to the network, or as the benchmark stores them.",
)
@click.option("--record-bytes", type=options.BYTES, help="Bytes of a stored sample, instead of either.")
@click.option(
    "--efficiency", type=options.FRACTION, help="Achieved share of the 16-bit (or --precision) peak: 0.4, 40%."
)
@click.option("--achieved", type=FLOPS, help="FLOP/s that one accelerator achieves: 35TFLOP/s.")
@click.option("--dataset", type=options.BYTES, help="Bytes of the whole data set.")
@click.option("--cache", type=options.BYTES, help="Bytes that a node can keep: page cache or local drives.")
@click.option(
    "--cache-policy",
    type=options.Choice(["lru", "pinned"]),
    default="lru",
    show_default=True,
    help="The page cache evicts what was used longest ago; staged data stay.",
)
@click.option(
    "--shuffle",
    type=options.Choice(["global", "shard", "none"]),
    default="global",
    show_default=True,
    help="Over all nodes, within a node's own part, or none.",
)
@click.option("--storage", type=options.Name("kind"), multiple=True, help="Compare with this kind only; repeatable.")
@click.option("--storage-bandwidth", type=options.BANDWIDTH, help="What storage delivers to a node: 3GB/s.")
@click.option("--devices", type=options.Whole(high=1000), default=1, show_default=True, help="Drives of a node.")
@click.option(
    "--connections",
    type=options.Whole(high=100_000),
    default=1,
    show_default=True,
    help="Of a node to an object store.",
)
@click.option("--checkpoint-interval", type=options.SECONDS, help="Time between checkpoints: 30min.")
@click.option(
    "--checkpoint-stall", type=options.FRACTION, help="Share of the time that writing may take (default: 5%)."
)
@click.option("--restore-within", type=options.SECONDS, help="Time to read a checkpoint back: 5min.")
@click.option("--load-within", type=options.SECONDS, help="Time for a serving node to read all weights: 60s.")
@click.option(
    "--optimizer",
    type=options.Name("optimizer"),
    default="adamw",
    show_default=True,
    help="Whose states a checkpoint holds.",
)
@click.option(
    "--units",
    "base",
    type=options.Choice(["si", "binary"]),
    default="si",
    show_default=True,
    help="GB/s or GiB/s in the text.",
)
@questions.price_options
@questions.model_options
@options.explain_option
def command(**given: Any) -> None:
    """Storage bandwidth per accelerator, node and cluster, and which storage keeps up.

    MODEL is a workload (cosmoflow, deepcam, resnet50, unet3d, tiramisu, bert) or any model; or give
    --flops-per-sample and --sample-bytes. Bytes per FLOP times the achieved FLOP/s, which are estimated unless given.
    """
    explained, base = given.pop("explain"), given.pop("base")
    answer = question(**given)

    def text(paper: Screen) -> Iterator[str]:
        yield from lines(answer, paper, base)
        if explained:
            yield questions.tree(figures(answer), paper)

    options.answer(lambda: document(answer, explained=explained), text)


def question(**given: Any) -> StorageAnswer:
    """The answer to the parameters of this command."""
    from flopwise.api.io import io

    same = (
        "gpus", "seq", "batch", "precision", "flops_per_sample", "sample_bytes", "token_bytes", "efficiency", "records",
        "record_bytes", "shuffle", "storage", "devices", "connections", "optimizer",
    )  # fmt: skip
    named = {
        "restore_within_s": given["restore_within"],
        "load_within_s": given["load_within"],
        "achieved_flops_per_s": given["achieved"],
        "dataset_bytes": given["dataset"],
        "cache_bytes": given["cache"],
        "policy": given["cache_policy"],
        "storage_bytes_per_s": given["storage_bandwidth"],
        "checkpoint_interval_s": given["checkpoint_interval"],
    }
    if given["checkpoint_stall"] is not None:
        named["checkpoint_stall_frac"] = given["checkpoint_stall"]
    return io(
        given["model"],
        machines=questions.machines(given),
        **questions.model_arguments(given),
        **({name: given[name] for name in same} | named),
    )


def figures(answer: StorageAnswer) -> Any:
    """The provenance of the answer."""
    from flopwise.storage.figures import storage_figure

    return (storage_figure(answer),)


def document(answer: StorageAnswer, *, explained: bool = False) -> dict[str, Any]:
    """The answer as the JSON that scripts rely on."""
    work, rate, request, checkpoint = answer.workload, answer.rate, answer.request, answer.checkpoints

    def fields(of: Any, *names: str) -> dict[str, Any]:
        return {name: getattr(of, name) for name in names or of.__dataclass_fields__}

    plain: dict[str, Any] = {
        "workload": work.name,
        "gpu": answer.cluster.accelerator.name,
        **fields(answer, "num_gpus", "num_nodes", "gpus_per_node"),
        "records": request.records,
        **fields(answer, "bytes_per_flop", "achieved_flops_per_s", "efficiency_frac", "read_bytes_per_s_per_gpu"),
        **fields(answer, "read_bytes_per_s_per_node", "read_bytes_per_s_total", "low", "high"),
        **fields(request, "dataset_bytes", "cache_bytes", "shuffle"),
        **fields(answer, "hit_frac", "later_read_bytes_per_s_per_node", "epoch_s", "weights_bytes"),
        "load_within_s": request.load_within_s,
        "cache_policy": request.policy,
        "load_bytes_per_s": _over(answer.weights_bytes, request.load_within_s),
        **fields(work, "flops_per_sample", "sample_bytes", "record_bytes"),
        "read_bytes_per_sample": answer.read_bytes,
        "samples_per_s_per_gpu": rate.samples_per_s,
        **fields(rate, "precision", "batch"),
        "rate_origin": rate.origin,
        "interval": None
        if answer.band is None
        else {"class": answer.band.name, "rows": answer.band.rows, "source": answer.band.source},
        "checkpoint": None if checkpoint is None else fields(checkpoint),
        "storage": [fields(delivery) for delivery in answer.deliveries],
        "settings": dict(_settings(answer)),
        "assumptions": list(answer.assumptions),
    }
    if explained:
        from flopwise.provenance import to_json

        plain["provenance"] = [to_json(figure) for figure in figures(answer)]
    return plain


def _settings(answer: StorageAnswer) -> tuple[tuple[str, str], ...]:
    """What the answer holds for."""
    nodes = f"{answer.num_nodes:,} node{'s' * (answer.num_nodes > 1)} of {answer.cluster.gpus_per_node}"
    return (
        ("accelerators", f"{answer.num_gpus:,} x {answer.cluster.accelerator.name}, {nodes}"),
        ("sample", answer.workload.sample),
        ("source", answer.workload.source),
    )


def _over(nbytes: float | None, seconds: float | None) -> float | None:
    return None if nbytes is None or seconds is None else nbytes / seconds


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
    yield pairs(_settings(answer), paper)
    yield pairs(_demand_rows(answer, base), paper)
    if answer.deliveries:
        yield heading(f"Read by a node: {rate(answer.read_bytes_per_s_per_node)} needed", paper)
        shown = [("NEEDED", answer.read_bytes_per_s_per_node, rate(answer.read_bytes_per_s_per_node))]
        shown += [(d.name, d.read_bytes_per_s, rate(d.read_bytes_per_s)) for d in answer.deliveries]
        yield bars(shown, paper)
        yield _deliveries(answer, rate, paper)
    yield pairs(_checkpoint_rows(answer, base), paper)
    yield questions.assumption_list(answer.assumptions)


def _demand_rows(answer: StorageAnswer, base: str) -> list[tuple[str, Any]]:
    work, speed = answer.workload, answer.rate
    share = answer.efficiency_frac
    of_peak = "" if share is None else f", {units.format_percent(share)} of the {speed.precision} peak"
    each = rate_text(answer.read_bytes_per_s_per_gpu, base)
    if answer.low is not None and answer.high is not None:
        each += f" ({rate_text(answer.low, base)} to {rate_text(answer.high, base)} in 8 of 10 cases)"
    per_peta = rate_text(answer.bytes_per_flop * 1e15, base)
    rows: list[tuple[str, Any]] = [
        ("a sample", f"{units.format_flops(work.flops_per_sample)}, {size_text(answer.read_bytes, base)} read"),
        ("bytes per FLOP", f"{answer.bytes_per_flop:.4g}: {per_peta} for each PFLOP/s"),
        ("achieved", f"{units.format_rate(answer.achieved_flops_per_s, 'FLOP/s')}{of_peak} ({_ORIGINS[speed.origin]})"),
        ("samples", f"{speed.samples_per_s:,.4g}/s per accelerator"),
        ("per accelerator", each),
        (f"per node of {answer.gpus_per_node}", rate_text(answer.read_bytes_per_s_per_node, base)),
        ("in all", rate_text(answer.read_bytes_per_s_total, base)),
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
    """What training comes to on each kind of storage."""
    cached = answer.request.cache_bytes is not None
    needed = answer.read_bytes_per_s_per_node
    headers = [
        "storage", ">delivers", ">of the need", *(["first epochs", "later epochs"] if cached else ["training"]),
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
    """Whether storage sets the pace, and by how much."""
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
            rows.append(("to write", f"{written} in all, {each} per node: each {every}, {share} of the time"))
        if saved.restore_bytes_per_s is not None and saved.restore_within_s is not None:
            within = units.format_seconds(saved.restore_within_s)
            each = rate_text(saved.restore_bytes_per_s / answer.num_nodes, base)
            rows.append(
                ("to restore", f"{rate_text(saved.restore_bytes_per_s, base)} in all, {each} per node: within {within}")
            )
    within_s = answer.request.load_within_s
    if answer.weights_bytes is not None and within_s is not None:
        size, within = size_text(answer.weights_bytes, base), units.format_seconds(within_s)
        wanted = answer.weights_bytes / within_s
        rows.append(
            ("to load for serving", f"{rate_text(wanted, base)} per node: {size} of 16-bit weights within {within}")
        )
    return rows
