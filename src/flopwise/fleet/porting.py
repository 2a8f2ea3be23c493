"""What each workload would cost a month on devices that its project needs a port for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import msgspec

from flopwise.facts.catalog import Facts
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import ChosenWorkload
from flopwise.fleet.offers import OwnOffer, allowed_devices, providers_with_tags, why_not_allowed
from flopwise.fleet.option import monthly_option
from flopwise.fleet.planned import Search, rented_purchases, run_searches, searched_workload
from flopwise.search.allowed import PORTED_SOFTWARE, USUAL_SOFTWARE, AllowedDevices
from flopwise.search.answer import Plan, Port
from flopwise.search.porting import cheapest_by_software, port
from flopwise.search.workload import Resolved


@dataclass(frozen=True, slots=True)
class PortQuestion:
    """One workload whose port is looked for: the key of its search, the workload as it is, and what it may rent."""

    chosen: ChosenWorkload
    key: bytes
    workload: Resolved
    facts: Facts


def workload_ports(fleet: SolvedFleet) -> list[Port]:
    """For each workload of the usual software the cheapest rented machines with each other one, the cheapest first.

    What a port saves is against what the plan pays for the workload's machines. Workloads alike are searched once.
    """
    searches, rented = dict[bytes, Search](), dict[Hashable, Facts]()
    asked = [question for chosen in fleet.chosen if (question := _question(chosen, fleet, rented)) is not None]
    for one in asked:
        ported = one.workload.with_limits(software=PORTED_SOFTWARE)
        searches.setdefault(one.key, Search(workload=ported, facts=one.facts))
    answers = run_searches(searches, lambda _done, _whole: None)
    return [row for one in asked for row in _ports(one, answers[one.key].plan, fleet.facts)]


def _question(chosen: ChosenWorkload, fleet: SolvedFleet, rented: dict[Hashable, Facts]) -> PortQuestion | None:
    """What to search for a workload's ports; None where it has none. `rented`: what those before it could rent."""
    job, platform, facts = chosen.job, fleet.platform, fleet.facts
    limits, purchases = job.spec.constraints, rented_purchases(job)
    named = limits.software or limits.gpus or limits.vendors or limits.instances
    if job.workload is None or named or not purchases:
        return None
    if allowed_devices(job, platform, facts).software != USUAL_SOFTWARE:
        return None
    devices = AllowedDevices.of(replace(platform.rules, software=PORTED_SOFTWARE), facts, (), limits)
    alike = job.spec.residency, job.spec.tags, limits
    if alike not in rented:
        having = providers_with_tags(job, facts)
        offers = (o for o in facts.offers if why_not_allowed(o, job, platform, devices, having) is None)
        rented[alike] = facts.with_tables(offers=tuple(o for o in offers if not isinstance(o, OwnOffer)))
    if not rented[alike].offers:
        return None
    workload = searched_workload(job, platform, purchases).with_limits(marketplace=devices.marketplace)
    key = msgspec.json.encode([workload, [*rented].index(alike)], enc_hook=str)
    return PortQuestion(chosen, key, workload, rented[alike])


def _ports(asked: PortQuestion, plan: Plan | None, facts: Facts) -> list[Port]:
    """The rows of one workload, from the plan of what it could run on after a port."""
    by_key, chosen = {o.key: o for o in asked.facts.offers}, asked.chosen
    paid = sum(taken.usd for taken in chosen.parts)
    rows = []
    for software, candidate in cheapest_by_software([] if plan is None else plan.plans, facts):
        offer = by_key[candidate.provider, candidate.instance, candidate.region]
        option = monthly_option(chosen.planned.index, chosen.job, candidate, offer, facts)
        whole = msgspec.structs.replace(candidate, num_instances=option.instances)
        rows.append(port(software, whole, asked.workload, facts, option.usd, paid, chosen.name))
    return sorted(rows, key=lambda row: row.cost_usd)
