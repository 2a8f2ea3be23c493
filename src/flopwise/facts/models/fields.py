"""A `config.json` read field by field: every value checked, every complaint naming the key.

Configurations come from anywhere, so nothing is trusted: sizes are whole, positive and bounded, flags are booleans, and
a key that is missing falls back on what transformers' configuration class has (`data/model_defaults.json`) or is named
in the error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from flopwise.data import DATA
from flopwise.errors import SpecError
from flopwise.facts.tables import read_json_object

T = TypeVar("T")
DEFAULTS_FILE = "model_defaults.json"

MAX_LAYERS = 100_000
MAX_SIZE = 10**12
NEEDED = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "d_ff", "d_kv",
)  # fmt: skip
"""Sizes that a configuration states itself, whatever its class has."""

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "model_dim", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "n_ctx", "seq_length"),
}


class ClassDefaults:
    """The defaults of transformers' configuration classes for keys that a `config.json` omits, by `model_type`.

    Of one type: `defaults`, `same` (spellings of a key), `nested` (types of nested ones).
    """

    def __init__(self, own: Path | None = None) -> None:
        """Read the defaults of data/model_defaults.json, with the types of a file of your own before them."""
        self.own = own
        self._dialects: dict[str, dict[str, Any]] = {}

    @cached_property
    def _own(self) -> dict[str, Any]:
        return {} if self.own is None else read_json_object(self.own)

    @cached_property
    def _text(self) -> str:
        return (DATA / DEFAULTS_FILE).read_text(encoding="utf-8")

    def of(self, model_type: str) -> dict[str, Any]:
        """The entry of a type, empty where there is none; of the shipped file only its line is parsed."""
        if model_type not in self._dialects:
            self._dialects[model_type] = self._own.get(model_type) or self._shipped_entry(model_type)
        return self._dialects[model_type]

    def _shipped_entry(self, model_type: str) -> dict[str, Any]:
        mark = f'\n  "{model_type}": '
        start = self._text.find(mark)
        if start < 0 or '"' in model_type:
            return {}
        start += len(mark)
        return dict(json.loads(self._text[start : self._text.index("\n", start)].rstrip(",")))

    def check(self) -> None:
        """Raise SpecError for a file of your own whose entries are not such objects."""
        for name, entry in self._own.items():
            if not isinstance(entry, dict) or not set(entry) <= {"defaults", "same", "nested"}:
                raise SpecError(f"{self.own}, {name}: an object of defaults, same and nested is needed")
            for part, values in entry.items():
                if not isinstance(values, dict):
                    raise SpecError(f"{self.own}, {name}, {part}: an object is needed")


SHIPPED_DEFAULTS = ClassDefaults()


class Fields:
    """One configuration object: checked access by key, with the defaults of its class behind it."""

    def __init__(
        self,
        given: Mapping[str, Any],
        model_type: str,
        where: str = "config.json",
        *,
        nested: bool = False,
        classes: ClassDefaults = SHIPPED_DEFAULTS,
    ) -> None:
        """Wrap `given`; a `nested` configuration may leave out even its sizes, as the hub's files do."""
        self.given, self.model_type, self.where, self.nested = given, model_type, where, nested
        self._classes, entry = classes, classes.of(model_type)
        self._defaults: Mapping[str, Any] = entry.get("defaults", {})
        self._same: Mapping[str, str] = entry.get("same", {})
        self._types: Mapping[str, str] = entry.get("nested", {})

    def wrong(self, key: str, value: object, allowed: str) -> SpecError:
        """Compose the error for a bad value."""
        shown = repr(value)
        return SpecError(f"{self.where}: {key} is {shown if len(shown) <= 80 else shown[:77] + '...'}; {allowed}")

    def _find(self, key: str) -> tuple[bool, Any]:
        """(True if the file gives `key` under any of its spellings, its value)."""
        for name in (key, self._same.get(key, key), *_SPELLINGS.get(key, ())):
            if name in self.given:
                return True, self.given[name]
        return False, None

    def has(self, key: str) -> bool:
        """True if the file itself gives a value other than null."""
        present, value = self._find(key)
        return present and value is not None

    def value(self, key: str, default: Any = None) -> Any:
        """The value of `key`: the file's (null included), else the class's default, else `default`."""
        present, value = self._find(key)
        if present:
            return value
        for name in (key, self._same.get(key, key)):
            if name in self._defaults:
                return self._defaults[name]
        return default

    def _whole(self, key: str, value: Any, low: int, high: int) -> int:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or value != int(value):  # no infinity and no NaN lies between
            raise self.wrong(key, value, f"a whole number from {low} to {high:,} is needed")
        return int(value)

    def size(self, key: str, default: int | None = None, *, high: int = MAX_SIZE) -> int:
        """A positive size. One that the file, its class and the caller leave open is an error that names the key."""
        present, value = self._find(key)
        if value is None and default is None and (self.nested or present or key not in NEEDED):
            value = self.value(key)
        if value is None:
            if default is None:
                raise SpecError(f"{self.where}: the key {key!r} is missing; a {self.model_type} configuration needs it")
            return default
        return self._whole(key, value, 1, high)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """A number of layers."""
        return self.size(key, high=MAX_LAYERS)

    def count(self, key: str, default: int | None = None) -> int:
        """A number that may be zero; null and absent mean the class's default, or `default`, or zero."""
        value = self.value(key, default)
        if value is None:
            return default or 0
        return self._whole(key, value, 0, MAX_SIZE)

    def maybe(self, key: str, default: int | None = None) -> int | None:
        """A positive number or None; null in the file means None. -1 and 0 mean none too, as some files write it."""
        value = self.value(key, default)
        return None if value is None or value in (0, -1) else self._whole(key, value, 1, MAX_SIZE)

    def _value_of_type(self, key: str, default: T, kind: Any, allowed: str) -> T:
        value = self.value(key, default)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, value, allowed)
        typed: T = value
        return typed

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        return self._value_of_type(key, default, bool, "true or false is needed")

    def number(self, key: str, default: float = 0.0) -> float:
        """A finite number."""
        value = self._value_of_type(key, default, int | float, "a finite number is needed")
        if not math.isfinite(value):
            raise self.wrong(key, value, "a finite number is needed")
        return float(value)

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        return self._value_of_type(key, default, str, "a text is needed")

    def sequence(self, key: str) -> list[Any] | None:
        """A list or None."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise self.wrong(key, value, f"a list of at most {MAX_LAYERS:,} entries is needed")
        return value

    def per_layer(self, key: str, layers: int, default: str) -> list[str]:
        """A list of one text a layer, such as `layer_types`; `default` throughout where it is not given."""
        value = self.sequence(key)
        if value is None:
            return [default] * layers
        if len(value) < layers or not all(isinstance(v, str) for v in value):
            raise self.wrong(key, value, f"a list of {layers} texts is needed, one a layer")
        return value[:layers]

    def part(self, key: str, model_type: str = "") -> Fields:
        """A nested configuration; one that is absent has its class's defaults throughout."""
        value = self.value(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object is needed")
        named = value.get("model_type")
        chosen = named if isinstance(named, str) and named else self._types.get(key, model_type)
        return self.within(value, chosen, f"{self.where}: {key}", nested=True)

    def within(self, given: Mapping[str, Any], model_type: str, where: str, *, nested: bool = False) -> Fields:
        """Another configuration, of the same classes."""
        return Fields(given, model_type, where, nested=nested, classes=self._classes)

    def heads(self, width: int, kv_key: str = "num_key_value_heads") -> tuple[int, int, int]:
        """Query heads, key-value heads and head dimension; refuses heads that do not divide."""
        heads = self.size("num_attention_heads")
        value = self.value(kv_key)
        kv_heads = heads if value is None else self._whole(kv_key, value, 1, MAX_SIZE)
        if heads % kv_heads:
            raise self.wrong(kv_key, kv_heads, f"it must divide num_attention_heads = {heads}")
        head_dim = self.maybe("head_dim")
        if head_dim is None:
            if width % heads:
                allowed = f"it must be a multiple of num_attention_heads = {heads}, or head_dim be given"
                raise self.wrong("hidden_size", width, allowed)
            head_dim = width // heads
        return heads, kv_heads, head_dim
