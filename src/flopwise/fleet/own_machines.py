"""Own machines as offers: what a fleet file says of them, what a month of one costs, how many there can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flopwise import options
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.spec import OwnMachines, SiteFigures

GIVEN = "the fleet file"


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
    if not entry.count + entry.buy_up_to:
        raise SpecError(f"{where}: none is there and none may be bought; give `count`, `buy_up_to` or both")
    if entry.region.lower() == "any" or set(entry.region) & set("*?[/"):
        raise SpecError(f"{where}.region: {entry.region[:60]!r} is no place; own machines stand in one: eu-cellar")
    return OwnMachineKind(
        name=entry.name, gpu=entry.gpu, gpus=entry.gpus, count=entry.count, buy_up_to=entry.buy_up_to, sunk=entry.sunk,
        kept=entry.kept, usd=entry.price, provider=entry.provider, region=entry.region,
        tags=frozenset(tag.lower() for tag in entry.tags), ram_bytes=entry.memory, network_bytes_per_s=entry.network,
        kg_per_kwh=entry.kg_per_kwh, site=site(entry.site, f"{where}.site"), where=where,
    )  # fmt: skip


def site(given: SiteFigures, where: str) -> Site:
    """The usual site, or the usual colocation, with the figures that are given.

    Raises:
        SpecError: a figure that cannot be; starts with `where`.
    """
    if given.colocation_usd_per_kw_month is not None and not given.colocation:
        raise SpecError(f"{where}.colocation_usd_per_kw_month: is rent of a colocation; say `colocation: true`, too")
    figures = {name: getattr(given, name) for name in options.changed(given) if name != "colocation"}
    try:
        return replace(COLOCATED if given.colocation else Site(), **figures)
    except SpecError as error:
        raise SpecError(f"{where}.{error}") from None


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
