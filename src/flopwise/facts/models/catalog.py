"""The catalog of known models, and the one door to all of them: `load_model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.models.config import model_from_config, read_json


def load_model(
    spec: str, *, facts_folder: Path | None = None, assume_family: str | None = None, offline: bool = False
) -> Model:
    """The model that `spec` names: a catalog name, a hub id, a folder, a `config.json`, or a size such as `7B`."""
    _ = facts_folder, offline
    path = Path(spec).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return model_from_config(read_json(path), name=path.parent.name, assume_family=assume_family)
    from flopwise.facts.models.starters import STARTERS  # noqa: PLC0415

    key = spec.lower().split("/")[-1]
    if key in STARTERS:
        return model_from_config(STARTERS[key], name=spec)
    raise SpecError(f"unknown model {spec!r}")


def model_names() -> list[str]:
    """Names of the catalog."""
    return []


def model_rows() -> list[dict[str, Any]]:
    """One row a model."""
    return []
