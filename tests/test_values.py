"""Data classes made by `flopwise.values` behave as those of `dataclasses` do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from flopwise import values


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """The standard library's."""

    name: str
    sizes: tuple[int, ...] = (1, 2)
    notes: list[str] = dataclasses.field(default_factory=list, compare=False)
    hidden: int = dataclasses.field(default=3, repr=False)
    rates: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        """The sum of the sizes is kept."""
        object.__setattr__(self, "total", sum(self.sizes))


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The same class, made here."""

    name: str
    sizes: tuple[int, ...] = (1, 2)
    notes: list[str] = dataclasses.field(default_factory=list, compare=False)
    hidden: int = dataclasses.field(default=3, repr=False)
    rates: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        """The sum of the sizes is kept."""
        object.__setattr__(self, "total", sum(self.sizes))


@values.dataclass(frozen=True, slots=True)
class Base:
    """Two fields by place, a method of its own."""

    first: int
    second: str = "b"

    def __repr__(self) -> str:
        """Not the fields."""
        return "base"


@values.dataclass(frozen=True, slots=True)
class Derived(Base):
    """One field more."""

    third: float = 0.5


@values.dataclass(frozen=True, slots=True)
class Empty:
    """No field at all."""


CASES = ({"name": "a"}, {"name": "b", "sizes": (4,)}, {"name": "b", "sizes": (4,), "notes": ["x"], "hidden": 9})


@pytest.mark.parametrize("given", CASES)
def test_same_fields_text_and_copies(given: dict[str, Any]) -> None:
    theirs, ours = Theirs(**given), Ours(**given)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    renamed = dataclasses.replace(ours, name="c")
    assert dataclasses.asdict(renamed) == dataclasses.asdict(dataclasses.replace(theirs, name="c"))
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours  # noqa: S301 - its own bytes
    assert hash(ours) == hash(theirs)
    assert ours.notes is not Ours(name="a").notes, "each object has a list of its own"


@pytest.mark.parametrize("made", [Theirs, Ours])
def test_comparison_leaves_out_what_is_not_compared(made: type) -> None:
    assert made(name="a", notes=["x"]) == made(name="a", notes=["y"])
    assert made(name="a") != made(name="a", hidden=4)
    assert made(name="a") != "a"


@pytest.mark.parametrize("made", [Theirs, Ours])
def test_assignment_deletion_and_wrong_arguments_are_refused(made: type) -> None:
    one = made(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'name'"):
        del one.name
    for wrong in ({}, {"name": "a", "total": 3}, {"name": "a", "colour": 1}):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            made(**wrong)
    with pytest.raises(TypeError):
        made("a")


def test_inherited_fields_and_a_method_of_the_class() -> None:
    one = Derived(1, "c")
    assert (one.first, one.second, one.third) == (1, "c", 0.5)
    assert repr(Base(1)) == "base"
    assert repr(one) == "Derived(first=1, second='c', third=0.5)", "a text for each class, as with dataclasses"
    assert Base(1, "c") != one
    assert Empty() == Empty()
    assert hash(Empty()) == hash(())
    assert [field.name for field in dataclasses.fields(Derived)] == ["first", "second", "third"]


def test_classes_that_may_change_are_those_of_the_standard_library() -> None:
    @values.dataclass(slots=True)
    class Counter:
        """May change."""

        number: int = 0

    counter = Counter()
    counter.number = 2
    assert counter == Counter(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


@values.dataclass(frozen=True, slots=True)
class Counted:
    """Not only plain fields."""

    total: ClassVar[int] = 3
    metered: int = dataclasses.field(default=1, metadata={"unit": "W"})
    _: dataclasses.KW_ONLY
    kept: list[str] = dataclasses.field(default_factory=list)


def test_what_is_no_plain_field_is_left_to_the_standard_library() -> None:
    names = [field.name for field in dataclasses.fields(Counted)]
    assert names == ["metered", "kept"]
    assert dataclasses.fields(Counted)[0].metadata == {"unit": "W"}
    assert (Counted.total, Counted(2, kept=["a"]).kept, Counted.__match_args__) == (3, ["a"], ("metered",))
    with pytest.raises(TypeError):
        Counted(2, ["a"])  # type: ignore[call-arg]


def test_what_dataclasses_notes_of_a_class_is_noted() -> None:
    for theirs, ours in zip(dataclasses.fields(Theirs), dataclasses.fields(Ours), strict=True):
        for trait in ("name", "type", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only"):
            assert getattr(theirs, trait) == getattr(ours, trait)
    assert Theirs.__match_args__ == Ours.__match_args__
    assert Theirs.__slots__ == Ours.__slots__
    assert dataclasses.is_dataclass(Ours)


@values.dataclass(frozen=True, slots=True)
class Single:
    """One field, and none that the constructor takes beside it."""

    only: int
    kept: dict[str, int] = dataclasses.field(default_factory=dict, init=False, compare=False)
    limit: int = dataclasses.field(default=7, init=False)


class Undecorated(Base):
    """A class that adds nothing to its base."""


def test_copies_are_those_of_dataclasses() -> None:
    ours, theirs = Ours(name="a", sizes=(4, 5)), Theirs(name="a", sizes=(4, 5))
    changed: tuple[dict[str, Any], ...] = ({}, {"name": "b"}, {"sizes": (1,), "hidden": 9})
    for changes in changed:
        copied, expected = values.replace(ours, **changes), dataclasses.replace(theirs, **changes)
        assert dataclasses.asdict(copied) == dataclasses.asdict(expected)
        assert copied.total == sum(copied.sizes)  # of `__post_init__`
        assert copied.notes is ours.notes
    assert ours == Ours(name="a", sizes=(4, 5))
    unknown: dict[str, Any] = {"nothing": 1}
    with pytest.raises(TypeError, match="nothing"):
        values.replace(ours, **unknown)
    with pytest.raises(ValueError, match="total"):
        values.replace(ours, total=1)
    plain = Undecorated(1)
    assert type(values.replace(plain, first=2)) is Undecorated
    assert values.replace(plain, first=2).first == 2
    single = Single(1)
    single.kept["a"] = 1
    other = values.replace(single, only=2)
    assert (other.only, other.kept, other.limit, single.kept) == (2, {}, 7, {"a": 1})


@pytest.mark.skipif(not hasattr(copy, "replace"), reason="of Python 3.13 and later")
def test_copies_with_other_values_are_made_by_the_copy_module() -> None:
    replace: Any = vars(copy)["replace"]
    assert replace(Ours(name="a"), name="b") == Ours(name="b")


def test_an_initialiser_is_made_once_there_are_some_objects_and_kept() -> None:
    fields = {"__annotations__": {"one": "int", "two": "list"}, "__module__": __name__}
    made: Any = values.dataclass(frozen=True)(
        type("Late", (), fields | {"two": dataclasses.field(default_factory=list)})
    )
    for number in range(values.FEW // 2):
        assert not inspect.isfunction(vars(made)["__init__"])
        assert (made(number).one, made(one=number, two=[3]).two) == (number, [3])
    assert made(4) == made(one=4, two=[])
    assert inspect.isfunction(vars(made)["__init__"])
    assert list(inspect.signature(made).parameters) == ["one", "two"]


def test_the_first_objects_are_as_the_later_ones() -> None:
    def anew(name: str) -> Any:
        fields = {"first": int, "second": str, "total": int, "kept": list}
        defaults = {
            "second": "b", "total": dataclasses.field(init=False, default=7),
            "kept": dataclasses.field(default_factory=list, kw_only=True),
        }  # fmt: skip
        return values.dataclass(frozen=True, slots=True)(
            type(name, (), {"__annotations__": fields, "__module__": __name__} | defaults)
        )

    early, late = anew("Early"), anew("Early")
    for _ in range(values.FEW):
        late(1)
    for args, given in (((1,), {}), ((1, "c"), {}), ((), {"first": 2, "kept": [1]}), ((3,), {"second": "d"})):
        assert repr(early(*args, **given)) == repr(late(*args, **given))
    assert early(1).kept is not early(1).kept


@pytest.mark.parametrize(
    ("args", "given"), [((), {}), ((1, "b", 3), {}), ((1,), {"first": 1}), ((1,), {"total": 2}), ((1,), {"third": 2})]
)
def test_the_first_object_refuses_what_a_later_one_does(args: tuple[Any, ...], given: dict[str, Any]) -> None:
    fields = {"__annotations__": {"first": int, "second": str, "total": int}, "__module__": __name__}
    defaults = {"second": "b", "total": dataclasses.field(init=False, default=7)}
    made: Any = values.dataclass(frozen=True)(type("Strict", (), fields | defaults))
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        made(*args, **given)


def test_a_default_that_can_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mutable default .* for field one"):
        values.dataclass(frozen=True)(type("Shared", (), {"__annotations__": {"one": "list"}, "one": []}))


def test_results_are_kept_by_which_objects_they_are_of() -> None:
    calls: list[tuple[object, ...]] = []

    @values.kept_by_identity(2)
    def made(one: list[int], *, twice: bool = False) -> list[int]:
        calls.append((one, twice))
        return one * 2 if twice else list(one)

    first, equal = [1, 2], [1, 2]
    assert made(first) is made(first)
    assert made(equal) == made(first)
    assert made(equal) is not made(first)
    assert len(calls) == 2
    assert made(first, twice=True) == [1, 2, 1, 2]
    assert len(calls) == 3
    made(first)  # the third of two had the others forgotten
    assert len(calls) == 4
