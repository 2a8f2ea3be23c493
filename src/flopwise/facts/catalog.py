"""The catalog of accelerators and offers: the shipped tables, with a folder of the user's own rows laid over them.

A facts folder may hold `accelerators.csv`, `accelerator_aliases.csv`, `instances.csv` and `models.jsonl` (read by
`flopwise.facts.models`), and in `calibration/` JSON files of parameters that stand in for shipped ones of the same name
and scope. It is given to `load_facts` (`--facts DIR`) or by the environment variable FLOPWISE_FACTS. Between the two
lie the prices that the user imported (`flopwise.facts.price_files`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import accelerators as accelerator_rows
from flopwise.facts import offers as offer_rows
from flopwise.facts import price_files, tables
from flopwise.facts.accelerators import KINDS, Accelerator, accelerator_from_row
from flopwise.facts.calibration import load_calibration
from flopwise.facts.offers import Offer, known_region, offer_from_row, region_names

FACTS_VARIABLE = "FLOPWISE_FACTS"
FOLDER_FILES = (
    "accelerators.csv",
    "accelerator_aliases.csv",
    "instances.csv",
    "models.jsonl",
    "storage.csv",
    "failures.csv",
    "spot.csv",
    "purchase_terms.csv",
    "storage_prices.csv",
    "carbon.csv",
    "api_prices.csv",
    "onprem.csv",
    "grades.csv",
    "compliance.csv",
)
CALIBRATION = "calibration"
_ALIAS_COLUMNS = {"alias": tables.text, "name": tables.text, "note": tables.text}
_NOISE = {"nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "apple", "google", "cloud", "aws"}
_NOISE |= {"gpu", "gpus", "graphics", "generation", "processor", "gb", "gib"}
_WORDS = re.compile(r"[a-z0-9]+")
_GIGABYTES = re.compile(r"^(\d+)gi?b?$")


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name stands for; `note` says what was assumed where the name leaves the variant open."""

    accelerator: Accelerator
    note: str | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether the name fits more than one accelerator: estimates then deserve a wider interval."""
        return self.note is not None


@dataclass(frozen=True, slots=True)
class Alias:
    """Another spelling: the canonical `name` it stands for, and the `note` where it leaves something open."""

    name: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Every accelerator and offer that is known; `folder` is the user's own, if any."""

    accelerators: Mapping[str, Accelerator]
    offers: tuple[Offer, ...]
    spellings: Mapping[str, Alias]  # by `spelling_key`
    folder: Path | None = None

    def resolve(self, name: str) -> Resolution:
        """Return what `name` stands for, in any common spelling (`h100`, `H100-SXM-80GB`, `NVIDIA GeForce RTX 3090`).

        Raises:
            UnknownNameError: nothing by that name; names the nearest.
        """
        given = name if isinstance(name, str) else str(name)
        exact = self.accelerators.get(given)
        if exact is not None:
            return Resolution(exact)
        alias = self.spellings.get(spelling_key(given)) if len(given) <= 200 else None
        if alias is None:
            hint = "`flopwise gpus` lists all; a facts folder (--facts DIR) adds more"
            raise UnknownNameError("accelerator", given, self.accelerators, hint)
        return Resolution(self.accelerators[alias.name], alias.note)

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator that `name` stands for; see `resolve`.

        Raises:
            UnknownNameError: nothing by that name; names the nearest.
        """
        return self.resolve(name).accelerator

    def accelerators_for(
        self,
        *,
        vendor: str | None = None,
        architecture: str | None = None,
        kind: str | None = None,
        min_hbm_bytes: float = 0.0,
    ) -> tuple[Accelerator, ...]:
        """Return the accelerators that fit every given condition, in the order of the catalog.

        Raises:
            UnknownNameError: no accelerator has such a vendor or architecture, or there is no such kind.
        """
        rows = self.accelerators.values()
        vendor = _one_of("vendor", vendor, (a.vendor for a in rows))
        architecture = _one_of("architecture", architecture, (a.architecture for a in rows))
        kind = _one_of("kind of accelerator", kind, KINDS)
        return tuple(
            a
            for a in rows
            if vendor in (None, a.vendor)
            and architecture in (None, a.architecture)
            and kind in (None, a.kind)
            and a.hbm_bytes >= min_hbm_bytes
        )

    def offers_for(
        self,
        *,
        provider: str | None = None,
        region: str | None = None,
        accelerator: str | None = None,
        instance: str | None = None,
        kind: str | None = None,
        purchase: str | None = None,
        max_usd_per_hour: float | None = None,
    ) -> tuple[Offer, ...]:
        """Return the offers that fit every given condition, in the order of the catalog.

        With `purchase` only those with a known price for it; `max_usd_per_hour` holds for that price, else for the
        on-demand one.

        Raises:
            UnknownNameError: no offer has such a provider, region or instance, or there is no such accelerator or kind.
            SpecError: no such purchase option.
        """
        provider = _one_of("provider", provider, (o.provider for o in self.offers))
        instance = _one_of("instance", instance, (o.instance for o in self.offers))
        kind = _one_of("kind of accelerator", kind, KINDS)
        canonical = None if accelerator is None else self.accelerator(accelerator).name
        if region is not None and not known_region(region, regions := region_names(self.offers)):
            raise UnknownNameError("region", region, regions)
        priced = purchase or ("on_demand" if max_usd_per_hour is not None else None)
        limit = float("inf") if max_usd_per_hour is None else max_usd_per_hour
        return tuple(
            o
            for o in self.offers
            if provider in (None, o.provider)
            and instance in (None, o.instance)
            and canonical in (None, o.accelerator)
            and (kind is None or self.accelerators[o.accelerator].kind == kind)
            and (region is None or o.serves(region))
            and (priced is None or ((price := o.price_usd_per_hour(priced)) is not None and price <= limit))
        )

    def offered_accelerator(self, offer: Offer) -> Accelerator:
        """Return one accelerator as `offer` has it: whole, or its share.

        A CPU socket has the instance's RAM, divided by the sockets, as its memory.
        """
        whole = self.accelerators[offer.accelerator]
        ram_bytes = None
        if whole.kind == "cpu" and offer.ram_bytes is not None:
            ram_bytes = int(offer.ram_bytes / offer.count)
        return whole.scaled(offer.accelerator_share, hbm_bytes=ram_bytes)


def spelling_key(name: str) -> str:
    """`name` as spellings are compared: lower case, without punctuation, vendor words and the letters of GB."""
    parts = []
    for word in _WORDS.findall(name.lower()):
        if word.startswith("sxm"):
            parts.append("sxm")
        elif word not in _NOISE:
            parts.append(_GIGABYTES.sub(r"\1", word) if word[0].isdigit() else word)
    return "".join(parts)


def _one_of(what: str, given: str | None, known: Iterable[str]) -> str | None:
    """The spelling in `known` of what was `given`, whatever its case; UnknownNameError where there is none."""
    if given is None:
        return None
    names = {name.lower(): name for name in known}
    found = names.get(str(given).strip().lower())
    if found is None:
        raise UnknownNameError(what, str(given), names.values())
    return found


def load_facts(folder: Path | str | None = None) -> Facts:
    """The shipped catalog, overlaid with the rows in `folder` or, without one, in the folder that FLOPWISE_FACTS names.

    Prices that the user imported are laid between the two. Cached; a file that changes is read again.

    Raises:
        SpecError: the folder or a row in it is wrong; names file, row and column.
    """
    chosen = folder if folder is not None else os.environ.get(FACTS_VARIABLE) or None
    imported = price_files.stamps()
    if chosen is None:
        return _cached("", (), imported)
    path = Path(chosen).expanduser()
    try:
        own = (f"{CALIBRATION}/{p.name}" for p in sorted((path / CALIBRATION).glob("*.json")))
        found = [(name, (path / name).stat()) for name in (*FOLDER_FILES, *own) if (path / name).is_file()]
    except (OSError, ValueError) as fault:
        raise SpecError(f"facts folder {str(path)[:200]!r} cannot be read ({fault})") from fault
    if not found:
        state = "has none of the files" if path.is_dir() else "does not exist; a facts folder holds any of"
        raise SpecError(f"facts folder {str(path)[:200]!r} {state} {', '.join(FOLDER_FILES)}")
    stamps = tuple((name, state.st_mtime_ns, state.st_size) for name, state in found)
    return _cached(str(path), stamps, imported)


_Key = tuple[str, tuple[price_files.Stamp, ...], tuple[price_files.Stamp, ...]]
_CACHE: dict[_Key, Facts] = {}
_SHIPPED: _Key = ("", (), ())


def _cached(folder: str, stamps: tuple[price_files.Stamp, ...], imported: tuple[price_files.Stamp, ...]) -> Facts:
    key = (folder, stamps, imported)
    if key not in _CACHE:
        shipped = _CACHE.get(_SHIPPED) or _overlaid(Facts({}, (), {}), DATA)
        _CACHE[_SHIPPED] = shipped
        for stale in [k for k in _CACHE if k[0] == folder and k != _SHIPPED]:
            del _CACHE[stale]
        found = _with_imports(shipped, imported)
        _CACHE[key] = replace(_overlaid(found, Path(folder)), folder=Path(folder)) if folder else found
    return _CACHE[key]


def _with_imports(below: Facts, imported: tuple[price_files.Stamp, ...]) -> Facts:
    """`below` with the prices that the user imported."""
    for path, _, _ in imported:
        try:
            below = replace(below, offers=_with_offers(below, Path(path), imported=True))
        except SpecError as fault:
            name = Path(path).stem
            raise SpecError(f"{fault}. These prices were imported: `flopwise prices remove {name}`") from None
    return below


def _overlaid(below: Facts, folder: Path) -> Facts:
    """`below` with the rows of `folder` laid over it."""
    chips = _with_accelerators(below.accelerators, folder / "accelerators.csv")
    spellings = _with_spellings(below.spellings, chips, folder / "accelerator_aliases.csv")
    named = Facts(_calibrated(chips, folder / CALIBRATION), below.offers, spellings)
    return replace(named, offers=_with_offers(named, folder / "instances.csv"))


def _calibrated(chips: Mapping[str, Accelerator], folder: Path) -> Mapping[str, Accelerator]:
    """`chips` that know of the calibration in `folder`, if there is any; the shipped one is everybody's already."""
    if folder.parent == DATA or not any(folder.glob("*.json")):
        return chips
    load_calibration.cache_clear()  # a file that changes is read again
    whole = load_calibration().overlaid(load_calibration(folder))
    return {name: replace(chip, calibration=whole) for name, chip in chips.items()}


def _with_accelerators(below: Mapping[str, Accelerator], path: Path) -> Mapping[str, Accelerator]:
    if not path.is_file():
        return below
    chips, seen = dict(below), set[str]()
    for row in tables.read_table(path, accelerator_rows.COLUMNS, keys=accelerator_rows.KEYS):
        name = row.values["name"]
        if name in seen:
            raise row.error("name", name, "it stands in this file twice")
        if not spelling_key(name):
            raise row.error("name", name, "a name needs letters or digits besides the vendor's")
        seen.add(name)
        chips[name] = accelerator_from_row(row, chips.get(name))
    return chips


def _with_spellings(below: Mapping[str, Alias], chips: Mapping[str, Accelerator], path: Path) -> Mapping[str, Alias]:
    names: dict[str, str] = {}
    for name in chips:
        other = names.setdefault(spelling_key(name), name)
        if other != name:
            raise SpecError(f"accelerator names {other!r} and {name!r} cannot be told apart; rename one")
    spellings = {**below, **{key: Alias(name) for key, name in names.items()}}
    seen = set[str]()
    for row in tables.read_table(path, _ALIAS_COLUMNS, keys=("alias", "name")) if path.is_file() else ():
        alias, name = row.values["alias"], row.values["name"]
        key = spelling_key(alias)
        if name not in chips:
            raise row.error("name", name, "no accelerator has that name, spelt exactly so")
        if not key:
            raise row.error("alias", alias, "an alias needs letters or digits besides the vendor's")
        if names.get(key, name) != name:
            raise row.error("alias", alias, f"that is the name of {names[key]}")
        if key in seen:
            raise row.error("alias", alias, "it stands in this file twice, perhaps spelt otherwise")
        seen.add(key)
        spellings[key] = Alias(name, row.values.get("note"))
    return spellings


def _with_offers(facts: Facts, path: Path, *, imported: bool = False) -> tuple[Offer, ...]:
    if not path.is_file():
        return facts.offers
    offers = {offer.key: offer for offer in facts.offers}
    seen = set[tuple[str, str, str]]()
    for row in tables.read_table(path, offer_rows.COLUMNS, keys=offer_rows.KEYS):
        key = (row.values["provider"], row.values["instance"], row.values["region"])
        if key in seen:
            raise row.error("instance", key[1], f"{key[0]} has it in {key[2]} twice in this file")
        seen.add(key)
        offer = offer_from_row(row, offers.get(key))
        if imported:
            offer = price_files.kept(offer, offers.get(key))
        if offer.accelerator not in facts.accelerators:
            try:
                meant = facts.resolve(offer.accelerator)
            except UnknownNameError as fault:
                raise row.error("accelerator", offer.accelerator, str(fault)) from fault
            notes = "; ".join(part for part in (offer.notes, meant.note) if part)
            offer = replace(offer, accelerator=meant.accelerator.name, notes=notes)
        offers[key] = offer
    return tuple(offers.values())
