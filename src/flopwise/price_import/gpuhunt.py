"""gpuhunt: its CSV, where a line is one price, on demand or spot, and what it fetches over the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flopwise.facts import tables
from flopwise.facts.catalog import Facts
from flopwise.facts.rows import each_row
from flopwise.price_import import quotes as parts
from flopwise.price_import.quotes import Line, Quote, form_of, provider_of, region_of

COLUMNS = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")


def quotes(path: Path, provider: str | None, facts: Facts, skipped: Counter[str]) -> Iterator[Quote]:
    """The prices of a file; lines that are none are counted in `skipped` by their reason.

    Raises: SpecError: with file, row and column.
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
