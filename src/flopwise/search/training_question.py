"""A single question about training: the layout that is given, or the best one, and the run on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from flopwise.changes.memory import with_remedies
from flopwise.cost.cluster import Cluster
from flopwise.cost.intervals import OTHER_SOFTWARE
from flopwise.cost.money import volume_usd
from flopwise.cost.spec import MachineSpec
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts import defaults
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.spec import DatedSourceSpec, ModelName, SourceSpec
from flopwise.options import changed_options
from flopwise.provenance import Kind, implied_kinds
from flopwise.search.layout_search import GivenSettings, fastest_layout
from flopwise.training.alternatives import BEST_MEASURED
from flopwise.training.answer import TrainAnswer, train_answer
from flopwise.training.corpus import Corpus, corpus
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout, Recipe, check_layout
from flopwise.training.memory import FITS_WITH, memory_band, step_memory
from flopwise.training.memory_answer import usual_recompute
from flopwise.training.on_device import recipe_on, stack_notes
from flopwise.training.routing import check_skew
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.sample_rate import DeviceRate
from flopwise.training.sampled import SampledJob, check_sampled_options
from flopwise.training.sampled_answer import SampledTrainAnswer
from flopwise.training.samples import SampledWorkload, network_of_samples
from flopwise.training.spec import LAYOUT_SETTINGS, SETTINGS, DataSpec, ReadsSpec, TrainingSpec
from flopwise.training.start import with_start
from flopwise.units import format_chance, format_items, format_percent
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.storage.bandwidth import EstimatedRate
    from flopwise.storage.spec import SampleSpec

TRAINED = (DataSpec, TrainingSpec, MachineSpec, RunConditionsSpec, ReadsSpec, DatedSourceSpec)


def train(
    model: ModelName, gpus: int | None, data: DataSpec, spec: TrainingSpec, machines: MachineSpec,
    run: RunConditionsSpec, reads: ReadsSpec, source: SourceSpec,
) -> TrainAnswer | SampledTrainAnswer:  # fmt: skip
    """The answer for a model with token layers, or for a network that is known by its samples.

    Raises:
        MissingFactError: a fact that the answer needs is not known.
        SpecError: options that mean nothing to the network, or a batch that does not divide.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.
    """
    work = network_of_samples(model, source)
    if work is None:
        return _layers_answer(model, gpus, data, spec, machines, run, reads, source)
    check_sampled_options(work, data, spec, reads)
    job, notes = SampledJob.of(work, data, spec, machines, run, source.catalog, gpus)
    return SampledTrainAnswer.of(job, source.catalog, notes, data.epochs)


def _layers_answer(
    model: ModelName, gpus: int | None, data: DataSpec, spec: TrainingSpec, machines: MachineSpec,
    run: RunConditionsSpec, reads: ReadsSpec, source: SourceSpec,
) -> TrainAnswer:  # fmt: skip
    """As `train`, of a model with token layers. Raises as there; MissingFactError: it has none."""
    architecture, facts = source.model_with_layers(model), source.catalog
    gpus = machines.num_gpus(gpus)
    cluster = machines.cluster(gpus, facts)
    seq_len = data.seq_len(architecture, tunes=spec.tunes)
    batch, batch_note = data.batch(
            architecture, seq_len, tunes=spec.tunes, unit=gpus * (spec.micro_batch or 1),
            least=spec.least_batch(architecture, seq_len, gpus, facts),
        )  # fmt: skip

    def recipe_of(device: Accelerator) -> tuple[Recipe, tuple[str, ...]]:
        return recipe_on(
            spec.on(device, facts, architecture).recipe(seq_len, batch, facts, architecture, data.documents(seq_len)),
            device,
        )

    recipe, device_notes = recipe_of(cluster.accelerator)
    check_skew(architecture, recipe)
    layout, laid_out, why = _layout(architecture, recipe, cluster, spec, gpus)
    storage, tokens = reads.reads(architecture, seq_len, facts), _run_tokens(data, recipe, run)
    conditions, notes = run.conditions(cluster, facts)
    notes = (*batch_note, *why, *notes, *device_notes, *(run.write_assumptions if tokens is not None else ()))
    notes += data.length_note(architecture, seq_len) + stack_notes(
        layout, recipe.stack, facts.stacks.values(), cluster.accelerator
    )
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
    return implied_kinds(LAYOUT_SETTINGS, options, layout_kind) | implied_kinds(SETTINGS, options, "default")


USUAL_CLOUD = "aws"
"""Whose object storage is priced where no provider is named."""


def _corpus(job: TrainJob, tokens: float, facts: Facts) -> tuple[Corpus, tuple[float, str] | None]:
    """The corpus of a run, and what its records and its text cost a month in object storage."""
    text = corpus(job.model, float(job.recipe.seq_len), tokens)
    provider = USUAL_CLOUD if job.cluster.offer is None else job.cluster.offer.provider
    price = volume_usd(provider, "storage", text.stored_bytes, facts)
    return text, None if price is None else (price[0], f"{provider}, {price[1].date}")


def _layout(
    model: Model, recipe: Recipe, cluster: Cluster, spec: TrainingSpec, gpus: int
) -> tuple[Layout, str, tuple[str, ...]]:
    """The layout as said, or the best one; who chose it, and what was assumed of it."""
    if spec.says_layout:
        layout = spec.layout(model, gpus)
        check_layout(layout, model, recipe)
        if spec.recompute_mode() is None:
            layout, why = usual_recompute(model, recipe, layout, cluster.accelerator)
            return layout, "given", (*spec.replication_note(layout), *why)
        return layout, "given", spec.replication_note(layout)
    given = GivenSettings.of(spec, model)
    if given.needed is not None and gpus == 1:
        raise SpecError(f"{given.needed} needs pipeline stages; give 2 accelerators or more (--gpus)")
    return *_best_layout(model, recipe, cluster, gpus, given), ()


def _best_layout(model: Model, recipe: Recipe, cluster: Cluster, gpus: int, given: GivenSettings) -> tuple[Layout, str]:
    """The fastest layout that surely fits, or where none does the likeliest to fit; and how it was found.

    Raises: InfeasibleError: the global batch does not divide over the GPUs in any layout, or none is as `given`.
    """
    best, micro_batch = fastest_layout(model, recipe, cluster, gpus, given), given.micro_batch
    if best is None:
        batch, unit = int(recipe.global_batch), gpus * (micro_batch or 1)
        if micro_batch and batch % micro_batch:
            raise InfeasibleError(f"micro-batch {micro_batch} does not divide the global batch of {batch:,} sequences")
        each = f" in micro-batches of {micro_batch}" if micro_batch else ""
        wanted = f"a global batch of {batch:,} sequences{each}"
        if given.narrows:
            why = given.needed or "what is offloaded"
            raise InfeasibleError(
                f"no layout that was tried on {format_items(gpus, 'GPU')} goes with {why} and {wanted}; change one of "
                "them, or give the layout itself (--pp, --zero)"
            )
        raise InfeasibleError(f"no layout of {gpus:,} GPUs divides {wanted}; give a multiple of {unit:,}")
    layout, tried, fitting = best
    sure = f"with a probability of {format_percent(FITS_WITH, 0)}"
    if fitting:
        return layout, f"simplest among the fastest of {tried:,} layouts; {fitting:,} of them fit {sure} or more"
    device = cluster.accelerator
    needs, capacity = float(step_memory(model, recipe, layout, device_kind=device.kind).total_bytes), device.hbm_bytes
    if needs > capacity:
        return layout, f"least memory of {tried:,} layouts; none fits"
    odds = float(memory_band(recipe, device.calibration, device).probability_at_most(needs, float(capacity)))
    if odds >= defaults.CONFIDENCE:
        less = f"with {format_percent(defaults.CONFIDENCE, 0)} or more"
        return layout, f"simplest among the fastest of {tried:,} layouts that fit {less}; none fits {sure}"
    return layout, f"most likely to fit of {tried:,} layouts ({format_chance(odds)} chance); none fits {sure}"


def _on_measured_gpus(
    job: TrainJob, recipe_of: Callable[[Accelerator], tuple[Recipe, tuple[str, ...]]], spec: TrainingSpec,
    machines: MachineSpec, facts: Facts,
) -> tuple[TrainJob, ...]:  # fmt: skip
    """The job that a question which leaves its layout open has on the best measured GPUs, where these can run it.

    Empty for a question with a whole layout, and for a device whose software is a GPU's.
    """
    is_whole = spec.says_layout and spec.recompute_mode() is not None
    if is_whole or job.cluster.accelerator.kind not in OTHER_SOFTWARE:
        return ()
    found: list[TrainJob] = []
    gpus = int(job.layout.num_gpus)
    for name in BEST_MEASURED:
        recipe, _ = recipe_of(facts.accelerator(name))
        with suppress(InfeasibleError):
            named = replace(machines, gpu=name, provider=None, instance=None, region=None, power_limit=None)
            nodes = named.cluster(gpus, facts)
            layout, *_ = _layout(job.model, recipe, nodes, spec, gpus)
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


def training_rate(
    work: SampledWorkload, cluster: Cluster, gpus: int, machines: MachineSpec, sample: SampleSpec, source: SourceSpec
) -> EstimatedRate:
    """The rate by the training estimate on the best layout, the band of its error and what was assumed."""
    assert work.model is not None
    assert work.tokens is not None
    dtype = sample.precision or work.precision or "bf16"
    dtype = "fp32" if dtype == "tf32" else dtype
    batch = sample.batch * gpus if sample.batch is not None else None
    answer = _layers_answer(
        work.model, gpus, DataSpec(seq=work.tokens, global_batch=batch), TrainingSpec(precision=dtype), machines,
        RunConditionsSpec(), ReadsSpec(), source,
    )  # fmt: skip
    step = answer.estimate
    rate = DeviceRate(
        samples_per_s=step.tokens_per_s_per_gpu / work.tokens, peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
        precision=cluster.rates.peak_dtype(dtype), origin="training estimate", parts=step.breakdown,
        batch=int(step.job.recipe.global_batch),
    )  # fmt: skip
    fits = () if answer.fits else (f"the {answer.laid_out} does not fit the memory: a run would fail",)
    return rate, step.band, (*fits, f"layout: {answer.laid_out}; see `flopwise train`")
