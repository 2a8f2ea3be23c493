"""What inference engines run and how they start: weight formats, custom all-reduce, offloading, seconds until ready.

Rows of data/engine_support.csv; an engine without a row of its own takes that of the family its name begins with.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from flopwise.data import DATA
from flopwise.errors import SpecError
from flopwise.facts.software import engine, of_family

if TYPE_CHECKING:
    from flopwise.facts.formats import Format

FILE = "engine_support.csv"
OFFLOADS = ("none", "stream", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One engine, or family of engines. Seconds are of one start with nothing compiled before."""

    name: str
    formats: frozenset[str]  # weight formats, or the words before the first dash of theirs; gguf: all of llama.cpp's
    custom_all_reduce: bool  # kernels of its own for small messages
    offload: Literal["none", "stream", "host"]  # layers in host memory: not at all, brought each step, computed there
    bootstrap_s: float  # process, imports, configuration, communicators
    warmup_s: float  # profiling, cache allocation, first request
    compile_s_per_layer: float  # tracing and compiling the model
    capture_s_per_layer: float  # capturing graphs
    loader_bytes_per_s: float  # most that one rank's default loader reads from a cold file; 0: no limit known
    source: str

    def runs(self, form: Format) -> bool:
        """Whether it is documented to run weights of that format."""
        names = {form.name, form.name.split("-")[0], *(("gguf",) if form.kind == "gguf" else ())}
        return bool(names & self.formats)


@cache
def _rows() -> dict[str, Support]:
    found: dict[str, Support] = {}
    text = (DATA / FILE).read_text(encoding="utf-8")
    for line, cells in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found[cells["name"]] = Support(
                name=cells["name"],
                formats=frozenset(cells["formats"].split()),
                custom_all_reduce={"true": True, "false": False}[cells["custom_all_reduce"]],
                offload=OFFLOADS[OFFLOADS.index(cells["offload"])],  # type: ignore[arg-type]  # words of the literal
                bootstrap_s=float(cells["bootstrap_s"]),
                warmup_s=float(cells["warmup_s"]),
                compile_s_per_layer=float(cells["compile_s_per_layer"]),
                capture_s_per_layer=float(cells["capture_s_per_layer"]),
                loader_bytes_per_s=float(cells["loader_bytes_per_s"]),
                source=cells["source"],
            )
        except (KeyError, ValueError) as wrong:
            raise SpecError(f"{FILE} line {line}: {wrong}") from None
    return found


def support(name: str) -> Support:
    """The row of the engine of that name, in any common spelling.

    Raises:
        UnknownNameError: no such engine.
    """
    return of_family(_rows(), engine(name).name, FILE)
