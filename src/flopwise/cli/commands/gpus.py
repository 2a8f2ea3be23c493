"""`flopwise gpus`: the accelerators."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.render import Screen, known_text, pairs, table, verdict
from flopwise.errors import UnknownNameError
from flopwise.facts.spec import DeviceFilter, SourceSpec
from flopwise.options import FLAG
from flopwise.results import plain
from flopwise.units import split_count

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.catalog import Resolution
    from flopwise.search.model_sizes import LargestModels

_HEADERS = (
    "name", "kind", "memory", ">GiB", ">memory bandwidth", ">bf16 dense", ">fp8 dense", "link", ">TDP", "confidence",
)  # fmt: skip
_SPARE = ("confidence", ">GiB", "kind", "link", ">TDP")
"""Columns that a narrow terminal does without, the first first."""


@options.command("gpus", "flopwise gpus --vendor AMD --largest", "flopwise gpus h100 --json")
@options.argument("name", required=False)
@flags(DeviceFilter)
@add("--largest", FLAG, "Show the largest model that one of each trains and serves, by format, instead.", default=False)
@flags(SourceSpec, "facts calibration")
@on_page("catalog")
def command(
    *, name: str | None, largest: bool, facts: Path | None, calibration: str | None, **filters: Any
) -> None:  # fmt: skip
    """Facts about accelerators: rates, memory, links.

    Without NAME all accelerators that pass the filters are listed, including CPUs; with part of a name, all that
    contain it. Rates are dense; `-` means unknown, never zero. --largest considers memory only, not the formats that a
    device computes.
    """
    from flopwise.api import facts as known
    from flopwise.facts.catalog import load_facts

    places: dict[str, Any] = {"facts": facts, "calibration": calibration}

    if largest:
        names = [name] if name is not None else [a.name for a in known.gpus(**places, **options.values(filters))]
        sizes = known.largest_models(*names, **places)
        fit = shlex.join(["flopwise", "fit", "MODEL", "--gpu", sizes[0].gpu if sizes else "GPU"])
        options.answer(sizes, _largest, further={"A model on one of them": fit})
        return
    if name is not None:
        options.refuse(filters, "NAME shows one accelerator; filters belong to the list")
        try:
            one = load_facts(facts, calibration).resolve(split_count(name)[1])
        except UnknownNameError:
            rows = known.gpus(matching=name, **places)
            if not rows:
                raise
        else:
            rent = shlex.join(["flopwise", "instances", "--gpu", one.accelerator.name])
            options.answer(one, _detail, document, further={"Where it is for rent": rent})
            return
    else:
        rows = known.gpus(**places, **options.values(filters))
    shown = (
        {"An accelerator in full": shlex.join(["flopwise", "gpus", max(rows, key=lambda a: a.hbm_bytes_per_s).name])}
        if rows
        else {}
    )
    options.answer(rows, _listing, further=shown)


def _listing(rows: Sequence[Accelerator], paper: Screen) -> Iterator[str]:
    if not rows:
        yield "No accelerator fits all of these."
        return
    vendors = list(dict.fromkeys(a.vendor for a in rows))
    of = vendors[0] if len(vendors) == 1 else f"{len(vendors)} vendors"
    fastest = max(rows, key=lambda a: a.hbm_bytes_per_s)
    most = f"{fastest.name} has the fastest memory, {units.format_rate(fastest.hbm_bytes_per_s)}"
    count = "1 accelerator" if len(rows) == 1 else f"{len(rows):,} accelerators"
    yield verdict(f"{count} of {of}; {most}.", paper)
    yield table(_HEADERS, map(_row, rows), paper, spare=_SPARE)


def document(resolution: Resolution) -> dict[str, Any]:
    """The facts of one accelerator, and the assumption where its name leaves a variant open."""
    facts: dict[str, Any] = plain(resolution.accelerator)
    counts = {
        "num_cores": resolution.accelerator.num_cores,
        "num_tensor_cores": resolution.accelerator.num_tensor_cores,
    }
    return {**facts, **counts, "assumed": resolution.note}


def _largest(rows: Sequence[LargestModels], paper: Screen) -> Iterator[str]:
    from flopwise.search.model_sizes import CONDITIONS

    ways = list(rows[0].parameters) if rows else []
    cells = [
        (r.gpu, units.format_gib(r.hbm_bytes), *(known_text(r.parameters[way], units.format_count) for way in ways))
        for r in rows
    ]
    yield table(("name", ">memory", *(f">{way}" for way in ways)), cells, paper)
    yield f"Parameters of the largest model that one device holds: {CONDITIONS}. By memory alone."


def _row(a: Accelerator) -> tuple[Any, ...]:
    return (
        a.name, a.kind, a.marketed_memory, f"{a.hbm_bytes / units.GIB:,.1f}", units.format_rate(a.hbm_bytes_per_s),
        _rate(a.peak.get("bf16")), _rate(a.peak.get("fp8")), a.link if a.link != "none" else None,
        f"{a.tdp_w:,.0f} W" if a.tdp_w else None, f"{a.date}, {a.confidence}",
    )  # fmt: skip


def _rate(flops_per_s: float | None) -> str | None:
    return known_text(flops_per_s, partial(units.format_rate, unit="FLOP/s"))


def _each_way(bytes_per_s: float) -> str:
    return f"{units.format_rate(bytes_per_s)} each way"


PATHS = {"pcie": "over PCIe, with peer access", "host": "through the host's memory, without peer access"}
"""What `intra_node` of a device says, in words."""


def _detail(resolution: Resolution, paper: Screen) -> Iterator[str]:
    a = resolution.accelerator
    yield verdict(_sentence(a), paper)
    if resolution.note:
        yield f"Assumed: {resolution.note}"
    reported = "as the driver reports" if a.hbm_bytes_reported else "as sold"
    link = None
    if a.link_bytes_per_s is not None:
        link = f"{a.link}, {_each_way(a.link_bytes_per_s)}, up to {a.max_scaleup or 'unknown'} devices"
    path = None if a.kind == "cpu" else PATHS.get(a.intra_node or "", "over PCIe" if link is None else f"over {a.link}")
    yield pairs(
        [
            ("year", str(a.year) if a.year else None),
            ("form factor", a.form_factor),
            ("memory", f"{units.format_gib(a.hbm_bytes)} ({reported}; sold as {a.marketed_memory})"),
            ("memory bandwidth", units.format_rate(a.hbm_bytes_per_s)),
            ("last-level cache" if a.kind == "cpu" else "L2 cache", known_text(a.l2_bytes, units.format_bytes)),
            ("shared memory per SM", known_text(a.shared_bytes_per_sm, units.format_bytes)),
            ("registers per SM", known_text(a.register_bytes_per_sm, units.format_bytes)),
            ("cores" if a.kind == "cpu" else "SMs", a.num_sms),
            ("stream processors" if a.vendor == "AMD" else "CUDA cores", known_text(a.num_cores, "{:,}".format)),
            ("matrix cores" if a.vendor == "AMD" else "tensor cores", known_text(a.num_tensor_cores, "{:,}".format)),
            ("boost clock", units.format_rate(a.boost_clock_hz, "Hz") if a.boost_clock_hz else None),
            ("compute capability", a.compute_capability),
            ("best published bf16 product", _rate(a.measured_bf16_flops_per_s)),
            ("structured sparsity", "twice the dense rates" if a.sparsity_x2 else None),
            ("link", link),
            ("link to the host", known_text(a.c2c_bytes_per_s, _each_way)),
            ("PCIe", known_text(a.pcie_bytes_per_s, _each_way)),
            ("between devices of a node", path),
            ("TDP", f"{a.tdp_w:,.0f} W" if a.tdp_w else None),
        ],
        paper,
    )
    rates = [(dtype, _rate(rate)) for dtype, rate in a.peak.items()]
    yield table(["dtype", ">dense peak"], rates, paper) if rates else "No rate is known."
    dated = f" ({a.date}, {a.confidence} confidence)" if a.date else ""
    yield f"Source: {a.source}{dated}" + (f"\nNotes: {a.notes}" if a.notes else "")


KINDS = {"gpu": "GPU", "cpu": "CPU", "tpu": "TPU"}


def _sentence(a: Accelerator) -> str:
    """The main figures of a device, in a sentence."""
    maker = "hypothetical" if a.is_hypothetical else f"{a.vendor} {a.architecture}"
    what = f"{maker} {KINDS.get(a.kind, a.kind)}" + (f" of {a.year}" if a.year else "")
    dtype = next((dtype for dtype in ("bf16", "fp16", *a.peak) if dtype in a.peak), None)
    rate = "" if dtype is None else f"{_rate(a.peak[dtype])} dense in {dtype}, "
    return f"{a.name}: {rate}{units.format_gib(a.hbm_bytes)} at {units.format_rate(a.hbm_bytes_per_s)}; {what}."
