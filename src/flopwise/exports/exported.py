"""The output of a target: files, commands that apply them, assumptions, and placeholders to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from flopwise.exports.spec import PLACEHOLDERS, ExportSettings
from flopwise.folders import write_folder
from flopwise.options import options_of
from flopwise.values import dataclass

PROGRAMS = (".sh", ".sbatch")
"""Endings of files that can be run."""


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


def write_export(answer: Exported, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write the files of an export, all or none; returns their paths.

    Args:
        answer: what `export` returned.
        folder: where they go; it is made where there is none.
        force: replace existing files.

    Raises:
        SpecError: a file stands there, or the folder cannot be written to.

    Examples:
        >>> import flopwise
        >>> plan = flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="a100-80gb", max_gpus=1)
        >>> from tempfile import mkdtemp
        >>> {path.name for path in flopwise.write_export(flopwise.export("torchrun", plan), mkdtemp())} > {"run.sh"}
        True
    """
    files = {path: text.encode("utf-8", errors="replace") for path, text in answer.files.items()}
    return write_folder(folder, files, programs=[path for path in files if path.endswith(PROGRAMS)], replace=force)
