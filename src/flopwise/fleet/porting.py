"""What each workload would cost a month on devices that its project needs a port for."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import ChosenWorkload
from flopwise.fleet.offers import OwnOffer, allowed_devices, providers_with_tags, why_not_allowed
from flopwise.fleet.option import monthly_option
from flopwise.fleet.planned import rented_purchases, searched_workload
from flopwise.search.allowed import PORTED_SOFTWARE, USUAL_SOFTWARE, AllowedDevices
from flopwise.search.answer import Candidate, Port
from flopwise.search.porting import cheapest_by_software, port, ported_candidates


def workload_ports(fleet: SolvedFleet) -> list[Port]:
    """For each workload of the usual software the cheapest rented machines with each other one, the cheapest first.

    What a port saves is against what the plan pays for the workload's machines. Workloads alike are searched once.
    """
    found, searched = list[Port](), dict[bytes, list[Candidate]]()
    for chosen in fleet.chosen:
        found += _ports(chosen, fleet, searched)
    return found


def _ports(chosen: ChosenWorkload, fleet: SolvedFleet, searched: dict[bytes, list[Candidate]]) -> list[Port]:
    job, platform, facts = chosen.job, fleet.platform, fleet.facts
    limits, purchases = job.spec.constraints, rented_purchases(job)
    named = limits.software or limits.gpus or limits.vendors or limits.instances
    if job.workload is None or named or not purchases:
        return []
    if allowed_devices(job, platform, facts).software != USUAL_SOFTWARE:
        return []
    devices = AllowedDevices.of(replace(platform.rules, software=PORTED_SOFTWARE), facts, (), limits)
    having = providers_with_tags(job, facts)
    offers = tuple(o for o in facts.offers if why_not_allowed(o, job, platform, devices, having) is None)
    rented = facts.with_tables(offers=tuple(o for o in offers if not isinstance(o, OwnOffer)))
    workload = searched_workload(job, platform, purchases).with_limits(marketplace=devices.marketplace)
    key = msgspec.json.encode([workload, [o.key for o in rented.offers]], enc_hook=str)
    if key not in searched:
        searched[key] = ported_candidates(workload, rented) if rented.offers else []
    by_key = {o.key: o for o in rented.offers}
    paid = sum(taken.usd for taken in chosen.parts)
    rows = []
    for software, candidate in cheapest_by_software(searched[key], facts):
        offer = by_key[candidate.provider, candidate.instance, candidate.region]
        option = monthly_option(chosen.planned.index, job, candidate, offer, facts)
        whole = msgspec.structs.replace(candidate, num_instances=option.instances)
        rows.append(port(software, whole, workload, facts, option.usd, paid, chosen.name))
    return sorted(rows, key=lambda row: row.cost_usd)
