"""What is taken where nobody says otherwise: the same names in every command, file and function."""

from __future__ import annotations

ENGINE = "vllm"
OPTIMIZER = "adamw"
STACK = "fsdp-compile"
ADAPTER_STACK = "hf-trainer"
"""Training stack of adapters."""
