"""What a workload may run on: devices by name, vendor, family and software, and whose hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from flopwise.errors import UnknownNameError
from flopwise.facts.accelerators import Accelerator, spelling_words
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer, names_instance
from flopwise.facts.software import platform
from flopwise.values import dataclass

SOFTWARE = {
    "nvidia": "cuda", "amd": "rocm", "tpu": "xla", "neuron": "neuron", "neuron-v1": "neuron", "gaudi": "gaudi",
    "cpu": "cpu",
}  # fmt: skip
"""The software that projects are written for, by platform: what is written for one needs a port to another."""
USUAL_SOFTWARE = frozenset({"cuda", "cpu"})
"""What a project of PyTorch and CUDA runs on unchanged."""
PORTED_SOFTWARE = ("rocm", "xla", "neuron", "gaudi")
"""What it has to be ported to."""
ANY_SOFTWARE = "any"


def software_of(accelerator: Accelerator) -> str | None:
    """The software that a project has to be written for to run on a device; None where no record could know it."""
    built_for = platform(accelerator)
    return None if built_for is None else SOFTWARE.get(built_for, built_for)


class DeviceLimits(Protocol):
    """Limits on devices: those of a workload's constraints, and those of a fleet's policies."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names, vendors or families that will do; all where none is named."""
        ...

    @property
    def vendors(self) -> tuple[str, ...]:
        """Vendors that will do; all where none is named."""
        ...

    @property
    def exclude(self) -> tuple[str, ...]:
        """Names, vendors or families that will not do."""
        ...

    @property
    def software(self) -> tuple[str, ...]:
        """The software that the project is written for; the default where none is named."""
        ...

    @property
    def marketplace(self) -> bool:
        """True if hosts of third parties are allowed."""
        ...

    @property
    def include_retired(self) -> bool:
        """True if machines that their provider retires are allowed."""
        ...


def device_names(names: Iterable[str], facts: Facts) -> frozenset[str]:
    """Canonical names of the devices that `names` stand for: devices, vendors (their accelerators) or families.

    A family is an architecture (`hopper`), or all variants of a name that leaves the variant open (`a100`).

    Raises: UnknownNameError: a name stands for nothing; names the nearest.
    """
    return frozenset(device for name in names for device in _devices(name, facts))


ELSEWHERE = {
    "cpu": "machines without an accelerator are `software: cpu`",
    "cpus": "machines without an accelerator are `software: cpu`",
    "gpu": "machines without an accelerator are `software: cpu`, all GPUs of a vendor the name of the vendor",
    "gpus": "machines without an accelerator are `software: cpu`, all GPUs of a vendor the name of the vendor",
} | dict.fromkeys(("spot", "on_demand", "reserved_1y", "reserved_3y"), "ways to buy are named in `purchase`")
"""What to write instead of words that name no device."""


def _devices(name: str, facts: Facts) -> Iterable[str]:
    rows, wanted = facts.accelerators.values(), name.strip().lower()
    if vendors := [a.name for a in rows if a.vendor.lower() == wanted and a.kind != "cpu"]:
        return vendors
    if family := [a.name for a in rows if wanted in _families(a.name, a.architecture, a.kind)]:
        return family
    try:
        resolution = facts.resolve(name)
    except UnknownNameError:
        groups = dict.fromkeys(group for a in rows for group in (a.vendor, a.architecture))
        hint = ELSEWHERE.get(wanted, "`flopwise gpus` lists all, with vendors and architectures")
        raise UnknownNameError("accelerator", name, [*facts.accelerators, *groups], hint) from None
    words = set(spelling_words(name))
    return [
        resolution.accelerator.name,
        *(a.name for a in rows if resolution.ambiguous and words <= set(spelling_words(a.name))),
    ]


@lru_cache(maxsize=1024)
def _families(name: str, architecture: str, kind: str) -> tuple[str, ...]:
    """Names that stand for a device and its relatives: its architecture, whole, its first word, or any generation."""
    architecture, line = architecture.lower(), name.lower().rstrip("0123456789")
    names = architecture, architecture.split()[0], architecture.rstrip("0123456789 ")
    return (*names, line) if kind == "npu" else names


def vendor_names(names: Iterable[str], facts: Facts) -> frozenset[str]:
    """Vendors in small letters. Raises UnknownNameError: no device is of such a vendor; names the nearest."""
    known = {a.vendor.lower(): a.vendor for a in facts.accelerators.values()}
    for name in names:
        if name.strip().lower() not in known:
            raise UnknownNameError("vendor", name, known.values())
    return frozenset(name.strip().lower() for name in names)


def _of_vendors(limits: DeviceLimits, facts: Facts) -> frozenset[str]:
    vendors = vendor_names(limits.vendors, facts)
    return frozenset(a.name for a in facts.accelerators.values() if a.vendor.lower() in vendors)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedDevices:
    """Devices and hosts that limits allow; `forbidden`: the limit, a key of `FORBIDS`, that a device is ruled out by.

    `software`: what devices may need, None for any. `instances`: those that are named: who names one asks for it,
    whatever its software and hosts, retired or not.
    """

    forbidden: Mapping[str, str]
    software: frozenset[str] | None
    marketplace: bool
    include_retired: bool
    instances: tuple[str, ...]

    @staticmethod
    def of(
        limits: DeviceLimits, facts: Facts, instances: Iterable[str] = (), own: DeviceLimits | None = None
    ) -> AllowedDevices:
        """The devices that `limits` allow, with the devices of these `instances`.

        Devices that are named need no word on their software. `own`: limits of one of those for whom `limits` hold:
        what they say of software and hosts goes before, and the devices that they name are asked for; what they forbid
        is looked at elsewhere.

        Raises: UnknownNameError: a name stands for nothing.
        """
        rows, forbidden = facts.accelerators.values(), dict[str, str]()
        named, of_vendors = device_names(limits.gpus, facts), _of_vendors(limits, facts)
        forbidden |= {a.name: "gpus" for a in rows if limits.gpus and a.name not in named}
        forbidden |= {a.name: "vendors" for a in rows if limits.vendors and a.name not in of_vendors}
        forbidden |= dict.fromkeys(device_names(limits.exclude, facts), "exclude")
        devices, names, marketplace, retired = (
            named | of_vendors, limits.software, limits.marketplace, limits.include_retired,
        )  # fmt: skip
        if own is not None:
            devices |= device_names(own.gpus, facts) | _of_vendors(own, facts)
            names, marketplace = own.software or names, own.marketplace or marketplace
            retired = own.include_retired or retired
        software: frozenset[str] | None = frozenset(names)
        if ANY_SOFTWARE in names:
            software = None
        elif not names:
            software = USUAL_SOFTWARE | {needs for a in rows if a.name in devices and (needs := software_of(a))}
        for device in rows:
            if software is not None and (needs := software_of(device)) is not None and needs not in software:
                forbidden.setdefault(device.name, "software")
        return AllowedDevices(
            forbidden=forbidden, software=software, marketplace=marketplace, include_retired=retired,
            instances=tuple(instances),
        )  # fmt: skip

    def forbids(self, offer: Offer) -> str | None:
        """The limit that rules an offer out, a key of `FORBIDS`; None where it is allowed."""
        reason, is_named = (
            self.forbidden.get(offer.accelerator),
            any(names_instance(name, offer.instance) for name in self.instances),
        )
        if reason is not None and not (is_named and reason == "software"):
            return reason
        if offer.marketplace and not (self.marketplace or is_named):
            return "marketplace"
        return "include_retired" if offer.retires_on and not (self.include_retired or is_named) else None


FORBIDS = {
    "providers": "provider not allowed",
    "regions": "region not allowed",
    "gpus": "GPU not allowed",
    "vendors": "vendor not allowed",
    "exclude": "GPU excluded",
    "software": "needs other software than the workload is written for (--software)",
    "marketplace": "community and marketplace hosts: no SLA, no attestations (--marketplace)",
    "include_retired": "retired by the provider, or with a retirement date announced (--include-retired)",
    "instances": "instance not allowed",
    "max_gpus": "more GPUs in one instance than --max-gpus allows",
}
"""Why an offer is ruled out that a constraint of this name forbids."""
