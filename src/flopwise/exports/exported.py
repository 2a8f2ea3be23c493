"""The output of a target: files, commands that apply them, assumptions, and placeholders to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from flopwise.exports.spec import PLACEHOLDERS, ExportSettings
from flopwise.options import options_of
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files of a target by their paths in the folder, with `/` between names; text is UTF-8.

    `apply`: the commands that apply them, in order. `assumptions`: choices that neither the plan nor the settings
    determine, and parts of the plan that the target has no setting for.
    """

    files: Mapping[str, str]
    apply: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """A value to fill in: its option, its meaning, and the files with its placeholder."""

    option: str
    meaning: str
    text: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files of a plan for a target, and the values to fill in."""

    target: str
    files: Mapping[str, str] = field(metadata={"inner": True})
    apply: tuple[str, ...]
    to_fill: tuple[Placeholder, ...]
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, target: str, made: Files, settings: ExportSettings) -> Exported:
        """The result of a target with the placeholders in its files."""
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
