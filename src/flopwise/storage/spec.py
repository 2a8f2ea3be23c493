"""What can be said of the storage of training: samples, how fast they are worked on, caches, checkpoints."""

from __future__ import annotations

from functools import partial

from flopwise import options
from flopwise.facts import defaults
from flopwise.facts.spec import StorageSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import OptionError, Spec, option, same
from flopwise.training.spec import DataSpec, ReadsSpec, TrainingSpec
from flopwise.values import dataclass

STALL_FRAC = 0.05
"""Share of the time that writing checkpoints may take where none is given."""

SAMPLES, STORAGE = "Samples and how fast they are worked on", "Storage, caches and checkpoints"
_sample, _same_sample = partial(option, section=SAMPLES), partial(same, section=SAMPLES)
_storage, _same_storage = partial(option, section=STORAGE), partial(same, section=STORAGE)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec(Spec):
    """Options of a sample and of a device's speed on it. None: as known, or estimated."""

    seq: int | None = _same_sample(DataSpec, "seq")
    batch: int | None = _sample("--batch", options.BATCH, "Samples per accelerator and step.")
    precision: str | None = _sample(
        "--precision", options.choice("tf32", "bf16", "fp16", "fp8", "fp32"),
        "Of the matrix products (default: the workload's reference implementation, else bf16).",
    )
    flops_per_sample: float | None = _sample(
        "--flops-per-sample", options.FLOPS, "FLOPs of a sample, forward and backward: 4.2T, 247Gi (base 2).",
    )
    sample_bytes: float | None = _sample("--sample-bytes", options.BYTES, "Bytes of a sample as fed: 16MiB.")
    token_bytes: float | None = _same_sample(ReadsSpec, "token_bytes")
    efficiency: float | None = _same_sample(SharedSpec, "efficiency")
    achieved_flops_per_s: float | None = _sample(
        "--achieved", options.FLOPS, "FLOP/s that one accelerator achieves: 35TFLOP/s.",
    )
    # fmt: on

    @property
    def rate_given(self) -> bool:
        """True if the achieved rate of a device is given, not estimated."""
        return self.achieved_flops_per_s is not None or self.efficiency is not None

    def check(self) -> None:
        """Refuse two rates.

        Raises:
            SpecError: an efficiency and an achieved rate are given.
        """
        if self.efficiency is not None and self.achieved_flops_per_s is not None:
            raise OptionError("achieved_flops_per_s", "an efficiency is given, too; give one of them")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest(Spec):
    """The storage and reading of data; bytes on each node, seconds, shares to 1."""

    records: str = _storage(
        "--records", options.choice("raw", "compressed"),
        "Samples as fed to the network, or as the benchmark stores them.", default="raw",
    )
    record_bytes: float | None = _storage(
        "--record-bytes", options.BYTES, "Bytes of a stored sample, instead of --records.",
    )
    dataset_bytes: float | None = _storage("--dataset", options.BYTES, "Bytes of the whole data set.")
    cache_bytes: float | None = _storage(
        "--cache", options.BYTES, "Bytes that a node can keep: page cache or local drives.",
    )
    policy: str = _storage(
        "--cache-policy", options.choice("lru", "pinned"),
        "lru: a page cache that evicts what was used longest ago; pinned: staged data, which stay.", default="lru",
    )
    shuffle: str = _storage(
        "--shuffle", options.choice("global", "shard", "none"),
        "How samples are shuffled: over all nodes, within a node's shard, or not at all.", default="global",
    )
    storage: tuple[str, ...] = _same_storage(StorageSpec, "storage", repeated=True)
    storage_bytes_per_s: float | None = _same_storage(StorageSpec, "storage_bandwidth")
    devices: int = _storage("--devices", options.whole(high=1000), "Drives of a node.", default=1)
    connections: int = _storage(
        "--connections", options.whole(high=100_000), "Connections of a node to an object store.", default=1,
    )
    checkpoint_interval_s: float | None = _storage(
        "--checkpoint-interval", options.SECONDS, "Time between checkpoints: 30min.",
    )
    checkpoint_stall_frac: float = _storage(
        "--checkpoint-stall", options.FRACTION, "Share of the time that writing may take.", default=STALL_FRAC,
    )
    restore_within_s: float | None = _storage(
        "--restore-within", options.SECONDS, "Time to read a checkpoint back: 5min.",
    )
    load_within_s: float | None = _storage(
        "--load-within", options.SECONDS, "Time for a serving node to read all weights: 60s.",
    )
    optimizer: str = _same_storage(TrainingSpec, "optimizer", default=defaults.OPTIMIZER)
    # fmt: on

    def check(self) -> None:
        """Refuse a cache of nothing.

        Raises:
            SpecError: the size of the data set is missing.
        """
        if self.cache_bytes is not None and self.dataset_bytes is None:
            raise OptionError("cache_bytes", "given, but not the size of the data set (--dataset)")
