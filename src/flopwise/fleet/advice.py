"""What to mind on machines of the plan: formats and their quality, fp16, Arm, placement by PCIe and NUMA, a corpus."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.cost.money import volume_usd
from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import SetupNote
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import ChosenWorkload
from flopwise.fleet.spec import API
from flopwise.training.corpus import corpus
from flopwise.units import format_bytes, format_count, format_rate, format_usd

WHOLE = frozenset({"fp32", "bf16", "fp16"})
"""Formats of unquantised weights."""
ENOUGH = 0.98
"""Share of a score that published evaluations keep, below which a format needs more than a check."""
AMP = "PyTorch, torch.amp.GradScaler (defaults of version 2); Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2"
ARM_WHEELS = "PyTorch, Get Started: CUDA wheels for aarch64; Docker documentation, multi-platform builds"
NUMA = "NVIDIA, nvidia-smi topo -m and CUDA C++ Best Practices Guide (pinned memory); numactl(8)"


def advice(fleet: SolvedFleet) -> list[SetupNote]:
    """Advice for setting up each workload, from its formats, devices, machines and data."""
    return [note for chosen in fleet.chosen if chosen.option.purchase != API for note in _notes(chosen, fleet.facts)]


def _notes(chosen: ChosenWorkload, facts: Facts) -> Iterator[SetupNote]:
    layout = chosen.option.candidate.layout
    if (weights := layout.get("weights")) is not None and str(weights) not in WHOLE:
        yield _quality_note(chosen.name, str(weights), facts)
    if chosen.job.trains and _runs_in_fp16(chosen, facts):
        yield _loss_scaling_note(chosen.name)
    if facts.accelerators[chosen.option.candidate.gpu].arm_host:
        yield _arm_note(chosen.name, chosen.option.instance)
    yield from _placement(chosen, facts)
    if chosen.job.trains and chosen.planned.workload is not None:
        yield from _corpus(chosen, facts)


def _quality_note(name: str, weights: str, facts: Facts) -> SetupNote:
    """The results of public evaluations for a format, and the need for calibration."""
    rows = [row for row in facts.quality if row.format == weights]
    after = [row for row in rows if not row.trained]
    trained = "; ".join(str(row) for row in rows if row.trained)
    source = "; ".join(dict.fromkeys(f"{row.source}, {row.date}" for row in rows))
    if not after:
        which = f"{weights} without training" if trained else weights
        text = (
            f"the facts contain no public evaluation of {which}: compare it with 16 bits on your own tasks "
            "before production use"
        ) + (f". Trained with the quantisation in the loop: {trained}" if trained else "")
        return SetupNote(kind="quantisation", workload=name, text=text, source=source)
    worst = min(after, key=lambda row: row.score)
    scores = "; ".join(str(row) for row in after)
    text = f"{weights} weights, quantised after training: {scores}. "
    if worst.score >= ENOUGH:
        text += "Calibration on a few hundred samples of the traffic is usually enough; check on your own tasks"
    else:
        text += (
            "If your own tasks lose as much, train with the quantisation in the loop (QAT, or distillation from "
            "the 16-bit model), or use an 8-bit format"
        ) + (f": results with such training: {trained}" if trained else "")
    return SetupNote(kind="quantisation", workload=name, text=text, source=source)


def _runs_in_fp16(chosen: ChosenWorkload, facts: Facts) -> bool:
    """True if products run in fp16: asked for, or in place of the bf16 that the device has no units for."""
    precision = str(chosen.option.candidate.layout.get("precision"))
    peak = facts.accelerators[chosen.option.candidate.gpu].peak
    return precision == "fp16" or (precision == "bf16" and "bf16" not in peak and "fp16" in peak)


def _loss_scaling_note(name: str) -> SetupNote:
    text = (
        "products run in fp16, whose gradients vanish below 6e-8: scale the loss (start at 65,536, halve at every "
        "overflow and skip that step, double after 2,000 steps without one), unscale before clipping gradients "
        "(usually to a norm of 1), and monitor the share of skipped steps"
    )
    return SetupNote(kind="fp16", workload=name, text=text, source=AMP)


def _arm_note(name: str, instance: str) -> SetupNote:
    text = (
        f"{instance} has Arm processors: build images for linux/arm64, and check that all wheels and CUDA extensions "
        "of the project exist for aarch64; to leave such machines out, name the device in `policies.exclude`"
    )
    return SetupNote(kind="arm", workload=name, text=text, source=ARM_WHEELS)


def _placement(chosen: ChosenWorkload, facts: Facts) -> Iterator[SetupNote]:
    """Notes on machines with several devices: their links, and the cores and memory near each device."""
    option = chosen.option
    offer, each = option.offer, option.gpus_each
    device = facts.accelerators[option.candidate.gpu]
    if each < 2 or device.kind not in {"gpu", "npu"}:
        return
    parts = []
    link = offer.intra_link or ("pcie" if device.link in {None, "none"} else str(device.link))
    if link.startswith("pcie") and device.pcie_bytes_per_s:
        tp = int(option.candidate.layout.get("tp") or 1)
        rate = format_rate(device.pcie_bytes_per_s)
        split = f" (this plan has tp {tp})" if tp > 1 else ""
        parts.append(
            f"its {each} {option.candidate.gpu} are connected by PCIe alone, {rate} each way: place the ranks "
            f"that communicate most{split} on devices under one switch (PIX or PXB in nvidia-smi topo -m), "
            "never across sockets (SYS)"
        )
    cores = "" if offer.vcpus is None else f", {round(offer.vcpus) // each} vCPUs for each device"
    memory = "" if offer.ram_bytes is None else f" and {format_bytes(offer.ram_bytes / each)} of memory"
    parts.append(
        f"bind each process and its data loaders to the NUMA node that its device and network card are attached to"
        f"{cores}{memory}; pin host buffers"
    )
    yield SetupNote(kind="placement", workload=chosen.name, text="; ".join(parts), source=NUMA)


def _corpus(chosen: ChosenWorkload, facts: Facts) -> Iterator[SetupNote]:
    """The size of a run's tokens in files, and the cost of storing them with the plan's provider."""
    workload, provider = chosen.planned.workload, chosen.option.provider
    assert workload is not None
    model = facts.model(workload.model)
    tokens = workload.with_tokens(model).tokens
    if tokens is None:
        return
    seq_len = workload.data.seq_len(model, tunes=workload.training.tunes)
    data = corpus(model, seq_len, tokens)
    price = volume_usd(provider, "storage", data.stored_bytes, facts)
    text = f"{format_count(data.tokens)} tokens (each counted once per run) take {data.text}"
    source = "arithmetic" if data.text_bytes is None else "arithmetic; four bytes of text a token"
    if price is not None:
        text += f"; in object storage of {provider} that costs {format_usd(price[0], 2)} a month"
        source += f"; {price[1].source}, {price[1].date}"
        if not chosen.job.volumes.storage:
            text += ", which the bill includes only if `volumes.storage` is set"
    yield SetupNote(kind="corpus", workload=chosen.name, text=text, source=source)
