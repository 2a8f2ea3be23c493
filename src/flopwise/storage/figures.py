"""Where the figures of a storage answer come from, as one tree."""

from __future__ import annotations

from flopwise.origin import COUNTED, KERNEL, chip_fact, estimate_of, interval
from flopwise.provenance import Figure, assumption, derived, fact, given
from flopwise.storage.bandwidth import StorageAnswer


def storage_figure(answer: StorageAnswer) -> Figure:
    """The tree of an answer: demand per device, node and cluster, caches, storage, checkpoints."""
    work, chip = answer.workload, answer.cluster.accelerator
    flops = fact("FLOP of a sample", work.flops_per_sample, "FLOP", source=work.source)
    size = fact(
        "bytes of a sample", answer.read_bytes, "B", source=work.source, note=f"records {answer.request.records}"
    )
    per_flop = derived("bytes per FLOP", answer.bytes_per_flop, "B/FLOP", f"{size.name} / {flops.name}", size, flops)
    rate = _rate(answer, flops)
    each = derived(
        "read bandwidth per device",
        answer.read_bytes_per_s_per_gpu,
        "B/s",
        f"{per_flop.name} x {rate.name}",
        per_flop,
        rate,
        source="Ibrahim et al., PMBS 2021: the MiB/FLOP method",
    )
    here, all_of_them = given("devices of a node", answer.gpus_per_node), given("devices", answer.num_gpus)
    node = derived(
        "read bandwidth per node", answer.read_bytes_per_s_per_node, "B/s", f"{each.name} x {here.name}", each, here
    )
    total = derived(
        "read bandwidth of all",
        answer.read_bytes_per_s_total,
        "B/s",
        f"{each.name} x {all_of_them.name}",
        each,
        all_of_them,
    )
    figures = [each, node, total]
    if answer.band is not None and answer.low is not None and answer.high is not None:
        figures += interval(each.name, each, answer.band, answer.low, answer.high)
    request = answer.request
    if request.cache_bytes is not None:
        hits = derived(
            "share of reads that caches serve",
            answer.hit_frac,
            "frac",
            f"{COUNTED}: records met again before they are evicted",
            given("cache of a node", request.cache_bytes, "B"),
            given("data set", request.dataset_bytes, "B"),
            given("shuffle", request.shuffle),
        )
        later = answer.later_read_bytes_per_s_per_node
        figures.append(
            derived(
                "read bandwidth per node, later epochs", later, "B/s", f"{node.name} x (1 - {hits.name})", node, hits
            )
        )
    checkpoint = answer.checkpoints
    if checkpoint is not None:
        figures.append(derived("checkpoint", checkpoint.nbytes, "B", f"{COUNTED}: {checkpoint.origin}"))
    assert chip is not None
    return estimate_of(f"storage for {work.name} on {answer.num_gpus:,} x {chip.name}", figures)


def _rate(answer: StorageAnswer, flops: Figure) -> Figure:
    """The achieved FLOP/s of a device."""
    rate, chip = answer.rate, answer.cluster.accelerator
    if rate.origin == "given" and answer.efficiency_frac is None:
        return given("achieved FLOP/s", answer.achieved_flops_per_s, "FLOP/s")
    peak = chip_fact(chip, f"peak {rate.precision}", "FLOP/s", rate.peak_flops_per_s)
    if rate.origin in ("given", "published share"):
        share = answer.achieved_flops_per_s / rate.peak_flops_per_s
        reached = (
            given("achieved share", share, "frac")
            if rate.origin == "given"
            else assumption("achieved share", share, "frac", "what published runs reached; no layers are known")
        )
        return derived(
            "achieved FLOP/s", answer.achieved_flops_per_s, "FLOP/s", f"{peak.name} x {reached.name}", peak, reached
        )
    step = derived(
        "samples per second and device",
        rate.samples_per_s,
        "1/s",
        KERNEL if rate.origin == "layers" else f"{KERNEL}: see `flopwise train --explain`",
        *(derived(name.replace("_", " "), seconds, "s", KERNEL) for name, seconds in rate.parts if seconds > 0),
        *((given("samples of a step", rate.batch),) if rate.batch is not None else ()),
        peak,
    )
    return derived("achieved FLOP/s", answer.achieved_flops_per_s, "FLOP/s", f"{step.name} x {flops.name}", step, flops)
