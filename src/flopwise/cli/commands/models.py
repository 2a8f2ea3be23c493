"""`flopwise models`: the architectures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.ops.model_card import Counts, ModelCard


@options.command(
    "models",
    "flopwise models --family llama",
    "flopwise models Llama-3.1-8B --batch 1 --seq 8192",
)
@click.argument("name", type=options.Name("name"), required=False)
@click.option(
    "--batch", type=options.BATCH, help="Count the operations of a pass over this many sequences (or samples)."
)
@click.option("--seq", type=options.TOKENS, help="Tokens of each sequence.")
@click.option("--family", type=options.Name("family"), help="List only models of this model_type: llama, qwen3_moe ...")
@click.option("--kind", type=options.Name("kind"), help="List only models of this kind: decoder, encoder, vision ...")
@options.family_option
@options.offline_option
@options.facts_option
def command(
    *,
    name: str | None,
    batch: int | None,
    seq: int | None,
    family: str | None,
    kind: str | None,
    assume_family: str | None,
    offline: bool,
    facts: Path | None,
) -> None:
    """What is known of a model: parameters, FLOPs, operations.

    NAME is a catalog name, a Hugging Face id, a folder, a config.json, or a size such as 7B. Without NAME: the catalog.
    """
    from flopwise.api import facts as known

    if name is None:
        if batch or seq or assume_family:
            raise click.UsageError("--batch, --seq and --assume-family need a NAME", click.get_current_context())
        rows = known.models(family=family, kind=kind, facts=facts)
        options.answer(lambda: rows, lambda paper: [_listing(rows, paper)])
        return
    if family or kind:
        raise click.UsageError("NAME shows one model; the filters belong to the list", click.get_current_context())
    card = known.model(name, batch=batch, seq=seq, assume_family=assume_family, offline=offline, facts=facts)
    options.answer(lambda: document(card), lambda paper: _detail(card, paper))


def document(card: ModelCard) -> dict[str, Any]:
    """The card as the JSON that scripts rely on."""
    model = card.model
    found: dict[str, Any] = {
        "name": model.name,
        "model_type": model.model_type,
        "kind": model.kind,
        "hf_id": model.hf_id,
        "parameters": card.parameters,
        "active_parameters": card.active_parameters,
        "vocab": model.vocab or None,
        "max_position": model.max_position,
        "stacks": [{"name": s.name, "layers": s.num_layers, "width": s.width} for s in model.stacks],
        "published": model.published,
        "source": model.source,
        "date": model.date,
        "confidence": model.confidence,
        "assumed": list(model.notes),
        "tensors": [
            {"name": g.name, "stack": g.stack, "numel": g.numel, "layers": g.layers, "active_numel": g.active_numel}
            for g in card.groups
        ],
    }
    if card.counts is not None:
        found |= {
            "batch": card.counts.batch,
            "seq": card.counts.seq,
            "forward_flops": card.counts.forward_flops,
            "backward_flops": card.counts.backward_flops,
            "causal_forward_flops": card.counts.causal_forward_flops,
            "operations": card.counts.operations,
        }
    return found


def _listing(rows: Sequence[Mapping[str, Any]], paper: Screen) -> str:
    return table(
        ["name", "type", "kind", ">parameters", ">active", "Hugging Face id", "known"],
        [
            (r["name"], r["model_type"], r["kind"], _count(r["parameters"]), _count(r["active_parameters"]), r["hf_id"],
             r["confidence"])
            for r in rows
        ],
        paper,
    )  # fmt: skip


def _count(number: float | None) -> str | None:
    return None if number is None else units.format_count(number)


def _detail(card: ModelCard, paper: Screen) -> Iterator[str]:
    model = card.model
    yield heading(f"{model.name}: {model.kind} ({model.model_type})", paper)
    if model.notes:
        yield "\n".join(f"Assumed: {note}" for note in model.notes)
    exact = None if card.parameters is None else f"{units.format_count(card.parameters)} ({card.parameters:,})"
    active = None
    if card.active_parameters is not None and card.active_parameters != card.parameters:
        active = f"{units.format_count(card.active_parameters)} ({card.active_parameters:,})"
    yield pairs(
        [
            ("parameters", exact),
            *([("active for one token", active)] if active else []),
            *((s.name, f"{s.num_layers} layers, width {s.width:,}") for s in model.stacks),
            ("vocabulary", model.vocab or None),
            ("longest context", model.max_position),
        ],
        paper,
    )
    if card.groups:
        yield table(
            ["tensors", "in", ">elements", ">layers", ">total"],
            [(g.name, g.stack, g.numel, g.layers, g.numel * g.layers) for g in card.groups],
            paper,
        )
    if card.counts is not None:
        yield from _operations(card.counts, paper)
    if model.source:
        yield f"Source: {model.source}" + (f" ({model.date}, {model.confidence} confidence)" if model.date else "")


def _operations(counts: Counts, paper: Screen) -> Iterator[str]:
    yield heading(f"A pass over {counts.batch:,} x {counts.seq:,} tokens", paper)
    yield pairs(
        [
            ("forward", f"{units.format_flops(counts.forward_flops)} (attention in full, as PyTorch counts)"),
            ("backward", units.format_flops(counts.backward_flops)),
            ("forward, causal", f"{units.format_flops(counts.causal_forward_flops)} (as flash kernels run it)"),
        ],
        paper,
    )
    yield table(
        ["operation", ">FLOP", ">share", ">bytes moved", ">FLOP/byte"],
        [
            (
                o.name,
                units.format_flops(float(o.flops)),
                units.format_percent(float(o.flops) / counts.forward_flops) if counts.forward_flops else None,
                units.format_bytes(float(o.bytes)),
                float(o.flops) / float(o.bytes) if o.bytes else None,
            )
            for o in counts.operations
        ],
        paper,
    )
