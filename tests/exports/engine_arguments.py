"""What the servers of released engines take and show: arguments against their flags, and the names of their metrics.

The tables in engines/ are made by record_engines.py from released packages; of engines without one, from their pages.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import RefusedError

TABLES = Path(__file__).parent / "engines"
COUNTS = {"none": (0, 0), "one": (1, 1), "optional": (0, 1), "many": (0, 10**6)}
"""How many values a flag takes, by the word of the table."""
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag: what it takes, and the values that it is limited to, if it is."""

    flag: str
    value: str
    choices: frozenset[str]


def rows(table: str, engine: str) -> list[dict[str, str]]:
    """The rows of an engine; `table`: releases, flags or metrics."""
    with (TABLES / f"{table}.csv").open(encoding="utf-8", newline="") as text:
        return [row for row in csv.DictReader(text) if row["engine"] == engine]


@functools.cache
def flags(engine: str) -> Mapping[str, Flag]:
    """The flags of an engine's server, by name."""
    return {
        row["flag"]: Flag(row["flag"], row["value"], frozenset(filter(None, row["choices"].split(";"))))
        for row in rows("flags", engine)
    }


@functools.cache
def series(engine: str) -> frozenset[str]:
    """Names of the series that an engine's page of metrics has."""
    found = rows("metrics", engine)
    return frozenset(f"{row['metric']}{part}" for row in found for part in PARTS.get(row["kind"], ("",)))


def engine_args(engine: str, argv: Sequence[str]) -> None:
    """Arguments of an engine's server: known flags, as many values as they take, of those allowed.

    Words before the first flag are positional; `--flag=value` is `--flag value`.
    """
    if not flags(engine):
        raise RefusedError(f"no flags of {engine} are known")
    faults = list(_faults(flags(engine), argv))
    if faults:
        raise RefusedError("\n".join(faults))


def _faults(known: Mapping[str, Flag], argv: Sequence[str]) -> Iterator[str]:
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    places = [index for index, word in enumerate(words) if _is_flag(word)]
    for at, after in zip(places, [*places[1:], len(words)], strict=True):
        flag, values = known.get(words[at]), words[at + 1 : after]
        if flag is None:
            yield f"{words[at]} is no flag"
            continue
        least, most = COUNTS[flag.value]
        if not least <= len(values) <= most:
            yield f"{flag.flag} takes {flag.value} value, not {values}"
        wrong = set(values) - flag.choices if flag.choices else ()
        yield from (f"{flag.flag} {value}: no choice of {sorted(flag.choices)}" for value in sorted(wrong))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit() and word[1] != "."
