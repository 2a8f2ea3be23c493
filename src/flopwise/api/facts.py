"""What is known: accelerators, offers and models, as `flopwise gpus`, `instances` and `models` show them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import MissingFactError, SpecError, UnknownNameError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Resolution, load_facts
from flopwise.facts.offers import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flopwise.facts.architecture import Model
    from flopwise.ops.flops import Operation
    from flopwise.ops.tensors import TensorGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Operations of one forward and backward pass over `batch` sequences of `seq` tokens."""

    batch: int
    seq: int
    forward_flops: float  # attention in full, as PyTorch's counter reports it
    backward_flops: float
    causal_forward_flops: float  # only what masks and windows let through
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What is known of one model; None where it is not."""

    model: Model
    parameters: int | None
    active_parameters: int | None
    groups: tuple[TensorGroup, ...]
    counts: Counts | None


def gpu(name: str, *, facts: Path | str | None = None) -> Resolution:
    """The accelerator that `name` stands for, in any common spelling, with a note where the name leaves a variant open.

    Raises:
        UnknownNameError: nothing by that name; names the nearest.
    """
    return load_facts(facts).resolve(name)


def gpus(
    *,
    vendor: str | None = None,
    architecture: str | None = None,
    kind: str | None = None,
    min_hbm_bytes: float = 0.0,
    facts: Path | str | None = None,
) -> tuple[Accelerator, ...]:
    """The accelerators that fit every given condition.

    Raises:
        UnknownNameError: no accelerator has such a vendor, architecture or kind.
    """
    catalog = load_facts(facts)
    return catalog.accelerators_for(vendor=vendor, architecture=architecture, kind=kind, min_hbm_bytes=min_hbm_bytes)


def instances(
    name: str | None = None,
    *,
    provider: str | None = None,
    region: str | None = None,
    accelerator: str | None = None,
    kind: str | None = None,
    purchase: str | None = None,
    max_usd_per_hour: float | None = None,
    facts: Path | str | None = None,
) -> tuple[Offer, ...]:
    """The offers that fit every given condition; with `name` those of one instance type.

    Raises:
        UnknownNameError: no offer has such an instance, provider or region, or there is no such accelerator.
    """
    return load_facts(facts).offers_for(
        provider=provider,
        region=region,
        accelerator=accelerator,
        instance=name,
        kind=kind,
        purchase=purchase,
        max_usd_per_hour=max_usd_per_hour,
    )


def models(
    *, family: str | None = None, kind: str | None = None, facts: Path | None = None
) -> tuple[Mapping[str, Any], ...]:
    """The rows of the catalog of models that fit every given condition: name, model_type, kind, parameters and so on.

    Raises:
        UnknownNameError: no model is of such a family (model_type) or kind.
    """
    rows: Sequence[Mapping[str, Any]] = load_facts(facts).models.rows()
    for column, what, given in (("model_type", "model family", family), ("kind", "kind of model", kind)):
        if given is not None:
            known = {str(row[column]).lower(): row[column] for row in rows}
            if given.lower() not in known:
                raise UnknownNameError(what, given, known.values())
            rows = [row for row in rows if row[column] == known[given.lower()]]
    return tuple(rows)


def model(
    spec: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    facts: Path | None = None,
) -> ModelCard:
    """What is known of the model that `spec` names; with `batch` and `seq` its operations too.

    Raises:
        SpecError: no such model, or its configuration cannot be read.
        MissingFactError: a shape is given and the model's operations are not known.
    """
    found = load_facts(facts).model(spec, assume_family=assume_family, offline=offline)
    return _card(found, batch, seq)


def _card(found: Model, batch: int | None, seq: int | None) -> ModelCard:
    from flopwise.ops import tensors

    counts = None
    if batch is not None or seq is not None:
        counts = _counts(found, batch or 1, _length(found, seq))
    return ModelCard(
        model=found,
        parameters=_known(tensors.parameters, found),
        active_parameters=_known(tensors.active_parameters, found),
        groups=tuple(tensors.tensor_groups(found)) if found.stacks else (),
        counts=counts,
    )


def _known(count: Callable[[Model], int], found: Model) -> int | None:
    """The count, or None where nobody wrote down what it needs."""
    try:
        return count(found)
    except MissingFactError:
        return None


def _length(found: Model, seq: int | None) -> int:
    """Tokens of a sequence: as given, else the model's own (a vision tower has a fixed number)."""
    fixed = found.stacks[0].tokens_per_sample if found.stacks else 1
    if fixed is not None:
        return fixed
    if seq is None:
        raise SpecError(f"{found.name} needs --seq, the tokens of a sequence, beside --batch")
    return seq


def _counts(found: Model, batch: int, seq: int) -> Counts:
    from flopwise.ops import flops

    return Counts(
        batch=batch,
        seq=seq,
        forward_flops=float(flops.forward_flops(found, batch, seq)),
        backward_flops=float(flops.backward_flops(found, batch, seq)),
        causal_forward_flops=float(flops.causal_forward_flops(found, batch, seq)),
        operations=tuple(flops.operations(found, batch, seq)),
    )
