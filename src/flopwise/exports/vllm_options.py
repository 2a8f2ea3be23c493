"""vLLM's engine arguments from the words of its server command, for Ray's libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

OF_A_SERVER = {"--host", "--port", "--enable-metrics", "--model"}
"""Options of vLLM's programs that its engine does not have."""


def engine_options(args: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(weights, engine arguments) from the words of vLLM's command, whose options have the same names."""
    words, options, model = list(args[args.index("vllm") + 2 :]), dict[str, Any](), ""
    while words:
        word = words.pop(0)
        value = words.pop(0) if word.startswith("--") and words and not words[0].startswith("--") else None
        if not word.startswith("--") or word == "--model":
            model = value or word
        elif word not in OF_A_SERVER:
            off = value is None and word.startswith("--no-")
            name = word.removeprefix("--no-" if off else "--").replace("-", "_")
            options[name] = not off if value is None else _plain(value)
    return model, options


def _plain(text: str) -> Any:
    """A number or an object if the text is one, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
