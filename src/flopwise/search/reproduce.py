"""The command that asks for one plan alone: `flopwise train` or `flopwise serve` with all that it was found with.

It gives the plan's own figures: both rest on the same formulas. What is not said is what the command takes by default.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.custom import PREFIX
from flopwise.facts.spec import DatedSourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import changed_options, defaults_of, options_of
from flopwise.search.answer import Candidate
from flopwise.search.nodes import network_of
from flopwise.search.replica import DEGREES, answers_in_one_pass
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved
from flopwise.serving.memory import generates
from flopwise.serving.spec import QueueSpec, RequestSpec, ResponseCacheSpec, ServingSpec, SessionsSpec, TechniqueRequest
from flopwise.training.layout import Layout
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.spec import DataSpec, TrainingSpec

TRAIN = (MachineSpec, DataSpec, TrainingSpec, RunConditionsSpec, SharedSpec, DatedSourceSpec)
SERVE = (
    MachineSpec, ServingSpec, RequestSpec, SessionsSpec, QueueSpec, ResponseCacheSpec, TechniqueRequest, SharedSpec,
    DatedSourceSpec,
)  # fmt: skip
"""Specs whose options the commands take, in the order in which they are written."""
_NEUTRAL = {field.name: field.default for field in fields(Layout) if field.name != "dp"}
_NEUTRAL |= {"recompute": "none", "schedule": "1f1b"}
"""Settings of a layout that need not be said."""
_SAID = ("micro_batch", "recompute")
"""Settings that are, since an estimate whose asker does not state them covers what other people would take."""


def command(workload: Resolved, model: Model, chosen: Candidate, facts: Facts, source: DatedSourceSpec) -> str:
    """The command line that estimates `chosen`, a plan of `workload`, by itself.

    Of a service that is given a rate its percentiles under load are the plan's, as estimated, and as simulated where
    the model answers in one pass; of users their means, as estimated; of a batch its simulated means and throughput (as
    estimated, where lengths come from a trace), of sessions their simulated means and cost.
    """
    values = _values(source) | _machines(workload, chosen, facts)
    if workload.task in TRAINING:
        return command_line("train", workload.model, values | _training(workload, model, chosen), TRAIN)
    extra = ["--encode"] if workload.task == "encode" and generates(model) else []
    rated = workload.requests_per_s is not None and workload.sessions is None
    if rated and answers_in_one_pass(model, workload):  # is simulated by `serve` itself
        estimated = chosen.simulated is None or not workload.is_poisson
    else:
        users = workload.concurrency is not None and not answers_in_one_pass(model, workload)
        estimated = rated or users or not workload.simulate
    if workload.task in ("serve", "encode") and estimated:
        extra.append("--closed-form")
    return command_line("serve", workload.model, values | _service(workload, model, chosen), SERVE, extra)


def command_line(
    verb: str, model: str, values: Mapping[str, Any], specs: tuple[type, ...], extra: list[str] | None = None
) -> str:
    """The command `verb` with the options `values`, as `specs` declare them, in base units; defaults are left out."""
    words, left = ["flopwise", verb, model], dict(values)
    for spec in specs:
        usual = defaults_of(spec)
        for name, declared in options_of(spec).items():
            if name in left and (value := left.pop(name)) != usual[name]:
                words += declared.arguments(value)
    assert not left, left
    return shlex.join([*words, *(extra or [])])


def _values(spec: Any) -> dict[str, Any]:
    """The values of a spec beyond its defaults, by option."""
    return {name: getattr(spec, name) for name in changed_options(spec)}


def _machines(workload: Resolved, chosen: Candidate, facts: Facts) -> dict[str, Any]:
    """The offer, how it is bought, and what the workload or the search says of it besides."""
    offer = facts.offers_by_key[chosen.offer_key]
    assumed = offer.assumed_price(chosen.purchase)
    each_usd = None if assumed is None else chosen.usd_per_hour / chosen.num_gpus
    hypothetical = (text for text in workload.limits.gpus if text.lower().startswith(PREFIX))
    custom = {text for text in hypothetical if offer.accelerator in facts.with_custom([text]).accelerators}
    return {
        "gpu": next(iter(custom), None) if chosen.provider == "custom" else None,
        "instance": chosen.instance, "provider": chosen.provider, "region": chosen.region,
        "purchase": chosen.purchase, "price": each_usd, "network": network_of(workload, offer),
        "intra_node": workload.limits.intra_node, "gpus": chosen.num_gpus,
    }  # fmt: skip


def _training(workload: Resolved, model: Model, chosen: Candidate) -> dict[str, Any]:
    """Data, recipe, layout and conditions of a training plan; what the workload leaves open stays open.

    `train` takes the same defaults, and the interval of its answer holds what they might be instead, as the plan's.
    """
    from flopwise.search.run_job import open_settings  # noqa: PLC0415 - half is enough

    values = _values(workload.data) | _values(workload.training) | _values(workload.conditions)
    layout = dict(layout_options(chosen.layout))
    layout["seq"] = layout.pop("seq_len")
    open_options = {"stack": "stack", "seq": "sequence length"}
    left_open = open_settings(workload, model)
    for name in ("global_batch_tokens", *(["finetune"] if workload.training.adapts else [])):
        values.pop(name, None)
    for name, setting in open_options.items():
        if setting in left_open:
            layout.pop(name)
    return values | layout


def layout_options(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options of a layout by name: what `flopwise train` has to be given to use it instead of searching for one."""
    for name, value in document.items():
        piped = name == "interleave" and document.get("pp", 1) > 1
        if name in _SAID or piped or name not in _NEUTRAL or value != _NEUTRAL[name]:
            yield name, tuple(value) if isinstance(value, list) else value


def _service(workload: Resolved, model: Model, chosen: Candidate) -> dict[str, Any]:
    """Deployment, requests and techniques of a plan that serves."""
    document = chosen.layout
    degrees = {name: document.get(name, 1) for name in DEGREES}
    each = degrees["tp"] * degrees["pp"] * degrees["dp"] + document.get("prefill_gpus", 0)
    answer = None if answers_in_one_pass(model, workload) else workload.outputs or workload.output_tokens
    ends = workload.task == "batch" and chosen.simulated is not None and workload.trace is None
    queued = ends or workload.requests_per_s is not None or workload.concurrency is not None
    return {
        **_values(workload.techniques), **degrees, "requests": workload.requests if ends else None,
        **{name: document[name] for name in ("weights", "kv_dtype", "engine", "max_batch")},
        "memory_fraction": workload.limits.memory_fraction, "gpus": each * document["replicas"],
        "input_tokens": workload.inputs or workload.input_tokens, "output_tokens": answer,
        "rate": workload.requests_per_s and float(f"{workload.requests_per_s / workload.computed_frac:.12g}"),
        "concurrency": workload.concurrency, **(_values(workload.queue) if queued else {}), **_values(workload.cache),
        **_sessions(workload),
    }  # fmt: skip


def _sessions(workload: Resolved) -> dict[str, Any]:
    """Sessions and their rate, whose lengths are a turn's own; nothing without sessions."""
    sessions = workload.sessions
    if sessions is None:
        return {}
    return {
        "input_tokens": sessions.input_tokens, "output_tokens": sessions.output_tokens,
        "rate": workload.sessions_per_s, "turns": sessions.turns, "think_s": sessions.think_s,
        "tool_share": sessions.tool_share or None, "tool_pause": sessions.tool_pause_s or None,
        "kv_stores": sessions.kv_stores,
    }  # fmt: skip
