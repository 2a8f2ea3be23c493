"""What is known: accelerators, offers and models, as `flopwise gpus`, `instances` and `models` show them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.facts import listing
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Resolution, load_facts
from flopwise.facts.offers import Offer
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, USD_OR_ZERO, take
from flopwise.results import FactRows
from flopwise.units import parse_bytes, split_count

if TYPE_CHECKING:
    from flopwise.ops.model_card import ModelCard
    from flopwise.search.model_sizes import LargestModels


def gpu(name: str, *, facts: Path | str | None = None, calibration: str | None = None) -> Resolution:
    """The accelerator that `name` stands for, in any common spelling, with a note where the name leaves a variant open.

    Raises:
        UnknownNameError: nothing by that name; names the nearest.
    """
    return load_facts(facts, calibration).resolve(split_count(name)[1])


@takes(spellings={"min_memory": "min_hbm_bytes"})
def gpus(
    name: str | None = None,
    *,
    vendor: str | None = None,
    architecture: str | None = None,
    kind: str | None = None,
    min_hbm_bytes: float | str = 0.0,
    matching: str | None = None,
    facts: Path | str | None = None,
    calibration: str | None = None,
) -> FactRows[Accelerator]:
    """The accelerators that pass every filter, in the order of the catalog.

    Args:
        name: one of them in any common spelling ("h100", "8xh100"), else a part of names.
        vendor: NVIDIA, AMD, Google ...
        architecture: Hopper, CDNA3 ...
        kind: gpu, tpu, npu, soc or cpu.
        min_hbm_bytes: (or min_memory) least memory, in bytes or as text: "80GB".
        matching: part of the name.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.

    Raises:
        UnknownNameError: no accelerator has such a name, vendor, architecture or kind.

    Examples:
        >>> import flopwise
        >>> [device.name for device in flopwise.gpus("h200")]
        ['H200-SXM-141']
        >>> len(flopwise.gpus(vendor="AMD", min_hbm_bytes="100GB")) > 3
        True
    """
    least_bytes = parse_bytes(min_hbm_bytes, "min_hbm_bytes")
    return listing.gpus(
        load_facts(facts, calibration), name, vendor=vendor, architecture=architecture, kind=kind,
        least_bytes=least_bytes, matching=matching,
    )  # fmt: skip


def largest_models(
    *names: str, facts: Path | str | None = None, calibration: str | None = None
) -> FactRows[LargestModels]:
    """The largest model that one of each accelerator trains and serves, by format.

    Args:
        names: accelerators in any common spelling; all that are known without names.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.

    Raises:
        UnknownNameError: no accelerator by such a name.

    Examples:
        >>> import flopwise
        >>> (answer,) = flopwise.largest_models("l4")
        >>> answer.gpu
        'L4'
    """
    from flopwise.search import model_sizes

    catalog = load_facts(facts, calibration)
    devices = [catalog.accelerator(name) for name in names] or list(catalog.accelerators.values())
    return model_sizes.largest_models([one for one in devices if one.kind != "cpu"], catalog)


@takes(spellings={"max_price": "max_usd_per_hour"}, max_usd_per_hour=USD_OR_ZERO)
def instances(
    name: str | None = None,
    *,
    provider: str | None = None,
    region: str | None = None,
    gpu: str | None = None,
    vendor: str | None = None,
    kind: str | None = None,
    matching: str | None = None,
    purchase: str | None = None,
    max_usd_per_hour: float | None = None,
    facts: Path | str | None = None,
) -> FactRows[Offer]:
    """The cloud offers that pass every filter, in the order of the catalog.

    Args:
        name: an instance type, or an accelerator, which means `gpu`.
        provider: aws, gcp, azure, lambda ... by the names that people use.
        region: of the provider; patterns such as "eu-*" are fine.
        gpu: accelerator in any common spelling; with a number before it ("8xh100") offers that hold as many or
            more.
        vendor: of the accelerator.
        kind: gpu, tpu, npu, soc or cpu.
        matching: part of the instance type's name.
        purchase: on_demand, spot, reserved_1y or reserved_3y: only offers with a known price for it.
        max_usd_per_hour: (or max_price) highest price of one instance, of `purchase`, else on demand.
        facts: folder of rows that override the shipped ones.

    Raises:
        UnknownNameError: no offer has such an instance, provider or region, or there is no such accelerator or
            vendor.
        SpecError: no such purchase option.

    Examples:
        >>> import flopwise
        >>> {offer.count for offer in flopwise.instances(gpu="8xh100", provider="aws")}
        {8}
    """
    return listing.instances(
        load_facts(facts), name, provider=provider, region=region, gpu=gpu, vendor=vendor, kind=kind,
        matching=matching, purchase=purchase, max_usd_per_hour=max_usd_per_hour,
    )  # fmt: skip


def models(
    name: str | None = None,
    *,
    family: str | None = None,
    kind: str | None = None,
    matching: str | None = None,
    facts: Path | None = None,
) -> FactRows[Mapping[str, Any]]:
    """The rows of the catalog of models that pass every filter: name, model_type, kind, parameters ...

    Args:
        name: a model, else a part of names.
        family: its model_type: llama, qwen3_moe ...
        kind: decoder, encoder, vision ...
        matching: part of the name or of the hub id, whatever the case, with a dash for a blank.
        facts: folder of rows that override the shipped ones.

    Raises:
        UnknownNameError: no model is of such a name, family or kind.

    Examples:
        >>> import flopwise
        >>> flopwise.models("Llama-3.1-8B")[0]["parameters"]
        8030261248
    """
    return listing.models(load_facts(facts), name, family=family, kind=kind, matching=matching)


@takes(SourceSpec, batch=BATCH, seq=CONTEXT)
def model(spec: str, *, batch: int | None = None, seq: int | None = None, **options: Any) -> ModelCard:
    """Facts about the model that `spec` names; with `batch` and `seq` its operations too.

    `options` are those of `SourceSpec`.

    Raises:
        SpecError: no such model, or its configuration cannot be read.
        MissingFactError: a shape is given and the model's operations are not known.
    """
    from flopwise.ops.model_card import ModelCard

    (source,) = take(options, SourceSpec)
    return ModelCard.of(source.model(spec), batch, seq)
