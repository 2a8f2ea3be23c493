"""One workload, planned: the search behind `flopwise plan`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from flopwise.cost.money import unit_usd
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.price_coverage import OFTEN_UNKNOWN, PriceCoverage, coverage_text, price_coverage
from flopwise.facts.spec import DatedSourceSpec
from flopwise.options import changed_options
from flopwise.provenance import Figure, implied_kinds, with_kinds
from flopwise.search.allowed import AllowedDevices
from flopwise.search.answer import SILENT, Candidate, Listeners, OpenInput, Plan, PlanDraft
from flopwise.search.nodes import forbidding_constraint
from flopwise.search.reproduce import command
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_from
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.search.serving_option import RequestLinkNeed
    from flopwise.storage.needs import StorageNeed
    from flopwise.training.estimate import TimedStep
    from flopwise.training.network import LinkNeed

SHOWN = 10
"""Plans of whose devices and links there is something to say, and whose commands are shown."""

SERVED = ("tp", "pp", "ep", "dp", "ranks", "KV dtype", "GPUs")
"""Settings of a service that the search chooses."""


def check(workload: Resolved, facts: Facts) -> None:
    """Refuse what no machine could run: in milliseconds, where a search takes seconds.

    Raises:
        SpecError, UnknownNameError: as `plan`, but for what the machines and constraints have to do with.
    """
    model = _model(workload, facts)
    workload = workload.with_tokens(model)
    if workload.task in TRAINING:
        from flopwise.search.plan_training import check_training  # noqa: PLC0415 - half is enough

        check_training(workload, model, facts)
    else:
        from flopwise.search.plan_serving import check_serving  # noqa: PLC0415 - half is enough

        check_serving(workload, model, facts)


def _model(workload: Resolved, facts: Facts, assume_family: str | None = None) -> Model:
    model = facts.model(workload.model, assume_family=assume_family)
    if not model.stacks:
        instead = f"`flopwise train '{model.name}'` answers for machines that are named, `flopwise io` for storage"
        raise SpecError(f"model: {model.name} has no token layers to plan; {instead}")
    return model


def keep_freed_memory() -> None:
    """Have the C library keep the memory of columns that are done with, not hand it back after each operation.

    Columns of 16,000 candidates lie at the size from which glibc maps and unmaps pages for every array, and most of a
    search then goes to page faults. Freeing one large block raises that limit for the process.

    Source: mallopt(3), M_MMAP_THRESHOLD: the threshold follows the largest mapped block that was freed.
    Assumes: glibc; elsewhere it does nothing.
    """
    block = np.empty(31 << 17)
    del block


def plan(
    workload: Resolved, facts: Facts, listeners: Listeners[Plan] = SILENT, *, assume_family: str | None = None,
    alone: bool = True, dearest: float | None = None, by_region: bool = False,
) -> Plan:  # fmt: skip
    """Plan `workload` over the offers of `facts`.

    A workload that nothing satisfies gives a plan without candidates, whose `misses` are the nearest. Where it is not
    `alone` but one of a fleet, the plan has neither front nor levers, and `misses` that are cheaper than the best.
    Where the workload has its number of instances, the plan is the layout on those that likeliest meets the targets.
    Listeners hear of rows without commands, unit costs and links. `dearest`: to train, machines that cost so many times
    the best even at the rates of their kernels are not searched (None: as many as for a list; 1: the cheapest alone is
    wanted, and what the workload leaves open is in no interval). `by_region`: an instance has a plan in every region,
    not in its cheapest alone.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: the constraints leave no offer at all.
    """
    started = time.perf_counter()
    keep_freed_memory()
    facts = facts.at(workload.limits.software_month).with_custom(workload.limits.gpus)
    facts = facts.with_assumed_prices(workload.assumed_prices) if alone else facts
    model = _model(workload, facts, assume_family)
    workload = workload.with_tokens(model)
    reporting = partial(_report_to, workload=workload, started_s=started)
    drafts = Listeners(
        advance=listeners.advance, on_compile=listeners.on_compile, on_first=reporting(listeners.on_first),
        on_ranked=reporting(listeners.on_ranked),
    )  # fmt: skip
    workload, model, draft = _search(workload, model, facts, drafts, alone=alone, dearest=dearest, by_region=by_region)
    parts: dict[str, Any] = {part.name: getattr(draft, part.name) for part in fields(draft)}
    parts["plans"] = [_with_unit_costs(one, workload) for one in draft.plans]
    if alone:
        parts |= _with_details(parts["plans"], draft.misses, workload, model, facts, assume_family)
    unstated = _open_inputs(draft.plans[0], workload, model, facts) if alone and draft.plans else []
    known = {purchase: _prices_known(workload, purchase, facts) for purchase in OFTEN_UNKNOWN}
    remarks = [
        *facts.grade_remarks(one.gpu for one in draft.plans[:SHOWN]),
        *(coverage_text(rows, purchase) for purchase, rows in known.items() if rows),
        *(one.text for one in unstated),
    ]
    month = f"a month of service around the clock, {HOURS_PER_MONTH:g} hours"
    parts |= {
        "ruled_out": draft.ruled_out.rows(), "unstated": unstated,
        "cost_scope": "one run" if workload.task in (*TRAINING, "batch") else month,
        "assumptions": [*model.assumptions, *draft.assumptions, *remarks],
    }  # fmt: skip
    return Plan(
        spot_coverage=known["spot"], workload=dict(workload.document), task=workload.task, objective=workload.objective,
        elapsed_s=time.perf_counter() - started, **parts,
    )  # fmt: skip


def _report_to(
    listener: Callable[[Plan], None] | None, workload: Resolved, started_s: float
) -> Callable[[PlanDraft], None] | None:
    """Function that tells a listener of the plans of a draft, if there are any."""
    if listener is None:
        return None

    def report(ranked: PlanDraft) -> None:
        if ranked.plans:
            listener(_ranking(ranked, workload, time.perf_counter() - started_s))

    return report


def _search(
    workload: Resolved, model: Model, facts: Facts, drafts: Listeners[PlanDraft], *, alone: bool,
    dearest: float | None, by_region: bool,
) -> tuple[Resolved, Model, PlanDraft]:  # fmt: skip
    """The workload and the model as they run, and the draft of their plan."""
    if workload.task in TRAINING:
        from flopwise.search.plan_training import plan_training  # noqa: PLC0415 - half is enough
        from flopwise.search.run_job import recipes  # noqa: PLC0415 - half is enough
        from flopwise.training.job import as_trained  # noqa: PLC0415 - half is enough

        draft = plan_training(workload, model, facts, drafts, alone=alone, dearest=dearest, by_region=by_region)
        if draft.plans:
            chosen = facts.stack(draft.plans[0].layout["stack"])
            model = as_trained(model, recipes(workload, model, chosen, facts)[0][0])
        return workload, model, draft
    from flopwise.search.plan_serving import plan_serving  # noqa: PLC0415 - half is enough
    from flopwise.search.replica import with_lengths  # noqa: PLC0415 - half is enough

    workload, lengths = with_lengths(workload, model)
    draft = plan_serving(workload, model, facts, drafts, alone=alone, by_region=by_region)
    draft.assumptions += lengths
    return workload, model, draft


def _with_details(
    plans: list[Candidate], misses: list[Candidate], workload: Resolved, model: Model, facts: Facts,
    assume_family: str | None,
) -> dict[str, list[Candidate]]:  # fmt: skip
    """The rows with the traffic on links, where they are shown, and with commands."""
    source = DatedSourceSpec(
        facts=facts.folder, calibration=None if facts.profile is None else facts.profile.name,
        assume_family=assume_family, software_month=workload.limits.software_month,
    )  # fmt: skip
    shown = [_with_traffic(one, workload, model, facts) for one in plans[:SHOWN]]
    rows = {"plans": [*shown, *plans[SHOWN:]], "misses": misses}
    return {name: _with_commands(some, workload, model, facts, source) for name, some in rows.items()}


def _ranking(draft: PlanDraft, workload: Resolved, seconds: float) -> Plan:
    """A plan of what is ranked so far."""
    return Plan(
        workload=dict(workload.document), task=workload.task, objective=workload.objective, plans=draft.plans, front=[],
        misses=[], ruled_out=[], levers=[], assumptions=[], evaluated=draft.evaluated, timed=draft.timed,
        simulated=draft.simulated, percentiles=draft.percentiles, elapsed_s=seconds,
    )  # fmt: skip


def _with_traffic(candidate: Candidate, workload: Resolved, model: Model, facts: Facts) -> Candidate:
    """A candidate with what its links and the storage have to carry."""
    from flopwise.storage.needs import run_storage_needs, service_storage_needs  # noqa: PLC0415 - the first plans ask
    from flopwise.training.start import OBJECT_STORE  # noqa: PLC0415 - half is enough

    offer = facts.offers_by_key[candidate.offer_key]
    if workload.task not in TRAINING:
        from flopwise.search.replica import candidate_job as serving_job  # noqa: PLC0415 - half is enough
        from flopwise.search.serving_option import link_needs  # noqa: PLC0415 - half is enough

        service = serving_job(workload, model, facts, offer, candidate)
        loaded = service_storage_needs(service, facts.storage(OBJECT_STORE), candidate.num_instances)
        sent = link_needs(workload, model, facts, offer, candidate)
        return msgspec.structs.replace(candidate, network=_plain(sent), storage=_plain(loaded))
    from flopwise.training.network import network_needs  # noqa: PLC0415 - half is enough

    step = _step(candidate, workload, model, facts)
    stored = run_storage_needs(step.job, candidate.figures["tokens_per_s"] or 0.0, epochs=workload.data.epochs)
    return msgspec.structs.replace(candidate, network=_plain(network_needs(step)), storage=_plain(stored))


def _plain(needs: Sequence[LinkNeed | RequestLinkNeed | StorageNeed]) -> list[dict[str, Any]]:
    return [asdict(need) for need in needs]


def _step(candidate: Candidate, workload: Resolved, model: Model, facts: Facts) -> TimedStep:
    """The step of a candidate of a training run."""
    from flopwise.search.run_job import candidate_job  # noqa: PLC0415 - half is enough
    from flopwise.training.estimate import timed_step  # noqa: PLC0415 - half is enough

    offer = facts.offers_by_key[candidate.offer_key]
    return timed_step(candidate_job(workload, model, facts, offer, candidate))


def _open_inputs(first: Candidate, workload: Resolved, model: Model, facts: Facts) -> list[OpenInput]:
    """Inputs of the first plan of a training run that are neither stated nor searched: its stack, its adapters."""
    if workload.task not in TRAINING:
        return []
    open_settings = workload.training.assumed_settings | workload.data.open_settings(model)
    if not open_settings:
        return []
    from flopwise.search.run_job import step_inputs  # noqa: PLC0415 - half is enough
    from flopwise.training.memory_answer import unstated_memory  # noqa: PLC0415 - half is enough

    step = _step(first, workload, model, facts)
    job, inputs = step.job, step_inputs(step, workload, model, facts)
    memory, _ = unstated_memory(model, (job.layout, job.recipe), job.cluster.accelerator, facts, open_settings)
    return [
        OpenInput(name=one.name, speed_low=one.low, speed_high=one.high, memory_low=other.low, memory_high=other.high)
        for one, other in zip(inputs, memory, strict=True)
        if one.matters or other.matters
    ]


def _prices_known(workload: Resolved, purchase: str, facts: Facts) -> tuple[PriceCoverage, ...]:
    """Of how many offers with accelerators that the constraints allow such a price is known; none if unasked."""
    if purchase not in workload.purchase:
        return ()
    devices = AllowedDevices.of(workload.limits, facts, workload.limits.instances)
    offers = (
        offer
        for offer in facts.offers
        if facts.accelerators[offer.accelerator].kind != "cpu"
        and forbidding_constraint(offer, workload.limits, devices, workload.max_gpus) is None
    )
    return price_coverage(offers, purchase)


def _with_unit_costs(candidate: Candidate, workload: Resolved) -> Candidate:
    """The candidate with what one of each unit costs: of its run, or of a month of a service."""
    runs = workload.task in {*TRAINING, "batch"}
    hours = candidate.paid_s / HOUR_S if runs else HOURS_PER_MONTH
    return msgspec.structs.replace(candidate, unit_usd=unit_usd(candidate.cost_usd, workload.amounts(hours)))


def candidate_figure(answer: Plan, chosen: Candidate, facts: Facts) -> Figure:
    """The tree of figures behind one candidate of a plan.

    Those of the single estimate of the same layout on the same machines, and what the plan adds (`search.figures`).

    Raises: SpecError: the facts no longer hold the candidate's instance.
    """
    from flopwise.search.figures import plan_figures  # noqa: PLC0415 - half is enough

    workload = workload_from(answer.workload)
    facts = facts.at(workload.limits.software_month).with_custom(workload.limits.gpus)
    offer = facts.offers_by_key.get(chosen.offer_key)
    if offer is None:
        raise SpecError(f"the offer {chosen.provider} {chosen.instance} in {chosen.region} is not among the facts")
    model = facts.model(workload.model)
    workload = workload.with_tokens(model)
    if answer.task in TRAINING:
        from flopwise.search.run_job import candidate_job, step_inputs  # noqa: PLC0415 - half is enough
        from flopwise.training import spec as of_training  # noqa: PLC0415 - half is enough
        from flopwise.training.estimate import estimate  # noqa: PLC0415 - half is enough
        from flopwise.training.explain import train_figure  # noqa: PLC0415 - half is enough
        from flopwise.training.unstated import with_unstated_inputs  # noqa: PLC0415 - half is enough

        found = estimate(candidate_job(workload, model, facts, offer, chosen))
        tree = train_figure(with_unstated_inputs(found, step_inputs(found.step, workload, model, facts)))
        tree = plan_figures(answer, chosen, workload, facts.accelerators[offer.accelerator], tree)
        options = [name for part in (workload.data, workload.training) for name in changed_options(part)]
        chosen_kinds = implied_kinds(of_training.LAYOUT_SETTINGS | {"GPUs": (), "GPUs per node": ()}, options, "chosen")
        return with_kinds(tree, implied_kinds(of_training.SETTINGS, options, "default") | chosen_kinds)
    from flopwise.search.replica import candidate_job as deployment  # noqa: PLC0415 - half is enough
    from flopwise.search.replica import with_lengths  # noqa: PLC0415 - half is enough
    from flopwise.serving import explain as of_serving  # noqa: PLC0415 - half is enough
    from flopwise.serving.estimate import estimate as serving_estimate  # noqa: PLC0415 - half is enough

    tree = of_serving.serve_figure(serving_estimate(deployment(workload, model, facts, offer, chosen)))
    measured, _ = with_lengths(workload, model)
    chip = facts.accelerators[offer.accelerator]
    tree = plan_figures(answer, chosen, measured, chip, tree)
    options = [*changed_options(workload.limits), *changed_options(workload.techniques)]
    options = [name for name in options if name != "gpus"]  # which devices, and not how many
    options += answer.workload.get("traffic", {})
    usual = implied_kinds(of_serving.SETTINGS, options, "default")
    return with_kinds(
        tree, usual | implied_kinds({n: of_serving.SETTINGS.get(n, ()) for n in SERVED}, options, "chosen")
    )


def _with_commands(
    some: list[Candidate], workload: Resolved, model: Model, facts: Facts, source: DatedSourceSpec
) -> list[Candidate]:
    """The candidates, the first of them with the commands that they lack; of offers that are gone there is none."""

    def with_command(one: Candidate) -> Candidate:
        if one.reproduce or one.offer_key not in facts.offers_by_key:
            return one
        return msgspec.structs.replace(one, reproduce=command(workload, model, one, facts, source))

    return [*map(with_command, some[:SHOWN]), *some[SHOWN:]]


def with_commands(answer: Plan, facts: Facts, calibration: str | None) -> Plan:
    """A plan that was read, its first rows with the commands that they lack: later rows and fronts are written so."""
    wanted = workload_from(answer.workload)
    month = wanted.limits.software_month
    known = facts.at(month).with_custom(wanted.limits.gpus).with_assumed_prices(wanted.assumed_prices)
    named = known.model(wanted.model)
    wanted = wanted.with_tokens(named)
    source = DatedSourceSpec(facts=known.folder, calibration=calibration, software_month=month)
    if wanted.task not in TRAINING:
        from flopwise.search.replica import with_lengths  # noqa: PLC0415 - half is enough

        wanted, _ = with_lengths(wanted, named)

    return msgspec.structs.replace(answer, plans=_with_commands(answer.plans, wanted, named, known, source))
