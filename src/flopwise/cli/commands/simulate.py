"""`flopwise simulate`: what users of a service see, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.progress import Progress, announce_compilation
from flopwise.cli.render import Screen
from flopwise.cli.views import simulation as view
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.options import DEGREE, FLAG, FRACTION, options_of
from flopwise.search.spec import TargetsSpec
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import (
    AutoscaleSpec,
    BatchRequest,
    ResponseCacheSpec,
    Scheduling,
    ServingSpec,
    TechniqueRequest,
)

REPLICAS, QUEUE, CACHE = (set(options_of(spec)) for spec in (AutoscaleSpec, BatchRequest, ResponseCacheSpec))
LATENCIES = ("ttft", "tpot", "latency")
GROUPS: tuple[tuple[tuple[str, ...], set[str]], ...] = (
    (("autoscale",), REPLICAS - QUEUE),
    (("queue",), QUEUE - REPLICAS - set(options_of(Traffic))),
    (("response_cache",), CACHE),
    (("autoscale", "queue"), REPLICAS & QUEUE),
    (("autoscale", "response_cache"), {"attain"}),
)
"""Options that say nothing without one of others, those first."""
NOT_QUEUED = {
    *options_of(Scheduling), *(set(options_of(Traffic)) - QUEUE), *LATENCIES, "autoscale", "response_cache",
    "vertical", "replicas",
}  # fmt: skip
"""Options that say nothing of a queue."""


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
@options.argument("model")
@declared(MachineSpec, "gpu", section="")
@add("--replicas", DEGREE, "Replicas behind the balancer.", default=1)
@declared(ServingSpec, "tp pp ep dp", section="")
@declared(Traffic)
@declared(TargetsSpec, "ttft tpot latency", section="What counts as good")
@declared(Scheduling)
@declared(AutoscaleSpec)
@add(
    "--attain",
    FRACTION,
    "Share of requests that fixed replicas must answer in time (default: as the autoscaler; cache: 99%).",
    section="Replicas that come and go",
)
@add(
    "--vertical",
    FLAG,
    "The same accelerators as fewer, larger replicas or more, smaller.",
    default=False,
    section="Replicas that come and go",
)
@declared(BatchRequest, without=" ".join({*options_of(Traffic), *options_of(AutoscaleSpec)}))
@declared(ResponseCacheSpec)
@declared(TechniqueRequest)
@declared(ServingSpec, without="tp pp ep dp")
@declared(MachineSpec, without="gpu")
@declared(SourceSpec)
def command(**given: Any) -> None:
    """What users see: requests through replicas, step by step.

    Traffic is a trace file, a rate with lengths, or users who wait for their answers. Every engine step is played
    through: batching, chunks of prompts, blocks of cache, preemption. Requests that could never run are dropped and
    counted; the exit code is then still 0, and 1 where none is answered.

    With --autoscale replicas come and go with the traffic; with --queue spot workers work off a fixed number of
    requests; with --response-cache repeated prompts are answered from a cache.
    """
    check_option_groups(given["purchase"])
    model, shared = given["model"], options.values(given, ServingSpec, MachineSpec, TechniqueRequest, SourceSpec)
    if given["queue"] is not None:
        from flopwise.api.simulate import batch

        with Progress("simulating") as progress:
            queue = BatchRequest(**options.values(given, BatchRequest))
            worked = batch(model, queue=queue, report=progress, **shared)
        options.answer(lambda: view.batch_document(worked), lambda paper: view.batch_lines(worked, paper))
        return
    question = _question(given) | shared
    rule = AutoscaleSpec(**options.values(given, AutoscaleSpec)).rule()
    cache = ResponseCacheSpec(**options.values(given, ResponseCacheSpec)).cache()
    attain = {} if given["attain"] is None else {"attain": given["attain"]}
    found: Any
    document: Callable[[Any], dict[str, Any]]
    lines: Callable[[Any, Screen], Iterator[str]]
    if rule is not None:
        from flopwise.api.simulate import autoscale

        with Progress("simulating") as progress:
            found = autoscale(
                model, rule=rule, cache=cache, on_compile=announce_compilation, report=progress, **attain, **question
            )
        document, lines, summary = view.autoscale_document, view.autoscale_lines, found.answer.summary
    else:
        from flopwise.api.simulate import simulate

        found = simulate(
            model, replicas=given["replicas"], cache=cache, on_compile=announce_compilation, **attain, **question
        )
        document, lines, summary = view.document, view.lines, found.summary
    sizes: tuple[Any, ...] = ()
    if given["vertical"]:
        from flopwise.api.simulate import vertical

        sizes = vertical(model, rule=rule, replicas=given["replicas"], on_compile=announce_compilation, **question)
    options.answer(
        lambda: document(found) | view.vertical_document(sizes),
        lambda paper: (*lines(found, paper), *view.vertical_lines(sizes, paper)),
    )
    if not summary.completed:
        click.get_current_context().exit(1)


def _question(given: dict[str, Any]) -> dict[str, Any]:
    """Traffic, scheduling and objective, as the functions of the api take them.

    Raises:
        SpecError: an objective at a percentile.
    """
    from flopwise.serving.sim.result import Slo

    limits = {name: given[name] for name in LATENCIES if given[name] is not None}
    for name, limit in limits.items():
        if limit.stated:
            raise options.usage_error(f"--{name}: each request is held to it; give a time without a percentile")
    ttft, tpot, latency = (limits[name].seconds if name in limits else None for name in LATENCIES)
    return {
        "traffic": Traffic(**options.values(given, Traffic)),
        "scheduling": Scheduling(**options.values(given, Scheduling)),
        "slo": Slo(ttft_s=ttft, tpot_s=tpot, e2e_s=latency),
    }


def check_option_groups(purchase: str) -> None:
    """Refuse options that do not go together.

    Raises:
        SpecError: names them.
    """
    said = options.given(click.get_current_context())
    flags = {p.name: options.spelling(p) for p in click.get_current_context().command.params}
    for leaders, led in GROUPS:
        if not any(leader in said for leader in leaders):
            options.refuse(led, f"only with {' or '.join(flags[leader] for leader in leaders)}")
    if {"autoscale", "replicas"} <= said.keys():
        why = "--autoscale decides how many replicas there are: give --min-replicas, --max-replicas"
        raise options.usage_error(why)
    if {"vertical", "response_cache"} <= said.keys():
        why = "--vertical compares replicas without a --response-cache; ask for one of them"
        raise options.usage_error(why)
    if "queue" in said:
        options.refuse(NOT_QUEUED, "not with --queue, whose requests are all there at the start")
        if "purchase" in said and purchase != "spot":
            why = "the --workers of a --queue are spot machines; --fallback and the comparison are on demand"
            raise options.usage_error(why)
