"""Frozen data classes that are quick to make.

`dataclasses.dataclass` compiles six functions for each class. An estimate imports a hundred classes of up to seventy
fields, and a third of its time went into compiling. This decorator has the same meaning and leaves real data classes
(`fields`, `replace` and `asdict` work), but compiles `__init__` only: comparing, hashing, printing and the refusal of
assignments are written once, below. `__init__` waits for the first object: most runs make none of half of the classes.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        slots: bool = False,
        kw_only: bool = False,
        repr: bool = True,  # noqa: A002 - the names of dataclasses
        eq: bool = True,
        frozen: bool = False,
    ) -> Any:
        """`dataclasses.dataclass`; a frozen class has its methods from here."""
        options = {"slots": slots, "kw_only": kw_only}

        def wrap(cls: type) -> type:
            if not frozen:
                return dataclasses.dataclass(cls, repr=repr, eq=eq, **options)
            plain = _with_fields(cls, **options) or dataclasses.dataclass(
                cls, init=False, repr=False, eq=False, **options
            )
            return _frozen(plain, repr=repr, eq=eq, slots=slots)

        return wrap if cls is None else wrap(cls)


__all__ = ["dataclass"]

_MISSING = dataclasses.MISSING
_NO_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")
"""Annotations of what is no field, or no plain one."""


@cache
def _template(slots: bool, kw_only: bool) -> type:
    """A real data class; what `dataclasses` notes of a class and of a field is copied from it."""
    documented = {"__doc__": "Of its own, or a signature would be looked for to stand there."}
    return dataclasses.make_dataclass(
        "Template", ["one"], namespace=documented, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
    )


def _with_fields(cls: type, *, slots: bool, kw_only: bool) -> type | None:
    """`cls` as `dataclasses` makes it of plain fields, but quicker; None where an annotation asks for more."""
    annotations = inspect.get_annotations(cls)
    template: Any = _template(slots, kw_only)
    if not all(isinstance(kind, str) and all(word not in kind for word in _NO_FIELDS) for kind in annotations.values()):
        return None
    fields: dict[str, Any] = {}
    for base in cls.__mro__[-1:0:-1]:
        fields |= getattr(base, "__dataclass_fields__", {})
    for name, kind in annotations.items():
        field: Any = _field_of(cls, name)
        field.name, field.type = name, kind
        field._field_type = template.__dataclass_fields__["one"]._field_type  # noqa: SLF001 - what `fields` asks for
        if field.kw_only is _MISSING:
            field.kw_only = kw_only
        fields[name] = field
    noted: dict[str, Any] = {"__dataclass_fields__": fields, "__dataclass_params__": template.__dataclass_params__}
    if "__match_args__" not in cls.__dict__:
        noted["__match_args__"] = tuple(name for name, field in fields.items() if field.init and not field.kw_only)
    for name, value in noted.items():
        setattr(cls, name, value)
    return abc.update_abstractmethods(_class_with_slots(cls, tuple(fields)) if slots else cls)


def _field_of(cls: type, name: str) -> Any:
    """The field that an annotated name of `cls` stands for; where one was written out, its default takes its place."""
    value = getattr(cls, name, _MISSING)
    if isinstance(value, dataclasses.Field):
        if value.default is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, value.default)
        return value
    if isinstance(value, MemberDescriptorType):  # a slot of a base
        return dataclasses.field()
    if value is not _MISSING and value.__class__.__hash__ is None:
        raise ValueError(f"{name} of {cls.__qualname__}: a default that can change is shared; use default_factory")
    return dataclasses.field(default=value)


def _class_with_slots(cls: type, names: tuple[str, ...]) -> type:
    """The same class with slots for those of `names` that no base has one for."""
    kept = {name: value for name, value in vars(cls).items() if name not in {*names, "__dict__", "__weakref__"}}
    of_bases = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    kept |= {"__slots__": tuple(name for name in names if name not in of_bases), "__qualname__": cls.__qualname__}
    made: type = type(cls)(cls.__name__, cls.__bases__, kept)
    return made


def _frozen(cls: type, *, repr: bool, eq: bool, slots: bool) -> type:  # noqa: A002 - the names of dataclasses
    """`cls`, a data class of fields alone, with the methods of a frozen one; a method that its author wrote stays."""
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
    if repr:
        methods["__repr__"] = _text
    if eq:
        hashed = [field for field in fields if (field.compare if field.hash is None else field.hash)]
        methods |= {"__eq__": _equal, "_compared": _values_of([field for field in fields if field.compare])}
        methods |= {"__hash__": _hash, "_hashed": _values_of(hashed)}
    if slots:
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    own = vars(cls)
    methods = {
        name: method
        for name, method in methods.items()
        if name not in own or (name == "__hash__" and own[name] is None)
    }
    if "__init__" not in own:
        methods["__init__"] = _Unmade(cls, fields)
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


class _Unmade:
    """`__init__` of a class of which there is no object yet; compiled when it is first looked up."""

    __slots__ = ("cls", "fields")

    def __init__(self, cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
        """Of `cls`."""
        self.cls, self.fields = cls, fields

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function in its place, bound as functions are."""
        made = self.cls.__dict__["__init__"]
        if made is self:
            made = _initialiser(self.cls, self.fields)
            setattr(self.cls, "__init__", made)  # noqa: B010 - of a class whose `__init__` is not known yet
        return made.__get__(instance, owner)


def _initialiser(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """`__init__` of `cls`: sets each field past `__setattr__`, then calls `__post_init__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": _MISSING}
    positional, keywords, lines = ["self"], list[str](), list[str]()
    for field in fields:
        name, value = field.name, field.name
        if field.default is not _MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not _MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_MISSING"
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameter = name
        if field.init:
            (keywords if field.kw_only else positional).append(parameter)
        elif field.default_factory is not _MISSING:
            value = f"_make_{name}()"
        elif field.default is not _MISSING:
            value = f"_default_{name}"
        else:
            continue
        slot = getattr(cls, name, None)
        if isinstance(slot, MemberDescriptorType):
            names[f"_set_{name}"] = slot.__set__
            lines.append(f" _set_{name}(self, {value})")
        else:
            lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    scope: dict[str, Any] = {}
    exec(f"def __init__({parameters}):\n" + ("\n".join(lines) or " pass"), names, scope)  # noqa: S102 - names of our own fields
    initialise = scope["__init__"]
    initialise.__qualname__ = f"{cls.__qualname__}.__init__"
    initialise.__module__ = cls.__module__
    return initialise


def _values_of(fields: list[dataclasses.Field[Any]]) -> Any:
    """The function that returns the values of `fields` of an object."""
    return staticmethod(attrgetter(*(field.name for field in fields)) if fields else lambda _: ())


def _refuse_assignment(self: Any, name: str, value: Any) -> None:  # noqa: ARG001 - the signature of __setattr__
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:  # noqa: ARG001 - the signature of __delattr__
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._hashed(self))


@recursive_repr()
def _text(self: Any) -> str:
    values = ", ".join(
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    )
    return f"{self.__class__.__qualname__}({values})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
