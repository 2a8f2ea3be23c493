"""Reads SkyPilot tasks, one a line as a JSON text, with SkyPilot's code; answers a line each: null, or the complaint.

It runs in an environment of its own, with a home that holds the catalogs that SkyPilot would otherwise download. Its
first line is their version; it goes on after a line that says that they are there.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what SkyPilot prints is no answer

from sky.catalog.common import constants  # type: ignore[import-not-found]  # noqa: E402 - after its output is away

answers.write(f"{constants.CATALOG_SCHEMA_VERSION}\n")
answers.flush()
sys.stdin.readline()

from sky.utils import dag_utils  # type: ignore[import-not-found]  # noqa: E402 - after the catalogs are there


def complaint(text: str) -> str | None:
    """Why SkyPilot refuses a file of one task, or of a chain of them."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(text)
    try:
        dag = dag_utils.load_chain_dag_from_yaml(file.name)
        for task in dag.tasks:
            task.validate()
            for resources in task.resources:
                resources.validate()
    except SystemExit as error:
        return f"exit {error.code}"
    except Exception as error:  # noqa: BLE001 - whatever it raises is its complaint
        return f"{type(error).__name__}: {error}"
    finally:
        Path(file.name).unlink()
    return None


for line in sys.stdin:
    answers.write(json.dumps(complaint(json.loads(line))) + "\n")
    answers.flush()
