"""Kinds of machines that a workload may use: offers that perform alike are one kind, priced apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from flopwise.cost.cluster import Cluster, cluster
from flopwise.errors import InfeasibleError, MissingFactError, SpecError, UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.facts.custom import CustomDevice
from flopwise.facts.offers import Offer, names_instance
from flopwise.search.allowed import FORBIDS, AllowedDevices, device_names
from flopwise.search.answer import RejectionLog
from flopwise.search.spec import ConstraintsSpec
from flopwise.search.workload import Resolved
from flopwise.values import dataclass

FIRST_NODES = 16
"""Kinds of machines whose plans are ranked ahead of the others': of some hundred, so that they are there at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One offer bought one way."""

    offer: Offer
    purchase: str
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Instances with the same devices and links, and every way to buy them, cheapest first."""

    cluster: Cluster
    count: int
    priced: tuple[Priced, ...]
    networked: bool  # the network between instances is known; without it a job stays on one

    @property
    def host_bytes(self) -> float:
        """Host memory of each device, the least of the instances'; 0 where it is not known."""
        return min(float(p.offer.ram_bytes or 0) for p in self.priced) / self.count

    @property
    def name(self) -> str:
        """A representative instance."""
        return self.priced[0].offer.instance

    @property
    def label(self) -> str:
        """Its accelerator and a representative instance."""
        return f"{self.cluster.accelerator.name} ({self.name})"


def node_kinds(workload: Resolved, facts: Facts, ruled_out: RejectionLog, *, alone: bool = True) -> list[NodeKind]:
    """Every kind of node that the constraints allow; what they forbid is counted in `ruled_out`.

    Not `alone`, as in `plan`: `facts` are some of a catalog's offers, and what is named may be among the others.

    Raises:
        UnknownNameError: a provider, region, GPU or instance of the constraints does not exist.
        InfeasibleError: nothing is left.
    """
    if alone:
        _check_names(workload, facts)
    limits, purchases = workload.limits, workload.purchase
    devices = AllowedDevices.of(limits, facts, limits.instances)
    groups: dict[tuple[object, ...], list[Priced]] = defaultdict(list)
    for offer in facts.offers:
        constraint = forbidding_constraint(offer, limits, devices, workload.max_gpus)
        if constraint:
            ruled_out.add(FORBIDS[constraint], 1, f"{offer.provider} {offer.instance} in {offer.region}", unit="offers")
            continue
        left_out = {one.purchase for one in offer.assumed_prices if one.kind not in workload.assumed_prices}
        prices = [(p, offer.price_usd_per_hour(p)) for p in purchases if p not in left_out]
        priced = [Priced(offer=offer, purchase=p, usd_per_hour=usd) for p, usd in prices if usd is not None]
        if not priced:
            ruled_out.add(
                f"no known price for {', '.join(purchases)}", 1, f"{offer.provider} {offer.instance}", unit="offers"
            )
            continue
        key = (
            offer.accelerator, offer.count, offer.accelerator_share, offer.network_bytes_per_s,
            offer.ram_bytes if offer.accelerator_share < 1 else None,
        )  # fmt: skip
        groups[key] += priced
    every = (_node_kind(priced, workload, facts, ruled_out) for priced in groups.values())
    if kinds := [kind for kind in every if kind is not None]:
        return kinds
    raise nothing_left(ruled_out)


def nothing_left(ruled_out: RejectionLog) -> InfeasibleError:
    """The error of a search without any offer left."""
    reasons = [f"{r.count} {r.unit}: {r.reason}" for r in ruled_out.rows()]
    return InfeasibleError("no offer satisfies the constraints", reasons)


def _node_kind(priced: list[Priced], workload: Resolved, facts: Facts, ruled_out: RejectionLog) -> NodeKind | None:
    priced = sorted(priced, key=lambda p: p.usd_per_hour)
    offer = priced[0].offer
    try:
        built = offer_cluster(workload, facts, offer, priced[0].purchase)
    except MissingFactError as error:
        ruled_out.add("a needed fact is not known", len(priced), str(error), unit="offers")
        return None
    except SpecError as error:
        ruled_out.add(
            "devices not connected as constraints.intra_node requires", len(priced), str(error), unit="offers"
        )
        return None
    networked = offer.network_bytes_per_s is not None or network_of(workload, offer) is not None
    return NodeKind(cluster=built, count=max(1, offer.count), priced=tuple(priced), networked=networked)


def offer_cluster(workload: Resolved, facts: Facts, offer: Offer, purchase: str) -> Cluster:
    """The cluster that instances of an offer make, with the network that the constraints set.

    Raises:
        MissingFactError: a needed fact is not known.
        SpecError: the constraints ask for a fast link that the device has not.
    """
    network = network_of(workload, offer)
    device = facts.offered_accelerator(offer)
    return cluster(
        device, offer=offer, purchase=purchase, network_bytes_per_s_per_gpu=network,
        intra_node=workload.limits.intra_node,
    )  # fmt: skip


def network_of(workload: Resolved, offer: Offer) -> float | None:
    """Network of each accelerator of an offer, in bytes/s, as the constraints set it; None: as the offer has it."""
    limits = workload.limits
    return limits.network if limits.inter_node_bandwidth is None else limits.inter_node_bandwidth / max(1, offer.count)


def forbidding_constraint(
    offer: Offer, limits: ConstraintsSpec, devices: AllowedDevices, max_gpus: float
) -> str | None:
    """The constraint that forbids an offer, a key of `FORBIDS`; None if it is allowed. Names are blind to case.

    `devices`: those that `limits` allow. `max_gpus`: accelerators of one instance at most.
    """
    if limits.providers and offer.provider.lower() not in {p.lower() for p in limits.providers}:
        return "providers"
    if limits.regions and not any(offer.serves(region) for region in limits.regions):
        return "regions"
    if limits.instances and not any(names_instance(name, offer.instance) for name in limits.instances):
        return "instances"
    return devices.forbids(offer) or ("max_gpus" if offer.count > max_gpus else None)


def _check_names(workload: Resolved, facts: Facts) -> None:
    """Misspelt constraints are errors, not empty answers; so are devices of which none is sold."""
    limits = workload.limits
    for provider in limits.providers:
        facts.offers_for(provider=provider)
    for region in limits.regions:
        facts.offers_for(region=region)
    for instance in limits.instances:
        facts.offers_for(instance=instance)
    check_custom_price(limits.gpus, facts)
    sold = dict.fromkeys(o.accelerator for o in facts.offers)
    if limits.gpus and not device_names(limits.gpus, facts) & sold.keys():
        hint = "a row of instances.csv in a folder of facts of your own (--facts DIR) gives a known one a price"
        raise UnknownNameError("GPU with a price", ", ".join(limits.gpus), sold, hint)


def check_custom_price(gpus: Sequence[str], facts: Facts) -> None:
    """Refuse a custom device without a price where no other of the `gpus` is sold. Raises SpecError."""
    unpriced = next((name for name in gpus if CustomDevice.of(name) is not None), None)
    if unpriced is not None and not device_names(gpus, facts) & {o.accelerator for o in facts.offers}:
        raise SpecError(f"{unpriced}: a plan needs its price: add price=1.5, US dollars an hour")
