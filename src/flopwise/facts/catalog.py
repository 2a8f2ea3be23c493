"""All that is known, as one value: `Facts`, the shipped tables with a folder of the user's own rows laid over them.

`load_facts` is called once, at the edge; what it gives is passed on. A facts folder (`--facts DIR`, or the environment
variable FLOPWISE_FACTS) may hold any of `folder_files`, and in `calibration/` JSON files of parameters that stand in
for shipped ones of the same name and scope. Between the two lie the prices that the user imported
(`flopwise.facts.price_files`); a calibration profile (`flopwise.facts.profiles`) lies over all. A table is read when it
is first asked for; a folder's files at once, so that a mistake in one is told by any command.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError, fold
from flopwise.facts import price_files
from flopwise.facts.accelerators import (
    ACCELERATORS,
    ALIASES,
    Accelerator,
    Alias,
    CoreRecord,
    GradeRecord,
    spelling_key,
    spelling_words,
)
from flopwise.facts.calibration import Calibration, MeasuredFamilies, read_errors, read_parameters
from flopwise.facts.custom import CustomDevice
from flopwise.facts.offers import (
    OFFERS,
    HostRecord,
    Offer,
    RetirementRecord,
    known_region,
    names_instance,
    region_names,
)
from flopwise.facts.tables import ANY, FactTable, Key, Lazy, N, Row, spellings
from flopwise.options import PROVIDER_ALIASES, provider_name
from flopwise.values import dataclass, kept_by_identity, replace

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.currencies import CurrencyRecord
    from flopwise.facts.formats import CacheFormat, QualityRecord, WeightFormat
    from flopwise.facts.kubernetes import NodeRecord
    from flopwise.facts.metrics import ExporterRecord, FormerMetric, MetricRecord
    from flopwise.facts.models.catalog import ModelCatalog
    from flopwise.facts.price_book import HardwarePrice, HostedPrice, PurchaseTerms, VolumePrice
    from flopwise.facts.regions import GridRecord
    from flopwise.facts.reliability import FailureRecord, SpotRecord, StartRecord
    from flopwise.facts.samples import ConvolutionLayer, TrainingSample
    from flopwise.facts.software import Engine, Generation, Optimizer, TrainingStack
    from flopwise.facts.storage import Storage

FACTS_VARIABLE = "FLOPWISE_FACTS"
CALIBRATION, ERRORS_FILE, COVERAGE_FILE = "calibration", "intervals.json", "coverage.json"
TABLES = (
    "accelerators.ACCELERATORS", "accelerators.ALIASES", "offers.OFFERS", "offers.MARKETPLACES",
    "offers.RETIREMENTS",
    "discounts.SPOT_DISCOUNTS", "discounts.RESERVED_DISCOUNTS",
    "storage.STORAGE", "reliability.FAILURES", "reliability.SPOT", "reliability.STARTS",
    "kubernetes.NODES", "price_book.TERMS", "price_book.VOLUMES", "regions.GRIDS", "price_book.HOSTED",
    "price_book.HARDWARE",
    "accelerators.GRADE_RECORDS", "accelerators.CORE_RECORDS", "regions.TAGS", "software.ENGINES", "software.STACKS",
    "software.OPTIMIZERS", "software.GENERATIONS", "formats.CHECKPOINT_FORMATS", "formats.GGUF_FORMATS",
    "formats.GGUF_BLOCKS", "formats.CACHE_FORMATS", "formats.QUALITY", "samples.SAMPLES", "samples.CONVOLUTIONS",
    "currencies.CURRENCIES", "metrics.METRICS", "metrics.FORMER_METRICS", "metrics.EXPORTERS",
)  # fmt: skip
"""Where every table of facts is declared: its module is loaded when somebody asks for the table."""
P = TypeVar("P", HostRecord, RetirementRecord)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The accelerator that a name stands for; `note`: the assumption where the name leaves the variant open."""

    accelerator: Accelerator
    note: str | None = None

    @property
    def ambiguous(self) -> bool:
        """True if the name fits more than one accelerator, which widens the interval of estimates."""
        return self.note is not None


@cache
def _table(place: str) -> FactTable[Any]:
    """The table that is declared at one of `TABLES`."""
    module, _, name = place.partition(".")
    table: FactTable[Any] = getattr(import_module(f"flopwise.facts.{module}"), name)
    return table


def tables() -> list[FactTable[Any]]:
    """Every table of facts; models, the calibration and the errors of predictions have files of their own."""
    return [_table(place) for place in TABLES]


@cache
def folder_files() -> tuple[str, ...]:
    """Files that a folder of facts may hold, besides its calibration."""
    from flopwise.facts.models.catalog import FILES  # noqa: PLC0415 - who asks for none need not load it

    return (*(table.file for table in tables()), *FILES, ERRORS_FILE)


def _all_rows(place: str) -> Any:
    """A member of `Facts`: all rows of a table."""
    return cached_property(lambda facts: tuple(facts.rows(place).values()))


def _named_rows(place: str) -> Any:
    """A member of `Facts`: the rows of a table by their names."""
    return cached_property(lambda facts: _by_name(facts.rows(place)))


def _lookup_once(find: Callable[[Facts, str, str], V]) -> Callable[[Facts, str, str], V]:
    """A member of `Facts`: what it finds for two names, looked for once."""

    def once(self: Facts, one: str, other: str) -> V:
        key = (find, one, other)
        if key not in self.lookups:
            self.lookups[key] = find(self, one, other)
        value: V = self.lookups[key]
        return value

    once.__doc__ = find.__doc__
    return once


def _finder(kind: str, rows_of: Callable[[Facts], Mapping[str, N]]) -> Callable[[Facts, str], N]:
    """A member of `Facts`: the row of a name, in any of its spellings; UnknownNameError where there is none."""

    def find(self: Facts, name: str) -> N:
        if kind not in self.lookups:
            self.lookups[kind] = spellings(rows_of(self).values())
        by_spelling: dict[str, N] = self.lookups[kind]
        row = by_spelling.get(fold(name))
        if row is None:
            known = list(dict.fromkeys(row.name for row in by_spelling.values()))
            raise UnknownNameError(kind, name, known, f"allowed: {', '.join(known)}")
        return row

    return find


S = TypeVar("S", "Engine", "TrainingStack")


def _of_its_month(find: Callable[[Facts, str], S]) -> Callable[[Facts, str], S]:
    """A member of `Facts`: as `find`, the generation of the software that people ran in `Facts.month`, if one is set.

    A month alone counts as its first day.

    Raises: SpecError: the name is of a generation of another time, or the software is younger.
    """

    def find_dated(self: Facts, name: str) -> S:
        row, month = find(self, name), self.month
        known = self.generations.get(row.name) if month is not None else None
        if known is None or month is None:
            return row
        if not self.is_released(name := row.name):
            first = self._first_of(name)
            raise SpecError(f"software month {month}: the first {known.of} is of {first}; name other software")
        kin = [one for one in self.generations.values() if one.of == known.of]
        kin.sort(key=lambda one: one.until or "9")
        chosen = next(one.name for one in kin if not one.until or month < one.until)
        if row.name not in (known.of, chosen):
            raise SpecError(
                f"software month {month}: {row.name} is of another time; name {chosen}, or {known.of} for any month"
            )
        return find(self, chosen)

    return find_dated


_BIT_RATE = re.compile(
    r"(?:exl(?P<kind>[23])[-_. ]?)?(?P<bits>\d(?:\.\d+)?)(?:[-_ ]?bpw)?(?:[-_ ]exl(?P<after>[23]))?", re.IGNORECASE
)
FEWEST_BITS, MOST_BITS = 1.0, 8.0
"""Bits a weight that ExLlama's quantisers make. Source: README of ExLlamaV2 (2 to 8) and of ExLlamaV3 (from 1)."""


def _of_bit_rate(name: str, known: Mapping[str, WeightFormat]) -> WeightFormat | None:
    """The EXL2 or EXL3 format of a stated rate (`exl2-4.65`, `4.25bpw`, `3.5bpw-exl3`), or None.

    EXL2 where the name says neither; `known`: formats by their folded names.
    """
    from flopwise.facts.formats import CheckpointFormat  # noqa: PLC0415 - few formats are named by a rate

    match = _BIT_RATE.fullmatch(name.strip())
    if match is None or not (match["kind"] or match["after"] or "bpw" in name.lower()):
        return None
    kind, bits = match["kind"] or match["after"] or "2", float(match["bits"])
    row = known.get(f"exl{kind}")
    if not isinstance(row, CheckpointFormat) or not FEWEST_BITS <= bits <= MOST_BITS:
        return None
    meaning = row.meaning.replace(f"{row.bits:.1f} bits", f"{bits:g} bits")
    return replace(row, name=f"exl{kind}-{bits:g}", aliases=(), bits=bits, meaning=meaning)


_SPELLED_OUT = re.compile(
    r"(?P<name>.+?)\s*\(?\s*\+\s*(?:bf16|bfloat16|fp16|f16|float16|16[- ]?bit)(?: rest)?\s*\)?", re.IGNORECASE
)
"""How publications spell out what stays in 16 bits: `MXFP4 experts + BF16`, `FP8 (+BF16)`."""


def _of_mixture(name: str, known: Mapping[str, WeightFormat]) -> WeightFormat | None:
    """The format of a name that says what stays in 16 bits, if the rest of that format does; or None.

    `known`: formats by their folded names.
    """
    from flopwise.facts.formats import CheckpointFormat  # noqa: PLC0415 - few formats are spelled out

    match = _SPELLED_OUT.fullmatch(name.strip())
    row = None if match is None else known.get(fold(match["name"]))
    return row if isinstance(row, CheckpointFormat) and row.bits < row.rest_bits == 16.0 else None


@kept_by_identity(8)
def _by_key(offers: tuple[Offer, ...]) -> Mapping[tuple[str, str, str], Offer]:
    return {offer.key: offer for offer in offers}


class Facts:
    """All known facts. Each table is read at its first use; `folder` is the user's own, if any."""

    def __init__(self, folder: Path | None = None, imported: Iterable[Path] = (), profile: Path | None = None) -> None:
        """Read nothing yet; `imported`: files of prices, laid between the shipped rows and those of the folder.

        `profile`: the folder of a calibration profile, laid over all.
        """
        self.folder, self.profile, self._imported = folder, profile, tuple(imported)
        self._own_folders = tuple(place for place in (folder, profile) if place is not None)
        self.lookups: dict[Any, Any] = {}  # what was looked for by name
        self.month: str | None = None  # of the engines and training stacks: see `at`

    def with_tables(self, **tables: Any) -> Facts:
        """The same facts with other values of some attributes, such as `offers`."""
        other = copy.copy(self)
        other.__dict__ |= tables if set(tables) <= {"offers"} else {**tables, "lookups": {}}
        return other

    def at(self, month: str | None) -> Facts:
        """The same facts whose engines and stacks are those of a month (2025-06), or of a day in it; None: as named."""
        return self if month == self.month else self.with_tables(month=month)

    def __getstate__(self) -> dict[str, Any]:
        """All tables, read: who gets these facts from another process need not see the files."""
        for name, member in vars(type(self)).items():
            if isinstance(member, cached_property):
                getattr(self, name)
        whole = {name: dict(value) for name, value in self.__dict__.items() if isinstance(value, Lazy)}
        return self.__dict__ | whole | {"lookups": {}}

    def rows(self, wanted: FactTable[Any] | str) -> Mapping[Key, Any]:
        """The shipped rows of a table, or of one of `TABLES`, by key, with those of the folder laid over them."""
        table = _table(wanted) if isinstance(wanted, str) else wanted
        rows = _shipped_rows(table)
        for own in self._own_files(table):
            rows = table.overlay(rows, own)
        return rows

    def _own_files(self, table: FactTable[Any]) -> list[Path]:
        """The files for a table: the folder's, then the profile's."""
        return [own for place in self._own_folders if (own := place / table.file).is_file()]

    # accelerators, and how predictions for them are calibrated

    @cached_property
    def calibration(self) -> Calibration:
        """The calibrated parameters and the errors of predictions."""
        table = _shipped_calibration()
        for place in self._own_folders:
            if any((place / CALIBRATION).glob("*.json")):
                own = Calibration(tuple(read_parameters(place / CALIBRATION))).parameters
                if place == self.profile:
                    own = tuple(replace(parameter, profile=place.name) for parameter in own)
                table = table.overlay(own)
            if (place / ERRORS_FILE).is_file():
                table = replace(table, errors={**table.errors, **read_errors(place / ERRORS_FILE)})
        return table

    @cached_property
    def accelerators(self) -> Mapping[str, Accelerator]:
        """Every accelerator by its canonical name."""
        rows, calibration = self.rows("accelerators.ACCELERATORS"), self.calibration
        counts: Mapping[Key, CoreRecord] = self.rows("accelerators.CORE_RECORDS")

        def with_cores(chip: Accelerator) -> Accelerator:
            count = counts.get((chip.architecture, chip.compute_capability or ANY))
            if count is None or chip.num_sms is None:
                return replace(chip, calibration=calibration)
            return replace(
                chip, calibration=calibration, num_cores=count.cores * chip.num_sms,
                num_tensor_cores=count.tensor_cores * chip.num_sms,
            )  # fmt: skip

        return Lazy([name for (name,) in rows], lambda name: with_cores(rows[name,]))

    @cached_property
    def spellings(self) -> Mapping[str, Alias]:
        """The alias of each `spelling_key`."""
        names: dict[str, str] = {}
        for name in self.accelerators:
            other = names.setdefault(spelling_key(name), name)
            if other != name:
                raise SpecError(f"accelerator names {other!r} and {name!r} have the same spelling; rename one")
        taken = set[str]()

        def agreeing(row: Row, alias: Alias) -> Alias:
            key = spelling_key(alias.alias)
            if alias.name not in self.accelerators:
                raise row.error("name", alias.name, "no accelerator has that name, spelt exactly so")
            if not key:
                raise row.error("alias", alias.alias, "an alias needs letters or digits other than the vendor's")
            if names.get(key, alias.name) != alias.name:
                raise row.error("alias", alias.alias, f"that is the name of {names[key]}")
            if key in taken:
                raise row.error("alias", alias.alias, "it appears twice in this file, perhaps in another spelling")
            taken.add(key)
            return alias

        mine: dict[Key, Alias] = {}
        for own in self._own_files(ALIASES):
            mine = ALIASES.overlay(mine, own, agreeing)
        rows, own_aliases = _shipped_rows(ALIASES), {spelling_key(alias.alias): alias for alias in mine.values()}
        shipped = {spelling_key(alias): alias for (alias,) in rows}

        def alias_of(key: str) -> Alias:
            named = Alias(alias=names[key], name=names[key]) if key in names else None
            return own_aliases.get(key) or named or rows[shipped[key],]

        return Lazy([*shipped, *names, *own_aliases], alias_of)

    def resolve(self, name: str) -> Resolution:
        """Return what `name` stands for, in any common spelling (`h100`, `H100-SXM-80GB`, `NVIDIA GeForce RTX 3090`).

        `custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB` is a hypothetical device: see `CustomDevice`.

        Raises:
            UnknownNameError: nothing by that name; names the nearest.
            SpecError: a hypothetical device that cannot be.
        """
        given = name if isinstance(name, str) else str(name)
        exact = self.accelerators.get(given)
        if exact is not None:
            return Resolution(exact)
        if (custom := CustomDevice.of(given)) is not None:
            return Resolution(replace(custom.accelerator, calibration=self.calibration))
        alias = self.spellings.get(spelling_key(given)) if len(given) <= 200 else None
        if alias is None:
            hint = "`flopwise gpus` lists all; a facts folder (--facts DIR) adds more"
            raise UnknownNameError("accelerator", given, self.accelerators, hint, self._with_words(given))
        return Resolution(self.accelerators[alias.name], alias.note)

    def _with_words(self, name: str) -> Iterator[str]:
        """Accelerators a spelling of which has all words of `name`, in whatever order: M4 Air."""
        words = set(spelling_words(name[:200]))
        return (device for spelling, device in self._words if words and words <= spelling)

    @cached_property
    def _words(self) -> list[tuple[frozenset[str], str]]:
        return [(frozenset(spelling_words(alias.alias)), alias.name) for alias in self.spellings.values()]

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator that `name` stands for; see `resolve`.

        Raises: UnknownNameError: nothing by that name; names the nearest.
        """
        return self.resolve(name).accelerator

    def with_custom(self, names: Iterable[str | None]) -> Facts:
        """These facts with the hypothetical devices among `names`, and offers of those that have a price.

        Raises: SpecError: one cannot be, or is called as another accelerator is.
        """
        customs = [one for name in dict.fromkeys(names) if name is not None and (one := CustomDevice.of(name))]
        if not customs:
            return self
        accelerators, offers = dict(self.accelerators), list(self.offers)
        for custom in dict.fromkeys(customs):
            device = replace(custom.accelerator, calibration=self.calibration)
            known = accelerators.setdefault(device.name, device)
            if known is device:
                offers += custom.offers
            elif known != device:
                raise SpecError(f"custom device: another accelerator is called {device.name}; give it another name=")
        return (
            self
            if len(accelerators) == len(self.accelerators)
            else self.with_tables(accelerators=accelerators, offers=tuple(offers))
        )

    grades: tuple[GradeRecord, ...] = _all_rows("accelerators.GRADE_RECORDS")  # what accelerators are made for

    def grade(self, accelerator: str) -> GradeRecord:
        """The record of the longest pattern that fits an accelerator's canonical name."""
        fitting = [g for g in self.grades if fnmatchcase(accelerator, g.accelerators)]
        return max(reversed(fitting), key=lambda g: len(g.accelerators))

    def grade_remarks(self, accelerators: Iterable[str]) -> list[str]:
        """A sentence for each accelerator that has a remark, and so is no data-centre part; once each, in order."""
        graded = {name: self.grade(name) for name in accelerators}
        return [
            f"{name} is a {grade.grade} part: {grade.remark} ({grade.source})"
            for name, grade in graded.items()
            if grade.remark
        ]

    # instances, and what else there is to buy

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every instance type in every region."""
        rows: Mapping[Key, Offer] = _shipped_rows(OFFERS)

        def with_chip_name(row: Row, offer: Offer) -> Offer:
            if offer.accelerator in self.accelerators:
                return offer
            try:
                meant = self.resolve(offer.accelerator)
            except UnknownNameError as fault:
                raise row.error("accelerator", offer.accelerator, str(fault)) from fault
            notes = "; ".join(part for part in (offer.notes, meant.note) if part)
            return replace(offer, accelerator=meant.accelerator.name, notes=notes)

        for path in self._imported:
            try:
                rows = OFFERS.overlay(rows, path, with_chip_name)
            except SpecError as fault:
                remedy = f"These prices were imported: `flopwise prices remove {path.stem}`"
                raise SpecError(f"{fault}. {remedy}") from None
        for own in self._own_files(OFFERS):
            rows = OFFERS.overlay(rows, own, with_chip_name)
        return self._with_records(rows.values())

    def _with_records(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """Offers with what the tables of marketplaces and of retirements say of them."""
        hosts, retired = (tuple(self.rows(f"offers.{name}").values()) for name in ("MARKETPLACES", "RETIREMENTS"))

        def first(records: Iterable[P], offer: Offer) -> P | None:
            fits = (r for r in records if r.provider == offer.provider and fnmatchcase(offer.instance, r.instances))
            return next(fits, None)

        def with_records(offer: Offer) -> Offer:
            host, retirement = first(hosts, offer), first(retired, offer)
            if host is None and retirement is None:
                return offer
            day = None if retirement is None else retirement.retires_on
            return replace(offer, marketplace=host is not None, retires_on=day)

        return tuple(map(with_records, offers))

    @property
    def offers_by_key(self) -> Mapping[tuple[str, str, str], Offer]:
        """Every offer by its provider, instance and region."""
        return _by_key(self.offers)

    def offers_with(self, accelerator: str) -> tuple[Offer, ...]:
        """The offers of an accelerator by its canonical name; of a table without rows of one's own no others are read.

        Offers are in the order of the catalog.
        """
        if "offers" in self.__dict__ or self._imported or self._own_files(OFFERS):
            return tuple(offer for offer in self.offers if offer.accelerator == accelerator)
        return self._with_records(_shipped_offers(accelerator).values())

    def offers_for(
        self,
        *,
        provider: str | None = None,
        region: str | None = None,
        accelerator: str | None = None,
        instance: str | None = None,
    ) -> tuple[Offer, ...]:
        """Return the offers that fit every given condition, in the order of the catalog.

        Raises: UnknownNameError: no offer has such a provider, region or instance, or there is no such accelerator.
        """
        if accelerator is not None and provider is region is instance is None:
            return self.offers_with(self.accelerator(accelerator).name)
        provider = None if provider is None else self._provider(provider)
        types = dict.fromkeys(o.instance for o in self.offers)
        named = types if instance is None else {t for t in types if names_instance(instance, t)}
        if not named:
            raise UnknownNameError("instance", str(instance), types)
        canonical = None if accelerator is None else self.accelerator(accelerator).name
        if region is not None and not known_region(region, regions := region_names(self.offers)):
            raise UnknownNameError("region", region, regions)
        return tuple(
            o
            for o in self.offers
            if provider in (None, o.provider)
            and o.instance in named
            and canonical in (None, o.accelerator)
            and (region is None or o.serves(region))
        )

    def _provider(self, given: str) -> str:
        """The name of a provider in the offers, for any of its names."""
        known = {o.provider.lower(): o.provider for o in self.offers}
        meant = provider_name(str(given).strip()).lower()
        if meant not in known:
            import difflib  # noqa: PLC0415 - only a wrong name needs it

            near = difflib.get_close_matches(fold(str(given)), PROVIDER_ALIASES, n=1, cutoff=0.75)
            raise UnknownNameError(
                "provider", str(given), known.values(),
                f"{near[0]} is read as {PROVIDER_ALIASES[near[0]]}" if near else "",
            )  # fmt: skip
        return known[meant]

    def with_assumed_prices(self, kinds: Collection[str]) -> Facts:
        """The same facts, with unknown prices of `kinds` (spot, reserved) assumed from the provider's discounts."""
        if not kinds:
            return self
        from flopwise.facts.discounts import with_assumed_prices  # noqa: PLC0415 - few ask for them

        bands: dict[tuple[str, str], Any] = {}
        if "spot" in kinds:
            bands |= {(row.provider, "spot"): row for row in self.rows("discounts.SPOT_DISCOUNTS").values()}
        if "reserved" in kinds:
            bands |= self.rows("discounts.RESERVED_DISCOUNTS")
        return self.with_tables(offers=with_assumed_prices(self.offers, bands))

    def offered_accelerator(self, offer: Offer) -> Accelerator:
        """Return one accelerator as `offer` has it: whole, or its share.

        A CPU socket has the instance's RAM, divided by the sockets, as its memory.
        """
        whole = self.accelerators[offer.accelerator]
        ram_bytes = None
        if whole.kind == "cpu" and offer.ram_bytes is not None:
            ram_bytes = int(offer.ram_bytes / offer.count)
        return whole.partition(offer.accelerator_share, hbm_bytes=ram_bytes)

    purchase_terms: tuple[PurchaseTerms, ...] = _all_rows("price_book.TERMS")  # how instances are billed

    @_lookup_once
    def terms_of(self, provider: str, instance: str) -> PurchaseTerms | None:
        """The terms of the longest pattern that fits the instance; None where nobody wrote them down."""
        fitting = [
            t
            for t in self.purchase_terms
            if t.provider == provider and fnmatchcase(instance.lower(), t.instances.lower())
        ]
        return max(reversed(fitting), key=lambda t: len(t.instances), default=None)

    @cached_property
    def volume_prices(self) -> Mapping[tuple[str, str], VolumePrice]:
        """Prices of storage and traffic, by provider and kind."""
        from flopwise.facts.price_book import volume_prices  # noqa: PLC0415 - only fleets ask for them

        return volume_prices(self.rows("price_book.VOLUMES").values())

    hosted_prices: tuple[HostedPrice, ...] = _all_rows("price_book.HOSTED")  # what hosted models cost

    def hosted_for(self, model: str) -> tuple[HostedPrice, ...]:
        """Prices of a hosted model, by its catalog name or the provider's own, cheapest output first; empty if none."""
        wanted = fold(model)
        prices = [p for p in self.hosted_prices if wanted in {fold(p.name), fold(p.model or p.name)}]
        return tuple(sorted(prices, key=lambda p: (p.output_usd_per_mtok, p.input_usd_per_mtok, p.provider)))

    hardware_prices: tuple[HardwarePrice, ...] = _all_rows("price_book.HARDWARE")  # what accelerators cost to buy

    def hardware_price(self, accelerator: str) -> HardwarePrice | None:
        """The price of an accelerator by its canonical name: of a whole server where it is known, else of the card."""
        prices = [price for price in self.hardware_prices if price.accelerator == accelerator]
        return max(prices, key=lambda price: price.unit == "server", default=None)

    # providers and regions

    grids: tuple[GridRecord, ...] = _all_rows("regions.GRIDS")  # the carbon of a kWh

    @_lookup_once
    def grid(self, provider: str, region: str) -> GridRecord:
        """The record of a provider's region, else of a pattern that fits, else the average of the world.

        The most particular wins: the provider's own before that of any, a longer pattern before a shorter one.
        """
        fitting = [
            g for g in self.grids if g.provider in (provider, ANY) and fnmatchcase(region.lower(), g.region.lower())
        ]
        return max(reversed(fitting), key=lambda g: (g.provider == provider, len(g.region)))

    @cached_property
    def tags(self) -> Mapping[str, frozenset[str]]:
        """The providers with each attestation or service; records of low confidence are left out."""
        tags_of: dict[str, set[str]] = {}
        for record in self.rows("regions.TAGS").values():
            sure = {record.provider} if record.confidence != "low" else set()
            tags_of.setdefault(record.tag.lower(), set()).update(sure)
        return {tag: frozenset(providers) for tag, providers in tags_of.items()}

    # how machines fail, and where data lie

    failures: Mapping[str, FailureRecord] = _named_rows("reliability.FAILURES")  # records of failures by name
    failure_record = _finder("record of failures", lambda facts: facts.failures)
    spot_records: tuple[SpotRecord, ...] = _all_rows("reliability.SPOT")  # records of spot interruptions

    start_records: tuple[StartRecord, ...] = _all_rows("reliability.STARTS")  # what runs wait for before they begin

    def start_s(self, *names: str) -> float:
        """Seconds of those records together."""
        return sum(record.seconds for record in self.start_records if record.name in names)

    kubernetes_nodes: tuple[NodeRecord, ...] = _all_rows("kubernetes.NODES")  # resources, labels and taints of nodes

    @_lookup_once
    def spot(self, provider: str, accelerator: str) -> SpotRecord:
        """The record of a provider's accelerator, else of all of its machines, else the assumption for any provider."""
        fitting = [
            r for r in self.spot_records if r.provider in (provider, ANY) and r.accelerator in (accelerator, None)
        ]
        return max(fitting, key=lambda r: (r.provider != ANY, r.accelerator is not None))

    exporters: tuple[ExporterRecord, ...] = _all_rows("metrics.EXPORTERS")  # where metrics are read
    metric_records: tuple[MetricRecord, ...] = _all_rows("metrics.METRICS")  # what each calls a quantity
    former_metrics: tuple[FormerMetric, ...] = _all_rows("metrics.FORMER_METRICS")  # and older versions of it did

    storage_kinds: Mapping[str, Storage] = _named_rows("storage.STORAGE")  # kinds of storage by name
    storage = _finder("kind of storage", lambda facts: facts.storage_kinds)
    # software and formats

    engines: Mapping[str, Engine] = _named_rows("software.ENGINES")  # inference engines by name
    engine = _of_its_month(_finder("engine", lambda facts: facts.engines))
    stacks: Mapping[str, TrainingStack] = _named_rows("software.STACKS")  # training stacks by name
    stack = _of_its_month(_finder("training stack", lambda facts: facts.stacks))
    generations: Mapping[str, Generation] = _named_rows("software.GENERATIONS")  # times of both, by name

    def is_released(self, name: str) -> bool:
        """True unless the engine or training stack of that name is younger than `month`."""
        return self.month is None or self.month >= self._first_of(name)[: len(self.month)]

    def _first_of(self, name: str) -> str:
        """The first month of the software whose row that is; "" where it is not known."""
        known = self.generations.get(name)
        kin = () if known is None else (one for one in self.generations.values() if one.of == known.of)
        return next((one.since for one in kin if one.since), "")

    optimizers: Mapping[str, Optimizer] = _named_rows("software.OPTIMIZERS")  # optimizers by name
    optimizer = _finder("optimizer", lambda facts: facts.optimizers)

    @cached_property
    def weight_formats(self) -> Mapping[str, WeightFormat]:
        """Weight formats by every folded spelling: checkpoints', then llama.cpp's."""
        blocks = _by_name(self.rows("formats.GGUF_BLOCKS"))
        gguf = [replace(row, blocks=blocks) for row in self.rows("formats.GGUF_FORMATS").values()]
        formats: dict[str, WeightFormat] = {**spellings(gguf)}
        formats |= spellings(self.rows("formats.CHECKPOINT_FORMATS").values())  # F16 and MXFP4 are such, too
        return formats | {fold(f"gguf {row.name}"): row for row in gguf}

    @property
    def weight_format_names(self) -> list[str]:
        """Names of all weight formats: checkpoint formats, then llama.cpp's."""
        return [*_by_name(self.rows("formats.CHECKPOINT_FORMATS")), *_by_name(self.rows("formats.GGUF_FORMATS"))]

    def weight_format(self, name: str) -> WeightFormat:
        """The weight format of that name; spelling and punctuation are forgiving (`GGUF Q4_K_M`, `AWQ-INT4`).

        Raises: UnknownNameError: no such format; names the nearest.
        """
        known = self.weight_formats
        row = known.get(fold(name)) or _of_bit_rate(name, known) or _of_mixture(name, known)
        if row is None:
            one = "formats are those of checkpoints (bf16, fp8, awq, gptq, nvfp4 ...) and of llama.cpp (Q4_K_M ...)"
            some = "a plan compares the formats of `any`: give one by its name here, as bf16, fp8, awq or Q4_K_M"
            raise UnknownNameError("weight format", name, self.weight_format_names, some if fold(name) == ANY else one)
        return row

    cache_formats: Mapping[str, CacheFormat] = _named_rows("formats.CACHE_FORMATS")  # of key-value caches

    def cache_format(self, dtype: str) -> CacheFormat:
        """The format of a key-value cache. Raises SpecError: no such type; lists those known."""
        name = dtype.lower().replace("float", "fp").replace("fp8_e4m3", "fp8").replace("fp8_e5m2", "fp8")
        row = self.cache_formats.get(name)
        if row is None:
            raise SpecError(f"unknown KV cache type {dtype[:40]!r}; allowed: {', '.join(self.cache_formats)}")
        return row

    quality: tuple[QualityRecord, ...] = _all_rows("formats.QUALITY")  # what evaluations found of weight formats

    currencies: Mapping[str, CurrencyRecord] = _named_rows("currencies.CURRENCIES")  # what amounts may be shown in

    # models and samples

    @cached_property
    def models(self) -> ModelCatalog:
        """The known models."""
        from flopwise.facts.models.catalog import ModelCatalog  # noqa: PLC0415 - who lists accelerators needs no models

        return ModelCatalog(self.folder)

    def model(self, spec: str, *, assume_family: str | None = None, offline: bool = False) -> Model:
        """The model that `spec` names: see `ModelCatalog.model`."""
        return self.models.model(spec, assume_family=assume_family, offline=offline)

    samples: Mapping[str, TrainingSample] = _named_rows("samples.SAMPLES")  # training samples by name

    def sample(self, name: str) -> TrainingSample | None:
        """The sample of that name in any spelling; None where there is none."""
        return spellings(self.samples.values()).get(fold(name))

    def convolutions(self, model: str) -> tuple[ConvolutionLayer, ...] | None:
        """The layers of a model, in the order in which they run; None where they are not written down."""
        return tuple(row for row in self.rows("samples.CONVOLUTIONS").values() if row.network == model) or None

    def check(self) -> None:
        """Read the folder's and the imported files.

        Raises: SpecError: one of them is wrong; names file, row and column.
        """
        own = set[str]()
        if self._own_folders:
            for table in tables():
                if self._own_files(table):
                    own.add(table.file)
                    self.rows(table)
            _ = self.calibration
            self.models.check()
        if own & {ACCELERATORS.file, ALIASES.file}:
            _ = self.spellings
        if self._imported or own & {ACCELERATORS.file, OFFERS.file}:
            _ = self.offers


@cache
def _shipped_rows(table: FactTable[R]) -> Mapping[Key, R]:
    return table.shipped_records(DATA / table.file)


@cache
def _shipped_offers(accelerator: str) -> Mapping[Key, Offer]:
    return OFFERS.shipped_records(DATA / OFFERS.file, accelerator=accelerator)


@lru_cache(maxsize=1)
def _shipped_calibration() -> Calibration:
    parameters, errors = tuple(read_parameters(DATA / CALIBRATION)), read_errors(DATA / ERRORS_FILE)
    return Calibration(parameters, errors, MeasuredFamilies.by_kind(DATA / COVERAGE_FILE))


def _by_name(rows: Mapping[Key, R]) -> dict[str, R]:
    return {name: row for (name,), row in rows.items()}


def one_of(what: str, given: str | None, known: Iterable[str]) -> str | None:
    """The name in `known` that equals `given` in any case; UnknownNameError where there is none."""
    if given is None:
        return None
    names = {name.lower(): name for name in known}
    value = names.get(str(given).strip().lower())
    if value is None:
        raise UnknownNameError(what, str(given), names.values())
    return value


def load_facts(folder: Path | str | None = None, profile: str | None = None) -> Facts:
    """The shipped facts, overlaid with the rows in `folder` or, without one, in the folder that FLOPWISE_FACTS names.

    Prices that the user imported are laid between the two, the calibration profile of that name over them. Cached; a
    file that changes is read again.

    Raises:
        SpecError: the folder or a row in it is wrong; names file, row and column.
        UnknownNameError: no such profile.
    """
    chosen = folder if folder is not None else os.environ.get(FACTS_VARIABLE) or None
    imported, own, path = price_files.stamps(), None, None
    if profile is not None:
        from flopwise.facts.profiles import profile_path  # noqa: PLC0415 - few ask for one

        own = profile_path(profile)
    if chosen is not None:
        path = Path(chosen).expanduser()
    return _facts_of(_folder_state(path), _folder_state(own), imported)


def _folder_state(path: Path | None) -> tuple[str, tuple[price_files.Stamp, ...]]:
    """A folder of facts and the state of the files in it; without one an empty name.

    Raises: SpecError: it cannot be read, or has no file of facts.
    """
    if path is None:
        return "", ()
    try:
        own = (f"{CALIBRATION}/{p.name}" for p in sorted((path / CALIBRATION).glob("*.json")))
        files = [(name, (path / name).stat()) for name in (*folder_files(), *own) if (path / name).is_file()]
    except (OSError, ValueError) as fault:
        raise SpecError(f"facts folder {str(path)[:200]!r} cannot be read ({fault})") from fault
    if not files:
        state = "has none of the files" if path.is_dir() else "does not exist; a facts folder holds any of"
        raise SpecError(f"facts folder {str(path)[:200]!r} {state} {', '.join(folder_files())}")
    return str(path), tuple((name, state.st_mtime_ns, state.st_size) for name, state in files)


_FolderState = tuple[str, tuple[price_files.Stamp, ...]]
_Key = tuple[_FolderState, _FolderState, tuple[price_files.Stamp, ...]]
_CACHE: dict[_Key, Facts] = {}


def _facts_of(folder: _FolderState, profile: _FolderState, imported: tuple[price_files.Stamp, ...]) -> Facts:
    key = (folder, profile, imported)
    if key not in _CACHE:
        for stale in [k for k in _CACHE if (k[0][0], k[1][0]) == (folder[0], profile[0])]:
            del _CACHE[stale]
        own, over = (Path(place) if place else None for place, _ in (folder, profile))
        facts = Facts(own, (Path(path) for path, _, _ in imported), over)
        facts.check()
        _CACHE[key] = facts
    return _CACHE[key]
