"""`flopwise plan`: ranked ways of running a workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, declared, usage_error
from flopwise.cli.progress import Progress, announce_compilation
from flopwise.errors import InfeasibleError
from flopwise.facts.spec import SourceSpec
from flopwise.options import DEGREE, FILE, name, options_of, whole
from flopwise.search.spec import WORKLOAD_FILE, WorkloadSpec

WORKLOAD_ENDINGS = (".yaml", ".yml")
SWEEP_ENGINES = ("inline", "processes", "ray")


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A flag for every option of a workload file that has one, and for adapters."""
    found: dict[tuple[str, ...], tuple[str, type]] = {}
    for spec in WORKLOAD_FILE.specs:
        for field, one in options_of(spec).items():
            if one.flags and (one.key or field in ("lora", "qlora")):
                found.setdefault(one.flags, (field, spec))
    for field, spec in reversed(found.values()):
        repeated = field == "engine" or options_of(spec)[field].repeated
        function = declared(spec, field, written=True, repeated=repeated)(function)
    return function


@options.command(
    "plan",
    "flopwise plan Llama-3.1-8B --task finetune --lora 16 --tokens 100M --budget 200",
    "flopwise plan Llama-3.1-70B --task serve --rate 20 --input 1k --output 250 --ttft p95=1s --tpot p95=50ms --top 5",
)
@options.argument("workload", required=False)
@workload_options
@add("--top", whole(high=1000), "Plans to show.", default=10)
@add("-o --output-file", FILE, "Write the whole plan as JSON.")
@add("--from", FILE, "Show a plan written before.", field="from_file")
@add("--compare", FILE, "Compare with a plan written before.")
@add("--address", name("address"), "Sweep on Ray: the cluster's address (default: RAY_ADDRESS, or auto).")
@add("--workers", DEGREE, "Sweep in processes: how many at once (default: all cores).")
@declared(SourceSpec, "assume_family facts")
@options.explained
def command(
    *,
    workload: str | None,
    top: int,
    output_file: Path | None,
    from_file: Path | None,
    compare: Path | None,
    explain: bool,
    assume_family: str | None,
    facts: Path | None,
    address: str | None,
    workers: int | None,
    **given: Any,
) -> None:
    """Rank the ways of running a workload over all offers.

    WORKLOAD is a YAML file, or a model with the workload in options; options given with a file override it. A file with
    `sweep` or `workloads` holds many: each is planned, and the best of each shown; a second --engine, inline (where
    none is given), processes or ray, says what runs them.
    """
    from flopwise.api import plan as api

    changes, runner = _changes(given)
    how = {"engine": runner, "address": address, "workers": workers}
    how = {name: value for name, value in how.items() if value is not None}
    many = _points(workload, changes) if workload is not None and from_file is None else None
    if many is not None:
        options.refuse(["explain", "compare"], "for one workload; this file holds a sweep")
        _sweep(many, output_file, facts=facts, assume_family=assume_family, **how)
        return
    if how:
        raise usage_error(
            "--engine inline, processes and ray, --address and --workers are for a file that holds a sweep"
        )
    if from_file is not None:
        if workload is not None:
            raise usage_error("--from shows a plan written before; leave WORKLOAD out")
        answer = api.read_plan(from_file)
    else:
        if workload is None:
            raise usage_error("give a workload file, or a model with --task; or --from a plan written before")
        wanted = _wanted(workload, changes)
        with Progress("searching offers and layouts") as progress:
            answer = api.plan(
                wanted, facts=facts, assume_family=assume_family, advance=progress, on_compile=announce_compilation
            )
    if output_file is not None:
        api.write_plan(answer, output_file)
    other = None if compare is None else api.read_plan(compare)
    _show(answer, other, top, facts if explain else None, explain=explain)
    if not answer.plans:
        from flopwise.cli.views.plans import reasons

        raise InfeasibleError("no plan meets every target", reasons(answer))


def _changes(given: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """What the command line says of the workload, as a file would say it; and what is to run a sweep."""
    from flopwise.search.workload import as_in_file

    said = options.given(click.get_current_context())
    named = {name: value for name, value in given.items() if name in said}
    engines = named.pop("engine", ())
    runners = [name for name in engines if name in SWEEP_ENGINES]
    serving = [name for name in engines if name not in SWEEP_ENGINES]
    if len(runners) > 1 or len(serving) > 1:
        raise usage_error("--engine names one serving engine, and one of inline, processes and ray for a sweep")
    if serving:
        named["engine"] = serving[0]
    if "network" in named:
        named["inter_node_bandwidth"] = None  # of the file: it says the same of the whole instance
    return as_in_file(named), runners[0] if runners else None


def _points(workload: str, changes: dict[str, Any]) -> Any:
    """The workloads of a sweep file; None where `workload` is something else."""
    from flopwise.api import sweep as api

    return api.points(workload, changes) if workload.lower().endswith(WORKLOAD_ENDINGS) else None


def _sweep(points: Any, output_file: Path | None, **how: Any) -> None:
    import msgspec

    from flopwise.api import sweep as api
    from flopwise.cli.views import plans as view

    with Progress(f"planning {len(points)} workloads") as progress:
        answer = api.sweep(points, advance=progress, **how)
    if output_file is not None:
        api.write_sweep(answer, output_file)
    options.answer(lambda: msgspec.to_builtins(answer), lambda paper: view.sweep_blocks(answer, paper))
    if not any(p.plan is not None and p.plan.plans for p in answer.planned):
        reasons = [f"{p.name}: {p.reasons[0] if p.reasons else 'no plan meets every target'}" for p in answer.planned]
        raise InfeasibleError("no workload of the sweep has a plan that meets every target", reasons[:10])


def _show(answer: Any, other: Any, top: int, facts: Path | None, *, explain: bool) -> None:
    import msgspec

    from flopwise.api.prices import stale_notes
    from flopwise.cli.render import tree
    from flopwise.cli.views import plans as view

    figures = None
    if explain and answer.plans:
        from flopwise.api.plan import explain_candidate

        figures = explain_candidate(answer, answer.plans[0], facts=facts)

    def text(paper: Any) -> Any:
        yield from view.comparison(answer, other, paper) if other is not None else view.blocks(answer, paper, top)
        if figures is not None:
            yield tree(figures, paper)

    def document() -> Any:
        plain = msgspec.to_builtins(answer)
        if other is not None:
            plain["compared_with"] = msgspec.to_builtins(other)
        if figures is not None:
            from flopwise.provenance import to_json

            plain["provenance"] = to_json(figures)
        return plain

    options.answer(document, text)
    options.say_age(stale_notes(answer.priced(top)))


def _wanted(workload: str, changes: dict[str, Any]) -> Any:
    """The workload of a file or of the options."""
    from flopwise.api import plan as api

    if workload.lower().endswith(WORKLOAD_ENDINGS) or _is_workload_json(workload):
        return api.workload(workload, changes)
    if "task" not in changes:
        raise usage_error(f"a model needs --task: {options_of(WorkloadSpec)['task'].words}")
    return api.workload({"model": workload, **changes})


def _is_workload_json(name: str) -> bool:
    """Whether a .json file is a workload (has a task) and not a model's configuration."""
    from flopwise.search.workload_file import read_text

    if not name.lower().endswith(".json") or not Path(name).is_file():
        return False
    text = read_text(name)
    return '"task"' in text and '"model_type"' not in text
