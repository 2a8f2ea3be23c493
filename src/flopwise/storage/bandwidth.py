"""Bandwidth that training needs of storage, by the bytes-per-FLOP method, against what kinds of storage deliver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flopwise.cost.cluster import Cluster
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.spec import USUAL_NODE, MachineSpec
from flopwise.cost.storage import bytes_per_flop, checkpoint_bytes_per_s, hit_frac, kept_up_frac, read_bytes_per_s
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import defaults
from flopwise.facts.catalog import Facts
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.facts.storage import Storage
from flopwise.origin import COUNTED, KERNEL, chip_fact, estimate_of
from flopwise.origin import interval as interval_figures
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Figure, assumption, fact, setting, term
from flopwise.results import Result, attributes, interval
from flopwise.storage.spec import SampleSpec, StorageRequest
from flopwise.training.goodput import DEFAULT_RELIABILITY, checkpoint_bytes, goodput
from flopwise.training.layer_sums import memory_table
from flopwise.training.layout import Recipe
from flopwise.training.sample_rate import DeviceRate, device_rate, rate_band, share_rate
from flopwise.training.sampled_memory import PARAMETER_BYTES, saved_bytes, state_bytes
from flopwise.training.samples import (
    TEXT_ONLY,
    SampledWorkload,
    benchmark_and_model,
    num_parameters,
    workload_of_model,
    workload_of_sample,
)
from flopwise.training.spec import DataSpec
from flopwise.units import format_interval, format_items, format_rate, format_seconds
from flopwise.values import dataclass, replace

GIVEN = "given"
"""Name of the storage whose bandwidth the user gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDemand:
    """The bandwidth that saving and restoring need. None: no time is given for it."""

    nbytes: float  # one copy of all states
    interval_s: float | None
    stall_frac: float
    write_bytes_per_s: float | None  # of all nodes together
    restore_within_s: float | None
    restore_bytes_per_s: float | None
    origin: str
    interval_assumed: bool = False  # the one that loses least, as none was given


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageDelivery:
    """The bandwidth of one kind of storage to a node, and the speed of training on it: 1 is without waiting."""

    name: str
    read_bytes_per_s: float
    write_bytes_per_s: float | None
    first_epoch_frac: float
    later_epochs_frac: float
    origin: str
    confidence: str
    checkpoint_write_s: float | None = None  # all nodes write their parts at once
    restore_s: float | None = None
    load_s: float | None = None  # all weights into one node
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StorageAnswer(Result):
    """Demand in bytes/s while nothing waits, caching, and what kinds of storage deliver. None: unknown or not given."""

    table = "storage"
    request: StorageRequest
    workload: SampledWorkload
    cluster: Cluster
    num_gpus: int
    rate: DeviceRate
    band: ErrorBand | None
    read_bytes: float  # of one sample
    hit_frac: float  # of reads after the first epochs
    checkpoints: CheckpointDemand | None
    deliveries: tuple[StorageDelivery, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The answer in a sentence: what a node has to read, and which storage keeps up."""
        text = f"Reads {format_rate(self.read_bytes_per_s_per_node)} a node"
        if self.low is not None and self.high is not None:
            nodes = self.cluster.gpus_per_node
            text += f" {format_interval(self.low * nodes, self.high * nodes, format_rate)}"
        if self.num_nodes > 1:
            text += f", {format_rate(self.read_bytes_per_s_total)} over {self.num_nodes:,} nodes"
        enough = [d for d in self.deliveries if d.first_epoch_frac >= 1]
        if not self.deliveries:
            return f"{text}."
        if not enough:
            return f"{text}: none of {len(self.deliveries)} kinds of storage keeps up."
        least = min(enough, key=lambda delivery: delivery.read_bytes_per_s)
        slowest = f"{least.name} ({format_rate(least.read_bytes_per_s)})"
        if len(self.deliveries) == 1:
            return f"{text}: {slowest} keeps up."
        if len(enough) == len(self.deliveries):
            return f"{text}: all {len(enough)} kinds of storage keep up, even {slowest}{self._saved_text()}."
        return (
            f"{text}: {len(enough)} of {len(self.deliveries)} kinds of storage keep up, the slowest of them {slowest}."
        )

    def _saved_text(self) -> str:
        """The bandwidth that checkpoints need: where reading needs next to none, that decides."""
        saved = self.checkpoints
        if saved is None or saved.write_bytes_per_s is None or saved.interval_s is None:
            return ""
        every = format_seconds(saved.interval_s)
        return f"; checkpoints every {every} need {format_rate(saved.write_bytes_per_s)} in total"

    def picture(self) -> Picture:
        """The bandwidth of each kind of storage to a node, and the need, as a picture."""
        rows = [(delivery.name, delivery.read_bytes_per_s / 1e9) for delivery in self.deliveries]
        need = ("needed", self.read_bytes_per_s_per_node / 1e9)
        return BarPicture(title=self.verdict, unit="GB/s", rows=rows, limit=need)

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The settings of the answer."""
        nodes = f"{format_items(self.num_nodes, 'node')} of {self.cluster.gpus_per_node}"
        return (
            ("accelerators", f"{self.num_gpus:,} x {self.cluster.accelerator.name}, {nodes}"),
            ("sample", self.workload.sample),
            ("source", self.workload.source),
        )

    def document(self) -> dict[str, Any]:
        """The answer as the JSON that scripts rely on."""
        within = self.request.load_within_s
        loaded = None if self.weights_bytes is None or within is None else self.weights_bytes / within
        return {
            **attributes(
                self,
                "workload=workload.name gpu=cluster.accelerator.name num_gpus num_nodes gpus_per_node "
                "request.records bytes_per_flop achieved_flops_per_s efficiency_frac read_bytes_per_s_per_gpu "
                "read_bytes_per_s_per_node read_bytes_per_s_total low high request.dataset_bytes request.cache_bytes "
                "request.shuffle hit_frac later_read_bytes_per_s_per_node epoch_s weights_bytes "
                "request.load_within_s cache_policy=request.policy",
            ),
            "load_bytes_per_s": loaded,
            **attributes(
                self,
                "workload.flops_per_sample workload.sample_bytes workload.record_bytes "
                "read_bytes_per_sample=read_bytes samples_per_s_per_gpu=rate.samples_per_s "
                "rate.precision rate.batch rate_origin=rate.origin",
            ),
            "interval": interval(self.band),
            **attributes(self, "checkpoint=checkpoints storage=deliveries"),
            "settings": dict(self.settings),
            "assumptions": self.assumptions,
        }

    def figure(self) -> Figure:
        """The tree of the figures: demand per device, node and cluster, caches, storage, checkpoints."""
        work, request = self.workload, self.request
        flops = fact("FLOP of a sample", work.flops_per_sample, "FLOP", source=work.source)
        records = f"records {request.records}"
        size = fact("bytes of a sample", self.read_bytes, "B", source=work.source, note=records)
        per_flop = term("bytes per FLOP", self.bytes_per_flop, "B/FLOP", f"{size.name} / {flops.name}", size, flops)
        method = "Ibrahim et al., PMBS 2021: the MiB/FLOP method"
        each = _product(
            "read bandwidth per device",
            self.read_bytes_per_s_per_gpu,
            "B/s",
            per_flop,
            _rate_figure(self, flops),
            method,
        )
        devices_of_node, devices = setting("devices of a node", self.gpus_per_node), setting("devices", self.num_gpus)
        node = _product("read bandwidth per node", self.read_bytes_per_s_per_node, "B/s", each, devices_of_node)
        figures = [each, node, _product("read bandwidth of all", self.read_bytes_per_s_total, "B/s", each, devices)]
        if self.band is not None and self.low is not None and self.high is not None:
            figures += interval_figures(each.name, each, self.band, self.low, self.high)
        if request.cache_bytes is not None:
            hits = term(
                "share of reads that caches serve", self.hit_frac, "frac",
                f"{COUNTED}: records met again before they are evicted",
                setting("cache of a node", request.cache_bytes, "B"),
                setting("data set", request.dataset_bytes, "B"), setting("shuffle", request.shuffle),
            )  # fmt: skip
            later, formula = self.later_read_bytes_per_s_per_node, f"{node.name} x (1 - {hits.name})"
            figures.append(term("read bandwidth per node, later epochs", later, "B/s", formula, node, hits))
        if self.checkpoints is not None:
            origin = f"{COUNTED}: {self.checkpoints.origin}"
            figures.append(term("checkpoint", self.checkpoints.nbytes, "B", origin))
        chip = self.cluster.accelerator
        return estimate_of(f"storage for {work.name} on {self.num_gpus:,} x {chip.name}", figures)

    @property
    def gpus_per_node(self) -> int:
        """Devices at work on one node."""
        return min(self.num_gpus, self.cluster.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes at work."""
        return -(-self.num_gpus // self.cluster.gpus_per_node)

    @property
    def bytes_per_flop(self) -> float:
        """Bytes read for each FLOP."""
        return float(bytes_per_flop(self.read_bytes, self.workload.flops_per_sample))

    @property
    def achieved_flops_per_s(self) -> float:
        """Achieved FLOP/s of one device."""
        return self.rate.samples_per_s * self.workload.flops_per_sample

    @property
    def efficiency_frac(self) -> float | None:
        """Achieved FLOP/s over the peak of the precision; None where the source counts more FLOP than are computed."""
        share = self.achieved_flops_per_s / self.rate.peak_flops_per_s
        return share if share <= 1 else None

    @property
    def read_bytes_per_s_per_gpu(self) -> float:
        """Read bandwidth that one device needs."""
        return float(read_bytes_per_s(self.bytes_per_flop, self.achieved_flops_per_s))

    @property
    def read_bytes_per_s_per_node(self) -> float:
        """Read bandwidth that a node needs."""
        return self.read_bytes_per_s_per_gpu * self.gpus_per_node

    @property
    def read_bytes_per_s_total(self) -> float:
        """Read bandwidth that all devices need."""
        return self.read_bytes_per_s_per_gpu * self.num_gpus

    @property
    def later_read_bytes_per_s_per_node(self) -> float:
        """The bandwidth that storage has to deliver to a node with warm caches, in bytes/s."""
        return self.read_bytes_per_s_per_node * (1.0 - self.hit_frac)

    @property
    def low(self) -> float | None:
        """Lower end of `read_bytes_per_s_per_gpu`; None where the rate is given."""
        return None if self.band is None else float(self.band.interval(self.read_bytes_per_s_per_gpu)[0])

    @property
    def high(self) -> float | None:
        """Upper end of `read_bytes_per_s_per_gpu`; None where the rate is given."""
        return None if self.band is None else float(self.band.interval(self.read_bytes_per_s_per_gpu)[1])

    @property
    def epoch_s(self) -> float | None:
        """Time to read the data set once."""
        size = self.request.dataset_bytes
        return None if size is None else size / self.read_bytes_per_s_total

    @property
    def weights_bytes(self) -> float | None:
        """Weights in 16 bits; None where the parameters are not known."""
        count = num_parameters(self.workload)
        return None if count is None else 2.0 * count


EstimatedRate = tuple[DeviceRate, ErrorBand | None, tuple[str, ...]]
"""A rate, the band of its error and what was assumed."""
RateEstimate = Callable[[SampledWorkload, Cluster, int, MachineSpec, SampleSpec, SourceSpec], EstimatedRate]
"""The rate at which a workload trains on so many devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedWorkload:
    """A workload on `num_gpus` devices of a cluster, and how fast each trains on it when nothing keeps it waiting."""

    workload: SampledWorkload
    cluster: Cluster
    num_gpus: int
    rate: DeviceRate
    band: ErrorBand | None  # of the rate's error; None: the rate is given
    notes: tuple[str, ...]


def storage_answer(
    model: ModelName | None, sample: SampleSpec, request: StorageRequest, machines: MachineSpec, source: SourceSpec,
    gpus: int | None, training_rate: RateEstimate,
) -> StorageAnswer:  # fmt: skip
    """The bandwidth that training `model` on `gpus` devices (None: a whole node) needs, and what storage delivers.

    What has token layers trains at `training_rate`.

    Raises:
        MissingFactError: the size of compressed records, or a fact that the rate needs, is not known.
        SpecError, UnknownNameError: a value or a name that cannot be; checkpoints of an unknown size.
    """
    rated, facts = _rated_workload(model, sample, machines, source, gpus, training_rate), source.catalog
    work, cluster = rated.workload, rated.cluster
    read_bytes, record_note = _read_bytes(work, request)
    demand = StorageAnswer(
        request=request, workload=work, cluster=cluster, num_gpus=rated.num_gpus, rate=rated.rate, band=rated.band,
        read_bytes=read_bytes, hit_frac=0.0,
        checkpoints=_checkpoint_demand(work, request, cluster, rated.num_gpus, facts),
    )  # fmt: skip
    cache_note = "no cache: every epoch reads all from storage (--dataset, --cache)"
    if request.cache_bytes is not None and request.dataset_bytes is not None:
        hits = hit_frac(
            request.cache_bytes, request.dataset_bytes, demand.num_nodes, shuffle=request.shuffle, policy=request.policy
        )
        demand = replace(demand, hit_frac=float(hits))
        cache_note = f"caches: {request.policy}, {request.shuffle} shuffle, records of one size"
    assumptions = (*work.notes, *rated.notes, *record_note, cache_note, *_machine_notes(cluster, rated.rate.origin))
    return replace(demand, deliveries=deliveries(demand, facts), assumptions=tuple(dict.fromkeys(assumptions)))


def _rated_workload(
    model: ModelName | None, sample: SampleSpec, machines: MachineSpec, source: SourceSpec, gpus: int | None,
    training_rate: RateEstimate,
) -> RatedWorkload:  # fmt: skip
    """The workload on `gpus` devices (None: a whole node); what has token layers trains at `training_rate`.

    Raises:
        SpecError: a value or a name that cannot be; MissingFactError: a fact that the answer needs is not known.
    """
    facts, work = source.catalog, _sampled_workload(model, sample, source)
    counted = gpus is not None or machines.counted is not None
    number = machines.num_gpus(gpus) if counted else machines.cluster(USUAL_NODE, facts).gpus_per_node
    cluster = machines.cluster(number, facts)
    if not sample.rate_given and work.model is not None and work.model.stacks:
        rate, band, notes = training_rate(work, cluster, number, machines, sample, source)
    else:
        rate, band, notes = _rate_and_band(work, cluster, facts, number, sample)
    return RatedWorkload(workload=work, cluster=cluster, num_gpus=number, rate=rate, band=band, notes=notes)


def _rate_and_band(
    work: SampledWorkload, cluster: Cluster, facts: Facts, num_gpus: int, sample: SampleSpec
) -> EstimatedRate:
    """The rate of one device, the band of its error (None: the rate is given) and what was assumed.

    Raises:
        MissingFactError, SpecError: as `device_rate`.
    """
    if sample.rate_given:
        rate = share_rate(work, cluster, sample.precision or "bf16", sample.efficiency or 1.0)
        if sample.achieved_flops_per_s is not None:
            rate = replace(rate, samples_per_s=sample.achieved_flops_per_s / work.flops_per_sample)
        return rate, None, ()
    rate = device_rate(work, cluster, facts, batch=sample.batch, precision=sample.precision)
    messages = ("replicas exchange gradients during the backward pass",) * (num_gpus > 1)
    return rate, rate_band(rate, facts.calibration), (*rate.notes, *messages)


def _sampled_workload(model: ModelName | None, sample: SampleSpec, source: SourceSpec) -> SampledWorkload:
    """The workload of that name, or of that model, with the user's own FLOP and bytes of a sample laid over it.

    Raises:
        SpecError: nothing is known of a sample and nothing given, or a figure is not above zero.
        MissingFactError: the size of a sample or its FLOP are not known.
    """
    figures = {"flops_per_sample": sample.flops_per_sample, "sample_bytes": sample.sample_bytes}
    given = {name: value for name, value in figures.items() if value is not None}
    row, named = (None, None) if model is None else benchmark_and_model(model, source)
    if named is None or (row is None and not named.stacks and len(given) == len(figures)):
        if len(given) < len(figures):
            raise SpecError("nothing to train is given; name a MODEL, or give --flops-per-sample and --sample-bytes")
        name, origin = ("workload", "given by the user") if named is None else (named.name, "given")
        work = SampledWorkload(name=name, sample="given", flops_per_sample=1.0, sample_bytes=1.0, source=origin)
    elif row is not None:
        work = workload_of_sample(row, named, source.catalog, seq=sample.seq)
    else:
        length = DataSpec(seq=sample.seq).seq_len(named) if named.stacks else None
        work = workload_of_model(named, source.catalog, seq=length, token_bytes=sample.token_bytes)
    for name, value in given.items():
        if not 0 < value < float("inf"):
            raise SpecError(f"{name} {value}; give a finite number above 0")
    notes = tuple(note for note in work.notes if note != TEXT_ONLY or "sample_bytes" not in given)
    return replace(work, notes=notes, **given)  # type: ignore[arg-type]  # fields by name


def _machine_notes(cluster: Cluster, origin: str) -> tuple[str, ...]:
    """Assumptions about the machines, as far as the rate rests on them."""
    if origin == "training estimate":
        return cluster.assumptions
    guessed = (cluster.ambiguous,) if cluster.ambiguous else ()
    return (*guessed, *(cluster.rates.assumptions if origin == "layers" else ()))


def _read_bytes(work: SampledWorkload, request: StorageRequest) -> tuple[float, tuple[str, ...]]:
    """Bytes read for one sample, and what was assumed."""
    if request.record_bytes is not None:
        return request.record_bytes, ()
    if request.records == "raw":
        if work.record_bytes is None:
            return work.sample_bytes, ()
        smaller = f"{work.record_bytes / work.sample_bytes:.2f}x"
        return work.sample_bytes, (
            f"records are read uncompressed; compressed they have {smaller} of the size (--records)",
        )
    if work.record_bytes is None:
        raise MissingFactError(f"{work.name}: the size of its compressed records is not known; give --record-bytes")
    return work.record_bytes, ()


def _checkpoint_demand(
    work: SampledWorkload, request: StorageRequest, cluster: Cluster, num_gpus: int, facts: Facts
) -> CheckpointDemand | None:  # fmt: skip
    """The bandwidth that checkpoints need; None where the parameters are not known.

    Where no interval is given it is that of a run which is written at the default rate, as `train` has it.

    Raises:
        SpecError: times are given for them, and the parameters are not known.
    """
    count, interval, within = num_parameters(work), request.checkpoint_interval_s, request.restore_within_s
    if count is None:
        if interval is not None or within is not None:
            raise SpecError(
                f"{work.name}: its parameters are not known, so the size of its checkpoints is not known either"
            )
        return None
    row = facts.optimizer(request.optimizer)
    if work.model is not None and work.model.stacks:
        recipe = Recipe(seq_len=1, optimizer=row, stack=facts.stacks[defaults.STACKS[0]])
        nbytes = float(checkpoint_bytes(memory_table(work.model, recipe)))
        origin = f"weights, master weights and {row.name}'s states as {recipe.stack.name} keeps them"
    else:
        nbytes = saved_bytes(count, row)
        each = f"{PARAMETER_BYTES:g} bytes + {state_bytes(row):g} of {row.name}'s states"
        origin = f"{count:,.0f} parameters x ({each})"
    stall = request.checkpoint_stall_frac
    machines = replace(DEFAULT_RELIABILITY, gpus_per_node=cluster.gpus_per_node)
    every = float(goodput(num_gpus, nbytes, machines).interval_s) if interval is None else interval
    return CheckpointDemand(
        nbytes=nbytes, interval_s=every, stall_frac=stall, restore_within_s=within, origin=origin,
        write_bytes_per_s=float(checkpoint_bytes_per_s(nbytes, every, stall)), interval_assumed=interval is None,
        restore_bytes_per_s=None if within is None else nbytes / within,
    )  # fmt: skip


def deliveries(demand: StorageAnswer, facts: Facts) -> tuple[StorageDelivery, ...]:
    """Each kind of storage against the demand, the fastest first; what the user gave above all.

    Raises:
        UnknownNameError: there is no such kind.
        SpecError: a row of the facts folder is wrong.
    """
    request, rate = demand.request, demand.request.storage_bytes_per_s
    kinds = [facts.storage(name) for name in request.storage]
    if not kinds and rate is None:
        kinds = list(facts.storage_kinds.values())
    sold = sorted((_delivery_of_kind(kind, demand) for kind in kinds), key=lambda d: -d.read_bytes_per_s)
    own = [] if rate is None else [_delivery(demand, GIVEN, rate, rate, "given", "", "")]
    return (*own, *sold)


def _delivery_of_kind(kind: Storage, demand: StorageAnswer) -> StorageDelivery:
    """One kind, as many drives or connections as a node has, no faster than the instance's network."""
    offer = demand.cluster.offer
    network = offer.network_bytes_per_s if offer is not None else None
    count = {"client": 1, "device": demand.request.devices, "connection": demand.request.connections}[kind.scope]
    reads = kind.read_bytes_per_s * count
    if kind.total_read_bytes_per_s is not None:
        reads = min(reads, kind.total_read_bytes_per_s / demand.num_nodes)
    writes = None if kind.write_bytes_per_s is None else kind.write_bytes_per_s * count
    if writes is not None and kind.total_write_bytes_per_s is not None:
        writes = min(writes, kind.total_write_bytes_per_s / demand.num_nodes)
    note = kind.notes if count == 1 else f"{count} {kind.scope}s"
    if kind.networked and network is not None:
        note = "bound by the instance's network" if network < reads else note
        reads, writes = min(reads, network), None if writes is None else min(writes, network)
    made = _delivery(demand, kind.name, reads, writes, f"{kind.source} ({kind.date})", kind.confidence, note)
    together = kind.total_read_bytes_per_s or kind.total_write_bytes_per_s
    if made.restore_s is None or demand.checkpoints is None or together is None:
        return made
    # Every node reads its part at once: the whole file system gives no more than is known of it, at least of writing.
    return replace(made, restore_s=max(made.restore_s, demand.checkpoints.nbytes / together))


def _delivery(
    demand: StorageAnswer, name: str, reads: float, writes: float | None, origin: str, confidence: str, note: str
) -> StorageDelivery:
    """The demand at `reads` and `writes` bytes/s to a node."""
    later, weights = demand.later_read_bytes_per_s_per_node, demand.weights_bytes
    each = None if demand.checkpoints is None else demand.checkpoints.nbytes / demand.num_nodes
    return StorageDelivery(
        name=name, read_bytes_per_s=reads, write_bytes_per_s=writes, origin=origin, confidence=confidence, note=note,
        first_epoch_frac=float(kept_up_frac(reads, demand.read_bytes_per_s_per_node)),
        later_epochs_frac=float(kept_up_frac(reads, later)) if later > 0 else 1.0,
        checkpoint_write_s=None if each is None or writes is None else each / writes,
        restore_s=None if each is None else each / reads,
        load_s=None if weights is None else weights / reads,
    )  # fmt: skip


def _product(name: str, value: float, unit: str, one: Figure, other: Figure, source: str = "") -> Figure:
    return term(name, value, unit, f"{one.name} x {other.name}", one, other, source=source)


def _rate_figure(answer: StorageAnswer, flops: Figure) -> Figure:
    """The achieved FLOP/s of a device."""
    rate, name, value, unit = answer.rate, "achieved FLOP/s", answer.achieved_flops_per_s, "FLOP/s"
    if rate.origin == "given" and answer.efficiency_frac is None:
        return setting(name, value, unit)
    peak = chip_fact(answer.cluster.accelerator, f"peak {rate.precision}", unit, rate.peak_flops_per_s)
    share = value / rate.peak_flops_per_s
    if rate.origin == "given":
        return _product(name, value, unit, peak, setting("achieved share", share, "frac"))
    if rate.origin == "published share":
        reason = "what published runs reached; no layers are known"
        return _product(name, value, unit, peak, assumption("achieved share", share, "frac", reason))
    step = term(
        "samples per second and device", rate.samples_per_s, "1/s",
        KERNEL if rate.origin == "layers" else f"{KERNEL}: see `flopwise train --explain`",
        *(term(part.replace("_", " "), seconds, "s", KERNEL) for part, seconds in rate.parts if seconds > 0),
        *((setting("samples of a step", rate.batch),) if rate.batch is not None else ()),
        peak,
    )  # fmt: skip
    return _product(name, value, unit, step, flops)
