"""How the devices of a job are joined: levels of links, innermost first, with what each level sustains."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.rates import CLOCK_HZ, Rates, families, resolve_parameters
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.calibration import Calibration
from flopwise.ops.types import Floats, Ints
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.offers import Offer

UNKNOWN_NETWORK = "network between nodes is not known"
"""How the assumption begins that only jobs of several nodes rest on."""
UNBOUNDED = 2**40
"""Devices on the outermost level: as many as are asked for."""


PINNED_FRAC = 0.76
"""Share of the link's rate that transfers from pinned memory reach: 12 of 15.75 GB/s (CUDA C++ Best Practices Guide,
PCIe 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One kind of link. Devices 0..size-1, size..2 size-1 and so on are joined by it (or by a level further in)."""

    kind: str
    size: int  # devices it joins, levels further in included
    bytes_per_s: float  # one direction, per device
    launch_s: float  # fixed time of a collective
    hop_s: float  # time of each step of a collective
    frac: float  # share of bytes_per_s that large messages reach
    ramp: float  # time to fill the pipeline of a long message, in fixed times
    fill_at: float  # transfer time at which half of that is reached, in fixed times
    direct_s: float  # fixed time of a one-shot kernel that reads its peers' memory; infinite where there is none
    direct_frac: float  # factor of `frac` in such a kernel
    pair: float  # factor of `frac` in a group of two
    exchange: float  # factor of `frac` where each pair of ranks has its own data: all-to-all, p2p
    multicast: float  # rate of an all-reduce added up by the switch (NVLS), over `frac`; 0 where it does not
    direct_devices: float = inf  # most devices of a group for which there is such a kernel where this link is used
    axes: int = 1  # of a torus, each with its share of the bandwidth


THROUGH_HOST = "pcie-host"
"""Kind of the link between devices without peer access: each message is written to the host's memory and read there."""
ASSUMED_PATH = {
    "host": "messages between devices of a node pass through the host's memory, since the drivers of these cards have "
    "no peer access; with it: --intra-node pcie",
    "pcie": "peer access over PCIe between devices of a node is assumed; without it (nvidia-smi topo -p2p r): "
    "--intra-node host",
}
ASSUMED_PATH["link"] = ASSUMED_PATH["pcie"]  # beyond the devices that the fast link joins
CALIBRATED = (
    "launch_s", "hop_s", "frac", "ramp", "fill_at", "direct_s", "direct_frac", "pair", "exchange", "multicast"
)  # fmt: skip
"""Fields of `Level` that are calibrated."""


LEVEL_FIGURES = ("size", "bytes_per_s", *CALIBRATED, "direct_devices")
"""Fields of `Level` that its formulas take as columns, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The levels of links between the devices of a job, innermost first.

    Source: the rows of accelerator and offer; fractions and latencies from data/calibration.
    Assumes: all devices of a level reach each other alike.
    """

    levels: tuple[Level, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def form(self) -> tuple[object, ...]:
        """Key that is equal for fabrics whose collectives follow the same formulas with other figures."""
        return tuple(
            (at.kind == THROUGH_HOST, at.axes, bool(at.multicast), isfinite(at.direct_s), isfinite(at.direct_devices))
            for at in self.levels
        )

    @classmethod
    def together(cls, several: Sequence[Fabric], place: NDArray[np.intp]) -> Fabric:
        """Fabrics of one `form` as one whose figures are columns: `place` says which one's stands where, in its shape.

        Source: the formulas of `cost.collectives` go element by element. Assumes: nobody asks it for a single number.
        """
        first = several[0]
        if all(one is first or one == first for one in several):
            return first
        levels = []
        for each in zip(*(one.levels for one in several), strict=True):
            table = np.array([[getattr(at, name) for name in LEVEL_FIGURES] for at in each], dtype=float)
            alike = (table == table[0]).all(axis=0)
            different = {name: table[:, i][place] for i, name in enumerate(LEVEL_FIGURES) if not alike[i]}
            levels.append(replace(each[0], **different))
        return replace(first, levels=tuple(levels))

    @property
    def domain(self) -> int:
        """Devices joined by the innermost link."""
        return self.levels[0].size

    @property
    def link_kind(self) -> str:
        """Kind of the innermost link."""
        return self.levels[0].kind

    @property
    def link_bytes_per_s(self) -> float:
        """Datasheet bandwidth of the innermost link, one direction, per device."""
        return self.levels[0].bytes_per_s


def group_fabric(fabric: Fabric, *, inner: bool, tp: Ints) -> Fabric:
    """The fabric as one group of a mesh has it: on a torus, tensor groups (`inner`) have one axis, others the rest.

    Without tensor parallelism all axes are left; shape of `tp`.

    Source: Austin et al. 2025, "How to Scale Your Model" (Google DeepMind), TPU networking: a mesh axis is laid on axes
    of the torus, whose links carry nothing else.
    Assumes: tensor groups take one whole axis; where links are no torus, groups have all of them.
    """
    axes = fabric.levels[0].axes
    if axes == 1:
        return fabric
    share: Floats = 1.0 / axes if inner else np.where(np.asarray(tp) > 1, 1.0 - 1.0 / axes, 1.0)
    first, *rest = fabric.levels
    first = replace(first, bytes_per_s=first.bytes_per_s * share)  # type: ignore[arg-type]  # by candidate
    return replace(fabric, levels=(first, *rest))


def byte_counting(fabric: Fabric, number: int) -> Fabric:
    """The fabric whose seconds are the bytes that one level carries: the others take no time, and nothing is fixed.

    Source: arithmetic. Assumes: algorithms are those of large messages.
    """
    levels = (
        replace(
            level, bytes_per_s=1.0 if n == number else inf, frac=1.0, pair=1.0, exchange=1.0, multicast=0.0,
            launch_s=0.0, hop_s=0.0, ramp=0.0, direct_s=inf,
        )
        for n, level in enumerate(fabric.levels)
    )  # fmt: skip
    return replace(fabric, levels=tuple(levels))


def _level(
    kind: str, size: int, bytes_per_s: float, calibration: Calibration, clock_hz: float | None = None
) -> tuple[Level, tuple[str, ...]]:
    scopes = (kind, *_link_relatives(kind), "any")
    names = [f"link_{field}" for field in CALIBRATED]
    values, assumptions = resolve_parameters(calibration, names, scopes, f"{kind} link")
    link = {field: values[f"link_{field}"] for field in CALIBRATED}
    link["launch_s"] *= CLOCK_HZ / clock_hz if clock_hz else 1.0  # inside a node: instructions of the devices' cores
    link["direct_s"] = link["direct_s"] or float("inf")
    level = Level(kind=kind, size=size, bytes_per_s=bytes_per_s, axes=1, **link)
    return level, assumptions


def _link_relatives(kind: str) -> tuple[str, ...]:
    """Scopes to ask when a link has no measurements: without its number, then the group it belongs to."""
    plain = kind.removesuffix("-bridge").removesuffix("-host").rstrip("0123456789")
    group = {"xgmi": "scaleup", "ici": "scaleup", "neuronlink": "scaleup"}
    group |= dict.fromkeys(("roce", "ib", "efa", "ethernet"), "network")
    scopes = (kind.removesuffix("-bridge"), plain, group.get(plain, ""))
    return tuple(dict.fromkeys(scope for scope in scopes if scope and scope != kind))


def fabric(
    accelerator: Accelerator,
    offer: Offer | None = None,
    *,
    gpus_per_node: int | None = None,
    fast_domain: int | None = None,
    network_bytes_per_s_per_gpu: float | None = None,
    intra_node: str | None = None,
    calibration: Calibration | None = None,
) -> Fabric:
    """The levels of links for `accelerator` in the instances of `offer` (or in nodes of `gpus_per_node`).

    The fast link joins up to its scale-up domain; PCIe joins the rest of a node; the network joins nodes, its bandwidth
    shared by the devices of one. `network_bytes_per_s_per_gpu` overrides the offer's, `fast_domain` the number of
    devices on the fast link. `intra_node` overrides how machines with the device are usually built: "link" (the
    fast link), "pcie" (with peer access) or "host" (through the host's memory).

    Source: datasheets and offers; behaviour of links from data/calibration.
    Assumes: ranks are placed consecutively; the network between nodes is not oversubscribed.

    Raises:
        MissingFactError: neither a link nor PCIe bandwidth is known for a node of several devices.
        SpecError: the device has no fast link, and `intra_node` is that.
    """
    table = calibration or accelerator.calibration
    assumptions: tuple[str, ...] = ()
    per_node = gpus_per_node or (max(1, round(offer.count)) if offer is not None else 0)
    link, clock_hz = (accelerator.link or "none").lower(), accelerator.boost_clock_hz
    if intra_node == "link" and not accelerator.link_bytes_per_s and per_node != 1:
        raise SpecError(f"{accelerator.name} has no fast link; allowed between devices of a node: pcie, host")
    how = intra_node or accelerator.intra_node or ("link" if accelerator.link_bytes_per_s else "pcie")
    fast = int(fast_domain or accelerator.max_scaleup or 0) if how == "link" else 0
    if how == "link" and not fast:
        fast = 2 if link.endswith("bridge") else (per_node or 8)
        assumptions += (f"{accelerator.name}: size of the {link} domain is not known; {fast} assumed",)
    if not per_node:
        alone = accelerator.kind == "cpu" and not accelerator.pcie_bytes_per_s  # a socket without links of its own
        per_node = fast if 1 < fast <= 16 else 1 if alone else 8
        assumptions += (f"{per_node} devices per node assumed",)
    levels: list[Level] = []
    joined = fast if fast > per_node and fast >= 32 else min(fast, per_node)  # rack-wide domains span nodes
    if joined > 1:
        level, notes = _level(link, joined, float(accelerator.link_bytes_per_s or 0.0), table, clock_hz)
        levels.append(replace(level, axes=accelerator.torus_axes or 1))
        assumptions += notes
    if per_node > max(joined, 1) or not levels:
        pcie = accelerator.pcie_bytes_per_s
        if pcie:
            through = THROUGH_HOST if how == "host" else "pcie"
            level, notes = _level(through, max(per_node, 1), float(pcie), table, clock_hz)
            levels.append(level)
            assumptions += notes if intra_node else (*notes, ASSUMED_PATH[how])
        elif per_node > 1:
            raise MissingFactError(
                f"{accelerator.name}: no link and no PCIe bandwidth is known; add pcie_bytes_per_s (of a custom device "
                "link= or pcie=)"
            )
    each = network_bytes_per_s_per_gpu
    if each is None and offer is not None and offer.network_bytes_per_s:
        each = offer.network_bytes_per_s / per_node
    if each is None:
        chip = accelerator
        scopes = families(chip)
        each = table.find("link_default_bytes_per_s", (*scopes, "any")).value
        assumptions += (f"{UNKNOWN_NETWORK}; {8e-9 * each:.0f} Gbit/s per device assumed",)
    level, notes = _level("network", UNBOUNDED, float(each), table)
    return Fabric(levels=(*levels, level), assumptions=assumptions + notes)


def host_link_bytes_per_s(rates: Rates) -> float:
    """The sustained bandwidth of transfers between device and host, one direction, in bytes/s.

    Source: `PINNED_FRAC` of the datasheet's rate.
    Assumes: pinned memory; the device has its lanes for itself.
    Raises: MissingFactError: the device's link to its host is not known.
    """
    if not rates.host_link_bytes_per_s:
        raise MissingFactError(
            f"{rates.name}: its link to the host is not known, which offloading needs; add pcie_bytes_per_s"
        )
    return PINNED_FRAC * rates.host_link_bytes_per_s
