"""`flopwise simulate`: what users of a service see, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flopwise.cli import elastic_options, features, options, questions

_FILE = click.Path(path_type=Path)

traffic_options = questions.grouped(
    click.option("--trace", type=_FILE, help="A CSV file: arrival_s, prompt_tokens, output_tokens ..."),
    click.option("--scale", type=options.COUNT, default="1", help="Replay the trace so many times as fast."),
    click.option("--rate", type=options.RATE, help="Or so many requests a second on average: 20, 500/min."),
    click.option(
        "--arrivals", type=options.Name("process"), default="poisson", show_default=True,
        help="poisson, gamma (bursts), diurnal (a daily wave) or uniform.",
    ),
    click.option("--burstiness", type=options.COUNT, help="Of gamma arrivals: 1 is Poisson, 3 comes in clumps."),
    click.option("--peak", type=options.COUNT, help="Of diurnal arrivals: the busiest hour over the mean."),
    click.option("--peak-hour", type=options.HOUR, help="Of diurnal arrivals (default: 14)."),
    click.option("--weekend", type=options.COUNT_OR_ZERO, help="Of diurnal arrivals: a weekend day over another."),
    click.option("--duration", "duration_s", type=options.SECONDS, help="Requests come this long (default: 10 min)."),
    click.option("--requests", type=options.BATCH, help="So many requests, instead of a duration."),
    click.option("--users", type=options.BATCH, help="Or so many users, who ask again after each answer."),
    click.option(
        "--think", "think_s", type=options.SECONDS_OR_ZERO, default="0",
        help="Of users: they think so long before they ask again.",
    ),
    click.option("--together", is_flag=True, help="Of users: all begin at one instant, even if they ask alike."),
    click.option(
        "--input", "inputs", metavar="LENGTH", help="Tokens of prompts: 1024 (default), 200:800, lognormal:512:cv=1."
    ),
    click.option("--output", "outputs", metavar="LENGTH", help="Tokens of answers, likewise (default: 256)."),
    click.option("--lengths-from", type=_FILE, help="Draw pairs of prompt and answer from this trace file."),
    click.option("--prefixes", type=options.WHOLE_OR_ZERO, default=0, help="Prompts begin with one of so many texts,"),
    click.option("--prefix-tokens", type=options.TOKENS, help="of so many tokens, before their --input."),
    click.option("--seed", type=options.WHOLE_OR_ZERO, default=0, help="Of the draws; the same seed, the same run."),
    section="Traffic",
)  # fmt: skip

scheduling_options = questions.grouped(
    click.option(
        "--policy", type=options.Name("policy"), default="fcfs", show_default=True,
        help="Who goes first: fcfs, priority, shortest, shortest-prompt, deadline.",
    ),
    click.option(
        "--balancer", type=options.Name("balancer"), default="least-loaded", show_default=True,
        help="Who goes where: round-robin, least-loaded, least-tokens, prefix-aware.",
    ),
    click.option("--step-tokens", type=options.TOKENS, help="Tokens of an engine step (default: the engine's)."),
    click.option("--max-batch", type=options.BATCH, help="Sequences that run at once (default: the engine's)."),
    click.option("--mix/--no-mix", default=True, help="Prompts and answers share steps, or prompts go first."),
    click.option(
        "--preempt", type=options.Choice(["recompute", "swap"]), default="recompute", show_default=True,
        help="What becomes of a sequence when the cache is full.",
    ),
    click.option("--prefix-cache/--no-prefix-cache", default=None, help="Keep shared prefixes (default: if any)."),
    click.option(
        "--prefill-replicas", type=options.WHOLE_OR_ZERO, default=0,
        help="So many further replicas do prompts only and hand them over.",
    ),
    section="Scheduling",
)  # fmt: skip

slo_options = questions.grouped(
    click.option("--ttft", type=options.SECONDS, help="The first token within this time ..."),
    click.option("--tpot", type=options.SECONDS, help="... each further one within this on average ..."),
    click.option("--latency", type=options.SECONDS, help="... the whole answer within this."),
    section="What counts as good",
)


@options.command(
    "simulate",
    "flopwise simulate Llama-3.1-8B --gpu h100 --rate 8 --input lognormal:900:cv=1 --ttft 500ms --tpot 40ms",
    "flopwise simulate Llama-3.1-70B --gpu h100 --tp 4 --weights fp8 --replicas 2 --users 64 --json",
    "flopwise simulate Llama-3.1-8B --gpu l40s --replicas 3 --trace examples/trace.csv --scale 2",
    "flopwise simulate Llama-3.1-8B --gpu l4 --rate 1 --duration 20min --autoscale concurrency --target 8 --ttft 2s",
    "flopwise simulate Llama-3.1-8B --gpu h100 --queue 2M --workers 8 --deadline 6h --provider aws",
    "flopwise simulate Llama-3.1-8B --gpu l4 --rate 2 --response-cache 500 --distinct 5000 --repeated 60%",
    "flopwise simulate Llama-3.1-70B --gpu h100 --tp 4 --rate 2 --draft eagle --acceptance 0.7 --shared-prefix 500",
)
@options.model_argument
@click.option("--gpu", type=options.Name("gpu"), help="Accelerator, in any common spelling (or --instance).")
@click.option("--replicas", type=options.DEGREE, default=1, show_default=True, help="Replicas behind the balancer.")
@click.option("--tp", type=options.DEGREE, default=1, show_default=True, help="Tensor-parallel degree of a replica.")
@click.option("--pp", type=options.DEGREE, default=1, show_default=True, help="Pipeline stages of a replica.")
@click.option("--ep", type=options.DEGREE, default=1, show_default=True, help="Expert-parallel degree.")
@click.option("--dp", type=options.DEGREE, default=1, show_default=True, help="Attention replicas that share experts.")
@traffic_options
@slo_options
@scheduling_options
@elastic_options.autoscale_options
@elastic_options.queue_options
@elastic_options.cache_options
@features.technique_options
@features.pool_option
@questions.serving_options
@questions.price_options
@questions.model_options
def command(**given: Any) -> None:
    """What users see: requests through replicas, step by step.

    Traffic is a trace file, a rate with lengths, or users who wait for their answers. Every engine step is played
    through: batching, chunks of prompts, blocks of cache, preemption. Requests that could never run are dropped and
    counted; the exit code is then still 0, and 1 where none is answered.

    With --autoscale replicas come and go with the traffic; with --queue spot workers work off a fixed number of
    requests; with --response-cache repeated prompts are answered from a cache.
    """
    elastic_options.refuse_strays(click.get_current_context())
    if given["queue"] is not None:
        _batch(given)
    elif given["autoscale"] is not None:
        _autoscale(given)
    else:
        _simulate(given)


def _simulate(given: dict[str, Any]) -> None:
    from flopwise.cli.views import elasticity
    from flopwise.cli.views import simulate as view

    answer, sizes = question(**given), _sizes(given, None)
    options.answer(
        lambda: view.document(answer) | elasticity.vertical_document(sizes),
        lambda paper: (*view.blocks(answer, paper), *elasticity.vertical_blocks(sizes, paper)),
    )
    if not answer.summary.completed:
        click.get_current_context().exit(1)


def _autoscale(given: dict[str, Any]) -> None:
    from flopwise.api.simulate import autoscale
    from flopwise.cli.progress import Progress, announce_compilation
    from flopwise.cli.views import elasticity as view

    rule = elastic_options.autoscaling(given)
    with Progress("simulating") as progress:
        found = autoscale(
            rule=rule, attain=given["attain"], on_compile=announce_compilation, report=progress, **asked(given)
        )
    sizes = _sizes(given, rule)
    options.answer(
        lambda: view.document(found) | view.vertical_document(sizes),
        lambda paper: (*view.blocks(found, paper), *view.vertical_blocks(sizes, paper)),
    )
    if not found.answer.summary.completed:
        click.get_current_context().exit(1)


def _sizes(given: dict[str, Any], rule: Any) -> tuple[Any, ...]:
    """The same accelerators in replicas of every size, where that was asked for."""
    from flopwise.api.simulate import vertical
    from flopwise.cli.progress import announce_compilation

    if not given["vertical"]:
        return ()
    question = {k: v for k, v in asked(given).items() if k != "cache"}
    return vertical(rule=rule, replicas=given["replicas"], on_compile=announce_compilation, **question)


def _batch(given: dict[str, Any]) -> None:
    from flopwise.api.simulate import batch
    from flopwise.cli.progress import Progress
    from flopwise.cli.views import batch as view

    with Progress("simulating") as progress:
        found = batch(
            given["model"],
            given["queue"],
            queue=elastic_options.batch(given),
            machines=questions.machines(given),
            deployment=questions.deployment(given),
            features=features.features(given),
            report=progress,
            **questions.model_arguments(given),
        )
    options.answer(lambda: view.document(found), lambda paper: view.blocks(found, paper))


def asked(given: dict[str, Any]) -> dict[str, Any]:
    """The question in the parameters of this command, as the functions take it."""
    from dataclasses import fields

    from flopwise.serving.sim.request import Scheduling
    from flopwise.serving.sim.result import Slo
    from flopwise.serving.sim.source import Traffic

    def picked(kind: Any) -> Any:
        return kind(**{f.name: given[f.name] for f in fields(kind) if given.get(f.name) is not None})

    return {
        "model": given["model"],
        "traffic": picked(Traffic),
        "scheduling": picked(Scheduling),
        "slo": Slo(ttft_s=given["ttft"], tpot_s=given["tpot"], e2e_s=given["latency"]),
        "cache": elastic_options.response_cache(given),
        "machines": questions.machines(given),
        "deployment": questions.deployment(given),
        "features": features.features(given),
        **questions.model_arguments(given),
    }


def question(**given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.simulate import simulate
    from flopwise.cli.progress import announce_compilation

    share = {} if given["attain"] is None else {"attain": given["attain"]}
    return simulate(replicas=given["replicas"], on_compile=announce_compilation, **share, **asked(given))
