"""An assessment made by hand, small enough to check by eye."""

from __future__ import annotations

from typing import Any

from flopwise.fleet.assessment import (
    Alert,
    Allotment,
    Assessment,
    Binding,
    CostSaving,
    MonthlyCost,
    Phase,
    Risk,
    Scenarios,
    WhatIf,
    WorkloadResult,
)


def workload(name: str = "chat", **changed: Any) -> WorkloadResult:
    """One workload's result."""
    plain: dict[str, Any] = {
        "name": name, "environment": "production", "kind": "serve", "model": "Llama-3.1-8B",
        "parameters": 8_030_261_248, "size": "medium", "memory_bytes": 3e10, "intensity": 61.5,
        "pattern": "memory bandwidth",
        "hours_per_month": 730.0, "runs_per_month": None, "feasible": True, "reasons": [],
        "best": {
            "provider": "aws", "instance": "g6.xlarge", "gpu": "L4", "num_gpus": 2, "num_instances": 2,
            "layout": {"tp": 1, "pp": 1, "replicas": 2}, "meets": {"latency": 0.9},
            "figures": {"latency_s": {"value": 0.2, "low": 0.1, "high": 0.4, "percentile": "p95"},
                        "requests_per_s": {"value": 40.0, "low": 30.0, "high": 50.0}},
        },
        "targets": {"latency_s": {"value": 0.5, "percentile": "p95"}, "requests_per_s": {"value": 20.0}},
        "why_not_cheaper": "T4: TPOT 80 ms misses 50 ms", "energy_kwh_per_month": 120.0, "carbon_kg_per_month": 42.0,
    }  # fmt: skip
    return WorkloadResult(**(plain | changed))


def assessment(name: str = "platform", **changed: Any) -> Assessment:
    """A whole assessment of one workload."""
    allot = Allotment(
        workload="chat", environment="production", provider="aws", region="us-east-1", instance="g6.xlarge", gpu="L4",
        purchase="on_demand", count=2, hours_per_month=730.0, usd_per_hour=0.8048, usd_per_hour_effective=0.8048,
        usd_per_month=1175.0, usd_low=900.0, usd_high=1500.0, price_date="2026-07-20", num_gpus=2,
    )  # fmt: skip
    cost = MonthlyCost(
        total=1200.0, low=925.0, high=1525.0, by_provider={"aws": 1200.0}, by_environment={"production": 1200.0},
        by_workload={"chat": 1200.0}, by_purchase={"on_demand": 1175.0, "traffic": 25.0}, compute=1175.0, storage=5.0,
        traffic=20.0,
    )  # fmt: skip
    plain: dict[str, Any] = {
        "name": name, "date": "2026-11-21", "workloads": [workload()], "allocation": [allot], "usd_per_month": cost,
        "savings": [CostSaving(what="spot", workload="chat", usd_per_month=300.0, how="replicas", counted=False)],
        "risks": [
            Risk(kind="memory", workload="chat", probability=0.4, evidence="margin 3 GiB", mitigation="fp8 cache")
        ],
        "binding": [Binding(constraint="azure", usd_per_month=4120.0, text="the Azure share costs $4,120 a month")],
        "whatif": [WhatIf(name="traffic x 2", feasible=True, usd_per_month=2350.0, change_usd=1150.0, text="two more")],
        "scenarios": Scenarios(runs=1000, seed=0, mean=1210.0, p10=1000.0, p50=1200.0, p90=1450.0, p95=1500.0,
                               over_budget=0.07, drivers={"demand": 0.8, "prices": 0.2}),
        "roadmap": [Phase(name="production", start="2027-01", workloads=["chat"], usd_per_month=1200.0, text="go")],
        "monitoring": [Alert(metric="spend", workload="", threshold=45.0, unit="USD a day", why="a 30th of it")],
        "gpus": [{"gpu": "L4", "hbm_bytes": 24e9, "usd_per_pflop_hour": 6.6}],
        "sizes": [{"size": "medium", "model": "Llama-3.1-8B", "kind": "serve", "parameters": 8_030_261_248,
                   "bf16_weight_bytes": 16e9, "memory_bytes": 3e10, "memory_bytes_per_gpu": 1.5e10,
                   "gpus_of_one_copy": 2}],
        "instances": [{"provider": "aws", "instance": "g6.xlarge", "region": "us-east-1", "gpu": "L4", "count": 1,
                       "on_demand_usd_per_hour": 0.8048, "source": "price list", "used": True}],
        "optimality_gap": 0.0,
        "optimality": "proven optimal among 9 ways to run the workloads",
        "budget_per_month": 1600.0, "assumptions": ["a month has 730 hours"],
        "price_notes": ["prices of 2026-07-20"], "elapsed_s": 1.0, "fleet": {},
    }  # fmt: skip
    return Assessment(**(plain | changed))
