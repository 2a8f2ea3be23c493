"""What can be said of where models and facts come from, and of the storage that is read from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise import options
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.defaults import PURCHASES
from flopwise.options import Spec, option, same
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts

ModelName = Model | str | Path
"""A model, or what names one: a name, a hub id, a size, or the path of a config.json or of its folder."""

_source = partial(option, section="Where models and facts come from")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec(Spec):
    """Options of the facts folder and of the source of models."""

    assume_family: str | None = _source(
        "--assume-family", options.name("family"), "Read an unknown model_type as this known family.",
    )
    offline: bool = _source(
        "--offline", options.FLAG, "Take configurations from the local cache only.", default=False,
    )
    facts: Path | None = _source(
        "--facts", options.FILE,
        "Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.",
    )
    calibration: str | None = _source(
        "--calibration", options.name("profile", 80),
        "Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.",
    )
    # fmt: on

    @property
    def catalog(self) -> Facts:
        """The shipped facts together with those of the folder."""
        from flopwise.facts.catalog import load_facts

        return load_facts(self.facts, self.calibration)

    def model(self, model: ModelName) -> Model:
        """`model` itself, or the one that it names.

        Raises: SpecError: no such model, or its configuration cannot be read.
        """
        if isinstance(model, Model):
            return model
        model = str(model) if isinstance(model, Path) else model
        if not isinstance(model, str):
            taken = "a name, a hub id, a size, the path of a config.json, or a model that is loaded"
            raise SpecError(f"model: {taken} is needed, not {options.kind_of(model)}")
        return self.catalog.model(model, assume_family=self.assume_family, offline=self.offline)

    def model_with_layers(self, model: ModelName) -> Model:
        """As `model`, one whose layers are known.

        Raises: SpecError: as `model`. MissingFactError: it has none, or only published figures are known.
        """
        architecture = self.model(model)
        if not architecture.stacks:
            name = architecture.name
            if architecture.published is not None and architecture.published.sample_bytes:
                raise MissingFactError(
                    f"{name} has no token layers, which this question is about; `flopwise train '{name}'` answers for "
                    f"its training, `flopwise io '{name}'` for the storage that it needs and `flopwise roofline "
                    f"'{name}'` for a single pass"
                )
            raise MissingFactError(
                f"{architecture.name} has no layers in the catalog, only published figures; ask `flopwise roofline "
                f"'{architecture.name}'`, or for the storage that it needs `flopwise io`"
            )
        return architecture


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class DatedSourceSpec(SourceSpec):
    """As `SourceSpec`, and the month of the software, for those who know when a run was made and no version."""

    software_month: str | None = option(
        "--software-month", options.MONTH,
        "Month of the training stack or engine, for the generation that people ran then (default: as named).",
        key="constraints.software_month", section="Where models and facts come from",
    )
    # fmt: on

    @property
    def catalog(self) -> Facts:
        """The facts of that month."""
        from flopwise.facts.catalog import load_facts

        return load_facts(self.facts, self.calibration).at(self.software_month)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFilter(Spec):
    """Options that select accelerators of the catalog."""

    vendor: str | None = option(
        "--vendor", options.name("vendor"), "Only devices of this vendor: NVIDIA, AMD, Intel, Google ...",
    )
    architecture: str | None = option(
        "--architecture", options.name("architecture"), "Only this architecture: Hopper, CDNA3 ...",
    )
    kind: str | None = option(
        "--kind", options.choice("gpu", "tpu", "npu", "soc", "cpu"),
        "Only this kind of device; `cpu` instances are those without an accelerator.",
    )
    min_hbm_bytes: float | None = option(
        "--min-memory", options.BYTES, "At least this much memory: 40GB, 80GiB.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter(Spec):
    """Options that select offers of the catalog."""

    provider: str | None = option(
        "--provider", options.PROVIDER, "Offers of this provider only: aws, gcp, azure, lambda ...",
    )
    region: str | None = option(
        "--region", options.name("region"), "Offers in this region only; patterns such as eu-* are fine.",
    )
    gpu: str | None = option(
        "--gpu", options.name("gpu", 400),
        "Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there "
        "are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.",
    )
    vendor: str | None = same(DeviceFilter, "vendor")
    kind: str | None = same(DeviceFilter, "kind")
    purchase: str | None = option("--purchase", options.choice(*PURCHASES), "Purchase option.")
    max_usd_per_hour: float | None = option(
        "--max-price", options.USD, "At most this many US dollars an hour, on demand or as --purchase says.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFilter(Spec):
    """Options that select models of the catalog."""

    family: str | None = option(
        "--family", options.name("family"), "List only models of this model_type: llama, qwen3_moe ...",
    )
    kind: str | None = option(
        "--kind", options.name("kind"), "List only models of this kind: decoder, encoder, vision ...",
    )
# fmt: on


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec(Spec):
    """Options of the storage that is read from: its kind, or its measured bandwidth."""

    storage: str | None = option(
        "--storage", options.name("kind"),
        "Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...",
    )
    storage_bandwidth: float | None = option(
        "--storage-bandwidth", options.BANDWIDTH, "What storage delivers to a node, as measured instead: 3GB/s.",
    )
# fmt: on
