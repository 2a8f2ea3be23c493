"""A `config.json` by Hugging Face id: from the hub's cache on this machine, else over the network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.models.config import read_json

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_TRUE = ("1", "true", "yes", "on")


def is_hub_id(spec: str) -> bool:
    """Whether a text has the form `organisation/model`."""
    return bool(HUB_ID.match(spec)) and ".." not in spec and "--" not in spec and len(spec) <= 96


def hub_config(model_id: str, *, offline: bool = False) -> dict[str, Any]:
    """The configuration of `model_id`; a cached copy is used as it is, and nothing else with `offline`.

    Raises: SpecError: not cached and offline, no network, no such model, a gated model, or no `config.json`.
    """
    # the hub's client is slow to import and needed by nobody who asks for a known model
    from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache  # noqa: PLC0415

    here_only = offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE
    instead = "give a catalog name (flopwise models), a folder or a config.json instead"
    try:
        cached = try_to_load_from_cache(model_id, "config.json")
        if isinstance(cached, str):
            return read_json(Path(cached))
        if here_only:
            raise SpecError(f"{model_id}: its config.json is not in the hub's cache, and offline mode is on; {instead}")
        path = hf_hub_download(model_id, "config.json")
    except errors.GatedRepoError as problem:
        raise SpecError(
            f"{model_id}: a gated model; accept its licence on the hub and set HF_TOKEN, or {instead}"
        ) from problem
    except errors.RepositoryNotFoundError as problem:
        raise SpecError(
            f"{model_id}: no such model on the hub, or a private one (set HF_TOKEN); {instead}"
        ) from problem
    except errors.LocalEntryNotFoundError as problem:
        raise SpecError(
            f"{model_id}: the hub cannot be reached, and its config.json is not cached; {instead}"
        ) from problem
    except errors.EntryNotFoundError as problem:
        raise SpecError(f"{model_id}: the model has no config.json; {instead}") from problem
    except errors.HFValidationError as problem:
        raise SpecError(f"{model_id}: not a valid hub id ({str(problem)[:120]})") from problem
    except (errors.HfHubHTTPError, OSError) as problem:
        raise SpecError(f"{model_id}: the hub cannot be reached ({type(problem).__name__}); {instead}") from problem
    return read_json(Path(path))
