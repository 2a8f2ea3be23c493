"""Models by name: the catalog, any `config.json`, a size such as `7B`."""

from __future__ import annotations

from flopwise.facts.models.catalog import ModelCatalog, load_model
from flopwise.facts.models.config import model_from_config

__all__ = ["ModelCatalog", "load_model", "model_from_config"]
