"""One JSON document on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

from flopwise.results import plain


def write_json(value: Any) -> None:
    """Write `value` to stdout as the run's one document."""
    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
