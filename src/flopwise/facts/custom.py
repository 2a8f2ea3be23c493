"""Hypothetical devices, written where a GPU is named: `custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB`.

Each becomes a row like those of the catalog, of an architecture that nobody measured, and where it has a price, offers
of nodes with one or several of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

from flopwise import options
from flopwise.errors import SpecError, nearest_hint
from flopwise.facts.accelerators import DTYPES, HYPOTHETICAL, Accelerator
from flopwise.facts.offers import ANYWHERE, Offer
from flopwise.values import dataclass

PREFIX = "custom:"
EXAMPLE = "custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB,link=50GB/s,price=1.5"
KINDS: Mapping[str, options.ValueKind] = {
    **dict.fromkeys(DTYPES, options.FLOPS),
    "bandwidth": options.BANDWIDTH,
    "memory": options.BYTES,
    "link": options.BANDWIDTH,
    "pcie": options.BANDWIDTH,
    "network": options.BANDWIDTH,
    "power": options.WATTS,
    "price": options.USD,
    "name": options.name("name", 40),
}
"""What can be said of one: dense rates by format, device memory, links each way, watts, US dollars an hour, a name."""
NEEDED = ("bandwidth", "memory")
NODES = (1, 2, 4, 8)
"""Devices of the nodes that one with a price is offered in; without a link between devices only the first."""
NAME, GIVEN = "custom device", "given with the question"


@dataclass(frozen=True, slots=True)
class CustomDevice:
    """A hypothetical device from its description, in base units."""

    figures: Mapping[str, float | str] = field(hash=False)

    @staticmethod
    def of(text: str) -> CustomDevice | None:
        """The device that `text` describes; None where it is a name.

        Raises: SpecError: a key or a value that cannot be, or a needed one is missing; names what is allowed.
        """
        return _device_from(text.strip()) if text.strip().lower().startswith(PREFIX) else None

    @property
    def accelerator(self) -> Accelerator:
        """Its row, called `NAME` unless the description names it."""
        number = {key: float(value) for key, value in self.figures.items() if key != "name"}
        return Accelerator(
            name=str(self.figures.get("name", NAME)), vendor=HYPOTHETICAL, architecture=HYPOTHETICAL, kind="gpu",
            hbm_bytes=int(number["memory"]), hbm_bytes_per_s=number["bandwidth"],
            marketed_memory=f"{number['memory'] / 1e9:.4g} GB", peak={d: number[d] for d in DTYPES if d in number},
            tdp_w=number.get("power"), pcie_bytes_per_s=number.get("pcie"),
            link="custom" if "link" in number else "none", link_bytes_per_s=number.get("link"),
            source=GIVEN, date="", confidence="low", notes="hypothetical: no measurement stands behind it",
        )  # fmt: skip

    @property
    def offers(self) -> list[Offer]:
        """Nodes with it, on demand in any region; none where it has no price."""
        price, network, name = self.figures.get("price"), self.figures.get("network"), self.accelerator.name
        if price is None:
            return []
        return [
            Offer(
                provider="custom", instance=f"node of {count}", region=ANYWHERE, accelerator=name, count=count,
                source=GIVEN, price_date="", confidence="low", on_demand_usd_per_hour=float(price) * count,
                network_bytes_per_s=None if network is None else float(network) * count,
            )
            for count in (NODES if {"link", "pcie"} & set(self.figures) else NODES[:1])
        ]  # fmt: skip


@lru_cache(maxsize=256)
def _device_from(text: str) -> CustomDevice:
    values: dict[str, float | str] = {}
    for part in text[len(PREFIX) :].split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in KINDS:
            allowed = f"allowed: {', '.join(KINDS)}{nearest_hint(key, KINDS)}; as in {EXAMPLE}"
            raise SpecError(f"custom device: unknown key {key[:40]!r}; {allowed}")
        if not equals or not value:
            raise SpecError(f"custom device: {key} needs a value; as in {EXAMPLE}")
        if key in values:
            raise SpecError(f"custom device: {key} is given twice")
        values[key] = KINDS[key].parse(value, f"custom device: {key}")
    needed = [key for key in NEEDED if key not in values]
    if not any(dtype in values for dtype in DTYPES):
        needed.append(f"a rate ({', '.join(DTYPES)})")
    if needed:
        raise SpecError(f"custom device: needs {' and '.join(needed)}; as in {EXAMPLE}")
    return CustomDevice(values)
