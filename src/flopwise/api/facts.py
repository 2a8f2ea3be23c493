"""What is known: accelerators, offers and models, as `flopwise gpus`, `instances` and `models` show them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.facts import listing
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import Offer
from flopwise.facts.spec import DeviceFilter, ModelFilter, OfferFilter
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.results import FactRows

if TYPE_CHECKING:
    from flopwise.search.model_sizes import LargestModels


@takes(DeviceFilter)
def gpus(
    name: str | None = None, *, matching: str | None = None, facts: Path | str | None = None,
    calibration: str | None = None, **filters: Any,
) -> FactRows[Accelerator]:  # fmt: skip
    """The accelerators that pass every filter, in the order of the catalog.

    Args:
        name: one of them in any common spelling ("h100", "8xh100"), else a part of names.
        matching: part of the name.

    Raises:
        UnknownNameError: no accelerator has such a name, vendor or architecture.
        SpecError: no such kind of device.

    Examples:
        >>> import flopwise
        >>> [device.name for device in flopwise.gpus("h200")]
        ['H200-SXM-141']
        >>> len(flopwise.gpus(vendor="AMD", min_hbm_bytes="100GB")) > 3
        True
    """
    (wanted,) = take(filters, DeviceFilter)
    return listing.gpus(load_facts(facts, calibration), name, wanted, matching)


@takes()
def largest_models(
    *names: str, facts: Path | str | None = None, calibration: str | None = None
) -> FactRows[LargestModels]:
    """The largest model that one of each accelerator trains and serves, by format.

    Args:
        names: accelerators in any common spelling; all that are known without names.

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


@takes(OfferFilter)
def instances(
    name: str | None = None, *, matching: str | None = None, facts: Path | str | None = None, **filters: Any
) -> FactRows[Offer]:
    """The cloud offers that pass every filter, in the order of the catalog.

    Args:
        name: an instance type, or an accelerator, which means `gpu`.
        matching: part of the instance type's name.

    Raises:
        UnknownNameError: no offer has such an instance, provider or region, or there is no such accelerator or
            vendor.
        SpecError: no such kind of device or purchase option.

    Examples:
        >>> import flopwise
        >>> {offer.count for offer in flopwise.instances(gpu="8xh100", provider="aws")}
        {8}
    """
    (wanted,) = take(filters, OfferFilter)
    return listing.instances(load_facts(facts), name, wanted, matching)


@takes(ModelFilter)
def models(
    name: str | None = None, *, matching: str | None = None, facts: Path | str | None = None, **filters: Any
) -> FactRows[Mapping[str, Any]]:
    """The rows of the catalog of models that pass every filter: name, model_type, kind, parameters ...

    Args:
        name: a model, else a part of names.
        matching: part of the name or of the hub id, whatever the case, with a dash for a blank.

    Raises:
        UnknownNameError: no model is of such a name, family or kind.

    Examples:
        >>> import flopwise
        >>> flopwise.models("Llama-3.1-8B")[0]["parameters"]
        8030261248
    """
    (wanted,) = take(filters, ModelFilter)
    return listing.models(load_facts(facts), name, wanted, matching)
