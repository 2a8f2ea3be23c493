"""SkyPilot's own reader of tasks, with a catalog made of the instances that flopwise knows."""

from __future__ import annotations

import atexit
import csv
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools import RefusedError, interpreter

from flopwise.facts.offers import Offer
from named import FACTS

WORKER = Path(__file__).with_name("skypilot_worker.py")
CLOUDS = ("AWS", "GCP", "Azure", "Lambda", "Nebius", "RunPod", "OCI", "Paperspace", "Vast")
"""Providers that both SkyPilot and flopwise know, as SkyPilot writes them."""
GPUS = {
    "A10": "A10", "A10G": "A10G", "A100-PCIe-40": "A100", "A100-SXM-40": "A100", "A100-PCIe-80": "A100-80GB",
    "A100-SXM-80": "A100-80GB", "B200": "B200", "GB200": "GB200", "GH200-96": "GH200", "H100-NVL-94": "H100",
    "H100-PCIe-80": "H100", "H100-SXM-80": "H100", "H200-SXM-141": "H200", "L4": "L4", "L40": "L40", "L40S": "L40S",
    "RTX A6000": "RTXA6000", "T4": "T4", "T4G": "T4g", "V100-PCIe-16": "V100", "V100-SXM2-16": "V100",
    "V100-SXM2-32": "V100-32GB",
}  # fmt: skip
"""SkyPilot's names of accelerators."""
COLUMNS = (
    "InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo", "Price", "SpotPrice",
    "Region", "AvailabilityZone", "Generation",
)  # fmt: skip


def skypilot(text: str) -> None:
    """A file of one task, or of a chain of them: schema, resources, clouds, instances, regions, storage."""
    worker = _worker()
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(text) + "\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise RefusedError("SkyPilot ended")
    if complaint := json.loads(answer):
        raise RefusedError(complaint)


@functools.cache
def _worker() -> subprocess.Popen[str]:
    home = Path(tempfile.mkdtemp(prefix="flopwise-sky-"))
    worker = subprocess.Popen(
        [interpreter("skypilot"), WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )  # fmt: skip
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    atexit.register(worker.kill)
    assert worker.stdin is not None
    assert worker.stdout is not None
    write_catalogs(home / ".sky" / "catalogs" / worker.stdout.readline().strip())
    worker.stdin.write("\n")
    worker.stdin.flush()
    return worker


def write_catalogs(folder: Path) -> None:
    """SkyPilot's tables of instances, of those that flopwise has; images and quotas are empty."""
    for cloud in map(str.lower, CLOUDS):
        (folder / cloud).mkdir(parents=True)
        with (folder / cloud / "vms.csv").open("w", encoding="utf-8", newline="") as text:
            writer = csv.DictWriter(text, COLUMNS)
            writer.writeheader()
            writer.writerows(row for offer in FACTS.offers_for(provider=cloud) if (row := _row(offer)))
        (folder / cloud / "images.csv").write_text("Tag,Region,OS,OSVersion,ImageId,CreationDate\n")
    (folder / "common").mkdir()
    known = "".join(f"{name},{' '.join(CLOUDS)}\n" for name in sorted(set(GPUS.values())))
    (folder / "common" / "accelerators.csv").write_text(f"AcceleratorName,Clouds\n{known}")
    (folder / "aws" / "instance_quota_mapping.csv").write_text("InstanceType,OnDemandQuotaCode,SpotInstanceCode\n")
    (folder / "gcp" / "accelerator_quota_mapping.csv").write_text("Accelerator,OnDemandQuota,SpotQuota\n")


def _row(offer: Offer) -> dict[str, object] | None:
    chip = FACTS.accelerator(offer.accelerator)
    gpu = GPUS.get(offer.accelerator)
    if gpu is None and chip.kind != "cpu":
        return None
    return {
        "InstanceType": offer.instance, "AcceleratorName": gpu or "", "AcceleratorCount": offer.count if gpu else "",
        "vCPUs": offer.vcpus or "", "MemoryGiB": (offer.ram_bytes or 0) / 2**30 or "", "GpuInfo": gpu or "",
        "Price": offer.on_demand_usd_per_hour or "", "SpotPrice": offer.spot_usd_per_hour or "",
        "Region": offer.region, "AvailabilityZone": f"{offer.region}-a", "Generation": "V2",
    }  # fmt: skip
