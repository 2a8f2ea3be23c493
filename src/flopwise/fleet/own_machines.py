"""Own machines as offers: what a fleet file says of them, what a month of one costs, how many there can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from flopwise.errors import MissingFactError, SpecError, UnknownNameError
from flopwise.facts.offers import OWNED, Offer
from flopwise.facts.price_book import HardwarePrice
from flopwise.fleet.carbon import kwh_on
from flopwise.fleet.model import OwnMachineKind, OwnPool
from flopwise.fleet.onprem import COLOCATED, Ownership, Site, ownership
from flopwise.units import (
    HOURS_PER_MONTH,
    format_bytes,
    format_rate,
    parse_bytes,
    parse_bytes_per_s,
    parse_count,
    parse_usd,
    parse_whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.spec import OwnMachines, SiteFigures

MOST_MACHINES = 100_000
GIVEN = "the fleet file"
_MONEY = frozenset(
    {"host_usd_per_card", "usd_per_kwh", "facility_usd_per_kw", "colocation_usd_per_kw_month", "staff_usd_per_year"}
)


def own_machine_kinds(entries: Sequence[OwnMachines]) -> tuple[OwnMachineKind, ...]:
    """The fleet's own machines in base units.

    Raises:
        SpecError: starts with the path of what is wrong.
    """
    kinds: dict[str, OwnMachineKind] = {}
    for number, entry in enumerate(entries):
        where = f"own_machines.{number}"
        if entry.name in kinds:
            raise SpecError(f"{where}.name: {entry.name[:60]!r} is used twice; each kind of machine needs its own")
        kinds[entry.name] = _machine_kind(entry, where)
    return tuple(kinds.values())


def _machine_kind(entry: OwnMachines, where: str) -> OwnMachineKind:
    count = parse_whole(entry.count, f"{where}.count", low=0, high=MOST_MACHINES)
    more = parse_whole(entry.buy_up_to, f"{where}.buy_up_to", low=0, high=MOST_MACHINES)
    if not count + more:
        raise SpecError(f"{where}: none is there and none may be bought; give `count`, `buy_up_to` or both")
    usd = None if entry.price is None else parse_usd(entry.price, f"{where}.price")
    if usd is not None and not 0 < usd < 1e9:
        raise SpecError(f"{where}.price: {usd:g} is out of range; allowed: above 0, below 1e9")
    carbon = None if entry.kg_per_kwh is None else parse_count(entry.kg_per_kwh, f"{where}.kg_per_kwh")
    if carbon is not None and not 0 <= carbon <= 3:
        raise SpecError(f"{where}.kg_per_kwh: {carbon:g} is out of range; allowed: 0 to 3")
    if entry.region.strip().lower() in {"", "any"} or set(entry.region) & set("*?[/"):
        raise SpecError(f"{where}.region: {entry.region[:60]!r} is no place; own machines stand in one: eu-cellar")
    return OwnMachineKind(
        name=entry.name, gpu=entry.gpu, gpus=parse_whole(entry.gpus, f"{where}.gpus", high=128), count=count,
        buy_up_to=more, sunk=entry.sunk, kept=entry.kept, usd=usd, provider=entry.provider, region=entry.region,
        tags=frozenset(tag.strip().lower() for tag in entry.tags),
        ram_bytes=_positive(entry.memory, parse_bytes, f"{where}.memory"),
        network_bytes_per_s=_positive(entry.network, parse_bytes_per_s, f"{where}.network"), kg_per_kwh=carbon,
        site=_site(entry.site, f"{where}.site"), where=where,
    )  # fmt: skip


def _positive(given: object, parse: Callable[[object, str], float], what: str) -> float | None:
    value = None if given is None else parse(given, what)
    if value is not None and value <= 0:
        raise SpecError(f"{what}: must be more than zero, not {value:g}")
    return value


def _site(given: SiteFigures, where: str) -> Site:
    """The usual site, or the usual colocation, with the figures that are given."""
    start = COLOCATED if given.colocation else Site()
    if given.colocation_usd_per_kw_month is not None and not given.colocation:
        raise SpecError(f"{where}.colocation_usd_per_kw_month: is rent of a colocation; say `colocation: true`, too")
    own = {n: v for n, v in msgspec.structs.asdict(given).items() if v is not None and n != "colocation"}
    figures: dict[str, Any] = {name: _figure(name, value, f"{where}.{name}") for name, value in own.items()}
    try:
        return replace(start, **figures)
    except SpecError as error:
        raise SpecError(f"{where}.{error}") from None


def _figure(name: str, value: object, what: str) -> float:
    if name in _MONEY:
        return parse_usd(value, what)
    text = str(value).strip()
    return parse_count(text[:-1], what) / 100 if text.endswith("%") else parse_count(value, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOffer(Offer):
    """One kind of own machines. `month`: of one accelerator; bought ones cost its capital, too."""

    machines: OwnMachineKind
    month: Ownership
    idle_kwh: float  # of one machine that is on all month and does nothing
    assumed: str = ""  # what is taken for granted, from clouds' machines and of its energy

    @property
    def standing(self) -> float:
        """USD a month of one machine that is there: support, room, staff and power at idle."""
        return self.count * self.month.running

    @property
    def capital(self) -> float:
        """USD a month of depreciation and interest of one machine."""
        return self.count * self.month.capital

    @property
    def there(self) -> float:
        """USD a month of one of those that are there, whatever it cost to buy."""
        return self.standing + (0.0 if self.machines.sunk else self.capital)

    @property
    def off(self) -> float:
        """USD a month of one that is there and turned off: all but its power, or nothing where it is given up."""
        return self.there - self.count * self.month.idle_power if self.machines.kept else 0.0

    @property
    def pool(self) -> OwnPool:
        """Those there are, at what using one adds to a month, then those to be bought."""
        used, bought = self.there - self.off, self.standing + self.capital
        tiers = (self.machines.count, used), (self.machines.buy_up_to, bought)
        return OwnPool(tiers=tiers, off_usd=self.off, hours=self.month.available_hours)

    @property
    def first_usd(self) -> float:
        """USD a month of the first machine, whatever is done with it."""
        return self.there if self.machines.count else self.standing + self.capital

    @property
    def bought(self) -> bool:
        """Whether what machines cost to buy is in their month."""
        return bool(self.machines.buy_up_to) or not self.machines.sunk

    def running_usd(self, kwh: float | None, busy_hours: float) -> float:
        """USD a month of the power that work takes beyond idling, of one machine.

        `kwh`: what the work takes in all; where that is not known, power is drawn as by a machine at full use.
        """
        if kwh is None:
            return self.count * self.month.busy_power * busy_hours / self.month.available_hours
        idle = self.idle_kwh * busy_hours / HOURS_PER_MONTH
        return max(0.0, kwh - idle) * self.machines.site.usd_per_kwh

    def price_usd_per_hour(self, purchase: str) -> float | None:
        """USD of an hour of work of a machine that works all hours that it can; None unless `purchase` is OWNED."""
        if purchase != OWNED:
            return None
        full = self.first_usd + self.count * self.month.busy_power
        return full / self.month.available_hours


def with_own(facts: Facts, entries: Sequence[OwnMachineKind]) -> Facts:
    """The facts with the fleet's own machines among the offers.

    What is not said of a machine is what clouds' machines with as many of its accelerators have at least: memory of
    the host, and the network between them (none known: a job stays on one machine). Links within are the device's own.

    Raises:
        SpecError: a price, or a fact that the cost needs, is not known; an accelerator's name is not; says where.
    """
    there = {offer.instance for offer in facts.offers if isinstance(offer, OwnOffer)}
    clouds = {offer.provider for offer in facts.offers if not isinstance(offer, OwnOffer)}
    for entry in entries:
        if entry.provider in clouds:
            raise SpecError(f"{entry.where}.provider: {entry.provider} rents machines; own ones need another name")
    new = tuple(_offer(entry, facts) for entry in entries if entry.name not in there)
    return facts.replaced(offers=(*facts.offers, *new)) if new else facts


def _offer(entry: OwnMachineKind, facts: Facts) -> OwnOffer:
    try:
        device = facts.accelerator(entry.gpu)
    except UnknownNameError as error:
        raise SpecError(f"{entry.where}.gpu: {error}") from None
    price = _price(entry, device.name, facts)
    try:
        month = ownership(device, price, entry.site)
        power = replace(entry.site.power, pue=entry.site.pue)
        idle_kwh = float(kwh_on(device, entry.gpus, HOURS_PER_MONTH, 0.0, power))
    except MissingFactError as error:
        raise SpecError(f"{entry.where}: what a month costs cannot be said: {error}") from None
    alike = [o for o in facts.offers if (o.accelerator, o.count, o.accelerator_share) == (device.name, entry.gpus, 1.0)]
    memory = [o.ram_bytes for o in alike if o.ram_bytes]
    network = [o.network_bytes_per_s for o in alike if o.network_bytes_per_s]
    offer = OwnOffer(
        provider=entry.provider, instance=entry.name, region=entry.region, accelerator=device.name, count=entry.gpus,
        source=price.source, price_date=price.date, confidence=price.confidence,
        ram_bytes=entry.ram_bytes or min(memory, default=None),
        network_bytes_per_s=entry.network_bytes_per_s or min(network, default=None), machines=entry, month=month,
        idle_kwh=idle_kwh, assumed=_assumptions(entry, memory, network),
    )  # fmt: skip
    return offer if offer.bought else replace(offer, price_date="", source=GIVEN)


def _assumptions(entry: OwnMachineKind, memory: Sequence[float], network: Sequence[float]) -> str:
    """What is taken for granted of machines that were not described in full."""
    guesses = []
    if entry.ram_bytes is None:
        guesses.append(f"{format_bytes(min(memory))} of host memory" if memory else "no host memory to offload to")
    if entry.network_bytes_per_s is None:
        guesses.append(f"{format_rate(min(network))} between machines" if network else "no network between machines")
    given = f"{', '.join(guesses)}, as none was given (clouds' machines alike); " if guesses else ""
    return f"own {entry.name}: {given}energy and carbon are of its work, what it draws idle is in the money alone"


def _price(entry: OwnMachineKind, accelerator: str, facts: Facts) -> HardwarePrice:
    """What one machine costs to buy."""
    if entry.usd is not None:
        return HardwarePrice(
            accelerator=accelerator, unit="server", grade="", count=entry.gpus, usd=entry.usd, source=GIVEN, date="",
            confidence="high",
        )  # fmt: skip
    known = facts.hardware_price(accelerator)
    if known is None:
        raise SpecError(
            f"{entry.where}: what {accelerator} costs to buy is not known (support and network follow it); give "
            "`price`, USD of one machine"
        )
    return known
