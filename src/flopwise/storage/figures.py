"""Where the figures of a storage answer come from, as one tree."""

from __future__ import annotations

from flopwise.origin import COUNTED, KERNEL, chip_fact, estimate_of, interval
from flopwise.provenance import Figure, assumption, fact, setting, term
from flopwise.storage.bandwidth import StorageAnswer


def storage_figure(answer: StorageAnswer) -> Figure:
    """The tree of an answer: demand per device, node and cluster, caches, storage, checkpoints."""
    work, request = answer.workload, answer.request
    flops = fact("FLOP of a sample", work.flops_per_sample, "FLOP", source=work.source)
    records = f"records {request.records}"
    size = fact("bytes of a sample", answer.read_bytes, "B", source=work.source, note=records)
    per_flop = term("bytes per FLOP", answer.bytes_per_flop, "B/FLOP", f"{size.name} / {flops.name}", size, flops)
    method = "Ibrahim et al., PMBS 2021: the MiB/FLOP method"
    each = _product(
        "read bandwidth per device", answer.read_bytes_per_s_per_gpu, "B/s", per_flop, _rate(answer, flops), method
    )
    devices_of_node, devices = setting("devices of a node", answer.gpus_per_node), setting("devices", answer.num_gpus)
    node = _product("read bandwidth per node", answer.read_bytes_per_s_per_node, "B/s", each, devices_of_node)
    figures = [each, node, _product("read bandwidth of all", answer.read_bytes_per_s_total, "B/s", each, devices)]
    if answer.band is not None and answer.low is not None and answer.high is not None:
        figures += interval(each.name, each, answer.band, answer.low, answer.high)
    if request.cache_bytes is not None:
        hits = term(
            "share of reads that caches serve", answer.hit_frac, "frac",
            f"{COUNTED}: records met again before they are evicted",
            setting("cache of a node", request.cache_bytes, "B"),
            setting("data set", request.dataset_bytes, "B"), setting("shuffle", request.shuffle),
        )  # fmt: skip
        later, formula = answer.later_read_bytes_per_s_per_node, f"{node.name} x (1 - {hits.name})"
        figures.append(term("read bandwidth per node, later epochs", later, "B/s", formula, node, hits))
    if answer.checkpoints is not None:
        origin = f"{COUNTED}: {answer.checkpoints.origin}"
        figures.append(term("checkpoint", answer.checkpoints.nbytes, "B", origin))
    chip = answer.cluster.accelerator
    return estimate_of(f"storage for {work.name} on {answer.num_gpus:,} x {chip.name}", figures)


def _product(name: str, value: float, unit: str, one: Figure, other: Figure, source: str = "") -> Figure:
    return term(name, value, unit, f"{one.name} x {other.name}", one, other, source=source)


def _rate(answer: StorageAnswer, flops: Figure) -> Figure:
    """The achieved FLOP/s of a device."""
    rate, name, value, unit = answer.rate, "achieved FLOP/s", answer.achieved_flops_per_s, "FLOP/s"
    if rate.origin == "given" and answer.efficiency_frac is None:
        return setting(name, value, unit)
    peak = chip_fact(answer.cluster.accelerator, f"peak {rate.precision}", unit, rate.peak_flops_per_s)
    share = value / rate.peak_flops_per_s
    if rate.origin == "given":
        return _product(name, value, unit, peak, setting("achieved share", share, "frac"))
    if rate.origin == "published share":
        reason = "what published runs reached; no layers are known"
        return _product(name, value, unit, peak, assumption("achieved share", share, "frac", reason))
    step = term(
        "samples per second and device", rate.samples_per_s, "1/s",
        KERNEL if rate.origin == "layers" else f"{KERNEL}: see `flopwise train --explain`",
        *(term(part.replace("_", " "), seconds, "s", KERNEL) for part, seconds in rate.parts if seconds > 0),
        *((setting("samples of a step", rate.batch),) if rate.batch is not None else ()),
        peak,
    )  # fmt: skip
    return _product(name, value, unit, step, flops)
