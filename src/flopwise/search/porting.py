"""What a workload would cost on devices that its project needs a port for, and what the port takes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from flopwise.errors import InfeasibleError
from flopwise.facts import defaults
from flopwise.facts.catalog import Facts
from flopwise.search.allowed import PORTED_SOFTWARE, software_of
from flopwise.search.answer import Candidate, Port
from flopwise.search.plan import plan
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved

MEASURED = {"rocm": (58, 409), "xla": (142, 26), "neuron": (11, 29), "gaudi": (33, 76)}
"""Published training runs and serving results of each software. Source: benchmarks/truth, counted by known device."""
FRAMEWORKS = {
    "rocm": "PyTorch for ROCm", "xla": "JAX, or PyTorch/XLA", "neuron": "JAX or PyTorch for NeuronX",
    "gaudi": "PyTorch with Intel Gaudi's bridge (Optimum Habana)",
}  # fmt: skip
KERNELS = {"rocm": "HIP or Triton", "xla": "Pallas", "neuron": "NKI", "gaudi": "TPC-C, or the bridge's own"}
"""What kernels written in CUDA become."""


def ports(workload: Resolved, facts: Facts, cost_usd: float) -> list[Port]:
    """The cheapest plan with each software that a workload of the usual one needs a port to, cheapest first.

    `cost_usd`: of the plan without a port. None where the workload says its software, names devices or instances, or
    has stores of caches, which only a plan that is shown counts.
    """
    limits, sessions = workload.limits, workload.sessions
    if limits.software or limits.gpus or limits.vendors or limits.instances or (sessions and sessions.kv_stores):
        return []
    searches: list[tuple[tuple[str, ...], float | None]] = [(PORTED_SOFTWARE, None)]
    if workload.task in TRAINING and workload.by_cost_alone:  # of each the cheapest is wanted, whatever comes after it
        searches = [((name,), 1.0) for name in PORTED_SOFTWARE]
    candidates: list[Candidate] = []
    for software, dearest in searches:
        with suppress(InfeasibleError):
            candidates += plan(workload.with_limits(software=software), facts, alone=False, dearest=dearest).plans
    by_software = cheapest_by_software(candidates, facts)
    return [port(software, c, workload, facts, c.cost_usd, cost_usd) for software, c in by_software]


def cheapest_by_software(candidates: Iterable[Candidate], facts: Facts) -> list[tuple[str, Candidate]]:
    """The cheapest of `candidates` with each software, the cheapest first."""
    best: dict[str, Candidate] = {}
    for one in candidates:
        software = software_of(facts.accelerators[one.gpu])
        if software is None:
            continue  # hypothetical: what would have to be ported is not known
        if software not in best or one.cost_usd < best[software].cost_usd:
            best[software] = one
    return sorted(best.items(), key=lambda item: item[1].cost_usd)


def port(
    software: str, chosen: Candidate, workload: Resolved, facts: Facts, cost_usd: float, now_usd: float, name: str = ""
) -> Port:  # fmt: skip
    """The cost of a candidate with other software, against `now_usd`, and the parts to port."""
    trains = workload.task in TRAINING
    return Port(
        software=software, gpu=chosen.gpu, provider=chosen.provider, instance=chosen.instance, region=chosen.region,
        purchase=chosen.purchase, num_instances=chosen.num_instances, cost_usd=cost_usd, saves_usd=now_usd - cost_usd,
        rows=MEASURED[software][0 if trains else 1], work=_work(software, chosen, facts, trains=trains), workload=name,
    )  # fmt: skip


def _work(software: str, chosen: Candidate, facts: Facts, *, trains: bool) -> list[str]:
    """The parts that have to be ported: framework, kernels, engine and formats."""
    work = [f"framework: {FRAMEWORKS[software]}", f"own CUDA kernels: {KERNELS[software]}"]
    if trains:
        return [*work, f"training software: {chosen.layout['stack']}, in {chosen.layout['precision']}"]
    engine = facts.engine(str(chosen.layout.get("engine", defaults.ENGINE)))
    formats = ", ".join(sorted(engine.formats_on(facts.accelerators[chosen.gpu])))
    return [
        *work,
        f"engine: {engine.name} for {software}",
        f"formats: {chosen.layout['weights']} (available: {formats})",
    ]
