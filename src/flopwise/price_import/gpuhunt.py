"""gpuhunt: its CSV, where a line is one price, on demand or spot, and what it fetches over the network."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError
from flopwise.facts import tables
from flopwise.facts.rows import each_row
from flopwise.price_import import quotes as parts
from flopwise.price_import.quotes import PROVIDERS, Line, Quote, form_of, provider_of, region_of

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts

COLUMNS = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")


def quotes(path: Path, provider: str | None, facts: Facts, skipped: Counter[str]) -> Iterator[Quote]:
    """The prices of a file; lines that are none are counted in `skipped` by their reason.

    Raises:
        SpecError: with file, row and column.
    """
    known = {offer.provider for offer in facts.offers}
    for at in (Line(path, row) for row in each_row(path, COLUMNS)):
        spot = at.cell("spot").lower()
        if spot not in ("true", "false"):
            raise at.error("spot", at.cell("spot"), "allowed: True, False")
        usd = at.value("price", tables.usd_per_hour)
        if usd is None:
            skipped["no price"] += 1
            continue
        whose = provider_of(path, at.cell("provider") or provider, known)
        yield Quote(
            provider=whose, instance=at.text("instance_name"), region=region_of(whose, at.text("location")),
            gpu=at.cell("gpu_name") or None, gpus=at.value("gpu_count", parts.num_gpus) or 0,
            gpu_gib=at.value("gpu_memory", parts.gibibytes), form=form_of(at.cell("instance_name")),
            vcpus=at.value("cpu", parts.whole), ram_gib=at.value("memory", parts.gibibytes),
            file=str(path), line=at.line,
            **{"spot" if spot == "true" else "on_demand": usd},
        )  # fmt: skip


class _LogLines(logging.Handler):
    """Keeps what another's code logs, a line a message, in place of its tracebacks on the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.lines.append(" ".join(record.getMessage().split())[:200])


def fetch_quotes(providers: Sequence[str]) -> tuple[list[Quote | None], list[str]]:
    """(what gpuhunt finds of `providers`, or all: None where an item has no price of use; what it complains of).

    Raises:
        InfeasibleError: gpuhunt is not installed, or could not fetch them.
    """
    cannot = "prices cannot be refreshed; the ones there are stay as they are"
    try:
        hunt = import_module("gpuhunt")
    except ImportError:
        how = "gpuhunt is not installed: pip install 'flopwise[prices]', or import a file (flopwise prices import FILE)"
        raise InfeasibleError(cannot, [how]) from None
    theirs = {ours: name for name, ours in PROVIDERS.items()}
    wanted = {"provider": [theirs.get(p.lower(), p.lower()) for p in providers]} if providers else {}
    log, logged = logging.getLogger("gpuhunt"), _LogLines()
    shown, log.propagate = log.propagate, False
    log.addHandler(logged)
    try:
        catalog = hunt.Catalog(auto_reload=False)
        if not os.environ.get("GPUHUNT_CATALOG_DIR"):  # where files at hand stand in for its published ones
            catalog.load()
        return [_quote(item) for item in catalog.query(**wanted)], logged.lines
    except Exception as fault:  # noqa: BLE001 - another's code and the network: whatever it is, it is the reason
        what = " ".join(str(fault).split())[:200]
        raise InfeasibleError(cannot, [f"gpuhunt could not fetch them: {type(fault).__name__}: {what}"]) from None
    finally:
        log.removeHandler(logged)
        log.propagate = shown


def _quote(item: Any) -> Quote | None:
    """An item of gpuhunt; None where it has no price above zero or no place."""
    usd = item.price
    whose = PROVIDERS.get(str(item.provider), str(item.provider))
    if not (isinstance(usd, int | float) and 0 < usd < 1e6 and item.instance_name and item.location):
        return None
    return Quote(
        provider=whose, instance=item.instance_name, region=region_of(whose, item.location), gpu=item.gpu_name or None,
        gpus=item.gpu_count or 0, gpu_gib=item.gpu_memory or None, form=form_of(item.instance_name),
        vcpus=item.cpu or None, ram_gib=item.memory or None, file="gpuhunt",
        on_demand=None if item.spot else float(usd), spot=float(usd) if item.spot else None,
    )  # fmt: skip
