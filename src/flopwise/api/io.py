"""What training asks of storage: read bandwidth by bytes per FLOP, against what kinds of storage deliver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.io_delivery import (
    Checkpoints,
    Delivery,
    Demand,
    Reading,
    checkpoints,
    deliveries,
    later_hits,
    weights_of,
)
from flopwise.api.machines import USUAL_NODE, Machines, loaded
from flopwise.errors import MissingFactError, SpecError

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.training.samples import Rate, Workload

WIDER_BY_SHARE = 2.0
"""Spread of the interval where the achieved rate is a published share of the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IoAnswer:
    """Demand in bytes/s while nothing waits, caching, and what kinds of storage deliver. None: not asked, not known."""

    workload: Workload
    cluster: Cluster
    num_gpus: int
    gpus_per_node: int  # at work on one node
    num_nodes: int
    rate: Rate
    records: str
    read_bytes: float  # of one sample
    bytes_per_flop: float
    achieved_flops_per_s: float  # of one device
    read_bytes_per_s_per_gpu: float
    read_bytes_per_s_per_node: float
    read_bytes_per_s_total: float
    low: float | None  # of read_bytes_per_s_per_gpu
    high: float | None
    band: ErrorBand | None
    dataset_bytes: float | None
    cache_bytes: float | None
    shuffle: str
    policy: str
    hit_frac: float  # of reads after the first epochs
    epoch_s: float | None
    deliveries: tuple[Delivery, ...]
    checkpoints: Checkpoints | None
    weights_bytes: float | None
    load_within_s: float | None
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]

    @property
    def later_read_bytes_per_s_per_node(self) -> float:
        """What storage has to deliver to a node once caches are warm."""
        return self.read_bytes_per_s_per_node * (1.0 - self.hit_frac)

    @property
    def efficiency_frac(self) -> float | None:
        """Achieved FLOP/s over the peak of the precision; None where the source counts more FLOP than are computed."""
        share = self.achieved_flops_per_s / self.rate.peak_flops_per_s
        return share if share <= 1 else None


def io(
    model: Model | str | None = None,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    seq: int | None = None,
    batch: int | None = None,
    precision: str | None = None,
    flops_per_sample: float | None = None,
    sample_bytes: float | None = None,
    token_bytes: float | None = None,
    efficiency: float | None = None,
    achieved_flops_per_s: float | None = None,
    reading: Reading | None = None,
    machines: Machines | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> IoAnswer:
    """Storage bandwidth that training `model` needs, on `gpus` accelerators (one whole node where not given).

    `model` is a benchmark workload (`cosmoflow`, `deepcam`, `resnet50`, `unet3d`, `tiramisu`, `bert`), any model, or
    None with `flops_per_sample` and `sample_bytes`. The achieved rate is our estimate, unless `efficiency` (a share of
    the peak of `precision`) or `achieved_flops_per_s` of a device is given. Further keywords are fields of `Reading`.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.api.memory import overridden

    how = overridden(reading or Reading(), said)
    how.check()
    place = machines or Machines(gpu=gpu, facts=facts)
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"efficiency {efficiency} is out of range; allowed: above 0, up to 1")
    if achieved_flops_per_s is not None and not 0 < achieved_flops_per_s < float("inf"):
        raise SpecError(f"achieved rate {achieved_flops_per_s}; give FLOP/s of one device, above 0")
    if efficiency is not None and achieved_flops_per_s is not None:
        raise SpecError("an efficiency and an achieved rate are both given; give one of them")
    own = {"flops_per_sample": flops_per_sample, "sample_bytes": sample_bytes}
    work = workload(
        model,
        own,
        seq=seq,
        token_bytes=token_bytes,
        assume_family=assume_family,
        offline=offline,
        facts=place.facts,
    )
    number = gpus if gpus is not None else place.cluster(USUAL_NODE).gpus_per_node
    cluster = place.cluster(number)
    asked = _Asked(batch, precision, efficiency, achieved_flops_per_s)
    rate, band, notes = _rate(work, cluster, place, number, asked)
    return _answered(work, cluster, place, number, rate, band, how, notes)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How fast a device is said to be."""

    batch: int | None
    precision: str | None
    efficiency: float | None
    achieved_flops_per_s: float | None


def workload(
    model: Model | str | None,
    own: dict[str, float | None],
    *,
    seq: int | None = None,
    token_bytes: float | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    facts: Path | str | None = None,
) -> Workload:
    """The workload of that name, or of that model, with the user's `own` FLOP and bytes of a sample laid over it.

    Raises:
        SpecError: no such model, or neither a model nor both figures are given.
        MissingFactError: the FLOP or the bytes of a sample are not known.
    """
    from flopwise.api.memory import default_seq
    from flopwise.facts.catalog import load_facts
    from flopwise.training.samples import Workload, renamed, workload_of_model, workload_of_sample

    if model is None:
        if None in own.values():
            raise SpecError("nothing to train is given; name a MODEL, or give --flops-per-sample and --sample-bytes")
        plain = Workload(
            name="workload", sample="given", flops_per_sample=1.0, sample_bytes=1.0, source="given by the user"
        )
        return renamed(plain, **own)
    known = load_facts(facts)
    row = known.sample(model) if isinstance(model, str) else None
    found = loaded(model if row is None else row.model, assume_family=assume_family, offline=offline, facts=facts)
    if row is not None:
        return renamed(workload_of_sample(row, found, known, seq=seq), **own)
    if not found.stacks and None not in own.values():
        named = Workload(name=found.name, sample="given", flops_per_sample=1.0, sample_bytes=1.0, source="given")
        return renamed(named, **own)
    length = default_seq(found, seq) if found.stacks else None
    return renamed(workload_of_model(found, known, seq=length, token_bytes=token_bytes), **own)


def _rate(
    work: Workload, cluster: Cluster, place: Machines, gpus: int, asked: _Asked
) -> tuple[Rate, ErrorBand | None, tuple[str, ...]]:
    """The rate of one device, the band of its error (None: given) and what was assumed."""
    from flopwise.cost.intervals import error_band
    from flopwise.training.samples import Rate, device_rate, share_rate

    if asked.achieved_flops_per_s is not None or asked.efficiency is not None:
        given = share_rate(work, cluster, asked.precision or "bf16", asked.efficiency or 1.0)
        if asked.achieved_flops_per_s is None:
            return given, None, ()
        each = asked.achieved_flops_per_s / work.flops_per_sample
        peak = given.peak_flops_per_s
        return Rate(samples_per_s=each, peak_flops_per_s=peak, precision=given.precision, origin="given"), None, ()
    if work.model is not None and work.model.stacks:
        return _trained(work, work.model, cluster, place, gpus, asked)
    found = device_rate(work, cluster, place.known_facts, batch=asked.batch, precision=asked.precision)
    band = error_band("io", place.known_facts.calibration)
    if found.origin == "published share":
        band = band.wider(WIDER_BY_SHARE, "the achieved rate is a published share of the peak")
    notes = ("replicas exchange gradients behind the backward pass",) if gpus > 1 else ()
    return found, band, (*found.notes, *notes)


def _trained(
    work: Workload, model: Model, cluster: Cluster, place: Machines, gpus: int, asked: _Asked
) -> tuple[Rate, ErrorBand, tuple[str, ...]]:
    """The rate by the training estimate, on the best layout."""
    from flopwise.api.train import train
    from flopwise.training.samples import Rate

    assert work.tokens is not None
    dtype = asked.precision or work.precision or "bf16"
    dtype = "fp32" if dtype == "tf32" else dtype
    batch = asked.batch * gpus if asked.batch is not None else None
    answer = train(model, gpus=gpus, seq=work.tokens, global_batch=batch, precision=dtype, machines=place)
    found = answer.estimate
    rate = Rate(
        samples_per_s=found.tokens_per_s_per_gpu / work.tokens,
        peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
        precision=cluster.rates.peak_dtype(dtype),
        origin="training estimate",
        batch=int(found.job.recipe.global_batch),
        parts=found.breakdown,
    )
    fits = () if answer.fits else (f"the {answer.laid_out} does not fit the memory: a run would fail",)
    return rate, found.band, (*fits, f"layout: {answer.laid_out}; see `flopwise train`")


def _answered(
    work: Workload,
    cluster: Cluster,
    place: Machines,
    gpus: int,
    rate: Rate,
    band: ErrorBand | None,
    how: Reading,
    notes: tuple[str, ...],
) -> IoAnswer:
    from flopwise.cost.storage import bytes_per_flop, read_bytes_per_s

    nbytes, record_notes = _read_bytes(work, how)
    per_flop = float(bytes_per_flop(nbytes, work.flops_per_sample))
    achieved = rate.samples_per_s * work.flops_per_sample
    per_gpu = float(read_bytes_per_s(per_flop, achieved))
    here = min(gpus, cluster.gpus_per_node)
    nodes = -(-gpus // cluster.gpus_per_node)
    hits, hit_notes = later_hits(how, nodes)
    saved = checkpoints(work, how, place.known_facts)
    weights = weights_of(work)
    low, high = (None, None) if band is None else band.interval(per_gpu)
    demand = Demand(node_bytes_per_s=per_gpu * here, hit_frac=hits, nodes=nodes, cluster=cluster)
    return IoAnswer(
        workload=work,
        cluster=cluster,
        num_gpus=gpus,
        gpus_per_node=here,
        num_nodes=nodes,
        rate=rate,
        records=how.records,
        read_bytes=nbytes,
        bytes_per_flop=per_flop,
        achieved_flops_per_s=achieved,
        read_bytes_per_s_per_gpu=per_gpu,
        read_bytes_per_s_per_node=per_gpu * here,
        read_bytes_per_s_total=per_gpu * gpus,
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        band=band,
        dataset_bytes=how.dataset_bytes,
        cache_bytes=how.cache_bytes,
        shuffle=how.shuffle,
        policy=how.policy,
        hit_frac=hits,
        epoch_s=None if how.dataset_bytes is None else how.dataset_bytes / (per_gpu * gpus),
        deliveries=deliveries(demand, how, place, saved, weights),
        checkpoints=saved,
        weights_bytes=weights,
        load_within_s=how.load_within_s,
        settings=_settings(work, cluster, gpus, nodes),
        assumptions=tuple(
            dict.fromkeys((*work.notes, *notes, *record_notes, *hit_notes, *_machine_notes(cluster, rate.origin)))
        ),
    )


def _machine_notes(cluster: Cluster, origin: str) -> tuple[str, ...]:
    """What was assumed of the machines, as far as the rate rests on it."""
    if origin == "training estimate":
        return cluster.assumptions
    guessed = (cluster.ambiguous,) if cluster.ambiguous else ()
    return (*guessed, *(cluster.rates.assumptions if origin == "layers" else ()))


def _settings(work: Workload, cluster: Cluster, gpus: int, nodes: int) -> tuple[tuple[str, str], ...]:
    return (
        (
            "accelerators",
            f"{gpus:,} x {cluster.accelerator.name}, {nodes:,} node{'s' * (nodes > 1)} of {cluster.gpus_per_node}",
        ),
        ("sample", work.sample),
        ("source", work.source),
    )


def _read_bytes(work: Workload, how: Reading) -> tuple[float, tuple[str, ...]]:
    """Bytes read for one sample, and what was assumed."""
    if how.record_bytes is not None:
        return how.record_bytes, ()
    if how.records == "raw":
        if work.record_bytes is None:
            return work.sample_bytes, ()
        smaller = f"{work.record_bytes / work.sample_bytes:.2f}x"
        return work.sample_bytes, (f"records as fed; stored compressed they are {smaller} of that (--records)",)
    if work.record_bytes is None:
        raise MissingFactError(f"{work.name}: the size of its compressed records is not known; give --record-bytes")
    return work.record_bytes, ()
