"""A `config.json` by Hugging Face id: from the hub's cache on this machine, else over the network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.tables import read_json_object

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
PATIENCE_S = 4
"""How long the hub may take to answer."""
WHOLE_S = 12.0
"""How long all of it may take: a hub that sends byte by byte answers in time each time."""
TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "requests", "urllib3"})
"""Libraries that the hub's client has been built on; their errors are no `OSError` throughout."""
_TRUE = ("1", "true", "yes", "on")


@contextmanager
def _quiet() -> Iterator[None]:
    """The client says nothing of its own: no retries, no progress bars."""
    import logging  # noqa: PLC0415 - a third of this module's start-up

    # Only a model by its hub id needs the library; the same below.
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars  # noqa: PLC0415

    log, shown = logging.getLogger("huggingface_hub"), not are_progress_bars_disabled()
    before = log.level
    log.setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(before)
        if shown:
            enable_progress_bars()


def hub_config(model_id: str, *, offline: bool = False) -> dict[str, Any] | None:
    """The configuration of `model_id`; a cached copy is used as it is, and nothing else with `offline`.

    None: not of the form `organisation/model`.

    Raises: SpecError: not cached and offline, no network, no such model, a gated model, or no `config.json`.
    """
    if not HUB_ID.match(model_id) or ".." in model_id or "--" in model_id or len(model_id) > 96:
        return None
    from huggingface_hub import errors, try_to_load_from_cache  # noqa: PLC0415 - a slow client

    here_only = offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE
    instead = "give a catalog name (flopwise models), a folder or a config.json instead"
    why = {
        errors.GatedRepoError: "a gated model; accept its licence on the hub and set HF_TOKEN, or",
        errors.RepositoryNotFoundError: "no such model on the hub, or a private one (set HF_TOKEN);",
        errors.LocalEntryNotFoundError: "the hub cannot be reached, and its config.json is not cached;",
        errors.EntryNotFoundError: "the model has no config.json;",
    }
    try:
        cached = try_to_load_from_cache(model_id, "config.json")
        path = cached if isinstance(cached, str) else None if here_only else _in_time(lambda: _download(model_id))
    except errors.HFValidationError as problem:
        raise SpecError(f"{model_id}: not a valid hub id ({str(problem)[:120]})") from problem
    except Exception as problem:  # transports raise classes of their own; what is not theirs goes on
        reason = next((text for kind, text in why.items() if isinstance(problem, kind)), None)
        if reason is not None:
            raise SpecError(f"{model_id}: {reason} {instead}") from problem
        library = type(problem).__module__.split(".", maxsplit=1)[0]
        if not isinstance(problem, OSError | errors.HfHubHTTPError) and library not in TRANSPORTS:
            raise
        raise SpecError(f"{model_id}: the hub cannot be reached ({type(problem).__name__}); {instead}") from problem
    if path is None:
        raise SpecError(f"{model_id}: its config.json is not in the hub's cache, and offline mode is on; {instead}")
    return read_json_object(Path(path))


def _in_time(call: Callable[[], str]) -> str:
    """What `call` returns, within WHOLE_S; whatever it raises. Raises TimeoutError: it takes longer."""
    import threading  # noqa: PLC0415 - as the client

    ended: list[str | BaseException] = []

    def work() -> None:
        try:
            ended.append(call())
        except BaseException as problem:  # noqa: BLE001 - raised where it is waited for
            ended.append(problem)

    worker = threading.Thread(target=work, daemon=True)  # one that hangs does not keep the process
    worker.start()
    worker.join(WHOLE_S)
    match ended:
        case [str(path)]:
            return path
        case [BaseException() as problem]:
            raise problem
    raise TimeoutError(f"no answer in {WHOLE_S:g} s")


def _download(model_id: str) -> str:
    """Fetch the configuration; the path of its file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url  # noqa: PLC0415 - a slow client

    get_hf_file_metadata(hf_hub_url(model_id, "config.json"), timeout=PATIENCE_S)  # asks once, where a download insists
    with _quiet():
        return hf_hub_download(model_id, "config.json", etag_timeout=PATIENCE_S)
