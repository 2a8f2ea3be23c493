"""Where the figures of an estimate come from: leaves that training and serving share, as `provenance.Figure`.

A formula names its inputs word for word, so that it can be read and recomputed: `sum`, or arithmetic with x, /, +, -,
max, min, sqrt, exp. What kernels and messages take is no such arithmetic: their formulas say `kernel model`,
`message model`, `counted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.cost.kernels import work_bytes
from flopwise.cost.rates import families, lent, precision
from flopwise.cost.sustained import MEMORY_POWER, limited_rates
from flopwise.provenance import Figure, assumption, calibration, fact, setting, term

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.fabric import Level
    from flopwise.cost.intervals import ErrorBand
    from flopwise.cost.rates import Rates
    from flopwise.facts.accelerators import Accelerator
    from flopwise.ops.shapes import Work
    from flopwise.ops.types import Floats

SUM = "sum"
KERNEL, COUNTED = "kernel model", "counted"
LEGEND = (
    "kernel model: a fixed time plus the longer of compute (in tiles and waves over the cores) and memory traffic; "
    "counted: weights, inputs, outputs and cache once, operations as the masks let through; "
    "message model: latency, steps and bandwidth of each level of links"
)
"""Explanation of the formulas that are not arithmetic, stated once at the root of a tree."""


def number(value: object) -> float:
    """A column of one entry, or a number, as a number."""
    return float(np.asarray(value, dtype=float).ravel()[0])


def total(name: str, unit: str, parts: Iterable[Figure], *, note: str = "") -> Figure:
    """The sum of `parts`."""
    addends = tuple(parts)
    return term(name, sum(float(p.value or 0.0) for p in addends), unit, SUM, *addends, note=note)


class Ledger:
    """The figures of a tree by name: the inputs of a figure are those that its formula names."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def add_figure(self, figure: Figure) -> Figure:
        """`figure`, which later formulas may name."""
        self._figures[figure.name] = figure
        return figure

    def add_given(self, name: str, value: float | str | None, unit: str = "") -> Figure:
        """A figure that the user gave."""
        return self.add_figure(setting(name, value, unit))

    def add(
        self, name: str, value: float, unit: str, formula: str, *inputs: Figure, source: str = "", note: str = ""
    ) -> Figure:
        """A figure that follows by `formula` from `inputs`, or from the figures that the formula names."""
        return self.add_figure(
            term(name, value, unit, formula, *(inputs or self._inputs_of(formula)), source=source, note=note)
        )

    def add_count(self, name: str, value: float, unit: str, what: str, *inputs: Figure, source: str = "") -> Figure:
        """A figure that is counted from `inputs`, not computed by a formula in one line."""
        return self.add_figure(term(name, value, unit, f"{COUNTED}: {what}", *inputs, source=source))

    def add_time(self, name: str, seconds: float, what: str, *inputs: Figure) -> Figure:
        """A time by the kernel model."""
        return self.add_figure(term(name, seconds, "s", f"{KERNEL}: {what}", *inputs))

    def add_total(self, name: str, unit: str, parts: Iterable[Figure]) -> Figure:
        """The sum of `parts`."""
        return self.add_figure(total(name, unit, parts))

    def _inputs_of(self, formula: str) -> tuple[Figure, ...]:
        """The figures whose names stand in an arithmetic formula, in its order; of two names the longer counts."""
        names = sorted((name for name in self._figures if name in formula), key=len, reverse=True)
        words = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", formula) if names else ()
        return tuple(self._figures[name] for name in dict.fromkeys(words))


_SAME_RATE = 1e-9


class Device:
    """The facts and calibrated rates of a job's accelerator, each built once, so that a tree names it again."""

    def __init__(self, cluster: Cluster, reached: Rates | None = None, reached_source: str = "") -> None:
        """Look nothing up yet; `reached`: the rates of a program that reaches less than the device, and who says so."""
        self.cluster, self.chip, self.rates = cluster, cluster.accelerator, cluster.rates
        self._limited = limited_rates(cluster.rates)
        self._reached, self._reached_source = reached or self._limited, reached_source
        self._known: dict[str, Figure] = {}

    def datasheet(self, field: str, unit: str) -> Figure:
        """One field of the accelerator's row; `peak bf16` for a rate."""
        if field not in self._known:
            value = self.rates.peak_flops_per_s(field.split()[1]) if field.startswith("peak ") else None
            self._known[field] = chip_fact(self.chip, field, unit, value)
        return self._known[field]

    def parameter(self, name: str) -> Figure:
        """One calibrated parameter, with the measurements behind it and the family that lent it."""
        if name not in self._known:
            chip = self.chip
            scopes = families(chip)
            row = chip.calibration.find(name, scopes)
            other = f"measured on {row.scope}, none on {scopes[0]}; " if lent(row.scope, scopes) else ""
            self._known[name] = calibration(
                name, self.rates.value[name], row.unit, fitted_on=row.fitted_on, source=row.source, date=row.date,
                note=f"{other}{row.meaning}",
            )  # fmt: skip
        return self._known[name]

    def product_rate(self, dtype: str) -> Figure:
        """Sustained FLOP/s of matrix products."""
        key = f"rate {dtype}"
        if key not in self._known:
            peak, fraction = self.datasheet(f"peak {dtype}", "FLOP/s"), self.parameter(f"matmul_frac.{_rate_of(dtype)}")
            values = [each.matmul_flops_per_s(dtype) for each in (self.rates, self._limited, self._reached)]
            self._known[key] = self._rate_figure(f"{dtype} rate", "FLOP/s", values, [peak, fraction])
        return self._known[key]

    def _rate_figure(self, name: str, unit: str, values: Sequence[Floats], inputs: list[Figure]) -> Figure:
        """A sustained rate: the device's as made, what power limits leave of it, and what the program reaches."""
        made, limited, program = map(number, values)
        if abs(limited / made - 1.0) > _SAME_RATE:
            draws = [self.parameter(MEMORY_POWER), self.datasheet("tdp_w", "W")]
            formula = "power model: clock at which the kernels fit the limit, over that at which they were measured"
            inputs = [*inputs, term(f"share of the {name} under the power limit", limited / made, "", formula, *draws)]
        if abs(program / limited - 1.0) > _SAME_RATE:
            source = self._reached_source
            inputs = [*inputs, fact(f"the program's share of the {name}", program / limited, "", source=source)]
        return term(f"achieved {name}", program, unit, " x ".join(one.name for one in inputs), *inputs)

    def memory_rate(self) -> Figure:
        """Sustained bytes/s of streaming reads."""
        if "memory rate" not in self._known:
            peak, fraction = self.datasheet("hbm_bytes_per_s", "B/s"), self.parameter("dram_frac")
            values = [each.read_bytes_per_s for each in (self.rates, self._limited, self._reached)]
            self._known["memory rate"] = self._rate_figure("bandwidth", "B/s", values, [peak, fraction])
        return self._known["memory rate"]

    def kernel(self, work: Work, dtype: str, seconds: float, *, weight_bits: float, kv_bytes: float) -> Figure:
        """Seconds of one kernel, its FLOP and bytes, and the rates they are held against."""
        nbytes = work_bytes(work, weight_bits=weight_bits, kv_bytes=kv_bytes)
        products = work.kind in {"matmul", "grouped", "attention"}
        moved = term("bytes moved", number(nbytes), "B", COUNTED)
        if not products:
            return term(work.name, seconds, "s", KERNEL, moved, self.memory_rate())
        flops = term("FLOP", number(work.causal_flops), "FLOP", _counting(work))
        rate, bandwidth = self.product_rate(dtype), self.memory_rate()
        return term(f"{work.name} in {dtype}", seconds, "s", KERNEL, flops, moved, rate, bandwidth)

    def power(self, watts: float) -> tuple[Figure, Figure, Figure, Figure]:
        """(draw of a device at `watts`, share of the host, power limit, PUE): what energy is made of."""
        limit = self.datasheet("tdp_w", "W")
        formula = "power model: shares of the power limit by what the time goes to"
        shares = power_shares(("compute", "memory", "communication", "idle"))
        draw = term("draw of a GPU", watts, "W", formula, limit, *shares)
        around = 0.0 if self.chip.kind == "cpu" else DEFAULT_POWER.host
        host = assumption("power share host", around, "", "see flopwise.cost.energy.PowerModel")
        return draw, host, limit, power_shares(("pue",))[0]

    def link(self, level: Level) -> Figure:
        """The rate that large messages reach on one kind of link."""
        key = f"link {level.kind}"
        if key not in self._known:
            self._known[key] = self._link(level)
        return self._known[key]

    def _link(self, level: Level) -> Figure:
        chip, offer = self.chip, self.cluster.offer
        if level.kind == (chip.link or "").lower():
            peak = chip_fact(chip, "link_bytes_per_s", "B/s", level.bytes_per_s)
        elif level.kind.startswith("pcie"):
            peak = chip_fact(chip, "pcie_bytes_per_s", "B/s", level.bytes_per_s)
        elif offer is not None and offer.network_bytes_per_s:
            source = f"{offer.provider} {offer.instance}: {offer.source}"
            peak = fact("network per device", level.bytes_per_s, "B/s", source=source, date=offer.price_date)
        else:
            peak = assumption("network per device", level.bytes_per_s, "B/s", "given, or the usual: no offer says it")
        row = chip.calibration.find("link_frac", (level.kind, level.kind.rstrip("0123456789"), "network", "any"))
        fraction = calibration(
            "link_frac", level.frac, row.unit, fitted_on=row.fitted_on, source=row.source, date=row.date,
            note=row.meaning,
        )  # fmt: skip
        value = level.bytes_per_s * level.frac
        formula = f"{peak.name} x link_frac"
        return term(f"achieved {level.kind} rate", value, "B/s", formula, peak, fraction)

    def links(self, ranks: int) -> tuple[Figure, ...]:
        """The links that a message over `ranks` neighbouring devices may cross."""
        figures: list[Figure] = []
        for level in self.cluster.fabric.levels:
            figures.append(self.link(level))
            if level.size >= ranks:
                break
        return tuple(figures)

    def message(self, name: str, seconds: float, nbytes: float, ranks: int, kind: str, *further: Figure) -> Figure:
        """Seconds of one message of `nbytes` over `ranks` devices; `kind` says which."""
        size = term("message", nbytes, "B", f"{COUNTED}: elements x bytes each")
        inputs = (size, setting("ranks", ranks), *self.links(ranks), *further)
        return term(name, seconds, "s", f"message model: {kind}", *inputs)


def estimate_of(name: str, figures: Iterable[Figure]) -> Figure:
    """The root over all headline figures of one estimate, so that what they share is drawn once."""
    return Figure("estimate", name, "", "the figures below", "", tuple(figures), LEGEND)


def _rate_of(dtype: str) -> str:
    return precision(dtype).rate


_CHIP_FIELDS = {
    "hbm_bytes": "memory", "hbm_bytes_per_s": "memory bandwidth", "tdp_w": "power limit",
    "link_bytes_per_s": "link bandwidth", "pcie_bytes_per_s": "PCIe bandwidth",
}  # fmt: skip
"""Fields of an accelerator's row in words."""


def chip_fact(chip: Accelerator, field: str, unit: str, value: float | None = None) -> Figure:
    """One field of an accelerator's row, or `value` of it."""
    known_value = value if value is not None else getattr(chip, field)
    return fact(
        f"{chip.name} {_CHIP_FIELDS.get(field, field)}",
        known_value,
        unit,
        source=chip.source,
        date=chip.date,
        confidence=chip.confidence,
    )


def _counting(work: Work) -> str:
    """The rule by which the operations of `work` are counted."""
    if work.kind == "matmul" and work.m is not None and work.n is not None and work.k is not None:
        return f"2 x {number(work.m):.12g} x {number(work.n):.12g} x {number(work.k):.12g}"
    if work.kind == "attention":
        return f"{COUNTED}: 2 x pairs that the mask lets through x (qk_dim + v_dim) x heads"
    return COUNTED


def price(cluster: Cluster) -> Figure | None:
    """USD for one device and hour; None where it is not known."""
    value = cluster.usd_per_gpu_hour
    if value is None:
        return None
    if cluster.price_source == "given":
        return setting("price per device and hour", value, "USD/h")
    return fact("price per device and hour", value, "USD/h", source=cluster.price_source)


CUT = 1e-9
"""Relative difference from which an end of an interval differs from its band's."""


def error_ends(band: ErrorBand) -> tuple[Figure, Figure]:
    """The ends of what was measured over what was predicted, with the measurements behind them."""
    rows = f"{band.rows} measurements of class {band.name}" if band.rows else f"no measurement yet (class {band.name})"
    source = band.source or "data/intervals.json"
    low, high = (
        calibration(f"measured / predicted, {word} end", share, "", fitted_on=rows, source=source, date=band.date)
        for word, share in (("low", band.low), ("high", band.high))
    )
    return low, high


def interval(name: str, value: Figure, band: ErrorBand, low: float, high: float) -> tuple[Figure, Figure]:
    """The lower and the upper end of the 10-90 % interval around `value`."""
    ends = []
    inputs: tuple[Figure, ...]
    for word, ratio, end in zip(("low", "high"), error_ends(band), (low, high), strict=True):
        formula, inputs = f"{value.name} x {ratio.name}", (value, ratio)
        plain = number(value.value) * number(ratio.value)
        if abs(end - plain) > CUT * abs(plain):  # cut off where physics ends
            bound = term("physical bound", end, value.unit, f"{COUNTED}: at datasheet rates")
            formula = f"{'max' if end > plain else 'min'}({formula}, {bound.name})"
            inputs = (*inputs, bound)
        ends.append(term(f"{name}, {word}", end, value.unit, formula, *inputs))
    return ends[0], ends[1]


def power_shares(names: Sequence[str]) -> tuple[Figure, ...]:
    """Parameters of the power model."""
    note = "see flopwise.cost.energy.PowerModel for the measurements it rests on"
    return tuple(assumption(f"power share {name}", getattr(DEFAULT_POWER, name), "", note) for name in names)
