"""The explanation of an answer: the tree of its figures, and the effect of each single change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flopwise.changes.effects import Sensitivity
from flopwise.changes.memory import memory_remedies
from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.errors import SpecError
from flopwise.origin import chip_fact, estimate_of, interval
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Figure, assumptions, setting, term, to_json, with_kinds
from flopwise.results import Result, attributes
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.serving.answer import ServeAnswer
    from flopwise.training.answer import TrainAnswer


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
    """The effect of each single change that the question itself would accept, the largest first."""
    if isinstance(answer, MemoryAnswer):
        ratios = [(remedy.change, remedy.total_bytes / answer.per_gpu_bytes) for remedy in memory_remedies(answer)]
        effects = (Sensitivity(change=change, effects={"memory": ratio}) for change, ratio in ratios)
        return tuple(sorted(effects, key=lambda sensitivity: -sensitivity.size))
    from flopwise.training.answer import TrainAnswer  # noqa: PLC0415 - half is enough

    facts = answer.memory.facts
    if isinstance(answer, TrainAnswer):
        from flopwise.changes import training  # noqa: PLC0415 - half is enough

        return training.sensitivities(answer.estimate, facts)
    from flopwise.changes import serving  # noqa: PLC0415 - half is enough

    return serving.sensitivities(answer.estimate, facts, lambda gpus: answer.machines.cluster(gpus, facts))


def answer_figure(answer: TrainAnswer | ServeAnswer | MemoryAnswer) -> Figure:
    """The tree of an answer's figures.

    Raises:
        SpecError: the answer is of a network that is known by its samples.
    """
    if not answer.explained:
        raise SpecError("only models with token layers can be explained; this network is known by its samples")
    if isinstance(answer, MemoryAnswer):
        return with_kinds(memory_figure(answer), answer.kinds)
    from flopwise.training.answer import TrainAnswer  # noqa: PLC0415 - half is enough

    if isinstance(answer, TrainAnswer):
        from flopwise.training.explain import train_figure  # noqa: PLC0415 - half is enough

        return with_kinds(train_figure(answer.estimate), answer.kinds)
    from flopwise.serving.explain import serve_figure  # noqa: PLC0415 - half is enough

    tree = serve_figure(answer.estimate, answer.cold_start, answer.under_load, answer.replicas)
    return with_kinds(tree, answer.kinds)


def memory_figure(answer: MemoryAnswer) -> Figure:
    """The tree of an answer of memory: its items, their interval, and what is left of the device."""
    from flopwise.serving.memory_answer import ServingMemoryAnswer  # noqa: PLC0415 - half is enough
    from flopwise.training.memory_answer import TrainingMemoryAnswer  # noqa: PLC0415 - half is enough

    if isinstance(answer, TrainingMemoryAnswer):
        from flopwise.training.explain import step_memory_figure  # noqa: PLC0415 - half is enough

        total, engine = step_memory_figure(answer.model, answer.recipe, answer.layout, answer.memory), ""
    else:
        from flopwise.serving.explain import serving_memory_figure  # noqa: PLC0415 - half is enough

        assert isinstance(answer, ServingMemoryAnswer)
        software, engine = answer.deployment.software(answer.facts, answer.accelerator), str(answer.deployment.engine)
        total = serving_memory_figure(
            answer.model, answer.layout, answer.memory, software["weights"], software["kv_dtype"], software["engine"]
        )
    figures = [total, *interval(total.name, total, answer.band, answer.low_bytes, answer.high_bytes)]
    if answer.accelerator is not None and answer.usable_bytes is not None:
        usable = chip_fact(answer.accelerator, "hbm_bytes", "B")
        if answer.usable_bytes != answer.capacity_bytes:
            rule = setting("engine", engine)
            usable = term(
                "what the engine uses", answer.usable_bytes, "B", "memory model: the engine's rule", usable, rule
            )
        figures.append(term("margin", answer.margin_bytes, "B", f"{usable.name} - {total.name}", usable, total))
        if answer.fits_probability is not None:
            ends = [below for end in figures[1:3] for below in end.inputs if below.kind == "calibration"]
            formula = f"error model: probability that measured / predicted x {total.name} is at most {usable.name}"
            figures.append(term("chance to fit", answer.fits_probability, "frac", formula, total, usable, *ends))
        if isinstance(answer, ServingMemoryAnswer) and answer.kv_capacity_tokens is not None:
            left = f"memory model: tokens in what weights and workspace leave of {usable.name}"
            cache = term("cache capacity", answer.kv_capacity_tokens, "tokens", left, usable)
            formula = "memory model: sequences in the cache while answers grow, at most the largest batch"
            figures += [cache, term("maximum concurrency", answer.max_concurrency, "", formula, cache)]
    return estimate_of(f"{answer.model.name} to {answer.task}", figures)
