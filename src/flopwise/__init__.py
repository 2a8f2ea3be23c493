"""Plan the compute of AI workloads: memory, GPUs, layout, speed, cost and energy, with honest error bars.

The commands of `flopwise` are functions here, with the same nouns: `flopwise.gpus()`, `flopwise.train(...)`,
`flopwise.plan(...)`. Importing the package loads none of them: each comes with its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.4.0"

_HOMES = {
    name: home
    for home, names in {
        "api.assess": "assess",
        "api.backtest": "backtest",
        "api.buy_or_build": "compare",
        "api.calibrate": "calibrate",
        "api.check": "check",
        "api.explain": "explain",
        "api.fit": "fit",
        "api.export": "export",
        "api.currency": "amounts_in",
        "api.facts": "gpus instances largest_models models",
        "api.io": "io",
        "api.memory": "memory",
        "api.observe": "observe replay",
        "api.plan": "plan",
        "api.prices": "prices import_prices refresh_prices",
        "api.probe": "probe",
        "api.roofline": "roofline",
        "api.serve": "serve serve_sweep",
        "api.shapes": "advise",
        "api.simulate": "simulate autoscale batch",
        "api.sweep": "sweep",
        "api.train": "train",
        "buy_or_build.alternatives": "MonthlyTraffic",
        "exports.exported": "write_export",
        "exports.targets": "export_targets",
        "fitting.profile": "calibration_profile calibrations remove_calibration",
        "price_import.imports": "list_prices remove_prices",
        "records.imports.imported": "import_runs",
        "records.reports": "explain_run compare_runs run_rows",
        "records.runs": "runs recorded_run export_runs delete_runs",
        "telemetry.watcher": "watch watch_live",
        "errors": "FlopwiseError InfeasibleError MissingFactError SpecError UnknownNameError",
        "probes.file": "Probe",
        "provenance": "Figure",
        "serving.sim.source": "Traffic",
    }.items()
    for name in names.split()
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
