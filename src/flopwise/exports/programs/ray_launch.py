"""Runs the command of ray_launch.json once for each part of a run, on a Ray cluster; the first failure ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class Part:
    """A process on the machine where Ray puts it."""

    def address(self) -> str:
        """The machine's address."""
        return str(ray.util.get_node_ip_address())

    def run(self, args: list[str], env: dict[str, str]) -> int:
        """The exit status of the command in this environment."""
        return subprocess.run(args, env={**os.environ, **env}, check=False).returncode  # noqa: S603 - the plan's own


def main() -> int:
    """Start all parts, tell each its number and where the first is, and wait."""
    plan: dict[str, Any] = json.loads(Path(__file__).with_name("ray_launch.json").read_text(encoding="utf-8"))
    ray.init()
    group = placement_group([plan["resources"]] * plan["parts"], strategy=plan["strategy"])
    ray.get(group.ready())
    actor = ray.remote(Part)
    resources = {"num_cpus": plan["resources"]["CPU"], "num_gpus": plan["resources"].get("GPU", 0)}
    parts = [
        actor.options(
            **resources,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        ).remote()
        for number in range(plan["parts"])
    ]
    first = ray.get(parts[0].address.remote())
    running = [
        part.run.remote(
            plan["args"], {plan["number"]: str(number), **({plan["first"]: first} if plan["first"] else {})}
        )
        for number, part in enumerate(parts)
    ]
    while running:
        (done,), running = ray.wait(running, num_returns=1)
        if status := ray.get(done):
            return int(status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
