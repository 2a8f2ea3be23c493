"""What is known: accelerators, offers and models, as `flopwise gpus`, `instances` and `models` show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import FlopwiseError, UnknownNameError
from flopwise.facts.accelerators import KINDS, Accelerator
from flopwise.facts.catalog import Resolution, load_facts, one_of
from flopwise.facts.offers import Offer
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, USD_OR_ZERO, take
from flopwise.pictures import BarPicture, PointPicture
from flopwise.results import FactRows
from flopwise.units import parse_bytes, split_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flopwise.facts.catalog import Facts
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
    rows: Iterable[Accelerator] = load_facts(facts, calibration).accelerators.values()
    if name is not None:
        try:
            rows = [gpu(name, facts=facts, calibration=calibration).accelerator]
        except UnknownNameError:
            rows = [a for a in rows if _matches(name, a.name)]
            if not rows:
                raise
    least_bytes = parse_bytes(min_hbm_bytes, "min_hbm_bytes")
    vendor = one_of("vendor", vendor, (a.vendor for a in rows))
    architecture = one_of("architecture", architecture, (a.architecture for a in rows))
    kind = one_of("kind of accelerator", kind, KINDS)
    passing = (
        a
        for a in rows
        if vendor in (None, a.vendor)
        and architecture in (None, a.architecture)
        and kind in (None, a.kind)
        and a.hbm_bytes >= least_bytes
        and _matches(matching, a.name)
    )
    return FactRows(passing, "accelerators", _rates)


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
    from flopwise.search.model_sizes import largest_models as largest

    catalog = load_facts(facts, calibration)
    devices = [catalog.accelerator(name) for name in names] or list(catalog.accelerators.values())
    return FactRows(largest([device for device in devices if device.kind != "cpu"], catalog), "devices", _largest)


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
    catalog = load_facts(facts)
    chips = catalog.accelerators
    if name is not None and gpu is None and _is_device(name, catalog):
        name, gpu = None, name
    count, accelerator = (None, None) if gpu is None else split_count(gpu)
    offers = catalog.offers_for(provider=provider, region=region, accelerator=accelerator, instance=name)
    kind = one_of("kind of accelerator", kind, KINDS)
    vendor = one_of("vendor", vendor, (a.vendor for a in chips.values()))
    priced = purchase or ("on_demand" if max_usd_per_hour is not None else None)
    limit = float("inf") if max_usd_per_hour is None else max_usd_per_hour
    passing = (
        o
        for o in offers
        if (count is None or o.count >= count)
        and _matches(matching, o.instance)
        and kind in (None, chips[o.accelerator].kind)
        and vendor in (None, chips[o.accelerator].vendor)
        and (priced is None or ((price := o.price_usd_per_hour(priced)) is not None and price <= limit))
    )
    return FactRows(passing, "offers", _prices)


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
    catalog = load_facts(facts).models
    if name is None:
        rows = catalog.rows(lambda *names: _matches(matching, *names)) if family is kind is None else catalog.rows()
    else:
        rows = catalog.rows(lambda *names: name.lower() in (text.lower() for text in names))
        rows = rows or catalog.rows(lambda *names: _matches(name, *names))
        if not rows:
            raise UnknownNameError("model", name, catalog.names)
    for column, what, given in (("model_type", "model family", family), ("kind", "kind of model", kind)):
        if given is not None:
            known = {str(row[column]).lower(): row[column] for row in rows}
            if given.lower() not in known:
                raise UnknownNameError(what, given, known.values())
            rows = [row for row in rows if row[column] == known[given.lower()]]
    passing = (row for row in rows if _matches(matching, str(row["name"]), str(row["hf_id"])))
    return FactRows(passing, "models", _sizes)


SIXTEEN_BITS = ("bf16", "fp16")
MOST_BARS = 40
"""Rows that a bar chart of facts still shows legibly."""


def _rates(rows: FactRows[Accelerator]) -> PointPicture:
    """Dense operations in 16 bits against memory bandwidth, by vendor."""
    series = dict[str, list[tuple[float, float]]]()
    for device in rows:
        peak = next((device.peak[name] for name in SIXTEEN_BITS if device.peak.get(name)), None)
        if peak is not None:
            series.setdefault(device.vendor, []).append((device.hbm_bytes_per_s / 1e9, peak / 1e12))
    x, y = "GB/s of memory", "TFLOP/s in 16 bits, dense"
    return PointPicture(title=rows.title, x=x, y=y, series=series, log=True)


def _prices(rows: FactRows[Offer]) -> BarPicture:
    """The cheapest hour of each accelerator among the offers."""
    least = dict[str, float]()
    for offer in (row for row in rows if not row.retires_on):
        prices = (offer.on_demand_usd_per_hour, offer.spot_usd_per_hour)
        for usd in (usd / offer.count for usd in prices if usd is not None):
            least[offer.accelerator] = min(usd, least.get(offer.accelerator, usd))
    cheapest = sorted(least.items(), key=lambda item: item[1])[:MOST_BARS]
    return BarPicture(title=rows.title, unit="USD an hour of one accelerator, on demand or spot", rows=cheapest)


def _sizes(rows: FactRows[Mapping[str, Any]]) -> PointPicture:
    """Active parameters against all of them, by kind of model."""
    series = dict[str, list[tuple[float, float]]]()
    for row in rows:
        if row["parameters"]:
            active = row["active_parameters"] or row["parameters"]
            series.setdefault(str(row["kind"]), []).append((row["parameters"] / 1e9, active / 1e9))
    return PointPicture(title=rows.title, x="billion parameters", y="of them active", series=series, log=True)


def _largest(rows: FactRows[LargestModels]) -> BarPicture:
    """Memory and 16-bit rate of each device, the largest first."""
    served = [(row.gpu, (row.parameters["serve FP16"] or 0.0) / 1e9) for row in rows]
    largest = sorted(served, key=lambda item: -item[1])[:MOST_BARS]
    return BarPicture(title=rows.title, unit="billion parameters served in 16 bits", rows=largest)


def _is_device(name: str, catalog: Facts) -> bool:
    """True if a name is one of an accelerator: some clouds call an instance after its own."""
    try:
        catalog.resolve(split_count(name)[1])
    except FlopwiseError:
        return False
    return True


def _matches(part: str | None, *names: str) -> bool:
    """True if a name holds the part that is looked for, whatever the case, dashes and blanks alike."""
    return part is None or any(part.lower().replace(" ", "-") in name.lower().replace(" ", "-") for name in names)


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
