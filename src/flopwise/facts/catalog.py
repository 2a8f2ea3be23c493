"""All that is known, as one value: `Facts`, the shipped tables with a folder of the user's own rows laid over them.

`load_facts` is called once, at the edge; what it gives is passed on. A facts folder (`--facts DIR`, or the environment
variable FLOPWISE_FACTS) may hold any of `FOLDER_FILES`, and in `calibration/` JSON files of parameters that stand in
for shipped ones of the same name and scope. Between the two lie the prices that the user imported
(`flopwise.facts.price_files`). A table is read when it is first asked for; a folder's files at once, so that a mistake
in one is told by any command.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError, fold
from flopwise.facts import price_book, price_files
from flopwise.facts.accelerators import (
    ACCELERATORS,
    ALIASES,
    GRADE_RECORDS,
    KINDS,
    Accelerator,
    Alias,
    GradeRecord,
    spelling_key,
)
from flopwise.facts.architecture import Model
from flopwise.facts.calibration import Calibration, read_errors, read_parameters
from flopwise.facts.formats import (
    CACHE_FORMATS,
    CHECKPOINT_FORMATS,
    GGUF_BLOCKS,
    GGUF_FORMATS,
    CacheFormat,
    WeightFormat,
)
from flopwise.facts.models.catalog import FILES as MODEL_FILES
from flopwise.facts.models.catalog import ModelCatalog
from flopwise.facts.offers import OFFERS, Offer, known_region, region_names
from flopwise.facts.price_book import HardwarePrice, HostedPrice, PurchaseTerms, VolumeKind, VolumePrice
from flopwise.facts.regions import GRIDS, TAGS, GridRecord, grid_of, providers_by_tag, providers_with
from flopwise.facts.reliability import FAILURES, SPOT, FailureRecord, SpotRecord, spot_of
from flopwise.facts.samples import CONVOLUTIONS, SAMPLES, ConvolutionLayer, Sample
from flopwise.facts.software import ENGINES, OPTIMIZERS, STACKS, Engine, Optimizer, TrainingStack
from flopwise.facts.storage import STORAGE, Storage
from flopwise.facts.tables import FactTable, Key, N, Row, row_named, spellings

FACTS_VARIABLE = "FLOPWISE_FACTS"
CALIBRATION, ERRORS_FILE = "calibration", "intervals.json"
TABLES: tuple[FactTable[Any], ...] = (
    ACCELERATORS, ALIASES, OFFERS, STORAGE, FAILURES, SPOT, price_book.TERMS, price_book.VOLUMES, GRIDS,
    price_book.HOSTED, price_book.HARDWARE, GRADE_RECORDS, TAGS, ENGINES, STACKS, OPTIMIZERS, CHECKPOINT_FORMATS,
    GGUF_FORMATS, GGUF_BLOCKS, CACHE_FORMATS, SAMPLES, CONVOLUTIONS,
)  # fmt: skip
"""Every table of facts; besides them stand the files of models, the calibration and the errors of predictions."""
FOLDER_FILES = (*(table.file for table in TABLES), *MODEL_FILES, ERRORS_FILE)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name stands for; `note` says what was assumed where the name leaves the variant open."""

    accelerator: Accelerator
    note: str | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether the name fits more than one accelerator: estimates then deserve a wider interval."""
        return self.note is not None


class Facts:
    """All that is known. Every table is read when it is first asked for; `folder` is the user's own, if any."""

    def __init__(self, folder: Path | None = None, imported: Iterable[Path] = ()) -> None:
        """Read nothing yet; `imported`: files of prices, laid between the shipped rows and those of the folder."""
        self.folder, self._imported = folder, tuple(imported)
        self._found: dict[tuple[Any, ...], Any] = {}

    def replaced(self, **tables: Any) -> Facts:
        """The same facts with other values of some attributes, such as `offers`."""
        other = copy.copy(self)
        other.__dict__ |= tables if set(tables) <= {"offers"} else {**tables, "_found": {}}
        return other

    def __getstate__(self) -> dict[str, Any]:
        """All tables, read: who gets these facts from another process need not see the files."""
        for name, member in vars(type(self)).items():
            if isinstance(member, cached_property):
                getattr(self, name)
        return self.__dict__ | {"_found": {}}

    def _rows(self, table: FactTable[R], finish: Callable[[Row, R], R] | None = None) -> dict[Key, R]:
        """The shipped rows of a table by key, with those of the folder laid over them."""
        own = None if self.folder is None else self.folder / table.file
        rows = _shipped(table)
        return rows if own is None or not own.is_file() else table.overlaid(rows, own, finish)

    def _remembered(self, key: tuple[Any, ...], find: Callable[..., V], *given: Any) -> V:
        """What `find` finds for `given`, looked for once."""
        if key not in self._found:
            self._found[key] = find(*given)
        found: V = self._found[key]
        return found

    # accelerators, and how predictions for them are calibrated

    @cached_property
    def calibration(self) -> Calibration:
        """The calibrated parameters and the errors of predictions."""
        return self._calibration_over(_shipped_calibration())

    def _calibration_over(self, below: Calibration) -> Calibration:
        own = None if self.folder is None else self.folder / CALIBRATION
        errors = None if self.folder is None else self.folder / ERRORS_FILE
        if own is not None and any(own.glob("*.json")):
            below = below.overlaid(Calibration(tuple(read_parameters(own))).parameters)
        if errors is not None and errors.is_file():
            below = replace(below, errors={**below.errors, **read_errors(errors)})
        return below

    @cached_property
    def accelerators(self) -> Mapping[str, Accelerator]:
        """Every accelerator by its canonical name."""
        rows, calibration = self._rows(ACCELERATORS), self.calibration
        return {name: replace(chip, calibration=calibration) for (name,), chip in rows.items()}

    @cached_property
    def spellings(self) -> Mapping[str, Alias]:
        """What each `spelling_key` stands for."""
        names: dict[str, str] = {}
        for name in self.accelerators:
            other = names.setdefault(spelling_key(name), name)
            if other != name:
                raise SpecError(f"accelerator names {other!r} and {name!r} cannot be told apart; rename one")
        taken = set[str]()

        def agreeing(row: Row, alias: Alias) -> Alias:
            key = spelling_key(alias.alias)
            if alias.name not in self.accelerators:
                raise row.error("name", alias.name, "no accelerator has that name, spelt exactly so")
            if not key:
                raise row.error("alias", alias.alias, "an alias needs letters or digits besides the vendor's")
            if names.get(key, alias.name) != alias.name:
                raise row.error("alias", alias.alias, f"that is the name of {names[key]}")
            if key in taken:
                raise row.error("alias", alias.alias, "it stands in this file twice, perhaps spelt otherwise")
            taken.add(key)
            return alias

        own = None if self.folder is None else self.folder / ALIASES.file
        mine = ALIASES.overlaid({}, own, agreeing) if own is not None and own.is_file() else {}
        found = {spelling_key(alias.alias): alias for alias in _shipped(ALIASES).values()}
        found |= {key: Alias(alias=name, name=name) for key, name in names.items()}
        return found | {spelling_key(alias.alias): alias for alias in mine.values()}

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

    @cached_property
    def grades(self) -> tuple[GradeRecord, ...]:
        """What accelerators are made for, by patterns of names."""
        return tuple(self._rows(GRADE_RECORDS).values())

    def grade(self, accelerator: str) -> GradeRecord:
        """The record of the longest pattern that fits an accelerator's canonical name."""
        fitting = [g for g in self.grades if fnmatchcase(accelerator, g.accelerators)]
        return max(reversed(fitting), key=lambda g: len(g.accelerators))

    def grade_remarks(self, accelerators: Iterable[str]) -> list[str]:
        """A sentence for each accelerator that has a remark, and so is no data-centre part; once each, in order."""
        graded = {name: self.grade(name) for name in accelerators}
        return [
            f"{name} is a {found.grade} part: {found.remark} ({found.source})"
            for name, found in graded.items()
            if found.remark
        ]

    # instances, and what else there is to buy

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every instance type in every region."""
        rows: Mapping[Key, Offer] = _shipped(OFFERS)

        def named(row: Row, offer: Offer) -> Offer:
            if offer.accelerator in self.accelerators:
                return offer
            try:
                meant = self.resolve(offer.accelerator)
            except UnknownNameError as fault:
                raise row.error("accelerator", offer.accelerator, str(fault)) from fault
            notes = "; ".join(part for part in (offer.notes, meant.note) if part)
            return replace(offer, accelerator=meant.accelerator.name, notes=notes)

        for path in self._imported:
            below = rows

            def imported(row: Row, offer: Offer, below: Mapping[Key, Offer] = below) -> Offer:
                return named(row, price_files.with_older_prices_noted(offer, below.get(offer.key)))

            try:
                rows = OFFERS.overlaid(below, path, imported)
            except SpecError as fault:
                told = f"These prices were imported: `flopwise prices remove {path.stem}`"
                raise SpecError(f"{fault}. {told}") from None
        own = None if self.folder is None else self.folder / OFFERS.file
        if own is not None and own.is_file():
            rows = OFFERS.overlaid(rows, own, named)
        return tuple(rows.values())

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

    @cached_property
    def purchase_terms(self) -> tuple[PurchaseTerms, ...]:
        """How instances are billed, by patterns of their names."""
        return tuple(self._rows(price_book.TERMS).values())

    def terms_of(self, provider: str, instance: str) -> PurchaseTerms | None:
        """The terms of the longest pattern that fits the instance; None where nobody wrote them down."""
        return self._remembered(("terms", provider, instance), self._terms_of, provider, instance)

    def _terms_of(self, provider: str, instance: str) -> PurchaseTerms | None:
        fitting = [
            t
            for t in self.purchase_terms
            if t.provider == provider and fnmatchcase(instance.lower(), t.instances.lower())
        ]
        return max(reversed(fitting), key=lambda t: len(t.instances), default=None)

    @cached_property
    def volume_prices(self) -> Mapping[tuple[str, str], VolumePrice]:
        """What storage and traffic cost, by provider and kind."""
        return price_book.volume_prices(self._rows(price_book.VOLUMES).values())

    def volume_price(self, provider: str, kind: VolumeKind) -> VolumePrice | None:
        """What the provider takes for `kind`; None: not known."""
        return self.volume_prices.get((provider, kind))

    @cached_property
    def hosted_prices(self) -> tuple[HostedPrice, ...]:
        """What hosted models cost."""
        return tuple(self._rows(price_book.HOSTED).values())

    def hosted_for(self, model: str) -> tuple[HostedPrice, ...]:
        """Who hosts a model, by its catalog name or the provider's own, cheapest output first; empty: nobody known."""
        wanted = fold(model)
        found = [p for p in self.hosted_prices if wanted in {fold(p.name), fold(p.model or p.name)}]
        return tuple(sorted(found, key=lambda p: (p.output_usd_per_mtok, p.input_usd_per_mtok, p.provider)))

    @cached_property
    def hardware_prices(self) -> tuple[HardwarePrice, ...]:
        """What accelerators cost to buy."""
        return tuple(self._rows(price_book.HARDWARE).values())

    def hardware_price(self, accelerator: str) -> HardwarePrice | None:
        """The price of an accelerator by its canonical name: of a whole server where it is known, else of the card."""
        found = [price for price in self.hardware_prices if price.accelerator == accelerator]
        return max(found, key=lambda price: price.unit == "server", default=None)

    # providers and regions

    @cached_property
    def grids(self) -> tuple[GridRecord, ...]:
        """The carbon of a kWh, by provider and patterns of regions."""
        return tuple(self._rows(GRIDS).values())

    def grid(self, provider: str, region: str) -> GridRecord:
        """The record of a provider's region, else of a pattern that fits, else the average of the world."""
        return self._remembered(("grid", provider, region), grid_of, self.grids, provider, region)

    @cached_property
    def tags(self) -> Mapping[str, frozenset[str]]:
        """Which providers have each attestation or service."""
        return providers_by_tag(self._rows(TAGS).values())

    def providers_with(self, wanted: Iterable[str]) -> frozenset[str] | None:
        """Providers that have every tag `wanted`; None: nothing is asked, all do.

        Raises:
            UnknownNameError: no provider is known to have such a tag; names the nearest.
        """
        return providers_with(self.tags, wanted)

    # how machines fail, and where data lie

    @cached_property
    def failures(self) -> Mapping[str, FailureRecord]:
        """Records of failures by name."""
        return _by_name(self._rows(FAILURES))

    def failure_record(self, name: str) -> FailureRecord:
        """The record of failures of that name. Raises UnknownNameError."""
        return self._named("record of failures", name, self.failures)

    @cached_property
    def spot_records(self) -> tuple[SpotRecord, ...]:
        """Records of spot interruptions."""
        return tuple(self._rows(SPOT).values())

    def spot(self, provider: str, accelerator: str) -> SpotRecord:
        """The record of a provider's accelerator, else of all of its machines, else what is assumed of any provider."""
        return self._remembered(("spot", provider, accelerator), spot_of, self.spot_records, provider, accelerator)

    @cached_property
    def storage_kinds(self) -> Mapping[str, Storage]:
        """Kinds of storage by name."""
        return _by_name(self._rows(STORAGE))

    def storage(self, name: str) -> Storage:
        """The kind of storage of that name. Raises UnknownNameError."""
        return self._named("kind of storage", name, self.storage_kinds)

    # software and formats

    @cached_property
    def engines(self) -> Mapping[str, Engine]:
        """Inference engines by name."""
        return _by_name(self._rows(ENGINES))

    def engine(self, name: str) -> Engine:
        """The inference engine of that name. Raises UnknownNameError."""
        return self._named("engine", name, self.engines)

    @cached_property
    def stacks(self) -> Mapping[str, TrainingStack]:
        """Training stacks by name."""
        return _by_name(self._rows(STACKS))

    def stack(self, name: str) -> TrainingStack:
        """The training stack of that name. Raises UnknownNameError."""
        return self._named("training stack", name, self.stacks)

    @cached_property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """Optimizers by name."""
        return _by_name(self._rows(OPTIMIZERS))

    def optimizer(self, name: str) -> Optimizer:
        """The optimizer of that name. Raises UnknownNameError."""
        return self._named("optimizer", name, self.optimizers)

    @cached_property
    def weight_formats(self) -> Mapping[str, WeightFormat]:
        """Weight formats by every folded spelling: checkpoints', then llama.cpp's."""
        blocks = _by_name(self._rows(GGUF_BLOCKS))
        gguf = [replace(row, blocks=blocks) for row in self._rows(GGUF_FORMATS).values()]
        found: dict[str, WeightFormat] = {fold(row.name): row for row in gguf}
        found |= spellings(self._rows(CHECKPOINT_FORMATS).values())  # F16 and MXFP4 are formats of checkpoints, too
        return found | {fold(f"gguf {row.name}"): row for row in gguf}

    @property
    def weight_format_names(self) -> list[str]:
        """Names of all weight formats: checkpoint formats, then llama.cpp's."""
        return [*_by_name(self._rows(CHECKPOINT_FORMATS)), *_by_name(self._rows(GGUF_FORMATS))]

    def weight_format(self, name: str) -> WeightFormat:
        """The weight format of that name; spelling and punctuation are forgiving (`GGUF Q4_K_M`, `AWQ-INT4`).

        Raises:
            UnknownNameError: no such format; names the nearest.
        """
        found = self.weight_formats.get(fold(name))
        if found is None:
            raise UnknownNameError("weight format", name, self.weight_format_names)
        return found

    @cached_property
    def cache_formats(self) -> Mapping[str, CacheFormat]:
        """Formats of key-value caches by name."""
        return _by_name(self._rows(CACHE_FORMATS))

    def cache_format(self, dtype: str) -> CacheFormat:
        """The format of a key-value cache.

        Raises:
            SpecError: no such type; lists those known.
        """
        name = dtype.lower().replace("float", "fp").replace("fp8_e4m3", "fp8").replace("fp8_e5m2", "fp8")
        found = self.cache_formats.get(name)
        if found is None:
            raise SpecError(f"unknown KV cache type {dtype[:40]!r}; allowed: {', '.join(self.cache_formats)}")
        return found

    # models and samples

    @cached_property
    def models(self) -> ModelCatalog:
        """The known models."""
        return ModelCatalog(self.folder)

    def model(self, spec: str, *, assume_family: str | None = None, offline: bool = False) -> Model:
        """The model that `spec` names: see `ModelCatalog.model`."""
        return self.models.model(spec, assume_family=assume_family, offline=offline)

    @cached_property
    def samples(self) -> Mapping[str, Sample]:
        """Training samples by name."""
        return _by_name(self._rows(SAMPLES))

    def sample(self, name: str) -> Sample | None:
        """The sample of that name in any spelling; None where there is none."""
        return spellings(self.samples.values()).get(fold(name))

    def sample_of_model(self, name: str) -> Sample | None:
        """The sample of the workload that trains this model of the catalog."""
        return next((row for row in self.samples.values() if row.model == name), None)

    def convolutions(self, model: str) -> tuple[ConvolutionLayer, ...] | None:
        """The layers of a model, in the order in which they run; None where they are not written down."""
        return tuple(row for row in self._rows(CONVOLUTIONS).values() if row.network == model) or None

    def _named(self, kind: str, name: str, rows: Mapping[str, N]) -> N:
        by_spelling: dict[str, N] = self._remembered((kind,), spellings, rows.values())
        return row_named(kind, name, by_spelling)

    def check(self) -> None:
        """Read the folder's and the imported files.

        Raises:
            SpecError: one of them is wrong; names file, row and column.
        """
        own = set() if self.folder is None else {t.file for t in TABLES if (self.folder / t.file).is_file()}
        if self.folder is not None:
            for table in TABLES:
                if table.file in own:
                    self._rows(table)
            _ = self.calibration
            self.models.check()
        if own & {ACCELERATORS.file, ALIASES.file}:
            _ = self.spellings
        if self._imported or own & {ACCELERATORS.file, OFFERS.file}:
            _ = self.offers


@cache
def _shipped(table: FactTable[R]) -> dict[Key, R]:
    return table.overlaid({}, DATA / table.file)


@lru_cache(maxsize=1)
def _shipped_calibration() -> Calibration:
    return Calibration(tuple(read_parameters(DATA / CALIBRATION)), read_errors(DATA / ERRORS_FILE))


def _by_name(rows: Mapping[Key, R]) -> dict[str, R]:
    return {name: row for (name,), row in rows.items()}


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
    """The shipped facts, overlaid with the rows in `folder` or, without one, in the folder that FLOPWISE_FACTS names.

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


def _cached(folder: str, stamps: tuple[price_files.Stamp, ...], imported: tuple[price_files.Stamp, ...]) -> Facts:
    key = (folder, stamps, imported)
    if key not in _CACHE:
        for stale in [k for k in _CACHE if k[0] == folder]:
            del _CACHE[stale]
        facts = Facts(Path(folder) if folder else None, (Path(path) for path, _, _ in imported))
        facts.check()
        _CACHE[key] = facts
    return _CACHE[key]
