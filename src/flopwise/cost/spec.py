"""The machines of a question: an accelerator by name or by instance, how nodes are joined, what an hour costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from flopwise import options
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.spec import OfferFilter
from flopwise.options import OptionError, Spec, option, same
from flopwise.units import split_count
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.cost.cluster import Cluster
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.catalog import Facts, Resolution
    from flopwise.facts.offers import Offer

USUAL_NODE = 8
"""Default number of accelerators per node."""
INTRA_NODE = ("link", "pcie", "host")
"""How devices of one node reach each other: by their fast link, PCIe with peer access, PCIe and the host's memory."""
SECTION = "Machines and prices"
_machine = partial(option, section=SECTION)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec(Spec):
    """Options of machines and their price.

    `provider`, `instance` and `region` choose among the offers and then set the network, too; without them the cheapest
    offer that holds the accelerators only sets the price. `price` overrides any price.

    Source: facts of accelerators and offers. Assumes: what the cluster says in its `assumptions`.
    """

    gpu: str | None = same(OfferFilter, "gpu", section=SECTION)
    provider: str | None = same(OfferFilter, "provider", section=SECTION)
    instance: str | None = _machine(
        "--instance", options.name("instance"), "Offers of this instance type only; they set price and network.")
    region: str | None = same(OfferFilter, "region", section=SECTION)
    marketplace: bool = _machine(
        "--marketplace", options.FLAG,
        "Include community and marketplace hosts, which have no SLA and no attestations.", default=False)
    include_retired: bool = _machine(
        "--include-retired", options.FLAG,
        "Include machines that their provider has retired, or will by a day that it announced.", default=False)
    purchase: str = same(OfferFilter, "purchase", section=SECTION, default="on_demand")
    price: float | None = _machine(
        "--price", options.USD, "US dollars for one accelerator and hour, instead of an offer's.")
    gpus_per_node: int | None = _machine("--gpus-per-node", options.DEGREE, "Accelerators per node.")
    network: float | None = _machine(
        "--network", options.BANDWIDTH, "Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.")
    intra_node: str | None = _machine(
        "--intra-node", options.choice(*INTRA_NODE),
        "How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory "
        "(default: as machines with them are usually built).")
    power_limit: float | None = _machine(
        "--power-limit", options.WATTS,
        "Power limit of one accelerator, below its own: 500W. Clocks drop with it.")
    counted: int | None = None  # accelerators that `gpu` asks for: 8 of 8xh100
    # fmt: on

    def __post_init__(self) -> None:
        """Read the values, and the number in front of an accelerator's name."""
        Spec.__post_init__(self)
        if self.gpu is not None:
            count, name = split_count(self.gpu)
            if count is not None:
                object.__setattr__(self, "gpu", name)
                object.__setattr__(self, "counted", count)

    def num_gpus(self, given: int | None, default: int = 1) -> int:
        """Accelerators of the question: as `given`, or as counted in front of their name, else the default.

        Raises:
            SpecError: both are given, and differ.
        """
        if given is not None and self.counted not in (None, given):
            named = f"{self.counted:,}x{self.gpu} means {self.counted:,}"
            raise OptionError("gpus", f"{given:,}, but {named}; give one of them")
        return self.counted or default if given is None else given

    @property
    def names_offer(self) -> bool:
        """True if the options name an offer."""
        return bool(self.provider or self.instance or self.region)

    def cluster(self, num_gpus: int, facts: Facts) -> Cluster:
        """The cluster that `num_gpus` accelerators make.

        Raises:
            SpecError: neither accelerator nor instance is given, or they do not go together.
            UnknownNameError: no such accelerator, provider, region or instance.
            InfeasibleError: no offer satisfies what is asked.
            MissingFactError: a fact that the links need is not known.
        """
        from flopwise.cost.cluster import cluster, offer_price
        from flopwise.cost.fabric import ASSUMED_PATH, UNKNOWN_NETWORK

        if num_gpus < 1:
            raise SpecError(f"{num_gpus} accelerators; give 1 or more")
        facts = facts.with_custom((self.gpu,))
        resolution = self._resolution(facts)
        chip, per_node = resolution.accelerator, self.gpus_per_node
        offer = self._offer(facts, chip.name, num_gpus)
        if offer is not None and self.names_offer:
            chip = facts.offered_accelerator(offer)
        elif per_node is None:
            per_node = _usual_node(chip, offer, num_gpus)
        limits: tuple[str, ...] = ()
        if self.power_limit is not None:
            chip, limits = with_power_limit(chip, self.power_limit)
        machines = cluster(
            chip, offer=offer if self.names_offer else None, purchase=self.purchase, gpus_per_node=per_node,
            network_bytes_per_s_per_gpu=self.network, intra_node=self.intra_node, usd_per_gpu_hour=self.price,
            ambiguous=resolution.note,
        )  # fmt: skip
        size, assumptions = machines.gpus_per_node, machines.assumptions
        if num_gpus == 1:  # no link is used: what was assumed of links is no news
            assumptions = (*machines.rates.assumptions, *((resolution.note,) if resolution.note else ()))
        elif size == 1:  # nor does one of nodes of a single device on what joins devices of a node
            assumptions = tuple(note for note in assumptions if note not in ASSUMED_PATH.values())
        elif num_gpus <= size:  # no job of one node rests on what joins nodes
            assumptions = tuple(note for note in assumptions if not note.startswith(UNKNOWN_NETWORK))
        elif rest := num_gpus % size:
            partly = (
                f"{num_gpus:,} accelerators do not fill nodes of {size}: the last node has {rest} in use, but messages "
                "are timed as if every node were full"
            )
            assumptions = (*assumptions, partly)
        machines = replace(machines, assumptions=(*assumptions, *limits))
        if offer is None or self.names_offer or self.price is not None:
            return machines
        price, source = offer_price(offer, self.purchase)  # of an offer that sets nothing else
        return machines if price is None else replace(machines, usd_per_gpu_hour=price, price_source=source)

    def _resolution(self, facts: Facts) -> Resolution:
        """The accelerator by its name, or the one in the instance."""
        from flopwise.facts.catalog import Resolution

        if self.gpu is not None:
            return facts.resolve(self.gpu)
        if self.instance is None:
            raise SpecError("no accelerator is given; name one (--gpu h100) or an instance (--instance p5.48xlarge)")
        offers = facts.offers_for(instance=self.instance, provider=self.provider)
        if not offers:
            raise InfeasibleError(f"{self.provider} does not offer {self.instance}")
        return Resolution(facts.accelerators[offers[0].accelerator])

    def _offer(self, facts: Facts, accelerator: str, num_gpus: int) -> Offer | None:
        """The cheapest offer, at one price that of the fewest instances; None where no price is known or needed."""
        offers = facts.offers_for(
            accelerator=accelerator, provider=self.provider, instance=self.instance, region=self.region
        )
        every = offers
        if self.instance is None:
            offers = tuple(o for o in offers if self.marketplace or not o.marketplace)
            offers = tuple(o for o in offers if self.include_retired or not o.retires_on)
        if not offers:
            if self.names_offer:
                terms = {"provider": self.provider, "instance": self.instance, "region": self.region}
                named = ", ".join(f"{key} {value}" for key, value in terms.items() if value)
                hosts = f" but {_left_out(every)}" if every else ""
                raise InfeasibleError(f"no offer of {accelerator} satisfies {named}{hosts}")
            return None
        if not self.names_offer and self.price is not None:
            return None
        if not self.names_offer:
            offers = tuple(o for o in offers if o.accelerator_share >= 1)
        priced = [o for o in offers if o.price_usd_per_hour(self.purchase) is not None]
        pool = priced or (list(offers) if self.names_offer else [])
        if not pool:
            return None
        largest = max(o.count for o in pool)
        wanted = min(num_gpus, USUAL_NODE, largest)
        pool = [o for o in pool if o.count >= wanted]
        return min(pool, key=lambda o: (_usd_per_hour(o, self.purchase, num_gpus), -o.count, o.key))


def _usual_node(chip: Accelerator, offer: Offer | None, num_gpus: int) -> int:
    """Accelerators of a node of `num_gpus` where nobody says: those of the `offer` that prices them, else as usual.

    Cards on PCIe share a machine, evenly where they need several, even where providers rent fewer together: eight go
    into one.

    Source: `gpuCount` of RunPod's pods, priced by the card (docs.runpod.io, up to 8); four RTX 3090 of one machine
    (noonghunna/club-3090, change 44); eight RTX 5090 (autonomous-ai/autonomous-computer, 8x-5090).
    """
    bridged = (chip.link or "").endswith("-bridge")  # two of the devices of a node
    rented = 0 if offer is None else max(1, round(offer.count))
    if rented and chip.kind == "gpu" and (bridged or not chip.link_bytes_per_s):
        machines = -(-num_gpus // USUAL_NODE)
        return max(rented, -(-num_gpus // machines))
    if rented:
        return rented
    usual = chip.max_scaleup if chip.max_scaleup and chip.max_scaleup <= 16 and not bridged else USUAL_NODE
    return min(max(1, usual), num_gpus)


def _left_out(offers: Sequence[Offer]) -> str:
    """Reasons why offers are left out by default, and the options that include them."""
    reasons = []
    if any(o.marketplace for o in offers):
        reasons.append("on hosts of third parties (--marketplace)")
    if any(o.retires_on for o in offers):
        reasons.append("those that the provider retires (--include-retired)")
    return " or ".join(reasons)


def with_power_limit(chip: Accelerator, watts: float) -> tuple[Accelerator, tuple[str, ...]]:
    """`chip` under a power limit, with the assumptions.

    Source: `flopwise.cost.sustained.clock_frac`. Assumes: the limit holds all the time.

    Raises:
        MissingFactError: the limit that it is made for is not known.
        SpecError: the limit is above that, or below a quarter of it.
    """
    made_for = chip.figure("tdp_w")
    if not made_for / 4 <= watts <= made_for:
        raise SpecError(
            f"power limit {watts:g} W is out of range for {chip.name}; allowed: {made_for / 4:g} to {made_for:g} W"
        )
    note = (
        f"power limit of {watts:g} W ({chip.name} is made for {made_for:g} W): products run at the clocks that fit it, "
        "and memory is read as fast as these allow"
    )
    return replace(chip, tdp_w=watts, made_for_w=made_for), (note,)


def _usd_per_hour(offer: Offer, purchase: str, num_gpus: int) -> float:
    """The hourly price of enough whole instances."""
    price = offer.price_usd_per_hour(purchase)
    return float("inf") if price is None else price * -(-num_gpus // max(1, offer.count))
