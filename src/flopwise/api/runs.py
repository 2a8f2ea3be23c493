"""The run around the steps, as people say it: failures, checkpoints, spares, stragglers, validation, data loading."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from flopwise.errors import MissingFactError, SpecError

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.catalog import Facts
    from flopwise.training.goodput import Reliability
    from flopwise.training.job import Conditions

MAX_SPARES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run meets; s, bytes/s, fractions. None: not said, so the default of `training.goodput` holds."""

    mtbf: float | None = None  # of one GPU with its share of the machine
    node_mtbf: float | None = None  # of one node, instead of the GPUs' or beside it
    failures: str | None = None  # a row of data/failures.csv, instead of `mtbf`
    restart: float | None = None  # detection, rescheduling and warm-up together
    checkpoint_storage: str | None = None  # a row of data/storage.csv that checkpoints go to
    checkpoint_bandwidth: float | None = None  # of the whole cluster
    checkpoint_every: float | None = None
    async_checkpoints: bool = False
    spares: int | None = None  # nodes that stand by
    repair: float | None = None  # a failed node is away so long
    interruptions: float | None = None  # a second, of one spot instance
    jitter: float | None = None  # of a rank's step time, as a share of it
    validate_every: int | None = None  # steps
    validate_batches: int | None = None
    loader_rate: float | None = None  # sequences/s for one GPU

    @property
    def said(self) -> list[str]:
        """The fields that the question sets."""
        return [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]

    def conditions(self, cluster: Cluster, facts: Facts) -> tuple[Conditions, tuple[str, ...]]:
        """The conditions of a run on `cluster`, and what was assumed.

        Raises:
            SpecError: a value that cannot be.
            MissingFactError: the storage's write bandwidth is not known.
        """
        from flopwise.training.job import Conditions

        self._check()
        held, origins = self._reliability(cluster, facts)
        spot, told = self._spot(cluster, facts)
        if spot is not None:
            held = replace(held, interruptions_per_s=spot[0])
            origins |= {"interruptions_per_s": spot[1]}
        if self.validate_batches is not None and self.validate_every is None:
            raise SpecError(
                "batches of a validation are given, but not every how many steps it comes (--validate-every)"
            )
        found = Conditions(
            reliability=held,
            jitter_frac=self.jitter or 0.0,
            validate_every=self.validate_every,
            validate_batches=self.validate_batches or 1,
            loader_samples_per_s=self.loader_rate,
            origins=tuple(origins.items()),
        )
        return found, told

    @property
    def writes_assumed(self) -> tuple[str, ...]:
        """What is assumed of the storage that checkpoints go to; nothing where it is said."""
        from flopwise.training.goodput import DEFAULT_RELIABILITY
        from flopwise.units import format_rate

        if self.checkpoint_bandwidth is not None or self.checkpoint_storage is not None:
            return ()
        held = DEFAULT_RELIABILITY
        each, most = format_rate(held.write_bytes_per_s_per_gpu), format_rate(held.write_bytes_per_s)
        said = "--checkpoint-storage or --checkpoint-bandwidth says otherwise"
        return (f"checkpoints go to a parallel file system: {each} from a GPU, {most} from all at most; {said}",)

    def _check(self) -> None:
        """Refuse values that cannot be, whoever gives them."""
        for name in ("mtbf", "node_mtbf", "checkpoint_bandwidth", "checkpoint_every", "repair", "loader_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SpecError(f"{name.replace('_', ' ')} {value!r} is out of range; allowed: above 0")
        for name in ("restart", "interruptions", "jitter"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise SpecError(f"{name} {value!r} is out of range; allowed: 0 or more")
        for name, most in (("spares", MAX_SPARES), ("validate_every", 10**9), ("validate_batches", 10**9)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise SpecError(f"{name.replace('_', ' ')} {value!r} is out of range; allowed: 1 to {most:,}")
        if self.mtbf is not None and self.failures is not None:
            raise SpecError("the time between failures is given, and a record of failures; give one of them")
        if self.spares is not None and self.repair is None:
            raise SpecError("spare nodes count by how long a repair takes: give --repair, such as 24h")

    def _reliability(self, cluster: Cluster, facts: Facts) -> tuple[Reliability, dict[str, str]]:
        """Failures, restarts and checkpoints, and where each value comes from."""
        from flopwise.training.goodput import DEFAULT_RELIABILITY

        values: dict[str, tuple[Any, str]] = {}
        if self.node_mtbf is not None:
            values["mtbf_node_s"] = self.node_mtbf, "given"
            values["mtbf_gpu_s"] = float("inf"), "given"
        if self.failures is not None:
            record = facts.failure_record(self.failures)
            values["mtbf_gpu_s"] = record.mtbf_gpu_s, f"{record.source}, {record.date}, {record.confidence} confidence"
        if self.mtbf is not None:
            values["mtbf_gpu_s"] = self.mtbf, "given"
        if self.restart is not None:
            values |= {"detect_s": (0.0, "given"), "warmup_s": (0.0, "given"), "reschedule_s": (self.restart, "given")}
        if self.checkpoint_bandwidth is not None:
            values["write_bytes_per_s"] = self.checkpoint_bandwidth, "given"
            values["write_bytes_per_s_per_gpu"] = float("inf"), "given"
        if self.checkpoint_storage is not None:
            values |= _writes(self.checkpoint_storage, facts)
        named = {
            "interval_s": self.checkpoint_every,
            "repair_s": self.repair,
            "spares": self.spares,
            "asynchronous": self.async_checkpoints or None,
        }
        values |= {name: (value, "given") for name, value in named.items() if value is not None}
        held = replace(
            DEFAULT_RELIABILITY, gpus_per_node=cluster.gpus_per_node, **{name: v for name, (v, _) in values.items()}
        )
        return held, {name: why for name, (_, why) in values.items()}

    def _spot(self, cluster: Cluster, facts: Facts) -> tuple[tuple[float, str] | None, tuple[str, ...]]:
        """The rate at which an instance is taken back, and what to say of it."""
        from flopwise.facts.reliability import ANY

        if self.interruptions is not None:
            return (self.interruptions, "given"), ()
        if cluster.purchase != "spot":
            return None, ()
        provider = cluster.offer.provider if cluster.offer is not None else ANY
        record = facts.spot(provider, cluster.accelerator.name)
        whose = "" if cluster.offer is not None else " of whoever offers it at the least (--provider names one)"
        return (record.interruptions_per_s, record.text), (f"spot interruptions{whose}: {record.text}",)


def _writes(name: str, facts: Facts) -> dict[str, tuple[Any, str]]:
    """Write bandwidth of a kind of storage, by what its row is about: a node's client, a drive, a connection."""
    kind = facts.storage(name)
    if kind.write_bytes_per_s is None:
        raise MissingFactError(f"{kind.name}: its write bandwidth is not known; give --checkpoint-bandwidth")
    why = f"{kind.name}, one {kind.scope} a node: {kind.source}, {kind.date}, {kind.confidence} confidence"
    return {
        "write_bytes_per_s": (kind.total_write_bytes_per_s or float("inf"), why),
        "write_bytes_per_s_per_node": (kind.write_bytes_per_s, why),
        "write_bytes_per_s_per_gpu": (float("inf"), why),
    }


def run_tokens(
    tokens: float | None, samples: float | None, epochs: float | None, sample_tokens: float, around: Surroundings
) -> float | None:
    """Tokens of the whole run; None where no length is given.

    Raises:
        SpecError: two lengths, epochs of nothing, a number that cannot be, or a run's surroundings without a length.
    """
    for name, value in (("tokens", tokens), ("samples", samples), ("epochs", epochs)):
        if value is not None and not 0 < value < float("inf"):
            raise SpecError(f"{value!r} {name}; allowed: above 0")
    if tokens is not None and samples is not None:
        raise SpecError("the run's length is given in tokens and in samples; give one of them")
    once = tokens if samples is None else samples * sample_tokens
    if once is not None:
        return once * (epochs or 1.0)
    if epochs is not None:
        raise SpecError("epochs are given, but not of how many tokens or samples (--tokens, --samples)")
    if around.said:
        named = ", ".join(name.replace("_", " ") for name in around.said)
        raise SpecError(f"{named}: of a whole run; give its length, too (--tokens or --samples)")
    return None
