"""`flopwise models`: the architectures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.on_page import on_page
from flopwise.cli.options import flags
from flopwise.cli.render import Screen, heading, known_text, pairs, table, verdict
from flopwise.errors import UnknownNameError
from flopwise.facts.spec import ModelFilter, SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.results import attributes
from flopwise.training.spec import DataSpec

if TYPE_CHECKING:
    from flopwise.ops.model_card import Counts, ModelCard


@options.command("models", "flopwise models --family llama", "flopwise models Llama-3.1-8B --batch 1 --seq 8192")
@options.argument("name", required=False)
@flags(SharedSpec, "batch")
@flags(DataSpec, "seq", section="")
@flags(ModelFilter)
@flags(SourceSpec, without="calibration")
@on_page("catalog", "batch", "seq", "assume_family")
def command(
    *, name: str | None, family: str | None, kind: str | None, facts: Path | None, **given: Any
) -> None:  # fmt: skip
    """Facts about models: parameters, FLOPs, operations.

    NAME is a catalog name, a Hugging Face id, a folder, a config.json, or a size such as 7B; with --batch or --seq the
    answer has the operations of a pass. Without NAME the catalog is listed; with part of a name, all models that
    contain it.
    """
    from flopwise.api import facts as known
    from flopwise.ops.model_card import ModelCard

    if name is None:
        options.refuse(["batch", "seq", "assume_family"], "needs a NAME")
        rows = known.models(family=family, kind=kind, facts=facts)
        options.answer(rows, lambda cards, paper: _listing(_whole(cards), cards, paper), further=_first(rows))
        return
    options.refuse(["family", "kind"], "NAME shows one model; filters belong to the list")
    own = options.values(given)
    try:
        model = SourceSpec(facts=facts, **options.values(given, SourceSpec)).model(name)
        card = ModelCard.of(model, given["batch"], given["seq"])
    except UnknownNameError:
        if not (rows := known.models(matching=name, facts=facts)):
            raise
    else:
        whole = name.lower() == card.model.name.lower() or any(own.values())
        if whole or not _is_part(name, card, rows := known.models(matching=name, facts=facts)):
            deeper = {"What it takes to run, by weight format": shlex.join(["flopwise", "fit", name, "--gpu", "h100"])}
            further = deeper if card.model.kind == "decoder" else None
            options.answer(card, _detail, document, main=None, further=further)
            return
    options.answer(rows, lambda cards, paper: _listing(_matching(name, cards), cards, paper), further=_first(rows))


def _is_part(name: str, card: ModelCard, rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if a name is a part of the names of several models, one of which it is read as, and the whole of none."""
    spelled = [text.lower() for row in rows for text in (row["name"], row["hf_id"] or "")]
    whole = any(name.lower() in (text, text.rpartition("/")[2]) for text in spelled)
    return len(rows) > 1 and card.model.name in (row["name"] for row in rows) and not whole


def _first(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The command that shows the first model of a list."""
    return {"A model in full": shlex.join(["flopwise", "models", rows[0]["name"]])} if rows else {}


def _matching(part: str, rows: Sequence[Mapping[str, Any]]) -> str:
    count = "1 model has" if len(rows) == 1 else f"{len(rows):,} models have"
    return f"{count} {part} in the name or type; no model has exactly that name."


def _whole(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "No model of the catalog fits all of these."
    count = "1 model" if len(rows) == 1 else f"{len(rows):,} models"
    return f"{count} of the catalog; a hub id, a folder, a config.json or a size such as 7B can be given instead."


def document(card: ModelCard) -> dict[str, Any]:
    """The card as the JSON that scripts rely on."""
    model, counts = card.model, "batch seq forward_flops backward_flops causal_forward_flops operations"
    return {
        **attributes(model, "name model_type kind hf_id"),
        **attributes(card, "parameters active_parameters"),
        "vocab": model.vocab or None,
        "max_position": model.max_position,
        "stacks": [attributes(stack, "name layers=num_layers width") for stack in model.stacks],
        **attributes(model, "published source date confidence assumed=notes"),
        "tensors": [attributes(group, "name stack numel layers active_numel") for group in card.groups],
        **({} if card.counts is None else attributes(card.counts, counts)),
    }


def _listing(sentence: str, rows: Sequence[Mapping[str, Any]], paper: Screen) -> Iterator[str]:
    yield verdict(sentence, paper)
    if not rows:
        return
    yield table(
        ["name", "type", "kind", ">parameters", ">active", "Hugging Face id", "confidence"],
        [
            (r["name"], r["model_type"], r["kind"], known_text(r["parameters"], units.format_count),
             known_text(r["active_parameters"], units.format_count), r["hf_id"], r["confidence"])
            for r in rows
        ],
        paper, spare=("confidence", "type", "kind", ">active"),
    )  # fmt: skip


def _detail(card: ModelCard, paper: Screen) -> Iterator[str]:
    model = card.model
    yield verdict(_sentence(card), paper)
    if model.assumptions:
        yield "\n".join(f"Assumed: {note}" for note in model.assumptions)
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


def _sentence(card: ModelCard) -> str:
    """The main figures of a model, in a sentence."""
    model, counted = card.model, card.parameters
    size = f"{units.format_count(counted)} parameters" if counted is not None else ""
    if counted is not None and card.active_parameters not in (None, counted):
        size += f", {units.format_count(card.active_parameters)} of them active for a token"
    context = f"contexts of up to {model.max_position:,} tokens" if model.max_position else ""
    what = "; ".join(filter(None, (size, context)))
    return f"{model.name} ({model.kind}, {model.model_type}){': ' if what else ''}{what}."


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
