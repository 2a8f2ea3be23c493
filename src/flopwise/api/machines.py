"""The machines of a question: an accelerator by name or by instance, how nodes are joined, what an hour costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.errors import InfeasibleError, MissingFactError, SpecError

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts, Resolution
    from flopwise.facts.offers import Offer

USUAL_NODE = 8
"""Accelerators of a node where nothing says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Which machines, and what is paid for them.

    `provider`, `instance` and `region` choose among the offers and then set the network, too; without them the cheapest
    offer that holds the accelerators only sets the price. `usd_per_gpu_hour` overrides any price.
    """

    gpu: str | None = None
    provider: str | None = None
    instance: str | None = None
    region: str | None = None
    purchase: str = "on_demand"
    usd_per_gpu_hour: float | None = None
    gpus_per_node: int | None = None
    network_bytes_per_s_per_gpu: float | None = None  # network of one accelerator between nodes
    power_limit_w: float | None = None  # of one accelerator, below what it is made for
    facts: Path | str | None = None

    @property
    def named(self) -> bool:
        """Whether the question names an offer."""
        return bool(self.provider or self.instance or self.region)

    @property
    def known_facts(self) -> Facts:
        """What is known: the shipped facts with those of the folder."""
        from flopwise.facts.catalog import load_facts

        return load_facts(self.facts)

    def cluster(self, num_gpus: int) -> Cluster:
        """The cluster that `num_gpus` accelerators make.

        Raises:
            SpecError: neither accelerator nor instance is given, or they do not go together.
            UnknownNameError: no such accelerator, provider, region or instance.
            InfeasibleError: no offer satisfies what was asked.
            MissingFactError: a fact that the links need is not known.
        """
        from flopwise.cost.cluster import cluster
        from flopwise.cost.fabric import UNKNOWN_NETWORK

        if num_gpus < 1:
            raise SpecError(f"{num_gpus} accelerators; give 1 or more")
        catalog = self.known_facts
        found = self._resolution(catalog)
        offer = self._offer(catalog, found, num_gpus)
        chip, per_node = found.accelerator, self.gpus_per_node
        if offer is not None and self.named:
            chip = catalog.offered_accelerator(offer)
        elif per_node is None:
            usual = chip.max_scaleup if chip.max_scaleup and chip.max_scaleup <= 16 else USUAL_NODE
            per_node = max(1, round(offer.count)) if offer is not None else min(max(1, usual), num_gpus)
        limits: tuple[str, ...] = ()
        if self.power_limit_w is not None:
            chip, limits = _limited(chip, self.power_limit_w)
        built = cluster(
            chip,
            offer=offer if self.named else None,
            purchase=self.purchase,
            gpus_per_node=per_node,
            network_bytes_per_s_per_gpu=self.network_bytes_per_s_per_gpu,
            usd_per_gpu_hour=self.usd_per_gpu_hour,
            ambiguous=found.note,
        )
        if num_gpus <= built.gpus_per_node:  # no job of one node rests on what joins nodes
            inside = tuple(told for told in built.assumptions if not told.startswith(UNKNOWN_NETWORK))
            built = replace(built, assumptions=inside)
        elif rest := num_gpus % built.gpus_per_node:
            partly = (
                f"{num_gpus:,} accelerators do not fill nodes of {built.gpus_per_node}: the last has {rest} at work, "
                "yet messages are timed as if all were full"
            )
            built = replace(built, assumptions=(*built.assumptions, partly))
        if num_gpus == 1:  # no link is used: what was assumed of links is no news
            built = replace(built, assumptions=(*built.rates.assumptions, *((found.note,) if found.note else ())))
        if limits:
            built = replace(built, assumptions=(*built.assumptions, *limits))
        return _priced(built, offer, self)

    def _resolution(self, catalog: Facts) -> Resolution:
        """The accelerator by its name, or the one in the instance."""
        from flopwise.facts.catalog import Resolution

        if self.gpu is not None:
            return catalog.resolve(self.gpu)
        if self.instance is None:
            raise SpecError("no accelerator is given; name one (--gpu h100) or an instance (--instance p5.48xlarge)")
        offers = catalog.offers_for(instance=self.instance, provider=self.provider)
        if not offers:
            raise InfeasibleError(f"{self.provider} does not offer {self.instance}")
        return Resolution(catalog.accelerators[offers[0].accelerator])

    def _offer(self, catalog: Facts, found: Resolution, num_gpus: int) -> Offer | None:
        """The cheapest offer for each accelerator that holds enough of them; None where no price is known or needed."""
        asked = {"provider": self.provider, "instance": self.instance, "region": self.region}
        offers = catalog.offers_for(
            accelerator=found.accelerator.name, provider=self.provider, instance=self.instance, region=self.region
        )
        if not offers:
            if self.named:
                named = ", ".join(f"{key} {value}" for key, value in asked.items() if value)
                raise InfeasibleError(f"no offer of {found.accelerator.name} satisfies {named}")
            return None
        if not self.named and self.usd_per_gpu_hour is not None:
            return None
        if not self.named:
            offers = tuple(o for o in offers if o.accelerator_share >= 1)
        priced = [o for o in offers if o.price_usd_per_hour(self.purchase) is not None]
        pool = priced or (list(offers) if self.named else [])
        if not pool:
            return None
        largest = max(o.count for o in pool)
        wanted = min(num_gpus, USUAL_NODE, largest)
        pool = [o for o in pool if o.count >= wanted]
        return min(pool, key=lambda o: (_usd_per_hour(o, self.purchase, num_gpus), o.count, o.key))


def _limited(chip: Accelerator, watts: float) -> tuple[Accelerator, tuple[str, ...]]:
    """`chip` under a power limit, and what is assumed of it.

    Raises:
        MissingFactError: the limit that it is made for is not known.
        SpecError: the limit is above that, or below a quarter of it.
    """
    made_for = chip.known("tdp_w")
    if not made_for / 4 <= watts <= made_for:
        raise SpecError(
            f"power limit {watts:g} W is out of range for {chip.name}; allowed: {made_for / 4:g} to {made_for:g} W"
        )
    told = (
        f"power limit of {watts:g} W ({chip.name} is made for {made_for:g} W): products run at the clocks that fit it"
    )
    return replace(chip, tdp_w=watts), (told,)


def _usd_per_hour(offer: Offer, purchase: str, num_gpus: int) -> float:
    """What enough whole instances cost."""
    price = offer.price_usd_per_hour(purchase)
    return float("inf") if price is None else price * -(-num_gpus // max(1, offer.count))


def _priced(built: Cluster, offer: Offer | None, asked: Machines) -> Cluster:
    """`built` with the price of an offer that set nothing else."""
    if offer is None or asked.named or asked.usd_per_gpu_hour is not None:
        return built
    price = offer.price_usd_per_hour(asked.purchase)
    if price is None:
        return built
    source = (
        f"{offer.provider} {offer.instance} in {offer.region}, {asked.purchase}, {offer.price_date}: {offer.source}"
    )
    return replace(built, usd_per_gpu_hour=price / max(1, offer.count), price_source=source)


def loaded(
    model: Model | str,
    *,
    assume_family: str | None = None,
    offline: bool = False,
    facts: Path | str | None = None,
) -> Model:
    """`model` itself, or the one that it names.

    Raises:
        SpecError: no such model, or its configuration cannot be read.
    """
    if not isinstance(model, str):
        return model
    from flopwise.facts.catalog import load_facts

    return load_facts(facts).model(model, assume_family=assume_family, offline=offline)


def described(model: Model) -> Model:
    """`model`, when its layers are known.

    Raises:
        MissingFactError: only published figures are.
    """
    if not model.stacks:
        raise MissingFactError(
            f"{model.name} has no layers in the catalog, only published figures; ask `flopwise roofline "
            f"'{model.name}'`, or for the storage that it needs `flopwise io`"
        )
    return model
