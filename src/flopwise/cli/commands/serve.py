"""`flopwise serve`: how fast does it serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, questions
from flopwise.cli.commands import memory as memory_command
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.api.serve import ServeAnswer, UnderLoad
    from flopwise.serving.estimate import Ranged


@options.command(
    "serve",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1024 --output 256 --concurrency 64",
    "flopwise serve Llama-3.1-8B --gpu l40s --weights fp8 --gpus 4 --rate 6 --json",
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
    "--input", "input_tokens", type=options.TOKENS, default=1024, show_default=True, help="Tokens of a prompt."
)
@click.option(
    "--output", "output_tokens", type=options.TOKENS, default=256, show_default=True, help="Tokens of an answer."
)
@click.option(
    "--concurrency", type=options.BATCH, help="Requests in flight, all replicas (default: as many as memory holds)."
)
@click.option("--rate", type=options.RATE, help="Requests arriving a second instead: 20, 500/min.")
@click.option("--static", is_flag=True, help="A fixed batch: all prompts first, then all answers.")
@questions.serving_options
@questions.price_options
@questions.model_options
@options.explain_option
def command(**given: Any) -> None:
    """Latency, throughput, maximum concurrency and cost per token.

    TTFT is the time to the first token, TPOT the time for each further one. A deployment that does not fit is estimated
    all the same; the exit code is then 1.
    """
    explained = given.pop("explain")
    answer = question(**given)
    questions.told(answer, document, lines, explained=explained)
    if not answer.fits:
        click.get_current_context().exit(1)


def question(**given: Any) -> ServeAnswer:
    """The answer to the parameters of this command."""
    from flopwise.api.serve import serve

    return serve(
        given["model"],
        gpus=given["gpus"],
        input_tokens=given["input_tokens"],
        output_tokens=given["output_tokens"],
        concurrency=given["concurrency"],
        rate=given["rate"],
        static=given["static"],
        machines=questions.machines(given),
        deployment=questions.deployment(given),
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
        **_ranged("ttft_s", found.ttft_s),
        **_ranged("tpot_s", found.tpot_s),
        "e2e_s": found.e2e_s,
        **_ranged("output_tokens_per_s", found.output_tokens_per_s, replicas),
        **_ranged("output_tokens_per_s_per_gpu", found.output_tokens_per_s, 1 / found.num_gpus),
        "tokens_per_s_per_user": None if found.tpot_s is None else 1 / found.tpot_s.value,
        "total_tokens_per_s": found.total_tokens_per_s * replicas,
        "requests_per_s": found.requests_per_s * replicas,
        "concurrency": found.concurrency * replicas,
        "max_concurrency": found.max_concurrency * replicas,
        "kv_capacity_tokens": found.kv_capacity_tokens * replicas,
        "bound": found.bound,
        "breakdown": [{"name": name, "seconds": seconds} for name, seconds in found.breakdown],
        "lower_bound_s": found.lower_bound_s,
        "usd_per_hour": None if found.usd_per_hour is None else found.usd_per_hour * replicas,
        "usd_per_million_output_tokens": found.usd_per_million_output_tokens,
        "usd_per_million_input_tokens": found.usd_per_million_input_tokens,
        "joules_per_output_token": found.joules_per_output_token,
        "price_source": job.cluster.price_source or None,
        "memory": memory_command.document(answer.memory),
        "fits": answer.fits,
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
    if not answer.fits:
        yield paper.paint("WARNING: weights and one sequence do not fit the memory; nothing would start.", "red")
    yield pairs(answer.settings, paper)
    yield pairs(_speed(answer), paper)
    if answer.under_load is not None:
        yield _load_table(answer.under_load, paper)
    yield heading(f"One step of the engine, bound by {found.bound}", paper)
    yield questions.shares(found.breakdown, units.format_seconds, paper)
    yield pairs([("at least", f"{units.format_seconds(found.lower_bound_s)} at datasheet rates")], paper)
    yield heading("Memory per accelerator", paper)
    yield memory_command.items_table(answer.memory, paper)
    yield pairs(memory_command.verdict(answer.memory), paper)
    if answer.memory.remedies:
        yield memory_command.remedies_table(answer.memory, paper)
    yield heading("Cost and energy", paper)
    yield pairs(_cost(answer), paper)
    yield questions.quick_table(answer.quick, paper)
    yield questions.assumption_list(answer.assumptions)


def _speed(answer: ServeAnswer) -> list[tuple[str, Any]]:
    found, replicas = answer.estimate, answer.replicas
    rate = found.output_tokens_per_s
    rows: list[tuple[str, Any]] = [("TTFT" if found.tpot_s else "latency", _interval(found.ttft_s))]
    if found.tpot_s is not None:
        rows += [("TPOT", _interval(found.tpot_s)), ("whole request", units.format_seconds(found.e2e_s))]
    rows += [
        (
            "throughput",
            f"{rate.value * replicas:,.0f} tokens/s ({rate.low * replicas:,.0f} to {rate.high * replicas:,.0f})",
        ),
        ("per accelerator", f"{rate.value / found.num_gpus:,.0f} tokens/s"),
    ]
    if found.tpot_s is not None:
        rows.append(("per user", f"{1 / found.tpot_s.value:,.1f} tokens/s"))
    return [
        *rows,
        (
            "requests",
            f"{found.requests_per_s * replicas:,.3g}/s with {found.concurrency * replicas:,.0f} decoding at once",
        ),
        (
            "at most",
            f"{found.max_concurrency * replicas:,} in flight; cache of {found.kv_capacity_tokens * replicas:,} tokens",
        ),
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
    return [
        ("per hour", questions.price(hourly)),
        ("per million output tokens", questions.price(found.usd_per_million_output_tokens)),
        ("per million input tokens", questions.price(found.usd_per_million_input_tokens)),
        ("energy of an output token", questions.energy(found.joules_per_output_token)),
    ]
