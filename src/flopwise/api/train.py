"""How fast does it train: one step and the whole run on given accelerators, laid out as given or as best."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.software import RECOMPUTE
from flopwise.facts.spec import DatedSourceSpec, SourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, changed_options, take
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.spec import DataSpec, ReadsSpec, TrainingSpec
from flopwise.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from flopwise.cost.cluster import Cluster
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.provenance import Kind
    from flopwise.training.answer import TrainAnswer
    from flopwise.training.corpus import Corpus
    from flopwise.training.job import TrainJob
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.sampled_answer import SampledTrainAnswer


@takes(DataSpec, TrainingSpec, MachineSpec, RunConditionsSpec, ReadsSpec, DatedSourceSpec, gpus=DEGREE)
def train(model: Model | str, *, gpus: int | None = None, **options: Any) -> TrainAnswer | SampledTrainAnswer:
    """Step time, throughput, memory, time and cost of training a model.

    Times are in seconds, rates per second, money in US dollars. Without any degree the best layout that fits is
    found; a layout that does not fit is estimated all the same: `fits` says so, and what certainly cannot run shows no
    speed (`can_run`). Of a network without token layers,
    such as ResNet-50, the answer is a `SampledTrainAnswer`: samples per second of data-parallel replicas.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        gpus: number of accelerators (default: one).
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.train("Llama-3.1-8B", gpu="64xh100", tokens="1T", seq="8k")
        >>> answer.estimate.low < answer.estimate.high
        True
    """
    specs = take(options, DataSpec, TrainingSpec, MachineSpec, RunConditionsSpec, ReadsSpec, DatedSourceSpec)
    if (of_samples := _sampled_answer(model, gpus, *specs)) is not None:
        return of_samples
    return train_layers(model, gpus, *specs)


def train_layers(
    model: Model | str, gpus: int | None, data: DataSpec, spec: TrainingSpec, machines: MachineSpec,
    run: RunConditionsSpec, reads: ReadsSpec, source: SourceSpec,
) -> TrainAnswer:  # fmt: skip
    """As `train`, of a model with token layers.

    Raises:
        MissingFactError: it has none, or a fact that the answer needs is not known.
        SpecError, InfeasibleError: as `train`.
    """
    from flopwise.changes.memory import with_remedies
    from flopwise.training.answer import train_answer
    from flopwise.training.job import TrainJob
    from flopwise.training.on_device import recipe_on, stack_notes
    from flopwise.training.routing import check_skew
    from flopwise.training.start import with_start

    architecture, facts = source.model_with_layers(model), source.catalog
    gpus = machines.num_gpus(gpus)
    cluster = machines.cluster(gpus, facts)
    seq_len = data.seq_len(architecture, tunes=spec.tunes)
    batch, batch_note = data.batch(architecture, seq_len, tunes=spec.tunes, unit=gpus * (spec.micro_batch or 1))

    def recipe_of(device: Accelerator) -> tuple[Recipe, tuple[str, ...]]:
        return recipe_on(spec.on(device, facts).recipe(seq_len, batch, facts, data.documents(seq_len)), device)

    recipe, device_notes = recipe_of(cluster.accelerator)
    check_skew(architecture, recipe)
    layout, laid_out = _layout(architecture, recipe, cluster, spec, gpus)
    storage, tokens = reads.reads(architecture, facts), _run_tokens(data, recipe, run)
    conditions, notes = run.conditions(cluster, facts)
    notes = (*batch_note, *notes, *device_notes, *(run.write_assumptions if tokens is not None else ()))
    notes += data.length_note(seq_len) + stack_notes(layout, recipe.stack, facts.stacks.values(), cluster.accelerator)
    job = TrainJob(
        model=architecture, recipe=recipe, layout=layout, cluster=cluster, tokens=tokens, reads=storage,
        conditions=conditions,
    )  # fmt: skip
    job = with_start(job, facts, epochs=data.epochs, pretrained=spec.tunes)
    open_settings = data.open_settings(architecture) | _open_settings(spec, machines)
    on_gpus = _on_measured_gpus(job, recipe_of, spec, machines, facts)
    answer = train_answer(job, facts, laid_out, notes, data.epochs, open_settings, on_gpus)
    text, usd = (None, None) if tokens is None else _corpus(job, tokens / data.epochs, facts)
    options = [name for part in (data, spec, run, machines, reads) for name in changed_options(part)]
    kinds = _setting_kinds(options, "default" if spec.says_layout else "chosen")
    return replace(answer, memory=with_remedies(answer.memory), corpus=text, corpus_storage=usd, kinds=kinds)


def _open_settings(spec: TrainingSpec, machines: MachineSpec) -> frozenset[str]:
    """The settings that nobody stated, of those that the answer's interval covers."""
    settings = spec.open_settings if spec.says_layout else spec.assumed_settings
    return settings if machines.network or machines.names_offer else settings | {"network"}


def _setting_kinds(options: list[str], layout_kind: Kind) -> dict[str, Kind]:
    """The origin of settings that none of the `options` says, by name: those of the layout are of `layout_kind`."""
    from flopwise.provenance import implied_kinds
    from flopwise.training.spec import LAYOUT_SETTINGS, SETTINGS

    return implied_kinds(LAYOUT_SETTINGS, options, layout_kind) | implied_kinds(SETTINGS, options, "default")


def _sampled_answer(
    model: Model | str, gpus: int | None, data: DataSpec, spec: TrainingSpec, machines: MachineSpec,
    run: RunConditionsSpec, reads: ReadsSpec, source: SourceSpec,
) -> SampledTrainAnswer | None:  # fmt: skip
    """The answer for a network that is known by its samples; None for one with token layers.

    Raises:
        SpecError: options that mean nothing to it, or a batch that does not divide.
    """
    from flopwise.training.samples import network_of_samples

    work = network_of_samples(model, source)
    if work is None:
        return None
    from flopwise.training.sampled import SampledJob, check_sampled_options
    from flopwise.training.sampled_answer import SampledTrainAnswer

    check_sampled_options(work, data, spec, reads)
    job, notes = SampledJob.of(work, data, spec, machines, run, source.catalog, gpus)
    return SampledTrainAnswer.of(job, source.catalog, notes, data.epochs)


USUAL_CLOUD = "aws"
"""Whose object storage is priced where no provider is named."""


def _corpus(job: TrainJob, tokens: float, facts: Facts) -> tuple[Corpus, tuple[float, str] | None]:
    """The corpus of a run, and what its ids and its text cost a month in object storage."""
    from flopwise.cost.money import volume_usd
    from flopwise.training.corpus import corpus

    text = corpus(job.model.vocab, tokens)
    provider = USUAL_CLOUD if job.cluster.offer is None else job.cluster.offer.provider
    price = volume_usd(provider, "storage", text.ids_bytes + text.text_bytes, facts)
    return text, None if price is None else (price[0], f"{provider}, {price[1].date}")


def _layout(model: Model, recipe: Recipe, cluster: Cluster, spec: TrainingSpec, gpus: int) -> tuple[Layout, str]:
    """The layout as said, or the best one, and who chose it."""
    if spec.says_layout:
        from flopwise.training.layout import check_layout

        layout = spec.layout(model, gpus)
        check_layout(layout, model, recipe)
        if spec.recompute_mode() is None:  # what the stack does where nobody says
            layout = replace(layout, recompute=RECOMPUTE.index(recipe.stack.recomputes[0]))
        return layout, "given"
    from flopwise.search.layout_search import best_layout

    spec.layout(model)  # refuses what cannot be
    return best_layout(model, recipe, cluster, gpus, recompute=spec.recompute_mode(), micro_batch=spec.micro_batch)


def _on_measured_gpus(
    job: TrainJob, recipe_of: Callable[[Accelerator], tuple[Recipe, tuple[str, ...]]], spec: TrainingSpec,
    machines: MachineSpec, facts: Facts,
) -> tuple[TrainJob, ...]:  # fmt: skip
    """The job that a question without a layout has on the best measured GPUs, where these can run it.

    Empty for a question with a layout, and for a device whose software is a GPU's.
    """
    from flopwise.cost.intervals import OTHER_SOFTWARE
    from flopwise.errors import InfeasibleError
    from flopwise.training.alternatives import BEST_MEASURED

    if spec.says_layout or job.cluster.accelerator.kind not in OTHER_SOFTWARE:
        return ()
    found: list[TrainJob] = []
    gpus = int(job.layout.num_gpus)
    for name in BEST_MEASURED:
        recipe, _ = recipe_of(facts.accelerator(name))
        with suppress(InfeasibleError):
            named = replace(machines, gpu=name, provider=None, instance=None, region=None, power_limit=None)
            nodes = named.cluster(gpus, facts)
            layout, _ = _layout(job.model, recipe, nodes, spec, gpus)
            found.append(replace(job, recipe=recipe, layout=layout, cluster=nodes))
    return tuple(found)


def _run_tokens(data: DataSpec, recipe: Recipe, run: RunConditionsSpec) -> float | None:
    """Tokens of the whole run; None where its length is not given.

    Raises:
        SpecError: conditions of a run without a length, or a run that is shorter than a step.
    """
    sample_tokens = int(recipe.seq_len) if recipe.documents is None else recipe.documents.mean
    tokens, batch = data.run_tokens(sample_tokens), int(recipe.global_batch)
    if tokens is None and (named := changed_options(run)):
        names = ", ".join(name.replace("_", " ") for name in named)
        raise SpecError(f"{names}: applies to a whole run; give its length, too (--tokens or --samples)")
    if tokens is not None and tokens < batch * sample_tokens:
        one = f"{batch * sample_tokens:,.0f} of one step (global batch {batch:,} x {sample_tokens:,.0f})"
        raise SpecError(f"a run of {tokens:,.0f} tokens is shorter than the {one}; give a smaller global batch")
    return tokens
