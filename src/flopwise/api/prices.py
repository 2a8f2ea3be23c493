"""`prices`: how old they are, and prices of your own laid over the shipped ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.price_import.age import MOST_DAYS, PriceAges

if TYPE_CHECKING:
    from flopwise.fleet.onprem import OwnPrice
    from flopwise.price_import.imports import PriceImport


def today() -> date:
    """The day by this machine's clock, UTC."""
    return datetime.now(tz=UTC).date()


@takes()
def prices(*, most_days: float | None = None, facts: str | Path | None = None, day: date | None = None) -> PriceAges:
    """The age of all prices, by provider.

    Args:
        most_days: age in days from which a price is stale (default: 180).
        day: that the age counts from (default: today, in UTC).

    Raises:
        SpecError: a file of facts or prices is broken.

    Examples:
        >>> import flopwise
        >>> {"aws", "gcp", "azure"} <= {age.provider for age in flopwise.prices().providers}
        True
    """
    return PriceAges.of(load_facts(facts), day or today(), MOST_DAYS if most_days is None else most_days)


@takes()
def import_prices(
    file: str | Path, *, name: str | None = None, provider: str | None = None, day: str | None = None,
    skip_unknown: bool = False, facts: str | Path | None = None,
) -> PriceImport:  # fmt: skip
    """Put the prices of a file over the shipped ones; nothing changes if any row of it is wrong.

    The answer's `notes` name new providers and prices that are far from those already known.

    Args:
        file: a CSV of gpuhunt, of SkyPilot's catalog, or with the columns of our own table.
        name: of these prices (default: the file's).
        provider: whose they are where no column says it (default: the name of file or folder, which must be a known
            provider).
        day: date of prices without one (default: the file's).
        skip_unknown: leave out rows of accelerators that are not known.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.

    Examples:
        >>> import flopwise
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp(), "ours.csv")
        >>> rows = "provider,instance,region,accelerator,count,on_demand_usd_per_hour,source,price_date"
        >>> _ = file.write_text(f"{rows}{chr(10)}ours,box,here,H100-SXM-80,8,16,contract,2026-11-01")
        >>> flopwise.import_prices(file).name
        'ours'
        >>> _ = flopwise.remove_prices("ours")
    """
    from flopwise.price_import import imports

    latest = (datetime.now(tz=UTC) + timedelta(hours=14)).date()  # the latest day that is today anywhere
    return imports.import_prices(
        Path(file), load_facts(facts), name=name, provider=provider, day=day, skip_unknown=skip_unknown, today=today(),
        latest=latest,
    )  # fmt: skip


@takes()
def refresh_prices(*, providers: Sequence[str] = (), facts: str | Path | None = None) -> PriceImport:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Args:
        providers: only theirs (default: of all).

    Raises:
        InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.

    Examples:
        >>> import flopwise
        >>> try:
        ...     fresh = flopwise.refresh_prices(providers=["aws"])
        ... except flopwise.InfeasibleError as error:
        ...     print("the existing prices stay")
        the existing prices ...
    """
    from flopwise.price_import import imports

    return imports.refresh_prices(providers, load_facts(facts), today())


def own_prices(
    gpu: str | None = None, *, utilisation: float = 0.6, facts: str | Path | None = None, **options: Any
) -> list[OwnPrice]:
    """Accelerators with a known purchase price, or the one named, the cheapest hour first.

    `options` are those of `SiteFigures` (`colocation=True, usd_per_kwh=0.2 ...`): what is not said is as usual of a
    building of your own, or of rented rooms.

    Raises:
        SpecError, UnknownNameError: a figure out of range; no such accelerator.
        InfeasibleError: nobody's purchase price of it is known.
    """
    from flopwise.fleet.offers import site
    from flopwise.fleet.onprem import hourly_prices
    from flopwise.fleet.spec import SiteFigures

    (figures,) = take(options, SiteFigures)
    return hourly_prices(load_facts(facts), site(figures, "site"), utilisation, gpu)
