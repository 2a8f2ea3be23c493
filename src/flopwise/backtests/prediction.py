"""Prediction of one measured quantity, reading of a row's cells, and the models that rows name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from flopwise.cost.intervals import ErrorBand
from flopwise.errors import FlopwiseError, MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.catalog import TYPICAL
from flopwise.facts.models.config import model_from_config
from flopwise.facts.models.sizes import size_of, typical_config
from flopwise.training.layout import TARGET_SETS
from flopwise.values import dataclass, replace

Row = Mapping[str, str]
Value = TypeVar("Value")
FLOOR_SLACK = 0.97  # figures are printed rounded
MOST = 10**8
"""The largest whole number allowed in a cell: tokens, sequences, GPUs."""
BRACKETS = re.compile(r"\s*\((.*)\)\s*$")
"""A remark at the end, in brackets."""
DENSE = 0.9
"""Share of active parameters below which a model is a mixture, which its size does not describe."""
VOCABULARIES = (32_000, 151_936)
"""Vocabularies of dense models of 2023 to 2026, of which few are smaller or larger: Llama 2's and Qwen's."""
QUANT_SUFFIX = re.compile(
    r"[-._:](?:UD-)?((?:I?Q\d(?:_[0-9KMSLX]+)*)|F16|BF16|F32|FP8|MXFP4|NVFP4|AWQ-INT4|AWQ|GPTQ|4bit|8bit)(?:-Fast)?$",
    re.IGNORECASE,
)
"""A format at the end of a file's or a tag's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One quantity of one row: measured, predicted with its 10-90 % interval, or skipped with a reason."""

    id: str
    unit: str
    quantity: str = ""
    measured: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    skipped: str | None = None
    band: ErrorBand | None = None  # where the interval is from
    floor: float | None = None  # what physics allows at least

    @property
    def not_scored(self) -> str | None:
        """The reason why a predicted row is reported but not scored."""
        if self.floor is None or self.measured is None or self.measured >= FLOOR_SLACK * self.floor:
            return None
        return f"measured {self.measured:.4g} {self.unit}, less than the {self.floor:.4g} that physics allows"

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1, or None; of a row that is reported only, None, too."""
        if self.predicted is None or not self.measured or self.not_scored:
            return None
        return self.predicted / self.measured - 1


def prediction_of(row: Row, unit: str, column: str, figure: Callable[[], tuple[float, ErrorBand]]) -> Prediction:
    """The prediction of the quantity that `column` measures, with the 10-90 % interval of its class of errors.

    A FlopwiseError of `figure` is the reason why the row is skipped.
    """
    name, measured = row.get("id", ""), number(row, column)
    try:
        value, band = figure()
    except FlopwiseError as error:
        return Prediction(id=name, unit=unit, measured=measured, skipped=str(error))
    low, high = map(float, band.interval(value))
    return Prediction(id=name, unit=unit, measured=measured, predicted=value, low=low, high=high, band=band)


def number(row: Row, column: str) -> float | None:
    """A cell as a finite positive number, or None."""
    try:
        value = float(row.get(column) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def whole(row: Row, column: str, default: int) -> int:
    """A cell as a whole number of at least 1; the default where it is empty or zero.

    Raises: SpecError: it is something else.
    """
    text = (row.get(column) or "").strip()
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise SpecError(f"{column} is {text[:30]!r}; allowed: a whole number from 1 to {MOST:,}")
    return max(1, int(value)) if value else default


def flag(row: Row, column: str, *, default: bool) -> bool:
    """A cell as yes or no, or the default."""
    text = (row.get(column) or "").strip().lower()
    if text in {"true", "yes", "1"}:
        return True
    return False if text in {"false", "no", "0"} else default


def choice(row: Row, column: str, values: Mapping[str, Value], default: Value) -> Value:
    """The value that a cell names, or the default where it is empty. Raises SpecError: it names none."""
    text = (row.get(column) or "").strip().lower()
    if text and text not in values:
        raise SpecError(f"{column} is {text[:40]!r}; allowed: {', '.join(values)}")
    return values[text] if text else default


def lora_targets(text: str) -> tuple[str, ...]:
    """Adapted projections: the name of a set of them, or one by one as in "q k v"."""
    return TARGET_SETS.get(text) or tuple(text.split())


def model_spellings(text: str) -> list[str]:
    """The names under which a model may be known, most literal first: then without remarks, folders, endings."""
    plain = BRACKETS.sub("", text).strip()
    last = plain.removeprefix("hf.co/").rsplit("/", 1)[-1]
    file = re.sub(r"\.gguf$", "", last, flags=re.IGNORECASE)
    bare, before = file, ""
    while bare != before:
        before, bare = bare, QUANT_SUFFIX.sub("", bare)
        bare = re.sub(r"(-mlx|-qat|-mtp|-GGUF)$", "", bare, flags=re.IGNORECASE)
    owner = bare.split("_", 1)[-1]
    names = [text, plain, last, file, bare, bare.replace(":", "-"), owner]
    names += [
        re.sub(r"[-_](instruct|it|thinking)([-_.]\d{4}|-v[\d.]+)?$", "", n, flags=re.IGNORECASE) for n in names[4:]
    ]
    names += [n for name in plain.split("/") if (n := name.strip())]
    return list(dict.fromkeys(n for n in names if n))


def stated_model(row: Row, facts: Facts) -> Model:
    """The model of a row: of the configuration that it names, else the one that its `model` names.

    Raises: SpecError: there is no such configuration, its layers are not known, or as `named_model`.
    """
    path = row.get("config")
    model = facts.model(path, offline=True) if path else named_model(row.get("model", ""), facts)
    if not model.stacks:
        raise MissingFactError(f"{model.name} has no token layers in the catalog, only published figures")
    return model


def model_by_size(row: Row, facts: Facts) -> Model:
    """The model of a row; one that nobody knows is a dense model of the size that the row prints.

    Raises: SpecError: the name is not known, and the row prints no size, or that of a mixture; as `stated_model`.
    """
    try:
        return stated_model(row, facts)
    except SpecError:
        if (size := dense_size(row)) is None:
            raise
        return _typical_model(row, size, whole(row, "vocab", 0))


def models_by_size(row: Row, model: Model) -> list[Model]:
    """Models that a row of which nobody knows more than a size may mean: of a small vocabulary, and of a large one."""
    size = dense_size(row)
    if size is None or model.source != TYPICAL:
        return []
    return [_typical_model(row, size, vocabulary) for vocabulary in VOCABULARIES]


def dense_size(row: Row) -> float | None:
    """The parameters that a row prints of a dense model; None of others, and of one with a configuration."""
    total, active = number(row, "params"), number(row, "active_params")
    size = total or active
    return None if row.get("config") or not size or (active and active < DENSE * size) else size


def _typical_model(row: Row, size: float, vocabulary: int = 0) -> Model:
    config = typical_config(size)
    config["vocab_size"] = vocabulary or config["vocab_size"]
    return replace(model_from_config(config, name=row.get("model", "")), source=TYPICAL)


def named_model(text: str, facts: Facts) -> Model:
    """The model that `text` names, offline.

    Raises: SpecError: none of its spellings is known; as for the first of them.
    """
    spellings = model_spellings(text)
    failure: SpecError | None = None
    if text in facts.models.names:  # of which a few have a slash: ViT-H/14
        return facts.model(text, offline=True)
    for name in spellings:
        if "/" in name or name.lower().endswith(".gguf"):
            continue
        if size_of(name) is not None and size_of(text) is None:  # what is left of a name is no model of that size
            continue
        try:
            return facts.model(name, offline=True)
        except SpecError as wrong:
            failure = failure or wrong
    raise failure or SpecError("the row names no model")
