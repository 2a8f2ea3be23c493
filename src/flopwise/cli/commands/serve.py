"""`flopwise serve`: how fast does it serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import features, options, questions
from flopwise.cli.commands import memory as memory_command
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.api.serve import ServeAnswer, UnderLoad
    from flopwise.serving.job import Ranged


@options.command(
    "serve",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1024 --output 256 --concurrency 64",
    "flopwise serve Llama-3.1-8B --gpu l40s --weights fp8 --gpus 4 --rate 6 --json",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1000 --output 500 --sweep concurrency",
    "flopwise serve Llama-3.1-70B --gpu h100 --tp 4 --draft Llama-3.2-1B --acceptance 0.75 --concurrency 8",
)
@options.model_argument
@click.option("--gpu", type=options.Name("gpu"), help="Accelerator, in any common spelling (or --instance).")
@click.option("--gpus", type=options.DEGREE, help="Accelerators of all replicas (default: one replica).")
@click.option("--tp", type=options.DEGREE, default=1, show_default=True, help="Tensor-parallel degree of a replica.")
@click.option("--pp", type=options.DEGREE, default=1, show_default=True, help="Pipeline stages of a replica.")
@click.option(
    "--ep", type=options.DEGREE, default=1, show_default=True, help="Expert-parallel degree (within tp x dp)."
)
@click.option(
    "--dp", type=options.DEGREE, default=1, show_default=True, help="Attention replicas that share the experts."
)
@click.option(
    "--input",
    "input_tokens",
    type=options.TOKENS,
    help="Tokens of a prompt (default: 1024, or what the context holds).",
)
@click.option(
    "--output", "output_tokens", type=options.TOKENS, help="Tokens of an answer (default: 256, or what is left)."
)
@click.option(
    "--concurrency", type=options.BATCH, help="Requests in flight, all replicas (default: as many as memory holds)."
)
@click.option("--rate", type=options.RATE, help="Requests arriving a second instead: 20, 500/min.")
@click.option("--static", is_flag=True, help="A fixed batch: all prompts first, then all answers.")
@click.option(
    "--sweep",
    type=options.Name("axis"),
    help="Instead: the curve of latency against throughput along concurrency, batch or tp.",
)
@questions.serving_options
@features.technique_options
@features.pool_option
@features.start_options
@questions.price_options
@questions.model_options
@options.explain_option
def command(**given: Any) -> None:
    """Latency, throughput, maximum concurrency and cost per token.

    TTFT is the time to the first token, TPOT the time for each further one; models that do not generate have a latency.
    Input and output tokens share the bill by the time that prompts and answers take. A deployment that does not fit, or
    does not sustain --rate, is estimated all the same; the exit code is then 1.
    """
    explained, axis = given.pop("explain"), given.pop("sweep")
    if axis is not None:
        if explained:
            raise SpecError("--explain is of one estimate; leave it out with --sweep")
        _swept(axis, given)
        return
    answer = question(**given)
    questions.told(answer, document, lines, explained=explained)
    if not (answer.fits and answer.keeps_up):
        click.get_current_context().exit(1)


def _swept(axis: str, given: dict[str, Any]) -> None:
    """Answer `--sweep`: the same question along an axis."""
    from flopwise.api.serve_sweep import serve_sweep
    from flopwise.cli.views import serve_sweep as view

    swept = serve_sweep(given["model"], axis, **_asked(given))
    options.answer(lambda: view.document(swept), lambda paper: view.blocks(swept, paper))


def question(**given: Any) -> ServeAnswer:
    """The answer to the parameters of this command."""
    from flopwise.api.serve import serve

    return serve(given["model"], **_asked(given))


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """The keywords of the question."""
    return dict(
        gpus=given["gpus"],
        input_tokens=given["input_tokens"],
        output_tokens=given["output_tokens"],
        concurrency=given["concurrency"],
        rate=given["rate"],
        static=given["static"],
        machines=questions.machines(given),
        deployment=questions.deployment(given),
        features=features.features(given),
        **questions.model_arguments(given),
    )


def _ranged(name: str, value: Ranged | None, scale: float = 1.0) -> dict[str, float | None]:
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: value.value * scale, f"{name}_low": value.low * scale, f"{name}_high": value.high * scale}


def document(answer: ServeAnswer, *, explained: bool = False) -> dict[str, Any]:
    """The answer as the JSON that scripts rely on; throughput of all replicas."""
    found = answer.estimate
    job, replicas = found.job, answer.replicas
    plain: dict[str, Any] = {
        "model": job.model.name,
        "gpu": job.cluster.accelerator.name,
        "num_gpus": answer.num_gpus,
        "replicas": replicas,
        "layout": {name: int(getattr(job.layout, name)) for name in ("tp", "pp", "ep", "dp")},
        **_ranged("ttft_s", found.ttft_s if answer.keeps_up else None),
        **_ranged("tpot_s", found.tpot_s if answer.keeps_up else None),
        "e2e_s": found.e2e_s if answer.keeps_up else None,
        **_ranged("requests_per_s", found.throughput, replicas),
        **_ranged("output_tokens_per_s", found.output_tokens_per_s, replicas),
        **_ranged("output_tokens_per_s_per_gpu", found.output_tokens_per_s, 1 / found.num_gpus),
        "tokens_per_s_per_user": None if found.tpot_s is None or not answer.keeps_up else 1 / found.tpot_s.value,
        "total_tokens_per_s": found.total_tokens_per_s * replicas,
        "concurrency": found.concurrency * replicas,
        "max_concurrency": found.max_concurrency * replicas,
        "max_whole_contexts": found.max_whole_contexts * replicas,
        "kv_capacity_tokens": found.kv_capacity_tokens * replicas if job.decodes else None,
        "bound": found.bound,
        "breakdown": [{"name": name, "seconds": seconds} for name, seconds in found.breakdown],
        "lower_bound_s": found.lower_bound_s,
        "mfu_frac": found.mfu_frac,
        "utilisation_frac": found.lower_bound_s / sum(seconds for _, seconds in found.breakdown),
        "usd_per_hour": None if found.usd_per_hour is None else found.usd_per_hour * replicas,
        "usd_per_million_output_tokens": found.usd_per_million_output_tokens,
        "usd_per_million_input_tokens": found.usd_per_million_input_tokens,
        "usd_per_million_requests": questions.per_million(found.usd_per_hour, found.requests_per_s),
        "prefill_frac": found.prefill_frac,
        "joules_per_request": found.joules_per_request,
        "joules_per_output_token": found.joules_per_output_token,
        "price_source": job.cluster.price_source or None,
        "memory": memory_command.document(answer.memory),
        "fits": answer.fits,
        **features.document(answer),
        "under_load": answer.under_load,
        "quick": memory_command.quick(answer.quick),
        "settings": dict(answer.settings),
        "assumptions": list(answer.assumptions),
    }
    if explained:
        plain["provenance"] = questions.provenance(answer)
    return plain


def lines(answer: ServeAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    found = answer.estimate
    replicas = f"{answer.replicas:,} replicas on " if answer.replicas > 1 else ""
    yield heading(
        f"Serving {found.job.model.name}: {replicas}{answer.num_gpus:,} x {found.job.cluster.accelerator.name}", paper
    )
    for warning in _warnings(answer):
        yield paper.paint(f"WARNING: {warning}", "red")
    yield pairs(answer.settings, paper)
    yield pairs(_speed(answer), paper)
    if answer.under_load is not None and answer.keeps_up:
        yield _load_table(answer.under_load, paper)
    yield heading(f"One step of the engine, bound by {found.bound}", paper)
    yield questions.shares(found.breakdown, units.format_seconds, paper)
    share = units.format_percent(found.lower_bound_s / sum(seconds for _, seconds in found.breakdown))
    least = f"{units.format_seconds(found.lower_bound_s)} at datasheet rates: {share} of what they allow"
    yield pairs([("at least", least), ("MFU", units.format_percent(found.mfu_frac))], paper)
    yield heading("Memory per accelerator", paper)
    yield memory_command.items_table(answer.memory, paper)
    yield pairs(memory_command.verdict(answer.memory, capacity=False), paper)
    if answer.memory.remedies:
        yield memory_command.remedies_table(answer.memory, paper)
    yield features.start(answer, paper)
    yield heading("Cost and energy", paper)
    yield pairs(_cost(answer), paper)
    yield questions.quick_table(answer.quick, paper)
    yield questions.assumption_list(answer.assumptions)


def _warnings(answer: ServeAnswer) -> Iterator[str]:
    """What stands in the way."""
    if not answer.fits:
        yield "weights and one sequence do not fit the memory; nothing would start."
    load = answer.under_load
    if load is not None and not answer.keeps_up:
        gpus = load.replicas_needed * answer.estimate.num_gpus
        yield (
            f"{load.requests_per_s:g} requests/s are {units.format_percent(load.utilisation_frac)} of what it "
            f"sustains; the queue grows without end. It takes {load.replicas_needed:,} replicas or more "
            f"({gpus:,} accelerators)."
        )


def _speed(answer: ServeAnswer) -> list[tuple[str, Any]]:
    found, replicas = answer.estimate, answer.replicas
    requests, tokens = found.throughput, found.output_tokens_per_s
    most = f"{found.max_concurrency * replicas:,} in flight"
    if found.max_whole_contexts != found.max_concurrency:
        most += f" while answers grow (half held on average), {found.max_whole_contexts * replicas:,} whole contexts"
    if found.tpot_s is None or tokens is None:
        ends = f"({requests.low * replicas:,.4g} to {requests.high * replicas:,.4g} in 8 of 10 cases)"
        return [
            ("latency", _interval(found.ttft_s)),
            ("throughput", f"{requests.value * replicas:,.4g} inputs/s {ends}"),
            ("per accelerator", f"{requests.value / found.num_gpus:,.4g} inputs/s"),
            ("batch", f"{found.concurrency * replicas:,.0f} inputs at once; at most {most}"),
        ]
    ends = f"({tokens.low * replicas:,.0f} to {tokens.high * replicas:,.0f} in 8 of 10 cases)"
    waits = [("TTFT", _interval(found.ttft_s)), ("TPOT", _interval(found.tpot_s))]
    whole: list[tuple[str, Any]] = [("whole request", units.format_seconds(found.e2e_s))]
    alone: list[tuple[str, Any]] = [("per user", f"{1 / found.tpot_s.value:,.1f} tokens/s")]
    return [
        *(waits + whole if answer.keeps_up else []),
        ("throughput", f"{tokens.value * replicas:,.0f} tokens/s {ends}"),
        ("per accelerator", f"{tokens.value / found.num_gpus:,.0f} tokens/s"),
        *(alone if answer.keeps_up else []),
        ("requests", f"{requests.value * replicas:,.3g}/s with {found.concurrency * replicas:,.0f} decoding at once"),
        ("at most", f"{most}; cache of {found.kv_capacity_tokens * replicas:,} tokens"),
        *features.speed(answer),
    ]


def _interval(value: Ranged) -> str:
    low, high = units.format_seconds(value.low), units.format_seconds(value.high)
    return f"{units.format_seconds(value.value)} ({low} to {high} in 8 of 10 cases)"


def _load_table(load: UnderLoad, paper: Screen) -> str:
    title = f"At {load.requests_per_s:g} requests/s: {units.format_percent(load.utilisation_frac)} of what it sustains"
    rows = [(p, units.format_seconds(load.ttft_s[p]), units.format_seconds(load.tpot_s[p])) for p in load.ttft_s]
    return f"{heading(title, paper)}\n{table(['percentile', '>TTFT', '>TPOT'], rows, paper)}"


def _cost(answer: ServeAnswer) -> list[tuple[str, Any]]:
    found = answer.estimate
    hourly = None if found.usd_per_hour is None else found.usd_per_hour * answer.replicas
    if found.tpot_s is None:
        each = questions.per_million(found.usd_per_hour, found.requests_per_s)
        return [
            ("per hour", questions.price(hourly)),
            ("per million inputs", questions.price(each)),
            ("energy of an input", questions.energy(found.joules_per_request)),
        ]
    prompts = f"prompts take {units.format_percent(found.prefill_frac)} of the time, and of the bill"
    return [
        ("per hour", questions.price(hourly)),
        ("per million output tokens", questions.price(found.usd_per_million_output_tokens)),
        ("per million input tokens", _with(questions.price(found.usd_per_million_input_tokens), prompts)),
        ("energy of an output token", questions.energy(found.joules_per_output_token)),
    ]


def _with(value: str | None, note: str) -> str | None:
    return None if value is None else f"{value} ({note})"
