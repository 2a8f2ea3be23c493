"""What a target makes of a plan: files, how they are applied, what was assumed, and what a person has to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from flopwise.exports.spec import PLACEHOLDERS, ExportSettings
from flopwise.options import options_of
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files of a target by their paths below the folder, `/` between names; text is UTF-8.

    `apply`: the commands that put them to use, in order. `assumptions`: what was chosen that neither plan nor settings
    say, and what the target cannot be told.
    """

    files: Mapping[str, str]
    apply: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """Something that a person has to fill in: the option that does it, what it is, and where it stands."""

    option: str
    meaning: str
    text: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files of a plan for a target, and what is left to do."""

    target: str
    files: Mapping[str, str] = field(metadata={"inner": True})
    apply: tuple[str, ...]
    to_fill: tuple[Placeholder, ...]
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, target: str, made: Files, settings: ExportSettings) -> Exported:
        """The result of a target with the placeholders that its files hold."""
        return cls(
            target=target, files=dict(sorted(made.files.items())), apply=made.apply,
            to_fill=tuple(_placeholders(made.files, settings)), assumptions=tuple(dict.fromkeys(made.assumptions)),
        )  # fmt: skip


def _placeholders(files: Mapping[str, str], settings: ExportSettings) -> Iterator[Placeholder]:
    declared = options_of(ExportSettings)
    for name, text in PLACEHOLDERS.items():
        places = tuple(sorted(path for path, content in files.items() if text in content))
        if places and getattr(settings, name) is None:
            yield Placeholder(option=declared[name].flags[0], meaning=declared[name].help, text=text, files=places)
