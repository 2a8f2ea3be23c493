"""What kinds of storage deliver to training: reads, caches, checkpoints and loading of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.api.machines import Machines
from flopwise.errors import SpecError
from flopwise.facts import defaults

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.catalog import Facts
    from flopwise.facts.storage import Storage
    from flopwise.training.samples import Workload

SHUFFLES = ("global", "shard", "none")
POLICIES = ("lru", "pinned")
RECORDS = ("raw", "compressed")
STALL_FRAC = 0.05
"""Share of the time that writing checkpoints may take where none is given."""
GIVEN = "given"
"""Name of the storage whose bandwidth the user gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one kind of storage gives a node, and how fast training runs on it: 1 is without waiting."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What saving and restoring ask for. None: not asked, or not known."""

    nbytes: float  # one copy of all states
    interval_s: float | None
    stall_frac: float
    write_bytes_per_s: float | None  # of all nodes together
    restore_within_s: float | None
    restore_bytes_per_s: float | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How data are stored and read; bytes on each node, seconds, shares to 1."""

    records: str = "raw"
    record_bytes: float | None = None  # as stored; overrides
    dataset_bytes: float | None = None
    cache_bytes: float | None = None  # of a node: page cache or local drives
    policy: str = "lru"
    shuffle: str = "global"
    storage: Sequence[str] = ()  # kinds to compare with; none: all
    storage_bytes_per_s: float | None = None  # of a node, measured by the user
    devices: int = 1  # drives or volumes of a node
    connections: int = 1  # of a node, to an object store
    checkpoint_interval_s: float | None = None
    checkpoint_stall_frac: float = STALL_FRAC
    restore_within_s: float | None = None
    load_within_s: float | None = None
    optimizer: str = defaults.OPTIMIZER

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            SpecError: a choice that does not exist, a figure that is not above 0.
        """
        for what, given, allowed in (
            ("records", self.records, RECORDS),
            ("cache policy", self.policy, POLICIES),
            ("shuffle", self.shuffle, SHUFFLES),
        ):
            if given not in allowed:
                raise SpecError(f"unknown {what} {str(given)[:40]!r}; allowed: {', '.join(allowed)}")
        words = {"records", "policy", "shuffle", "storage", "optimizer"}
        for name in sorted(self.__dataclass_fields__.keys() - words):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SpecError(f"{name} {value}; give a finite number above 0")
        if self.checkpoint_stall_frac > 1:
            raise SpecError(f"checkpoint_stall_frac {self.checkpoint_stall_frac}; give a share above 0, up to 1")
        if self.cache_bytes is not None and self.dataset_bytes is None:
            raise SpecError("a cache is given, but not the size of the data set (--dataset)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a node reads while nothing waits, and on how many nodes."""

    node_bytes_per_s: float
    hit_frac: float
    nodes: int
    cluster: Cluster


def storages(how: Reading, facts: Facts) -> tuple[Storage, ...]:
    """The kinds that are compared with.

    Raises:
        UnknownNameError: there is no such kind; names the nearest.
    """
    if how.storage:
        return tuple(facts.storage(name) for name in how.storage)
    return () if how.storage_bytes_per_s is not None else tuple(facts.storage_kinds.values())


def later_hits(how: Reading, nodes: int) -> tuple[float, tuple[str, ...]]:
    """Share of reads that caches serve once they are warm, and what was assumed."""
    from flopwise.cost.storage import hit_frac

    if how.cache_bytes is None or how.dataset_bytes is None:
        return 0.0, ("no cache: every epoch reads all from storage (--dataset, --cache)",)
    found = float(hit_frac(how.cache_bytes, how.dataset_bytes, nodes, shuffle=how.shuffle, policy=how.policy))
    return found, (f"caches: {how.policy}, {how.shuffle} shuffle, records of one size",)


def parameters_of(work: Workload) -> float | None:
    """Parameters of what is trained; None where they are not known."""
    from flopwise.ops.tensors import parameters

    model = work.model
    if model is None:
        return None
    if model.stacks:
        return float(parameters(model))
    return None if model.published is None or model.published.parameters is None else float(model.published.parameters)


def weights_of(work: Workload) -> float | None:
    """Bytes of the weights in 16 bits; None where the parameters are not known."""
    count = parameters_of(work)
    return None if count is None else 2.0 * count


def checkpoints(work: Workload, how: Reading, facts: Facts) -> Checkpoints | None:
    """What checkpoints ask for; None where the parameters are not known.

    Raises:
        SpecError: they are asked for, and the parameters are not known.
    """
    from flopwise.cost.storage import checkpoint_bytes_per_s

    count = parameters_of(work)
    if count is None:
        if how.checkpoint_interval_s is not None or how.restore_within_s is not None:
            raise SpecError(f"{work.name}: its parameters are not known, so its checkpoints aren't either")
        return None
    nbytes, origin = _checkpoint(work, how, count, facts)
    written, restored = None, None
    if how.checkpoint_interval_s is not None:
        written = float(checkpoint_bytes_per_s(nbytes, how.checkpoint_interval_s, how.checkpoint_stall_frac))
    if how.restore_within_s is not None:
        restored = nbytes / how.restore_within_s
    return Checkpoints(
        nbytes=nbytes,
        interval_s=how.checkpoint_interval_s,
        stall_frac=how.checkpoint_stall_frac,
        write_bytes_per_s=written,
        restore_within_s=how.restore_within_s,
        restore_bytes_per_s=restored,
        origin=origin,
    )


def _checkpoint(work: Workload, how: Reading, count: float, facts: Facts) -> tuple[float, str]:
    """Bytes of a checkpoint to resume from, and how they come about."""
    row = facts.optimizer(how.optimizer)
    if work.model is not None and work.model.stacks:
        from flopwise.training.checkpoint import checkpoint_bytes
        from flopwise.training.layout import Recipe
        from flopwise.training.table import MemoryTable

        recipe = Recipe(seq_len=1, optimizer=row, stack=facts.stack(defaults.STACK))
        nbytes = float(checkpoint_bytes(MemoryTable(work.model, recipe)))
        return nbytes, f"weights, master weights and {row.name}'s states as {recipe.stack.name} keeps them"
    states = 4.0 * row.states + row.packed_bytes
    return count * (4.0 + states), f"{count:,.0f} parameters x (4 bytes + {states:g} of {row.name}'s states)"


def deliveries(
    demand: Demand, how: Reading, place: Machines, saved: Checkpoints | None, weights: float | None
) -> tuple[Delivery, ...]:
    """Each kind of storage against the demand, the fastest first; what the user gave above all.

    Raises:
        UnknownNameError: there is no such kind.
        SpecError: a row of the facts folder is wrong.
    """
    offer = demand.cluster.offer if place.named else None
    network = offer.network_bytes_per_s if offer is not None else None
    found = [_delivery(kind, demand, how, network, saved, weights) for kind in storages(how, place.known_facts)]
    found.sort(key=lambda d: -d.read_bytes_per_s)
    if how.storage_bytes_per_s is not None:
        rate = how.storage_bytes_per_s
        found.insert(0, _against(GIVEN, rate, rate, demand, saved, weights, "given", "", ""))
    return tuple(found)


def _delivery(
    kind: Storage,
    demand: Demand,
    how: Reading,
    network: float | None,
    saved: Checkpoints | None,
    weights: float | None,
) -> Delivery:
    """One kind, as many drives or connections as a node has, no faster than the instance's network."""
    many = {"client": 1, "device": how.devices, "connection": how.connections}[kind.scope]
    reads = kind.read_bytes_per_s * many
    writes = None if kind.write_bytes_per_s is None else kind.write_bytes_per_s * many
    if writes is not None and kind.total_write_bytes_per_s is not None:
        writes = min(writes, kind.total_write_bytes_per_s / demand.nodes)
    note = kind.notes if many == 1 else f"{many} {kind.scope}s"
    if kind.networked and network is not None:
        if network < reads:
            note = "bound by the instance's network"
        reads, writes = min(reads, network), None if writes is None else min(writes, network)
    return _against(
        kind.name, reads, writes, demand, saved, weights, f"{kind.source} ({kind.date})", kind.confidence, note
    )


def _against(
    name: str,
    reads: float,
    writes: float | None,
    demand: Demand,
    saved: Checkpoints | None,
    weights: float | None,
    origin: str,
    confidence: str,
    note: str,
) -> Delivery:
    from flopwise.cost.storage import kept_up_frac

    needed = demand.node_bytes_per_s
    later = needed * (1.0 - demand.hit_frac)
    each = None if saved is None else saved.nbytes / demand.nodes
    return Delivery(
        name=name,
        read_bytes_per_s=reads,
        write_bytes_per_s=writes,
        first_epoch_frac=float(kept_up_frac(reads, needed)),
        later_epochs_frac=float(kept_up_frac(reads, later)) if later > 0 else 1.0,
        origin=origin,
        confidence=confidence,
        checkpoint_write_s=None if each is None or writes is None else each / writes,
        restore_s=None if each is None else each / reads,
        load_s=None if weights is None else weights / reads,
        note=note,
    )
