"""Where the figures of a storage answer come from, as one tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.origin import COUNTED, KERNEL, chip_fact, estimate_of, interval
from flopwise.provenance import Figure, assumption, derived, fact, given

if TYPE_CHECKING:
    from flopwise.api.io import IoAnswer


def io_figure(found: IoAnswer) -> Figure:
    """The tree of an answer: demand per device, node and cluster, caches, storage, checkpoints."""
    work, chip = found.workload, found.cluster.accelerator
    flops = fact("FLOP of a sample", work.flops_per_sample, "FLOP", source=work.source)
    size = fact("bytes of a sample", found.read_bytes, "B", source=work.source, note=f"records {found.records}")
    per_flop = derived("bytes per FLOP", found.bytes_per_flop, "B/FLOP", f"{size.name} / {flops.name}", size, flops)
    rate = _rate(found, flops)
    each = derived(
        "read bandwidth per device",
        found.read_bytes_per_s_per_gpu,
        "B/s",
        f"{per_flop.name} x {rate.name}",
        per_flop,
        rate,
        source="Ibrahim et al., PMBS 2021: the MiB/FLOP method",
    )
    here, all_of_them = given("devices of a node", found.gpus_per_node), given("devices", found.num_gpus)
    node = derived(
        "read bandwidth per node", found.read_bytes_per_s_per_node, "B/s", f"{each.name} x {here.name}", each, here
    )
    total = derived(
        "read bandwidth of all",
        found.read_bytes_per_s_total,
        "B/s",
        f"{each.name} x {all_of_them.name}",
        each,
        all_of_them,
    )
    figures = [each, node, total]
    if found.band is not None and found.low is not None and found.high is not None:
        figures += interval(each.name, each, found.band, found.low, found.high)
    if found.cache_bytes is not None:
        hits = derived(
            "share of reads that caches serve",
            found.hit_frac,
            "frac",
            f"{COUNTED}: records met again before they are evicted",
            given("cache of a node", found.cache_bytes, "B"),
            given("data set", found.dataset_bytes, "B"),
            given("shuffle", found.shuffle),
        )
        later = found.later_read_bytes_per_s_per_node
        figures.append(
            derived(
                "read bandwidth per node, later epochs", later, "B/s", f"{node.name} x (1 - {hits.name})", node, hits
            )
        )
    saved = found.checkpoints
    if saved is not None:
        figures.append(derived("checkpoint", saved.nbytes, "B", f"{COUNTED}: {saved.origin}"))
    assert chip is not None
    return estimate_of(f"storage for {work.name} on {found.num_gpus:,} x {chip.name}", figures)


def _rate(found: IoAnswer, flops: Figure) -> Figure:
    """The achieved FLOP/s of a device."""
    rate, chip = found.rate, found.cluster.accelerator
    if rate.origin == "given" and found.efficiency_frac is None:
        return given("achieved FLOP/s", found.achieved_flops_per_s, "FLOP/s")
    peak = chip_fact(chip, f"peak {rate.precision}", "FLOP/s", rate.peak_flops_per_s)
    if rate.origin in ("given", "published share"):
        share = found.achieved_flops_per_s / rate.peak_flops_per_s
        held = (
            given("achieved share", share, "frac")
            if rate.origin == "given"
            else assumption("achieved share", share, "frac", "what published runs reached; no layers are known")
        )
        return derived(
            "achieved FLOP/s", found.achieved_flops_per_s, "FLOP/s", f"{peak.name} x {held.name}", peak, held
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
    return derived("achieved FLOP/s", found.achieved_flops_per_s, "FLOP/s", f"{step.name} x {flops.name}", step, flops)
