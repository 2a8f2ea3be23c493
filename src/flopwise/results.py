"""Common parts of answers: the verdict, plain data, a table, and their form in a notebook."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from flopwise.errors import SpecError
from flopwise.pictures import Picture


class Result:
    """An answer: `verdict` says it in a sentence, `to_dict` is the document of `--json`, `to_frame` its main table."""

    __slots__ = ()
    table: ClassVar[str] = ""
    """The key of the document that holds the rows of the main table; none: its plain figures are the rows."""
    explained: ClassVar[bool] = True
    """Whether `explain` can show where its figures come from."""

    if TYPE_CHECKING:

        @property
        def verdict(self) -> str:
            """The answer in a sentence."""

        __struct_fields__: ClassVar[tuple[str, ...]]

        def picture(self) -> Picture:
            """The picture that `plot` draws. SpecError where nothing is there to be drawn."""

    def document(self) -> dict[str, Any]:
        """The answer by key, its values as they are: those of all fields, where a class has no other."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data: what `--json` prints."""
        document: dict[str, Any] = plain({"verdict": self.verdict, **self.document()})
        return document

    def to_json(self) -> str:
        """The answer as JSON text."""
        return json_text(self.to_dict())

    def to_frame(self) -> Any:
        """The main table of the answer as a DataFrame of pandas, a row for each of its records.

        Raises: SpecError: pandas is not installed.
        """
        return _frame(records(self.to_dict(), self.table))

    def plot(self, axes: Any = None) -> Any:
        """Draw the answer with matplotlib, on `axes` where some are given; returns the axes.

        Raises: SpecError: matplotlib is not installed, or there is nothing to be drawn.
        """
        return self.picture().plot(axes)

    def __repr__(self) -> str:
        """The sentence, with the settings that it holds for."""
        settings = getattr(self, "settings", ())
        return "\n".join([f"<{type(self).__name__}> {self.verdict}", *(f"  {name}: {text}" for name, text in settings)])

    def _repr_html_(self) -> str:
        """The sentence and the main table, for notebooks."""
        return _page(self.verdict, records(self.to_dict(), self.table))


def json_text(document: Any) -> str:
    """`json.dumps` of plain data with an indent of two, of long documents five times as fast.

    With an indent the library walks the document in Python. A line without one is written in C, and indented in C.
    """
    line = json.dumps(document, allow_nan=False)
    if len(line) < LONG_CHARS:
        return json.dumps(document, indent=2, allow_nan=False)
    import msgspec  # noqa: PLC0415 - what gives long documents has loaded it

    try:
        return msgspec.json.format(line.encode(), indent=2).decode()
    except msgspec.DecodeError:  # half of a surrogate pair, in the name of a file that is not UTF-8
        return json.dumps(document, indent=2, allow_nan=False)


LONG_CHARS = 100_000
"""Length of a document from which a faster library is loaded."""
V = TypeVar("V")
NAMED = 4
"""Rows that a listing names in its `repr`."""


class FactRows(tuple[V, ...]):  # noqa: SLOT001 - a tuple with slots cannot keep `what` its rows are
    """Facts in their order: a tuple that shows in a line, in a notebook as a table, and gives plain data."""

    what: str
    picture: Callable[[FactRows[Any]], Picture] | None

    def __new__(
        cls, rows: Iterable[V] = (), what: str = "rows", picture: Callable[[FactRows[Any]], Picture] | None = None
    ) -> Self:
        """`what` they are, in the plural: accelerators. `picture`: what `plot` draws of them."""
        made = super().__new__(cls, rows)
        made.what, made.picture = what, picture
        return made

    def to_dict(self) -> list[Any]:
        """The rows as plain data: what `--json` prints."""
        return [plain(row) for row in self]

    def to_frame(self) -> Any:
        """The rows as a DataFrame of pandas. SpecError: pandas is not installed."""
        return _frame(records(self.to_dict()))

    def plot(self, axes: Any = None) -> Any:
        """Draw the rows with matplotlib, on `axes` where some are given; returns the axes.

        Raises: SpecError: matplotlib is not installed, or there is nothing to be drawn.
        """
        if self.picture is None or not self:
            raise SpecError(f"there is nothing to plot of {self.title}")
        return self.picture(self).plot(axes)

    def __repr__(self) -> str:
        """The number of rows, and the first of them."""
        names = [_name(row) for row in self[:NAMED]]
        return f"<{self.title}: {', '.join(names)}{' ...' * (len(self) > NAMED)}>"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        return _page(self.title, records(self.to_dict()))

    @property
    def title(self) -> str:
        """The number of rows, and their name."""
        return f"{len(self):,} {self.what if len(self) != 1 else self.what.removesuffix('s')}"


def _name(row: Any) -> str:
    """The name of a row of facts."""
    names = ("name", "gpu", "instance", "region")
    values = row if isinstance(row, Mapping) else {name: getattr(row, name, None) for name in names}
    return str(values.get("name") or values.get("gpu") or f"{values.get('instance')} in {values.get('region')}")


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise SpecError("to_frame needs pandas: pip install pandas") from None
    return pandas.DataFrame(rows)


def _page(title: str, rows: list[dict[str, Any]]) -> str:
    """A sentence above a table of the figures of `rows`, as HTML."""
    import html  # noqa: PLC0415 - only notebooks need it

    shown = [f"<p><strong>{html.escape(title)}</strong></p>"]
    if rows:
        heads = [name for name, value in rows[0].items() if not isinstance(value, dict | list)]
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
        lines = [f"<tr>{cells}</tr>"]
        for row in rows:
            cells = "".join(f"<td>{html.escape(_cell_text(row.get(name)))}</td>" for name in heads)
            lines.append(f"<tr>{cells}</tr>")
        shown.append(f"<table>{''.join(lines)}</table>")
    return "\n".join(shown)


def records(document: Any, table: str | None = "") -> list[dict[str, Any]]:
    """The rows of the main table of a document: those under the key `table`, or the document where it is a list.

    Without a `table` the first list of objects is it; where there is none, or it is None (the parts of a step of what
    does not fit), or `table` is None, the plain figures with their names.
    """
    if isinstance(document, list):
        return [row if isinstance(row, dict) else {"value": row} for row in document]
    if table and document[table] is not None:
        return list(document[table])
    for value in document.values() if table == "" else ():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            return value
    return [{"name": n, "value": v} for n, v in document.items() if n != "verdict" and not isinstance(v, dict | list)]


SMALLEST = 1e-9
"""Figures below this are written with an exponent."""


def _cell_text(value: Any) -> str:
    """A cell of a notebook's table: a figure has four significant digits."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)  # infinities and NaN are None by now
    rounded = float(f"{value:.4g}")
    if not rounded or abs(rounded) < SMALLEST:
        return f"{rounded:g}"
    text = f"{rounded:,.{max(3 - math.floor(math.log10(abs(rounded))), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain(value: Any) -> Any:
    """`value` as JSON types: records become objects, arrays lists, NaN and infinities null, paths text."""
    convert = _CONVERT.get(type(value))  # most values are of these very types
    return _plain_record(value) if convert is None else convert(value)


def _plain_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): inner if type(inner) in _AS_IT_IS else plain(inner) for key, inner in value.items()}


def _plain_list(value: Iterable[Any]) -> list[Any]:
    return [inner if type(inner) in _AS_IT_IS else plain(inner) for inner in value]


def _plain_float(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _same(value: V) -> V:
    return value


_AS_IT_IS: frozenset[type] = frozenset({str, int, bool, type(None)})
_CONVERT: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(_AS_IT_IS, _same), float: _plain_float, dict: _plain_mapping, list: _plain_list, tuple: _plain_list,
}  # fmt: skip


def _plain_record(value: Any) -> Any:
    """As `plain`, of a record, an array, or a value of a type that is derived from those of JSON."""
    if hasattr(value, "tolist"):  # arrays and their scalars
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value) if not field.metadata.get("inner")}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__struct_fields__"):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    match value:
        case Enum():
            return plain(value.value)
        case bool() | int() | str() | None:
            return value
        case float():
            return _plain_float(value)
        case Mapping():
            return _plain_mapping(value)
        case list() | tuple() | set() | frozenset():
            return _plain_list(value)
        case _:
            return str(value)


def attributes(record: Any, paths: str) -> dict[str, Any]:
    """The attributes of a record by their `paths`, a blank between them; `key=path` where the last name is not the key.

    What lies behind a None is None.
    """
    values = {}
    for text in paths.split():
        key, _, path = text.rpartition("=")
        value = record
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        values[key or path.rpartition(".")[2]] = value
    return values


def without_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a document, whose lists are empty and whose other values are null."""
    return {name: [] if isinstance(value, list) else None for name, value in document.items()}


def entries(pairs: Iterable[tuple[str, Any]], what: str) -> list[dict[str, Any]]:
    """(name, figure) pairs as objects with `name` and `what`."""
    return [{"name": name, what: figure} for name, figure in pairs]


def interval(band: Any) -> dict[str, Any] | None:
    """The class of measurements that an interval comes from; None where nothing was measured."""
    if band is None:
        return None
    own = (
        {}
        if band.family_rows is None
        else attributes(band, "evidence architecture=family architecture_rows=family_rows")
    )
    return {"class": band.name, "rows": band.rows, **own, "source": band.source}


def notes(answer: Any) -> dict[str, Any]:
    """The settings and assumptions, the last keys of a document."""
    return {"settings": dict(answer.settings), "assumptions": list(answer.assumptions)}
