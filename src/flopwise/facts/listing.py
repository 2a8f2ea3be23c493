"""Facts as lists: the accelerators, offers and models that pass filters, and what is drawn of each list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flopwise.errors import FlopwiseError, UnknownNameError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts, one_of
from flopwise.facts.offers import Offer
from flopwise.facts.spec import DeviceFilter, ModelFilter, OfferFilter
from flopwise.pictures import MOST_BARS, BarPicture, PointPicture
from flopwise.results import FactRows
from flopwise.units import split_count

SIXTEEN_BITS = ("bf16", "fp16")


def gpus(facts: Facts, name: str | None, wanted: DeviceFilter, matching: str | None = None) -> FactRows[Accelerator]:
    """The accelerators that pass every filter, in the order of the catalog; `name`: one of them, or a part of names.

    Raises: UnknownNameError: no accelerator has such a name, vendor or architecture.
    """
    rows: Iterable[Accelerator] = facts.accelerators.values()
    if name is not None:
        try:
            rows = [facts.resolve(split_count(name)[1]).accelerator]
        except UnknownNameError:
            rows = [a for a in rows if _matches(name, a.name)]
            if not rows:
                raise
    vendor = one_of("vendor", wanted.vendor, (a.vendor for a in rows))
    architecture = one_of("architecture", wanted.architecture, (a.architecture for a in rows))
    passing = (
        a
        for a in rows
        if vendor in (None, a.vendor)
        and architecture in (None, a.architecture)
        and wanted.kind in (None, a.kind)
        and a.hbm_bytes >= (wanted.min_hbm_bytes or 0.0)
        and _matches(matching, a.name)
    )
    return FactRows(passing, "accelerators", _rates)


def instances(facts: Facts, name: str | None, wanted: OfferFilter, matching: str | None = None) -> FactRows[Offer]:
    """The offers that pass every filter, in the order of the catalog; `name`: an instance type, or an accelerator.

    Raises:
        UnknownNameError: no offer has such an instance, provider or region, or there is no such accelerator or vendor.
    """
    chips, gpu = facts.accelerators, wanted.gpu
    if name is not None and gpu is None and _is_device(name, facts):
        name, gpu = None, name
    count, accelerator = (None, None) if gpu is None else split_count(gpu)
    offers = facts.offers_for(provider=wanted.provider, region=wanted.region, accelerator=accelerator, instance=name)
    vendor = one_of("vendor", wanted.vendor, (a.vendor for a in chips.values()))
    priced = wanted.purchase or ("on_demand" if wanted.max_usd_per_hour is not None else None)
    limit = float("inf") if wanted.max_usd_per_hour is None else wanted.max_usd_per_hour
    passing = (
        o
        for o in offers
        if (count is None or o.count >= count)
        and _matches(matching, o.instance)
        and wanted.kind in (None, chips[o.accelerator].kind)
        and vendor in (None, chips[o.accelerator].vendor)
        and (priced is None or ((price := o.price_usd_per_hour(priced)) is not None and price <= limit))
    )
    return FactRows(passing, "offers", _prices)


def models(
    facts: Facts, name: str | None, wanted: ModelFilter, matching: str | None = None
) -> FactRows[Mapping[str, Any]]:
    """The rows of the catalog of models that pass every filter; `name`: a model, else a part of names.

    Raises: UnknownNameError: no model is of such a name, family or kind.
    """
    catalog, family, kind = facts.models, wanted.family, wanted.kind
    if name is None:
        rows = catalog.rows(lambda *names: _matches(matching, *names)) if family is kind is None else catalog.rows()
    else:
        rows = catalog.rows(lambda *names: name.lower() in (text.lower() for text in names))
        rows = rows or catalog.rows(lambda *names: _matches(name, *names))
        if not rows:
            raise UnknownNameError("model", name, catalog.names)
    for column, what, given in (("model_type", "model family", family), ("kind", "kind of model", kind)):
        if value := one_of(what, given, (str(row[column]) for row in rows)):
            rows = [row for row in rows if row[column] == value]
    passing = (row for row in rows if _matches(matching, str(row["name"]), str(row["hf_id"])))
    return FactRows(passing, "models", _sizes)


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


def _is_device(name: str, facts: Facts) -> bool:
    """True if a name is one of an accelerator: some clouds call an instance after its own."""
    try:
        facts.resolve(split_count(name)[1])
    except FlopwiseError:
        return False
    return True


def _matches(part: str | None, *names: str) -> bool:
    """True if a name holds the part that is looked for, whatever the case, dashes and blanks alike."""
    return part is None or any(part.lower().replace(" ", "-") in name.lower().replace(" ", "-") for name in names)
