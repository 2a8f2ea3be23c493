"""Options of the techniques of serving: prefixes, eviction, drafts, pools for prompts, offloading; and cold starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.questions import grouped
from flopwise.cli.render import Screen, heading, pairs

if TYPE_CHECKING:
    from flopwise.api.features import Features
    from flopwise.api.serve import ServeAnswer

TECHNIQUES = "Prefixes, drafts, pools, layers on the host"
technique_options = grouped(
    click.option("--shared-prefix", type=options.TOKENS, help="Tokens with which all prompts begin: cached once."),
    click.option(
        "--prefix-hit", type=options.FRACTION_OR_ZERO, help="Share of a prompt's tokens found in the cache: 0.6, 60%."
    ),
    click.option("--kv-keep", type=options.FRACTION, help="Share of cached tokens that eviction keeps (H2O, SnapKV)."),
    click.option("--draft", type=options.Name("draft"), help="Speculate: with a model, eagle, mtp or ngram."),
    click.option("--draft-tokens", type=options.Whole(high=64), help="Tokens that the draft proposes (default: 4)."),
    click.option("--acceptance", type=options.FRACTION_OR_ZERO, help="Share of proposed tokens that are accepted."),
    click.option("--draft-weights", type=options.Name("format"), help="Of the draft (default: as published)."),
    click.option("--offload-weights", type=options.FRACTION_OR_ZERO, help="Share of the layers in host memory."),
    click.option("--gpu-layers", type=options.WHOLE_OR_ZERO, help="The same as layers that stay, as llama.cpp -ngl."),
    click.option("--host", type=options.Name("cpu"), help="Processor that computes offloaded layers (llama.cpp)."),
    click.option(
        "--expert-skew", type=options.Quantity("x", units.parse_count),
        help="Tokens of the most popular expert over the mean of all (default: 1, balanced).",
    ),
    section=TECHNIQUES,
)  # fmt: skip

pool_option = grouped(
    click.option(
        "--prefill-gpus", type=options.DEGREE, help="Accelerators of each replica, besides its own, for prompts only."
    ),
    section=TECHNIQUES,
)

start_options = grouped(
    click.option("--storage", type=options.Name("kind"), help="Weights are read from it at a start: nvme, s3, nfs ..."),
    click.option("--storage-bandwidth", type=options.BANDWIDTH, help="The same as a measured rate of a node: 3GB/s."),
    click.option("--image-size", type=options.BYTES, help="Container image to pull at a start: 10GB."),
    click.option("--image-bandwidth", type=options.BANDWIDTH, help="Rate of pulling and unpacking it: 200MB/s."),
    section="Cold start",
)  # fmt: skip


def features(given: dict[str, Any]) -> Features:
    """The techniques in the parameters of a command."""
    from flopwise.api.features import Features

    renamed = {
        "storage_bytes_per_s": "storage_bandwidth",
        "image_bytes": "image_size",
        "image_bytes_per_s": "image_bandwidth",
    }
    return Features(**{name: given.get(renamed.get(name, name)) for name in Features.__dataclass_fields__})


def document(answer: ServeAnswer) -> dict[str, Any]:
    """Techniques and cold start as JSON."""
    start, drafts = answer.cold_start, answer.speculation
    return {
        "cold_start_s": start.seconds,
        "cold_start": {
            "parts": [{"name": name, "seconds": seconds} for name, seconds in start.parts],
            "storage": start.storage,
            "weights_bound": start.weights_bound,
            "read_bytes_per_node": start.read_bytes,
        },
        "speculation": None
        if drafts is None
        else {
            "draft": drafts.name,
            "tokens_per_step": drafts.tokens_per_step,
            "decode_speedup": drafts.speedup,
            "pays_up_to": drafts.pays_up_to,
        },
        "prefill_gpus": answer.estimate.job.techniques.prefill_gpus * answer.replicas,
        "host_bytes": answer.host_bytes,
    }


def speed(answer: ServeAnswer) -> list[tuple[str, Any]]:
    """Lines beside latency and throughput."""
    drafts, told = answer.speculation, []
    if drafts is not None:
        far = f"pays up to {drafts.pays_up_to:,} decoding at once" if drafts.pays_up_to else "never pays here"
        gain = f"decoding {drafts.speedup:.2f} x as fast; {far}"
        told.append(("speculation", f"{drafts.tokens_per_step:.2f} tokens a step, {gain}"))
    if answer.host_bytes:
        told.append(("on the host", f"{units.format_bytes(answer.host_bytes)} of weights"))
    return told


def start(answer: ServeAnswer, paper: Screen) -> str:
    """The section on the cold start."""
    from flopwise.cli.questions import shares

    found = answer.cold_start
    title = heading(f"Cold start: {units.format_seconds(found.seconds)} until the first answer", paper)
    waits = f"{units.format_bytes(found.read_bytes)} a node from {found.storage}, bound by the {found.weights_bound}"
    return "\n".join([title, shares(found.parts, units.format_seconds, paper), pairs([("weights", waits)], paper)])
