"""Options of `flopwise simulate` for replicas that come and go, queues of requests and cached answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flopwise.cli import options, questions
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.batch_queue import BatchRequest
    from flopwise.serving.sim.caching import ResponseCache

autoscale_options = questions.grouped(
    click.option(
        "--autoscale", type=options.Name("measure"),
        help="Start and drain replicas by concurrency, queue, utilisation or kv (how full the cache is).",
    ),
    click.option("--target", type=options.COUNT, help="Of the measure: 32 requests a replica, 0.7 of the time ..."),
    click.option("--min-replicas", type=options.WHOLE_OR_ZERO, help="At least (default: 1; 0 scales to zero)."),
    click.option("--max-replicas", type=options.DEGREE, help="At most (default: 16)."),
    click.option(
        "--cold-start", type=options.SECONDS_OR_ZERO,
        help="From the wish for a machine to its first request (default: a minute for the machine, then the engine).",
    ),
    click.option("--cool-down", type=options.SECONDS_OR_ZERO, help="Never fewer than wanted so long (default: 5min)."),
    click.option("--tick", type=options.SECONDS, help="Time between looks (default: 15 s)."),
    click.option(
        "--attain", type=options.FRACTION,
        help="Share of requests that fixed replicas must answer in time (default: as the autoscaler; cache: 99%).",
    ),
    click.option("--vertical", is_flag=True, help="The same accelerators as fewer, larger replicas or more, smaller."),
    section="Replicas that come and go",
)  # fmt: skip

queue_options = questions.grouped(
    click.option("--queue", type=options.Whole(high=10**12), help="Work off so many requests instead of traffic."),
    click.option("--workers", type=options.Whole(high=10_000), help="Spot replicas for it (default: 1)."),
    click.option("--deadline", type=options.SECONDS, help="When it has to be done: 6h."),
    click.option(
        "--spot-interruptions", type=options.RATE_OR_ZERO,
        help="How often one spot instance is taken back: 0.1/day (default: as known of the provider).",
    ),
    click.option("--spot-price", type=options.USD, help="US dollars for one spot accelerator and hour."),
    click.option("--replace", "replace_s", type=options.SECONDS_OR_ZERO, help="Until another is found: 5min."),
    click.option("--checkpoint-every", type=options.SECONDS, help="Save the tokens made so far (default: never)."),
    click.option("--checkpoint-time", type=options.SECONDS_OR_ZERO, help="A worker saves for so long (default: 0)."),
    click.option("--fallback", type=options.Whole(high=10_000), help="On-demand replicas that save the deadline."),
    click.option("--trials", type=options.Whole(high=10**6), help="Draws of interruptions (default: 1000)."),
    section="A queue with a deadline",
)  # fmt: skip

cache_options = questions.grouped(
    click.option("--response-cache", type=options.BATCH, metavar="ENTRIES", help="Give stored answers again."),
    click.option("--distinct", type=options.BATCH, help="Prompts that are asked more than once, in all."),
    click.option("--skew", type=options.COUNT_OR_ZERO, help="Zipf exponent of their popularity (default: 1)."),
    click.option("--repeated", type=options.FRACTION_OR_ZERO, help="Share of requests that ask one (default: all)."),
    click.option("--cache-ttl", type=options.SECONDS, help="An answer is good for so long (default: for ever)."),
    click.option("--cache-price", type=options.USD_OR_ZERO, help="US dollars for a GB of its memory and hour."),
    section="Answers that are given again",
)  # fmt: skip

LED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("autoscale",), ("target", "min_replicas", "max_replicas", "cool_down", "tick")),
    (
        ("queue",),
        (
            "workers", "deadline", "spot_interruptions", "spot_price", "replace_s", "checkpoint_every",
            "checkpoint_time", "fallback", "trials",
        ),
    ),
    (("response_cache",), ("distinct", "skew", "repeated", "cache_ttl", "cache_price")),
    (("autoscale", "queue"), ("cold_start",)),
    (("autoscale", "response_cache"), ("attain",)),
)  # fmt: skip
"""Options that say nothing without one of others, those first."""
APART = (
    ("autoscale", "replicas", "--autoscale decides how many replicas there are: give --min-replicas, --max-replicas"),
    ("vertical", "response_cache", "--vertical compares replicas without a --response-cache; ask for one of them"),
)
"""Options that contradict each other, and what to do."""
NOT_QUEUED = frozenset({
    "trace", "scale", "rate", "arrivals", "burstiness", "peak", "peak_hour", "weekend", "duration_s", "requests",
    "users", "think_s", "prefixes", "prefix_tokens", "policy", "balancer", "step_tokens", "max_batch", "mix",
    "preempt", "prefix_cache", "prefill_replicas", "together",
    "autoscale", "response_cache", "vertical", "replicas", "ttft", "tpot", "latency",
})  # fmt: skip


def refuse_strays(context: click.Context) -> None:
    """Refuse options that do not go together.

    Raises:
        SpecError: names them.
    """
    spelled = {p.name: max(p.opts, key=len) for p in context.command.params if p.name}
    given = {
        name for name in spelled if context.get_parameter_source(name) not in {ParameterSource.DEFAULT, None}
    }  # fmt: skip

    def named(names: set[str]) -> str:
        return ", ".join(sorted(spelled[name] for name in names))

    for leaders, led in LED:
        if not given & set(leaders) and (strays := given & set(led)):
            raise SpecError(f"{named(strays)}: only with {' or '.join(spelled[leader] for leader in leaders)}")
    for one, other, said in APART:
        if {one, other} <= given:
            raise SpecError(said)
    if "response_cache" in given and "distinct" not in given:
        raise SpecError("--response-cache needs to know how many prompts repeat: give --distinct")
    if "queue" in given:
        if strays := given & NOT_QUEUED:
            raise SpecError(f"{named(strays)}: not with --queue, whose requests are all there at the start")
        if "purchase" in given and context.params["purchase"] != "spot":
            raise SpecError("the --workers of a --queue are spot machines; --fallback and the comparison are on demand")


def autoscaling(given: dict[str, Any]) -> Autoscaling:
    """The rule in the parameters of the command."""
    from flopwise.serving.sim.autoscale import Autoscaling

    named = {
        "target": given["target"],
        "least": given["min_replicas"],
        "most": given["max_replicas"],
        "tick_s": given["tick"],
        "cold_start_s": given["cold_start"],
        "cool_down_s": given["cool_down"],
    }
    return Autoscaling(
        measure=given["autoscale"], **{name: value for name, value in named.items() if value is not None}
    )


def response_cache(given: dict[str, Any]) -> ResponseCache | None:
    """The cache in the parameters of the command; None where none is asked for."""
    from flopwise.serving.sim.caching import ResponseCache

    if given["response_cache"] is None:
        return None
    named = {
        "skew": given["skew"],
        "repeated": given["repeated"],
        "ttl_s": given["cache_ttl"],
        "usd_per_gb_hour": given["cache_price"],
    }
    return ResponseCache(
        entries=given["response_cache"],
        prompts=given["distinct"],
        **{name: value for name, value in named.items() if value is not None},
    )


def batch(given: dict[str, Any]) -> BatchRequest:
    """The queue in the parameters of the command."""
    from flopwise.serving.sim.batch_queue import BatchRequest

    named = {
        "workers": given["workers"],
        "deadline_s": given["deadline"],
        "inputs": given["inputs"],
        "outputs": given["outputs"],
        "lengths_from": given["lengths_from"],
        "interruptions_per_s": given["spot_interruptions"],
        "replace_s": given["replace_s"],
        "boot_s": given["cold_start"],
        "checkpoint_every_s": given["checkpoint_every"],
        "checkpoint_s": given["checkpoint_time"],
        "fallback": given["fallback"],
        "spot_price": given["spot_price"],
        "trials": given["trials"],
        "seed": given["seed"],
    }
    return BatchRequest(requests=given["queue"], **{name: value for name, value in named.items() if value is not None})
