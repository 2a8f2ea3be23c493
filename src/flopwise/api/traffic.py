"""What arrives at a service, as the public interface has it."""

from __future__ import annotations

from flopwise.serving.sim.source import Traffic

__all__ = ["Traffic"]
