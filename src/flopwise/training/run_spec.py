"""What can be said of a training run: failures, checkpoints, validation and what else surrounds its steps."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from flopwise import options
from flopwise.errors import MissingFactError
from flopwise.ops.spec import SharedSpec
from flopwise.options import OptionError, Spec, option, same
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.catalog import Facts
    from flopwise.training.goodput import Reliability
    from flopwise.training.job import Conditions

_run = partial(option, section="The whole run")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConditionsSpec(Spec):
    """Options of the conditions of a run; s, bytes/s, fractions. None: the default of `training.goodput`."""

    mtbf: float | None = _run("--mtbf", options.SECONDS, "Time between failures of one GPU with its share of the node.")
    node_mtbf: float | None = _run("--node-mtbf", options.SECONDS, "Time between failures of one node.")
    failures: str | None = _run(
        "--failures", options.name("record"),
        "Failures as in a published run: llama-3 (default), rsc-1, rsc-2, opt-175b, bloom.")
    restart: float | None = _run(
        "--restart", options.SECONDS_OR_ZERO, "Time from a failure until the run is back at full speed: 10min.")
    checkpoint_every: float | None = same(
        SharedSpec, "checkpoint_every", section="The whole run", key="checkpoints.every")
    checkpoint_bandwidth: float | None = _run(
        "--checkpoint-bandwidth", options.BANDWIDTH,
        "Bandwidth at which the whole cluster writes checkpoints: 200GB/s.")
    checkpoint_per_gpu: float | None = _run(
        "--checkpoint-per-gpu", options.BANDWIDTH, "Bandwidth at which each accelerator writes its part: 2GB/s.",
        key="checkpoints.write_per_gpu")
    checkpoint_storage: str | None = _run(
        "--checkpoint-storage", options.name("kind"), "Storage that checkpoints are written to: lustre, nvme ...")
    async_checkpoints: bool = _run(
        "--async-checkpoints", options.FLAG,
        "Write checkpoints in the background: training waits only for the copy to host memory.", default=False,
        key="checkpoints.asynchronous")
    repair: float | None = _run(
        "--repair", options.SECONDS, "Time to repair a failed node (default: replaced at once).")
    spares: int | None = _run("--spares", options.whole(high=10_000), "Standby nodes, with --repair.")
    interruptions: float | None = _run(
        "--interruptions", options.RATE_OR_ZERO, "Interruptions of one spot instance: 0.1/day.")
    jitter: float | None = _run(
        "--jitter", options.FRACTION_OR_ZERO,
        "Spread of step times between GPUs; above 16 GPUs all wait for the slowest (default: 1.5%).")
    validate_every: int | None = _run("--validate-every", options.WHOLE, "Steps between validations.")
    validate_batches: int | None = _run(
        "--validate-batches", options.WHOLE, "Global batches of one validation (default: 1).")
    loader_rate: float | None = _run(
        "--loader-rate", options.RATE, "Sequences that the data loader delivers to one GPU: 20/s.")
    # fmt: on

    @property
    def jitter_frac(self) -> float:
        """Standard deviation of step times between GPUs, over their mean."""
        from flopwise.training.stragglers import JITTER_FRAC

        return JITTER_FRAC if self.jitter is None else self.jitter

    def conditions(self, cluster: Cluster, facts: Facts) -> tuple[Conditions, tuple[str, ...]]:
        """The conditions of a run on `cluster`, and what was assumed.

        Raises:
            SpecError: values that do not go together.
            MissingFactError: the storage's write bandwidth is not known.
        """
        from flopwise.training.job import Conditions

        if self.mtbf is not None and self.failures is not None:
            raise OptionError("failures", "the time between failures (mtbf) is given as well; give one of them")
        if self.spares is not None and self.repair is None:
            raise OptionError("spares", "need a repair time: give repair as well, such as 24h")
        if self.validate_batches is not None and self.validate_every is None:
            raise OptionError("validate_batches", "needs the steps between validations (--validate-every)")
        reliability, origins = self.reliability(cluster.gpus_per_node, facts)
        spot, assumptions = self._spot(cluster, facts)
        assumptions += self._shared_storage(facts)
        if spot is not None:
            reliability = replace(reliability, interruptions_per_s=spot[0])
            origins |= {"interruptions_per_s": spot[1]}
        conditions = Conditions(
            reliability=reliability, jitter_frac=self.jitter_frac, validate_every=self.validate_every,
            validate_batches=self.validate_batches or 1, loader_samples_per_s=self.loader_rate,
            origins=tuple(origins.items()),
        )  # fmt: skip
        return conditions, assumptions

    @property
    def write_assumptions(self) -> tuple[str, ...]:
        """The assumptions on the storage of checkpoints; empty where it is given."""
        from flopwise.training.goodput import DEFAULT_RELIABILITY
        from flopwise.units import format_rate

        written = (self.checkpoint_bandwidth, self.checkpoint_storage, self.checkpoint_per_gpu)
        if any(value is not None for value in written):
            return ()
        usual = DEFAULT_RELIABILITY
        each, most = format_rate(usual.write_bytes_per_s_per_gpu), format_rate(usual.write_bytes_per_s)
        other = "--checkpoint-storage and --checkpoint-bandwidth change it"
        return (f"checkpoints are written to a parallel file system: {each} per GPU, at most {most} in total; {other}",)

    def reliability(self, gpus_per_node: int, facts: Facts) -> tuple[Reliability, dict[str, str]]:
        """Failures, restarts and checkpoints, and where each value comes from."""
        from flopwise.training.goodput import DEFAULT_RELIABILITY

        values: dict[str, tuple[Any, str]] = {}
        if self.node_mtbf is not None:
            values["mtbf_node_s"] = self.node_mtbf, "given"
            values["mtbf_gpu_s"] = math.inf, "given"
        if self.failures is not None:
            record = facts.failure_record(self.failures)
            values["mtbf_gpu_s"] = record.mtbf_gpu_s, f"{record.source}, {record.date}, {record.confidence} confidence"
        if self.mtbf is not None:
            values["mtbf_gpu_s"] = self.mtbf, "given"
        if self.restart is not None:
            values |= {"detect_s": (0.0, "given"), "warmup_s": (0.0, "given"), "reschedule_s": (self.restart, "given")}
        if self.checkpoint_storage is not None:
            values |= _writes(self.checkpoint_storage, facts)
        if self.checkpoint_bandwidth is not None:  # of the whole, at most what the nodes' clients write
            values["write_bytes_per_s"] = self.checkpoint_bandwidth, "given"
            values["write_bytes_per_s_per_gpu"] = math.inf, "given"
        named = {
            "write_bytes_per_s_per_gpu": self.checkpoint_per_gpu,
            "interval_s": self.checkpoint_every,
            "repair_s": self.repair,
            "spares": self.spares,
            "asynchronous": self.async_checkpoints or None,
        }
        values |= {name: (value, "given") for name, value in named.items() if value is not None}
        figures = {name: value for name, (value, _) in values.items()}
        reliability = replace(DEFAULT_RELIABILITY, gpus_per_node=gpus_per_node, **figures)
        return reliability, {name: why for name, (_, why) in values.items()}

    def _shared_storage(self, facts: Facts) -> tuple[str, ...]:
        """A sentence on checkpoints over a network to storage whose whole bandwidth is not known."""
        from flopwise.units import format_rate

        if self.checkpoint_storage is None or self.checkpoint_bandwidth is not None:
            return ()
        kind = facts.storage(self.checkpoint_storage)
        if not kind.networked or kind.total_write_bytes_per_s is not None or kind.write_bytes_per_s is None:
            return ()
        known = f"each node writes checkpoints to {kind.name} at {format_rate(kind.write_bytes_per_s)}"
        return (f"{known}; what it takes of all nodes is not known (--checkpoint-bandwidth sets it)",)

    def _spot(self, cluster: Cluster, facts: Facts) -> tuple[tuple[float, str] | None, tuple[str, ...]]:
        """The rate at which an instance is taken back, and what to say of it."""
        from flopwise.facts.tables import ANY

        if self.interruptions is not None:
            return (self.interruptions, "given"), ()
        if cluster.purchase != "spot":
            return None, ()
        provider = cluster.offer.provider if cluster.offer is not None else ANY
        record = facts.spot(provider, cluster.accelerator.name)
        whose = "" if cluster.offer is not None else " of the cheapest provider (--provider sets it)"
        return (record.interruptions_per_s, record.text), (f"spot interruptions{whose}: {record.text}",)


def _writes(name: str, facts: Facts) -> dict[str, tuple[Any, str]]:
    """Write bandwidth of a kind of storage, by what its row is about: a node's client, a drive, a connection."""
    kind = facts.storage(name)
    if kind.write_bytes_per_s is None:
        raise MissingFactError(f"{kind.name}: its write bandwidth is not known; give --checkpoint-bandwidth")
    why = f"{kind.name}, one {kind.scope} per node: {kind.source}, {kind.date}, {kind.confidence} confidence"
    return {
        "write_bytes_per_s": (kind.total_write_bytes_per_s or math.inf, why),
        "write_bytes_per_s_per_node": (kind.write_bytes_per_s, why),
        "write_bytes_per_s_per_gpu": (math.inf, why),
    }
