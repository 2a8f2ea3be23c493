"""Frozen data classes that are quick to make.

`dataclasses.dataclass` compiles six functions for each class. An estimate imports a hundred classes of up to seventy
fields, and a third of its time went into compiling. This decorator has the same meaning and leaves real data classes
(`fields`, `replace` and `asdict` work), but compiles `__init__` only: comparing, hashing, printing and the refusal of
assignments are written once, below. `__init__` waits for a class that has some objects: most runs make none of half of
the classes, and few of most others, whose fields are set one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, wraps
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def replace(record: Any, /, **changes: Any) -> Any:
        """`dataclasses.replace`, in a fifth of the time for frozen classes of this module: no field is a keyword."""
        form = getattr(record, "_form", None)
        if form is None or form.cls is not record.__class__ or not changes.keys() <= form.setters.keys():
            return dataclasses.replace(record, **changes)
        made = object.__new__(form.cls)
        for setter, value in zip(form.setters.values(), form.values(record), strict=True):
            setter(made, value)
        for name, value in changes.items():
            form.setters[name](made, value)
        for setter, value in form.fresh:
            setter(made, value())
        if form.has_more:
            made.__post_init__()
        return made

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
            fields_alone = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
            return _frozen(fields_alone, repr=repr, eq=eq, slots=slots)

        return wrap if cls is None else wrap(cls)


__all__ = ["dataclass", "replace"]

_MISSING = dataclasses.MISSING


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
        if slots:
            methods["_form"] = _UnreadForm(cls, fields)
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def kept_by_identity(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: keep up to `most` results of a function of frozen objects, by which objects it is given.

    For `functools.lru_cache` a large object is hashed on every call, which can take longer than the function itself.
    Objects stay alive as long as their results are kept, so that no other one is taken for them.
    """

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        kept: dict[tuple[Any, ...], tuple[Any, R]] = {}

        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            key = (*map(id, args), *given, *map(id, given.values()))
            if (found := kept.get(key)) is not None:
                return found[1]
            result = function(*args, **given)
            if len(kept) >= most:
                kept.clear()
            kept[key] = (args, given), result
            return result

        return call

    return decorator


FEW = 8
"""Objects of a class that are filled field by field. To compile `__init__` takes as long as to fill thirty."""


class _Unmade:
    """`__init__` of a class of which there are few objects yet: it sets their fields in turn, and is then compiled."""

    __slots__ = ("cls", "fields", "filled")

    def __init__(self, cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
        self.cls, self.fields, self.filled = cls, fields, 0

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function in its place, bound as functions are."""
        if instance is not None and self.filled < FEW:
            self.filled += 1
            return partial(self.fill, instance)
        return self.initialiser().__get__(instance, owner)

    def initialiser(self) -> Any:
        """The function, which from now on is the method of the class."""
        made = self.cls.__dict__["__init__"]
        if made is self:
            made = _initialiser(self.cls, self.fields)
            setattr(self.cls, "__init__", made)  # noqa: B010 - of a class whose `__init__` is not known yet
        return made

    def fill(self, instance: Any, /, *args: Any, **given: Any) -> None:
        """Set the fields of one object as the compiled function would, which refuses what does not fit."""
        places = [field.name for field in self.fields if field.init and not field.kw_only]
        values = dict(zip(places, args, strict=False)) | given
        left, complete = len(values), len(values) == len(args) + len(given)
        for field in self.fields:
            if field.init and field.name in values:
                value, left = values[field.name], left - 1
            elif field.default is not _MISSING:
                value = field.default
            elif field.default_factory is not _MISSING:
                value = field.default_factory()
            else:
                complete = complete and not field.init
                continue
            object.__setattr__(instance, field.name, value)
        if left or not complete:
            self.initialiser()(instance, *args, **given)
        elif hasattr(instance, "__post_init__"):
            instance.__post_init__()


class _Form:
    """The steps of copying an object of a class of slots: read its values at once, set each, then set what is new."""

    __slots__ = ("cls", "fresh", "has_more", "setters", "values")

    def __init__(self, cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
        self.cls, self.has_more = cls, hasattr(cls, "__post_init__")
        names = [field.name for field in fields if field.init]
        self.setters = {name: getattr(cls, name).__set__ for name in names}
        read = attrgetter(*names) if len(names) > 1 else None
        self.values = read or (lambda record: tuple(getattr(record, name) for name in names))
        self.fresh = [
            (getattr(cls, field.name).__set__, partial(_fresh_value, field))
            for field in fields
            if not field.init and not field.default is field.default_factory is _MISSING
        ]


def _fresh_value(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is _MISSING else field.default_factory()


class _UnreadForm:
    """The form of a class of which no object has been copied yet."""

    __slots__ = ("cls", "fields")

    def __init__(self, cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
        self.cls, self.fields = cls, fields

    def __get__(self, instance: Any, owner: type | None = None) -> _Form:
        """The form, which from now on is in its place."""
        form = _Form(self.cls, self.fields)
        setattr(self.cls, "_form", form)  # noqa: B010 - of a class whose form is not known yet
        return form


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
