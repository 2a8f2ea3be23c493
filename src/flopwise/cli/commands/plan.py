"""`flopwise plan`: ranked ways of running a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.parts import bullets
from flopwise.cli.plan_text import blocks, comparison, further, layout, reasons
from flopwise.cli.progress import FIRST_PLANS, RANKING, Progress, announce_compilation
from flopwise.cli.render import Screen, table, tree
from flopwise.errors import InfeasibleError
from flopwise.facts.spec import SourceSpec
from flopwise.options import DEGREE, FILE, name, options_of, whole
from flopwise.search.spec import TRAINING, WORKLOAD_FILE, WorkloadSpec

if TYPE_CHECKING:
    from flopwise.cli.commands.export import FolderExport
    from flopwise.provenance import Figure
    from flopwise.search.answer import Candidate, Plan
    from flopwise.search.sweep import Planned, Sweep

WORKLOAD_ENDINGS = (".yaml", ".yml")
SWEEP_ENGINES = ("inline", "processes", "ray")


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A flag for every option of a workload file that has one, and for adapters."""
    options_by_key: dict[tuple[str, ...], tuple[str, type]] = {}
    for spec in WORKLOAD_FILE.specs:
        for field, one in options_of(spec).items():
            if one.flags and (one.key or field in ("lora", "qlora")):
                options_by_key.setdefault(one.flags, (field, spec))
    for field, spec in reversed(options_by_key.values()):
        repeated = field == "engine" or options_of(spec)[field].repeated
        function = flags(spec, field, for_file=True, repeated=repeated)(function)
    return function


@options.command(
    "plan",
    "flopwise plan Llama-3.1-8B --task finetune --lora 16 --tokens 100M --budget 200",
    "flopwise plan Llama-3.1-70B --task serve --rate 20 --input 1k --output 250 --ttft p95=1s --tpot p95=50ms --top 5",
    most_used="task gpus providers regions tokens lora rate input_tokens output_tokens ttft "
    "tpot latency deadline budget purchase objective",
    work="searching offers and layouts",
)
@options.argument("workload", required=False)
@workload_options
@add("--top", whole(high=1000), "Plans to show.", default=10)
@add("-o --output-file", FILE, "Write the whole plan as JSON.")
@add("--from", FILE, "Show a plan written before.", field="from_file")
@add("--compare", FILE, "Compare with a plan written before.")
@options.to_flag
@options.force_flag
@add("--address", name("address"), "Sweep on Ray: the cluster's address (default: RAY_ADDRESS, or auto).")
@add("--workers", DEGREE, "Sweep in processes: how many at once (default: all cores).")
@options.web_flag
@flags(SourceSpec, "assume_family facts calibration")
@options.explain_flag
@add("--rank", whole(high=10**6), "With --explain: the plan, or near miss, whose figures are shown.", default=1)
def command(
    *, web: bool, workload: str | None, top: int, output_file: Path | None, from_file: Path | None,
    compare: Path | None, to: tuple[str, ...], force: bool, explain: bool, rank: int, **given: Any,
) -> None:  # fmt: skip
    """Rank machines, layouts and purchase options for a workload, over all offers.

    WORKLOAD is a YAML file, or a model with the workload in options; options override the file. A file with `sweep` or
    `workloads` has several workloads: each is planned, and the answer shows the best plan of each; a second --engine
    (inline by default, processes or ray) selects where they are planned.
    """
    from flopwise.api import plan as api
    from flopwise.exports.targets import check_targets
    from flopwise.facts.catalog import load_facts
    from flopwise.files import write_whole
    from flopwise.search.answer import read_plan, to_json
    from flopwise.search.plan import candidate_figure, with_commands

    if web:
        from flopwise.cli.commands.web import run_server

        if workload is None or workload.lower().endswith(WORKLOAD_ENDINGS):
            raise usage_error("--web shows a model with the workload in options; the page holds no file of a workload")
        run_server("plan")
        return
    check_targets(to)
    source, how = (
        options.values({name: given.pop(name) for name in names})
        for names in (("assume_family", "facts", "calibration"), ("address", "workers"))
    )
    known = partial(load_facts, source.get("facts"), source.get("calibration"))
    changes, runner = _changes(given, from_file or workload)
    how |= {} if runner is None else {"engine": runner}
    many = _points(workload, changes) if workload is not None and from_file is None else None
    if many is not None:
        options.refuse(["explain", "rank", "compare", "to"], "for one workload; this file holds a sweep")
        _sweep(many, output_file, **source, **how)
        return
    if how:
        raise usage_error(
            "--engine inline, processes and ray, --address and --workers are for a file that holds a sweep"
        )
    if from_file is not None:
        if workload is not None:
            raise usage_error("--from shows a plan written before; leave WORKLOAD out")
        answer = with_commands(read_plan(from_file), known(), source.get("calibration"))
    else:
        if workload is None:
            raise usage_error("give a workload file, or a model with --task; or --from a plan written before")
        resolved = _workload(workload, changes)
        with Progress("searching offers and layouts") as progress:
            answer = api.plan(
                resolved, advance=progress, on_compile=announce_compilation, on_first=FIRST_PLANS.get(),
                on_ranked=RANKING.get(), **source,
            )  # fmt: skip
    if output_file is not None:
        write_whole(output_file, to_json(answer) + b"\n")
    other = None if compare is None else read_plan(compare)
    chosen = _candidate(answer, rank) if explain else None
    figure = None if chosen is None else candidate_figure(answer, chosen, known())
    exports = _exports(answer, output_file or from_file, to, force=force, **_places(source))
    _show(answer, other, top, figure, exports)
    if not answer.plans:
        form = options.output_form()
        raise InfeasibleError("no plan meets every target", reasons(answer) if form in ("json", "csv") else ())


def _places(source: dict[str, Any]) -> dict[str, Any]:
    """The folders of facts and calibrations."""
    return {name: source.get(name) for name in ("facts", "calibration")}


def _candidate(answer: Plan, rank: int) -> Candidate | None:
    """The plan of that rank, or the miss where nothing meets the targets; None where there is neither.

    Raises: SpecError: there are fewer.
    """
    rows = answer.plans or answer.misses
    if rows and rank > len(rows):
        raise usage_error(f"--rank {rank}: there are {len(rows)} plans")
    return rows[rank - 1] if rows else None


def _changes(given: dict[str, Any], source: Path | str | None) -> tuple[dict[str, Any], str | None]:
    """The workload's values on the command line, as a file would say them; and the runner of a sweep.

    Settings hold for a model as `source`, not for a file: that says all of it.
    """
    from flopwise.search.workload import as_in_file

    in_file = str(source or "").lower().endswith((*WORKLOAD_ENDINGS, ".json"))
    if in_file:
        options.ignore_settings(but=("facts", "calibration", "currency"))
    spelled = options.spellings(click.get_current_context(), settings=not in_file)
    named = {name: value for name, value in given.items() if name in spelled}
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
    from flopwise.search.sweep import points

    return points(workload, changes) if workload.lower().endswith(WORKLOAD_ENDINGS) else None


def _sweep(points: Any, output_file: Path | None, **how: Any) -> None:
    from flopwise.api.sweep import sweep
    from flopwise.files import write_whole
    from flopwise.search.answer import to_json

    with Progress(f"planning {len(points)} workloads") as progress:
        answer = sweep(points, advance=progress, **how)
    if output_file is not None:
        write_whole(output_file, to_json(answer) + b"\n")
    planned = ((one.name, one.plan) for one in answer.planned if one.plan is not None and one.plan.plans)
    name, plan = next(planned, ("", None))
    named = {} if plan is None else further(plan, f"The best plan of {name}")
    options.answer(answer, sweep_blocks, further=named)
    if not answer.num_planned:
        missing = [f"{p.name}: {p.reasons[0] if p.reasons else 'no plan meets every target'}" for p in answer.planned]
        raise InfeasibleError("no workload of the sweep has a plan that meets every target", missing[:10])


def _exports(
    answer: Plan, file: Path | None, targets: tuple[str, ...], *, force: bool, **places: Any
) -> list[FolderExport]:
    """Plan 1 as the files of these targets, in folders beside the plan's file; none where nothing meets the targets."""
    from flopwise.cli.commands.export import folder_exports
    from flopwise.exports.deployment import resource_name

    if not targets or not answer.plans:
        return []
    stem = Path(resource_name(str(answer.workload.get("name") or answer.workload["model"])))
    stem = stem if file is None else file.with_suffix("")
    folders = {target: stem.with_name(f"{stem.name}-{target}") for target in targets}
    return folder_exports(answer, folders, force=force, **places)


def _show(answer: Plan, other: Plan | None, top: int, figure: Figure | None, exports: Sequence[FolderExport]) -> None:
    from flopwise.api.prices import today
    from flopwise.price_import.age import age_notes
    from flopwise.provenance import to_json

    def text(plan: Plan, paper: Screen) -> Iterator[str]:
        yield from blocks(plan, paper, top) if other is None else comparison(plan, other, paper)
        if figure is not None:
            yield tree(figure, paper)
        for one in exports:
            yield from one.blocks(paper)

    def document(plan: Plan) -> dict[str, Any]:
        compared: dict[str, Any] = {} if other is None else {"compared_with": other}
        compared |= {"exported": [one.document() for one in exports]} if exports else {}
        return {**plan.document(), **compared, **({} if figure is None else {"provenance": to_json(figure)})}

    options.answer(answer, text, document, further=further(answer, "Row 1" if other is None else "The first plan"))
    options.say_age(age_notes(answer.price_dates(top), today()))


def _workload(workload: str, changes: dict[str, Any]) -> Any:
    """The workload of a file or of the options."""
    from flopwise.search.workload_file import read_workload

    if workload.lower().endswith(WORKLOAD_ENDINGS) or _is_workload_json(workload):
        return read_workload(workload, changes)
    if "task" not in changes:
        raise usage_error(f"a model needs --task: {options_of(WorkloadSpec)['task'].words}")
    return read_workload({"model": workload, **changes})


def _is_workload_json(name: str) -> bool:
    """True if a .json file is a workload (has a task) and not a model's configuration."""
    if not name.lower().endswith(".json") or not Path(name).is_file():
        return False
    from flopwise.search.workload_file import read_text

    text = read_text(name)
    return '"task"' in text and '"model_type"' not in text


def sweep_blocks(sweep: Sweep, paper: Screen) -> Iterator[str]:
    """A sweep in the order in which it is read: one line a workload, with its best plan."""
    headers = ("workload", "task", "instances", ">GPUs", "GPU", "layout", ">time", ">cost", ">meets")
    yield table(headers, [_sweep_row(p) for p in sweep.planned], paper)
    failed = [f"{p.name}: {p.reasons[0]}" for p in sweep.planned if p.plan is None and p.reasons]
    if failed:
        yield bullets("No answer:", failed)
    seconds = units.format_seconds(sweep.elapsed_s)
    yield f"{sweep.num_evaluated:,} candidates evaluated in {seconds} (engine: {sweep.engine})"


def _sweep_row(one: Planned) -> tuple[Any, ...]:
    plan = one.plan
    if plan is None:
        return (one.name, None, "no answer", *[None] * 6)
    if not plan.plans:
        near = f"none; nearest: {plan.misses[0].instance}" if plan.misses else "none"
        return (one.name, plan.task, near, *[None] * 6)
    best = plan.plans[0]
    cost = units.format_usd(best.cost_usd) + ("" if plan.task in (*TRAINING, "batch") else "/month")
    where = f"{best.num_instances} x {best.provider} {best.instance}"
    time = units.format_seconds(best.seconds)
    return (one.name, plan.task, where, best.num_gpus, best.gpu, layout(best), time, cost, best.likely)
