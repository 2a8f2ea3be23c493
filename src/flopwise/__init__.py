"""Plan the compute of AI workloads: memory, GPUs, layout, speed, cost and energy, with honest error bars.

The commands of `flopwise` are functions here, with the same nouns: `flopwise.gpus()`, `flopwise.train(...)`,
`flopwise.plan(...)`. Importing the package loads none of them: each comes with its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "gpus": "api.facts",
    "instances": "api.facts",
    "models": "api.facts",
    "plan": "api.plan",
    "compare": "api.buy_or_build",
    "MonthlyTraffic": "buy_or_build.alternatives",
    "sweep": "api.sweep",
    "assess": "api.assess",
    "memory": "api.memory",
    "train": "api.train",
    "serve": "api.serve",
    "serve_sweep": "api.serve",
    "simulate": "api.simulate",
    "autoscale": "api.simulate",
    "batch": "api.simulate",
    "Traffic": "serving.sim.source",
    "io": "api.io",
    "roofline": "api.roofline",
    "backtest": "api.backtest",
    "explain": "api.explain",
    "prices": "api.prices",
    "import_prices": "api.prices",
    "list_prices": "api.prices",
    "remove_prices": "api.prices",
    "refresh_prices": "api.prices",
    "advise": "api.shapes",
    "FlopwiseError": "errors",
    "InfeasibleError": "errors",
    "MissingFactError": "errors",
    "SpecError": "errors",
    "UnknownNameError": "errors",
    "Figure": "provenance",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the names are the keys above


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flopwise' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(import_module(f"flopwise.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
