"""`flopwise plan`: ranked ways of running a workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flopwise.cli import features, options, questions
from flopwise.cli.app import usage_error
from flopwise.cli.progress import Progress, announce_compilation
from flopwise.errors import InfeasibleError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
WORKLOAD_ENDINGS = (".yaml", ".yml")
SWEEP_ENGINES = ("inline", "processes", "ray")
SECTIONS: dict[str, str] = {
    "tokens": "data", "samples": "data", "epochs": "data", "seq_len": "data", "global_batch": "data",
    "global_batch_tokens": "data",
    "requests_per_s": "traffic", "concurrency": "traffic", "requests": "traffic", "input_tokens": "traffic",
    "output_tokens": "traffic", "trace": "traffic", "arrivals": "traffic", "burstiness": "traffic", "peak": "traffic",
    "ttft": "targets", "tpot": "targets", "latency": "targets", "throughput": "targets",
    "deadline": "targets", "budget": "targets", "confidence": "targets", "providers": "constraints",
    "regions": "constraints", "gpus": "constraints", "instances": "constraints", "purchase": "constraints",
    "max_gpus": "constraints", "min_gpus": "constraints", "precision": "constraints", "weight_formats": "constraints",
    "kv_dtype": "constraints", "engine": "constraints", "stack": "constraints", "shard": "constraints",
    "network": "constraints",
    "max_usd_per_hour": "constraints",
    "shared_prefix": "techniques", "prefix_hit": "techniques", "kv_keep": "techniques", "draft": "techniques",
    "draft_tokens": "techniques", "acceptance": "techniques", "draft_weights": "techniques",
    "offload_weights": "techniques", "gpu_layers": "techniques", "host": "techniques", "expert_skew": "techniques",
}  # fmt: skip
"""Where each option stands in a workload file."""


def _text(name: str, key: str, help_text: str, *, multiple: bool = False) -> Decorator:
    return click.option(f"--{name}", key, type=options.Name(name), help=help_text, multiple=multiple)


training_options = questions.grouped(
    _text("tokens", "tokens", "Tokens of the whole run, such as 1T."),
    _text("samples", "samples", "Samples instead of tokens; needs --seq."),
    _text("epochs", "epochs", "Passes over the data."),
    _text("seq", "seq_len", "Tokens of a sequence."),
    _text("global-batch", "global_batch", "Sequences of an optimizer step."),
    _text("global-batch-tokens", "global_batch_tokens", "The same in tokens: 4M."),
    *questions.adapter_options,
    _text("optimizer", "optimizer", "adamw, adamw-8bit, adafactor, sgd, lion, muon ..."),
    _text("precision", "precision", "Precision to search, or any; may be repeated [bf16].", multiple=True),
    _text("stack", "stack", "Software that trains."),
    _text("shard", "shard", "HSDP over groups of so many ranks only."),
    section="What is trained",
)
traffic_options = questions.grouped(
    _text("rate", "requests_per_s", "Requests that arrive, such as 20 or 5k/hour."),
    _text("concurrency", "concurrency", "Users who each wait for an answer before they ask again."),
    _text("requests", "requests", "Batch inference: requests in all."),
    _text("input", "input_tokens", "Tokens of a prompt: 1k, 200:800, lognormal:512:cv=1.2."),
    _text("output", "output_tokens", "Tokens of an answer, as --input."),
    _text("trace", "trace", "A CSV file of requests instead (arrival_s, prompt_tokens, output_tokens)."),
    click.option("--arrivals", type=options.Choice(["poisson", "gamma", "uniform"]), help="How they come [poisson]."),
    click.option("--burstiness", type=float, help="Of gamma arrivals: standard deviation of the gaps over their mean."),
    click.option("--peak", type=float, help="Highest rate over the mean rate: replicas are sized for it."),
    _text("weights", "weight_formats", "Weight format to search; may be repeated.", multiple=True),
    _text("kv-dtype", "kv_dtype", "Type of the KV cache [bf16]."),
    _text(
        "engine",
        "engine",
        "The inference engine, vllm, sglang ... [vllm]. A file with a sweep: what runs it, inline, processes "
        "or ray [inline]. Give it twice for both.",
        multiple=True,
    ),
    click.option("--no-simulate", is_flag=True, help="Rank by estimates alone; do not run the best plans."),
    section="What is served",
)
target_options = questions.grouped(
    _text("ttft", "ttft", "Time to the first token, such as p95=1s."),
    _text("tpot", "tpot", "Time per output token, such as p95=50ms."),
    _text("latency", "latency", "Whole request, such as p99=5s."),
    _text("throughput", "throughput", "Tokens per second, all GPUs together."),
    _text("deadline", "deadline", "The run is over within this time, such as 30d."),
    _text("budget", "budget", "USD of the run, or of a month of service."),
    click.option("--confidence", type=options.FRACTION, help="Probability with which each target has to be met [0.8]."),
    section="What it has to hold",
)
place_options = questions.grouped(
    _text("provider", "providers", "Only this provider; may be repeated.", multiple=True),
    _text("region", "regions", "Only this region; may be repeated.", multiple=True),
    _text("gpu", "gpus", "Only this accelerator; may be repeated.", multiple=True),
    _text("instance", "instances", "Only this instance type; may be repeated.", multiple=True),
    click.option("--purchase", type=options.PURCHASE, multiple=True, help="Way to buy; may be repeated [on_demand]."),
    click.option("--max-gpus", type=options.DEGREE, help="At most so many accelerators."),
    click.option("--min-gpus", type=options.DEGREE, help="At least so many accelerators."),
    _text("network", "network", "Network of one accelerator between nodes: 400Gbps, 50GB/s."),
    _text("max-hourly", "max_usd_per_hour", "At most so many USD an hour."),
    section="Where it may run",
)
sweep_options = questions.grouped(
    click.option(
        "--address", type=options.Name("address"), help="Sweep on Ray: the cluster's address [RAY_ADDRESS, or auto]."
    ),
    click.option("--workers", type=options.DEGREE, help="Sweep in processes: how many at once [all cores]."),
    section="Files that hold many",
)


@options.command(
    "plan",
    "flopwise plan Llama-3.1-8B --task finetune --lora 16 --tokens 100M --budget 200",
    "flopwise plan Llama-3.1-70B --task serve --rate 20 --input 1k --output 250 --ttft p95=1s --tpot p95=50ms --top 5",
)
@click.argument("workload", type=options.Name("workload"), required=False)
@click.option("--task", type=options.Choice(["pretrain", "finetune", "serve", "batch", "encode"]), help="What is done.")
@training_options
@traffic_options
@target_options
@place_options
@features.technique_options
@sweep_options
@click.option("--objective", type=options.Choice(["cost", "time", "energy"]), help="What to rank by [cost].")
@click.option("--top", type=options.Whole(high=1000), default=10, show_default=True, help="Plans to show.")
@click.option("-o", "--output-file", type=click.Path(path_type=Path), help="Write the whole plan as JSON.")
@click.option("--from", "from_file", type=click.Path(path_type=Path), help="Show a plan written before.")
@click.option("--compare", type=click.Path(path_type=Path), help="Compare with a plan written before.")
@options.explain_option
@options.family_option
@options.facts_option
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
    engine: tuple[str, ...],
    no_simulate: bool,
    **flags: Any,
) -> None:
    """Rank the ways of running a workload over all offers.

    WORKLOAD is a YAML file, or a model with the workload in options; options given with a file override it. A file with
    `sweep` or `workloads` holds many: each is planned, and the best of each shown.
    """
    from flopwise.api import plan as api

    flags["method"] = method(flags.pop("lora"), flags.pop("lora_targets"), qlora=flags.pop("qlora"))
    flags["engine"], how = _engines(engine, address, workers)
    flags["simulate"] = False if no_simulate else None
    many = _points(workload, flags) if workload is not None and from_file is None else None
    if many is not None:
        if explain or compare is not None:
            usage_error("--explain and --compare are for one workload; this file holds a sweep")
        _sweep(many, output_file, facts=facts, assume_family=assume_family, **how)
        return
    if how:
        usage_error("--engine inline, processes and ray, --address and --workers are for a file that holds a sweep")
    if from_file is not None:
        if workload is not None:
            usage_error("--from shows a plan written before; leave WORKLOAD out")
        answer = api.read_plan(from_file)
    else:
        if workload is None:
            usage_error("give a workload file, or a model with --task; or --from a plan written before")
        wanted = _wanted(workload, flags)
        with Progress("searching offers and layouts") as progress:
            answer = api.plan(
                wanted, facts=facts, assume_family=assume_family, advance=progress, on_compile=announce_compilation
            )
    if output_file is not None:
        api.write_plan(answer, output_file)
    other = None if compare is None else api.read_plan(compare)
    _show(answer, other, top, facts if explain else None, explain=explain)
    if not answer.plans:
        raise InfeasibleError("no plan meets every target", _reasons(answer))


def _engines(
    names: tuple[str, ...], address: str | None, workers: int | None
) -> tuple[str | None, dict[str, str | int]]:
    """The serving engine, and how a sweep is to run: what was asked for alone."""
    where = [name for name in names if name in SWEEP_ENGINES]
    serving = [name for name in names if name not in SWEEP_ENGINES]
    if len(where) > 1 or len(serving) > 1:
        usage_error("--engine names one serving engine, and one of inline, processes and ray for a sweep")
    how: dict[str, Any] = {"engine": where[0] if where else None, "address": address, "workers": workers}
    return (serving[0] if serving else None), {k: v for k, v in how.items() if v is not None}


def _points(workload: str, flags: dict[str, Any]) -> Any:
    """The workloads of a sweep file; None where `workload` is something else."""
    from flopwise.api import sweep as api

    if not workload.lower().endswith(WORKLOAD_ENDINGS):
        return None
    return api.points(workload, _changes(flags))


def _sweep(points: Any, output_file: Path | None, **how: Any) -> None:
    import msgspec

    from flopwise.api import sweep as api
    from flopwise.cli.views import sweep as view

    with Progress(f"planning {len(points)} workloads") as progress:
        answer = api.sweep(points, advance=progress, **how)
    if output_file is not None:
        api.write_sweep(answer, output_file)
    options.answer(lambda: msgspec.to_builtins(answer), lambda paper: view.blocks(answer, paper))
    if not any(p.plan is not None and p.plan.plans for p in answer.planned):
        reasons = [f"{p.name}: {p.reasons[0] if p.reasons else 'no plan meets every target'}" for p in answer.planned]
        raise InfeasibleError("no workload of the sweep has a plan that meets every target", reasons[:10])


def _show(answer: Any, other: Any, top: int, facts: Path | None, *, explain: bool) -> None:
    import msgspec

    from flopwise.api.prices import stale_notes
    from flopwise.cli.render import tree
    from flopwise.cli.views import plan as view

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


def _wanted(workload: str, flags: dict[str, Any]) -> Any:
    """The workload of a file or of the options."""
    from flopwise.api import plan as api

    changes = _changes(flags)
    if workload.lower().endswith(WORKLOAD_ENDINGS) or _is_workload_json(workload):
        return api.workload(workload, changes)
    if "task" not in changes:
        usage_error("a model needs --task: pretrain, finetune, serve, batch or encode")
    return api.workload({"model": workload, **changes})


def _is_workload_json(name: str) -> bool:
    """Whether a .json file is a workload (has a task) and not a model's configuration."""
    from flopwise.search.workload_file import read_text

    if not name.lower().endswith(".json") or not Path(name).is_file():
        return False
    text = read_text(name)
    return '"task"' in text and '"model_type"' not in text


def _changes(flags: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, in the shape of a workload file."""
    changes: dict[str, Any] = {}
    for key, value in flags.items():
        if value is None or value == ():
            continue
        plain = (
            list(value)
            if isinstance(value, tuple)
            else _latency(value)
            if key in ("ttft", "tpot", "latency")
            else value
        )
        section = SECTIONS.get(key)
        if section is None:
            changes[key] = plain
        else:
            changes.setdefault(section, {})[key] = plain
    return changes


def method(lora: int | None, targets: str | None, *, qlora: bool) -> dict[str, Any] | None:
    """The adapters in the options of a command, in the shape of a workload file; None where there are none."""
    found: dict[str, Any] = {"kind": "qlora" if qlora else "lora"} if qlora or lora is not None else {}
    found |= {} if lora is None else {"rank": lora}
    return (found if targets is None else found | {"targets": targets.split(",")}) or None


def _latency(value: str) -> Any:
    """`p95=1s` as a percentile with its time; a bare time as it is."""
    percentile, equals, seconds = value.partition("=")
    return {percentile.strip(): seconds.strip()} if equals else value


def _reasons(answer: Any) -> list[str]:
    """How the nearest misses miss, for the message, and what physics says of the targets."""
    from flopwise.cli.views.plan_serving import floor

    reasons = [floor(f) for f in answer.floors if f.forbids]
    for miss in answer.misses[:3]:
        short = [f"{name} {_times(times)} its limit" for name, times in miss.shortfall.items() if times > 1]
        odds = [f"{name} {100 * p:.0f} % likely" for name, p in miss.meets.items() if miss.shortfall.get(name, 0) <= 1]
        reasons.append(f"nearest: {miss.num_instances} x {miss.provider} {miss.instance}: {', '.join(short + odds)}")
    return reasons + [f"{r.count:,} {r.unit}: {r.reason}" for r in answer.ruled_out[:5]]


def _times(ratio: float) -> str:
    """`1.4 times`, `4,720 times`."""
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.3g} times"
