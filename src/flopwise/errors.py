"""What can go wrong, as one tree.

FlopwiseError
├── SpecError (also a ValueError)   the input is wrong: exit code 2
│   └── UnknownNameError            no such model, accelerator, instance ...: names the nearest
├── MissingFactError                the question needs a fact that nobody has written down: exit code 2
└── InfeasibleError                 a well-formed question without a feasible answer: exit code 1
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache


class FlopwiseError(Exception):
    """Base of all errors that flopwise raises on purpose; the message is for the user."""


class SpecError(FlopwiseError, ValueError):
    """Bad input. The message says what was given, what is allowed and what to do next."""


NEAREST = 5
"""Names at most that are nearest to a given one."""
FEW_NAMES = 40
"""Maximum number of names that are all listed if none is near the given one."""


class UnknownNameError(SpecError):
    """A name that is not known; the message lists the nearest ones, or all where there are few.

    It is composed when somebody reads it: a name is often one of several spellings, of which another is known.
    """

    def __init__(self, kind: str, given: str, known: Iterable[str], hint: str = "", alike: Iterable[str] = ()) -> None:
        """Keep what was `given` and the `known` names of that `kind`; `alike`: those that it may mean."""
        self.kind, self.given, self._known, self._hint = kind, given, tuple(dict.fromkeys(known)), hint
        self._alike = tuple(dict.fromkeys(alike))
        super().__init__(kind, given, self._known, hint, self._alike)

    @cached_property
    def nearest(self) -> tuple[str, ...]:
        """The known names most like the given one, best first."""
        return self._alike if 0 < len(self._alike) <= NEAREST else nearest_names(self.given, self._known)

    def __str__(self) -> str:
        if len(self.args) == 1:  # a reader of a file has put the place before it
            return str(self.args[0])
        names, hint = self._known, self._hint
        near = f"; nearest: {', '.join(self.nearest)}" if self.nearest else ""
        if not near and 0 < len(names) <= FEW_NAMES and not hint.startswith("allowed: "):
            near = f"; known: {', '.join(names)}"
        if "," in self.given:
            near += "; several names are given one by one, each with the option"
        rest = f". {hint[0].upper()}{hint[1:]}" if hint else ""
        return f"unknown {self.kind} {self.given[:120]!r}{near}{rest}"


class MissingFactError(FlopwiseError):
    """A fact that the answer needs is not known. Nothing is extrapolated silently."""


class InfeasibleError(FlopwiseError):
    """No answer satisfies the question; `reasons` say why, and by how much."""

    def __init__(self, message: str, reasons: Iterable[str] = ()) -> None:
        """Keep the `reasons` apart from the message, so that a caller can list them."""
        self.reasons = tuple(reasons)
        super().__init__(message)


def nearest_hint(given: object, allowed: Iterable[str]) -> str:
    """The end of a message about a wrong name: the nearest of those `allowed`; empty where none is near."""
    near = nearest_names(str(given), allowed)
    return f"; nearest: {near[0]}" if near else ""


LOOK_ALIKE = str.maketrans("oil", "011")
"""Letters that are mistaken for the digits of a name: h1oo."""
NEAR, BEGINNING = 0.55, 0.95
"""Similarity (up to 1) from which names are near, and the discount of a name's beginning."""


def nearest_names(given: str, known: Iterable[str], limit: int = NEAREST) -> tuple[str, ...]:
    """Return the `known` names most like `given`, best first, blind to case and punctuation.

    A name that only begins like `given` is near, too (hh100: H100-SXM-80). Names that punctuation alone tells apart
    (OPT-1.3b, OPT-13b) are all returned, the one written more like `given` first.
    """
    import difflib  # noqa: PLC0415 - only a wrong name needs it

    given = given[:120].lower()
    folded: dict[str, dict[str, str]] = {}
    for name in known:
        folded.setdefault(fold(name), {}).setdefault(name.lower(), name)
    key = fold(given)
    if not key:
        return ()

    def likeness(matcher: difflib.SequenceMatcher[str], name: str) -> float:
        """0.0 where a bound that is quick to find is too low: most names are not near."""
        best = 0.0
        for text, weight in ((name, 1.0), (name[: len(key)], BEGINNING)):
            matcher.set_seq1(text)
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) * weight >= NEAR:
                best = max(best, matcher.ratio() * weight)
        return best

    scores: dict[str, float] = {}
    for typed in dict.fromkeys([key, key.translate(LOOK_ALIKE)]):
        matcher = difflib.SequenceMatcher(None, "", typed)  # what it knows of its second text it keeps
        scores = {name: likeness(matcher, name) for name in folded}
        if any(score >= NEAR for score in scores.values()):
            break
    close = sorted((name for name in scores if scores[name] >= NEAR), key=lambda name: -scores[name])[:limit]
    inside = [k for k in folded if key in k or k in key]
    names_near: list[str] = []
    for near in dict.fromkeys([*close, *inside]):
        spelled = sorted(folded[near], key=lambda s: -difflib.SequenceMatcher(None, given, s).ratio())
        names_near += (folded[near][s] for s in spelled)
    return tuple(names_near[:limit])


@lru_cache(maxsize=4096)  # names of rows are looked up again and again
def fold(name: str) -> str:
    """`name` in lower case with its letters and digits only: how names of few rows are compared.

    1.3 and 13 fold alike, so a table must not hold both; models, which do, have a comparison of their own.
    """
    return "".join(c for c in name.lower() if c.isalnum())
