"""The explanation of an answer: the tree of its figures, and the effect of each single change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from flopwise.changes.effects import Sensitivity
from flopwise.changes.memory import memory_remedies
from flopwise.cost.energy import device_watts
from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.money import num_instances
from flopwise.cost.precisions import PRECISIONS
from flopwise.cost.roofline import RooflineAnswer
from flopwise.errors import SpecError
from flopwise.ops.tensors import active_parameters, parameters
from flopwise.ops.weights import weight_bytes
from flopwise.origin import COUNTED, Device, Ledger, chip_fact, estimate_of, interval, number, price, total
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Figure, assumptions, setting, term, to_json, walk, with_kinds
from flopwise.results import Result, attributes
from flopwise.units import HOUR_S
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.memory_answer import Remedy
    from flopwise.cost.quick import QuickFormula
    from flopwise.serving.answer import ServeAnswer
    from flopwise.training.answer import TrainAnswer
    from flopwise.training.sampled_answer import SampledTrainAnswer

RULE = "rule of thumb"
"""How the formulas of rules begin, and their source."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Result):
    """An answer with the tree of its figures and the effect of each single change, largest first."""

    answer: TrainAnswer | ServeAnswer | MemoryAnswer
    figure: Figure
    sensitivities: tuple[Sensitivity, ...]

    table: ClassVar[str] = "sensitivities"

    @property
    def verdict(self) -> str:
        """The verdict of the answer."""
        return self.answer.verdict

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The settings of the answer."""
        return tuple(self.answer.settings)

    def document(self) -> dict[str, Any]:
        """The explanation by key."""
        return {
            "provenance": to_json(self.figure),
            "assumptions": [*assumptions(self.figure), *self.answer.assumptions],
            "sensitivities": [attributes(one, "change effects note") for one in self.sensitivities],
        }

    def picture(self) -> Picture:
        """The effect of each change on the first figure, in percent."""
        name = next((name for one in self.sensitivities for name in one.effects), "")
        ratios = [(one.change, one.effects.get(name)) for one in self.sensitivities]
        rows = [(change, 100 * (ratio - 1)) for change, ratio in ratios if ratio is not None]
        if not rows:
            raise SpecError("there is nothing to plot: no single change has an effect")
        return BarPicture(title=self.verdict, unit=f"% change of {name}", rows=rows)


def explanation(answer: TrainAnswer | ServeAnswer | MemoryAnswer) -> Explanation:
    """The explanation of an answer that is there already."""
    return Explanation(answer=answer, figure=answer_figure(answer), sensitivities=sensitivities(answer))


def sensitivities(answer: TrainAnswer | ServeAnswer | MemoryAnswer) -> tuple[Sensitivity, ...]:
    """The effect of each single change that the question itself would accept, the largest first.

    Raises: SpecError: the answer is of a network that is known by its samples.
    """
    if not answer.explained:
        raise SpecError("only models with token layers can be explained; this network is known by its samples")
    if isinstance(answer, MemoryAnswer):
        ratios = [(remedy.change, remedy.total_bytes / answer.per_gpu_bytes) for remedy in memory_remedies(answer)]
        effects = (Sensitivity(change=change, effects={"memory": ratio}) for change, ratio in ratios)
        return tuple(sorted(effects, key=lambda sensitivity: -sensitivity.size))
    from flopwise.training.answer import TrainAnswer  # noqa: PLC0415 - half is enough

    facts = answer.memory.facts
    if isinstance(answer, TrainAnswer):
        from flopwise.changes import training  # noqa: PLC0415 - half is enough

        return training.sensitivities(answer.estimate, facts, can_run=answer.can_run)
    from flopwise.changes import serving  # noqa: PLC0415 - half is enough

    return serving.sensitivities(answer.estimate, facts, lambda gpus: answer.machines.cluster(gpus, facts))


def answer_figure(answer: TrainAnswer | SampledTrainAnswer | ServeAnswer | MemoryAnswer | RooflineAnswer) -> Figure:
    """The tree of an answer's figures."""
    if not answer.explained:
        return _sampled_figure(answer)  # type: ignore[arg-type]  # `explained` tells them apart
    return _figure_of_layers(answer)  # type: ignore[arg-type]  # same


def _figure_of_layers(answer: TrainAnswer | ServeAnswer | MemoryAnswer | RooflineAnswer) -> Figure:
    """The tree of an answer about a model with token layers."""
    if isinstance(answer, MemoryAnswer):
        tree = memory_figure(answer)
        rules = _rule_figures(answer.quick, tree, _quantities(answer))
        return with_kinds(replace(tree, inputs=(*tree.inputs, *rules)), answer.kinds)
    if isinstance(answer, RooflineAnswer):
        return _roofline_figure(answer)
    from flopwise.training.answer import TrainAnswer  # noqa: PLC0415 - half is enough

    quantities = _quantities(answer.memory)
    if isinstance(answer, TrainAnswer):
        from flopwise.training.explain import train_figure  # noqa: PLC0415 - half is enough

        job, tree = answer.estimate.job, train_figure(answer.estimate, can_run=answer.can_run)
        tokens = job.recipe.useful_tokens if job.tokens is None else job.tokens
        data = term("tokens trained on", float(tokens), "tokens", f"{COUNTED}: of the run, or of a step without a run")
        quantities = {**quantities, "tokens": data}
    else:
        from flopwise.serving.explain import serve_figure  # noqa: PLC0415 - half is enough

        tree = serve_figure(answer.estimate, answer.cold_start, answer.under_load, answer.replicas, answer.closed_loop)
    rules = _rule_figures(answer.quick, tree, quantities)
    tree = replace(tree, inputs=(*tree.inputs, *_further_memory(tree, answer.memory), *rules))
    return with_kinds(tree, answer.kinds)


def _sampled_figure(answer: SampledTrainAnswer | MemoryAnswer) -> Figure:
    """The tree of an answer about a network that is known by its samples."""
    from flopwise.training.sampled_answer import SampledTrainAnswer  # noqa: PLC0415 - half is enough
    from flopwise.training.sampled_figures import sampled_figures  # noqa: PLC0415 - half is enough

    if not isinstance(answer, SampledTrainAnswer):
        return memory_figure(answer)
    job, figures = answer.estimate.job, list(sampled_figures(answer.estimate)) if answer.can_run else []
    if answer.memory is not None:
        figures += memory_figure(answer.memory).inputs
    return estimate_of(f"{job.recipe.work.name} on {job.num_gpus:,} x {job.cluster.accelerator.name}", figures)


def _further_memory(tree: Figure, answer: MemoryAnswer) -> list[Figure]:
    """The ends of the memory per GPU that the tree of an estimate holds, and what would make it fit."""
    now = next(one for one in walk(tree) if one.name == "memory per GPU")
    ends = interval(now.name, now, answer.band, answer.low_bytes, answer.high_bytes)
    return [*ends, *_remedy_figures(answer.remedies, now)]


def _remedy_figures(remedies: Iterable[Remedy], now: Figure) -> Iterator[Figure]:
    """The saving of each change of the memory `now`, and the items that it leaves."""
    before = {item.name: item for item in now.inputs}
    for remedy in remedies:
        parts = []
        for name, size in remedy.items:
            item = before.get(name)
            if item is not None and item.value == size:
                parts.append(item)
            elif size:
                formula = f"memory model: {name} of the changed question"
                inputs = () if item is None else (item,)
                parts.append(term(f"{name} with the change: {remedy.change}", size, "B", formula, *inputs))
        after = total(f"memory with the change: {remedy.change}", "B", parts)
        saved = f"saved by the change: {remedy.change}"
        yield term(saved, remedy.saves_bytes, "B", f"{now.name} - {after.name}", now, after)
        if remedy.slower_frac is not None:
            added = "step in which all sequences decode, converting the cache in software, over that without - 1"
            yield term(f"time added to each token by the change: {remedy.change}", remedy.slower_frac, "frac", added)


def _quantities(answer: MemoryAnswer) -> dict[str, Figure]:
    """Figures of model and device that the rules of thumb of an answer name, by their words for them."""
    if not answer.quick:
        return {}
    model, chip = answer.model, answer.accelerator
    count, active, width = float(parameters(model)), float(active_parameters(model)), _parameter_bytes(answer)
    every = term("parameters of the model", count, "", f"{COUNTED}: those of its configuration", source=model.source)
    each = term("bytes of a parameter", width, "B", f"{COUNTED}: in the format of the question")
    some = term(
        "active parameters of the model", active, "", f"{COUNTED}: those that one token uses", source=model.source
    )
    weights = term("weights of the model", count * width, "B", f"{every.name} x {each.name}", every, each)
    found = {"parameters": every, "bytes": each, "active parameters": some, "weights": weights}
    if chip is not None:
        facts = {"memory": ("hbm_bytes", "B"), "memory bandwidth": ("hbm_bytes_per_s", "B/s")}
        found |= {name: chip_fact(chip, field, unit) for name, (field, unit) in facts.items()}
    return found


def _parameter_bytes(answer: MemoryAnswer) -> float:
    """Bytes of a parameter, as the rules of thumb of an answer take them."""
    from flopwise.serving.memory_answer import ServingMemoryAnswer  # noqa: PLC0415 - half is enough
    from flopwise.training.memory_answer import TrainingMemoryAnswer  # noqa: PLC0415 - half is enough

    if isinstance(answer, TrainingMemoryAnswer):
        return float(answer.recipe.elem_bytes)
    assert isinstance(answer, ServingMemoryAnswer)
    weights = answer.deployment.software(answer.facts, answer.accelerator)["weights"]
    return float(weight_bytes(answer.model, weights)) / max(1, parameters(answer.model))


def _rule_figures(rules: Iterable[QuickFormula], tree: Figure, quantities: Mapping[str, Figure]) -> Iterator[Figure]:
    """Each rule of thumb with the quantities that it names, the estimate of the same, and how far it is off."""
    words = re.compile("|".join(rf"\b{name}\b" for name in sorted(quantities, key=len, reverse=True)) or "$^")
    for rule in rules:
        inputs = [quantities[name] for name in dict.fromkeys(words.findall(rule.formula))]
        formula = f"{RULE}: {rule.formula}"
        by_rule = term(f"{rule.name} by the rule", rule.value, rule.unit, formula, *inputs, source=RULE)
        if rule.estimate is None or rule.error_frac is None:
            yield by_rule
            continue
        same = [one for one in tree.inputs if one.unit == rule.unit and one.value == rule.estimate]
        formula = f"{COUNTED}: as this estimate computes it"
        estimated = term(f"{rule.name}, estimated", rule.estimate, rule.unit, formula, *same[:1])
        formula = f"{by_rule.name} / {estimated.name} - 1"
        yield term(f"error of the rule: {rule.name}", rule.error_frac, "frac", formula, by_rule, estimated)


def memory_figure(answer: MemoryAnswer) -> Figure:
    """The tree of an answer of memory: its items, their interval, and what is left of the device."""
    from flopwise.serving.memory_answer import ServingMemoryAnswer  # noqa: PLC0415 - half is enough
    from flopwise.training.memory_answer import TrainingMemoryAnswer  # noqa: PLC0415 - half is enough

    if not answer.explained:
        items = [term(name, size, "B", f"memory model: {name} of a device") for name, size in answer.items if size]
        now, engine = total("memory per GPU", "B", items), ""
    elif isinstance(answer, TrainingMemoryAnswer):
        from flopwise.training.explain import step_memory_figure  # noqa: PLC0415 - half is enough

        now, engine = step_memory_figure(answer.model, answer.recipe, answer.layout, answer.memory), ""
    else:
        from flopwise.serving.explain import serving_memory_figure  # noqa: PLC0415 - half is enough

        assert isinstance(answer, ServingMemoryAnswer)
        software, engine = answer.deployment.software(answer.facts, answer.accelerator), str(answer.deployment.engine)
        now = serving_memory_figure(
            answer.model, answer.layout, answer.memory, software["weights"], software["kv_dtype"], software["engine"]
        )
    figures = [now, *interval(now.name, now, answer.band, answer.low_bytes, answer.high_bytes)]
    if answer.accelerator is not None and answer.usable_bytes is not None:
        usable = chip_fact(answer.accelerator, "hbm_bytes", "B")
        if answer.usable_bytes != answer.capacity_bytes:
            rule = setting("engine", engine)
            usable = term(
                "what the engine uses", answer.usable_bytes, "B", "memory model: the engine's rule", usable, rule
            )
        figures.append(term("margin", answer.margin_bytes, "B", f"{usable.name} - {now.name}", usable, now))
        if answer.fits_probability is not None:
            ends = [below for end in figures[1:3] for below in end.inputs if below.kind == "calibration"]
            formula = f"error model: probability that measured / predicted x {now.name} is at most {usable.name}"
            figures.append(term("chance to fit", answer.fits_probability, "frac", formula, now, usable, *ends))
        if isinstance(answer, ServingMemoryAnswer) and answer.kv_capacity_tokens is not None:
            left = f"memory model: tokens in what weights and workspace leave of {usable.name}"
            cache = term("cache capacity", answer.kv_capacity_tokens, "tokens", left, usable)
            formula = "memory model: sequences in the cache while answers grow, at most the largest batch"
            figures += [cache, term("maximum concurrency", answer.max_concurrency, "", formula, cache)]
    figures += _remedy_figures(answer.remedies, now)
    return estimate_of(f"{answer.model.name} to {answer.task}", figures)


def _roofline_figure(answer: RooflineAnswer) -> Figure:
    """The tree of a piece of work: FLOP and bytes over the rates that bound it, its cost and energy."""
    device, book = Device(answer.cluster), Ledger()
    work = {"FLOP": (answer.flops, "FLOP"), "bytes moved": (answer.bytes, "B")}
    for name, (value, unit) in work.items():
        if answer.samples is None:
            book.add_given(name, value, unit)
        else:
            book.add_count(name, value, unit, answer.what)
    gpus = book.add_given("GPUs", answer.num_gpus)
    known, calibrated = answer.dtype in PRECISIONS, answer.efficiency_source != "given"
    if known:
        peak = device.datasheet(f"peak {answer.dtype}", "FLOP/s")
    else:
        value = device.chip.peak_flops_per_s(answer.dtype)
        peak = chip_fact(device.chip, f"peak {answer.dtype}", "FLOP/s", value)
    bandwidth = device.datasheet("hbm_bytes_per_s", "B/s")
    if calibrated:
        rate = PRECISIONS[answer.dtype].rate if known else "bf16"
        shares = (device.parameter(f"matmul_frac.{rate}"), device.parameter("dram_frac"))
    else:
        shares = (setting("efficiency", answer.compute_efficiency_frac, "frac"),) * 2
    for one in (peak, bandwidth, *shares):
        book.add_figure(one)
    compute = book.add("compute time", answer.compute_s, "s", f"FLOP / ({peak.name} x {shares[0].name} x {gpus.name})")
    memory = book.add(
        "memory time", answer.memory_s, "s", f"bytes moved / ({bandwidth.name} x {shares[1].name} x {gpus.name})"
    )
    figures = [
        book.add("time", answer.seconds, "s", f"max({compute.name}, {memory.name})"), compute, memory,
        book.add(
            "lower bound", answer.lower_bound_s, "s",
            f"max(FLOP / ({peak.name} x {gpus.name}), bytes moved / ({bandwidth.name} x {gpus.name}))",
        ),
        book.add(
            "share of datasheet rates", answer.utilisation_frac, "frac", f"FLOP / ({peak.name} x {gpus.name} x time)"
        ),
        book.add(
            "share of the bandwidth", answer.bandwidth_frac, "frac",
            f"bytes moved / ({bandwidth.name} x {gpus.name} x time)",
        ),
        book.add(
            "ridge", answer.ridge_flops_per_byte, "FLOP/B",
            f"{peak.name} x {shares[0].name} / ({bandwidth.name} x {shares[1].name})",
        ),
    ]  # fmt: skip
    if answer.intensity_flops_per_byte is not None:
        figures.append(book.add("FLOP per byte", answer.intensity_flops_per_byte, "FLOP/B", "FLOP / bytes moved"))
    rate_of, bill, joules = (
        one if at_least is None else at_least
        for one, at_least in (
            (answer.samples_per_s, answer.samples_per_s_at_most), (answer.cost_usd, answer.cost_usd_at_least),
            (answer.energy_joules, answer.energy_joules_at_least),
        )
    )  # fmt: skip
    if rate_of is not None:
        book.add_given("samples", answer.samples)
        figures.append(book.add("samples per second", rate_of, "samples/s", "samples / time"))
    each = price(answer.cluster)
    if bill is not None and each is not None:
        size = answer.cluster.gpus_per_node
        paid = float(num_instances(answer.num_gpus, size)) * size
        book.add_figure(each)
        book.add_count("GPUs paid", paid, "", "those of whole machines", gpus)
        figures.append(book.add("cost", bill, "USD", f"time / {HOUR_S:g} x {each.name} x GPUs paid"))
    if joules is not None:
        bound = answer.bound == "compute"
        limit_w = number(device.datasheet("tdp_w", "W").value)
        draw, host, limit, pue = device.power(number(device_watts(limit_w, float(bound), float(not bound), 0.0)))
        formula = f"{gpus.name} x ({draw.name} + {host.name} x {limit.name}) x {pue.name} x time"
        figures.append(book.add("energy", joules, "J", formula, gpus, draw, host, limit, pue, figures[0]))
    return estimate_of(answer.what, figures)
