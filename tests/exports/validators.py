"""Each kind of exported file before the strictest reader of it that runs without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hcl2
import yaml
from engine_arguments import engine_args
from kubernetes_api import kubernetes
from tools import RefusedError, accept_once, program

__all__ = [
    "RefusedError", "alertmanager", "engine_args", "kubernetes", "metrics_page", "prometheus_server", "promtool_config",
    "promtool_rules", "promtool_test", "query", "shell", "terraform",
]  # fmt: skip

APT = "apt-get install prometheus prometheus-alertmanager shellcheck (make programs, as root)"


# --- scripts and Terraform


def shell(text: str) -> None:
    """A bash script: its syntax, then shellcheck with every remark an error but one, on text for another shell."""
    accept_once([program("bash", "apt-get install bash"), "-n"], text=text)
    accept_once([program("shellcheck", APT), "--shell=bash", "--severity=style", "--exclude=SC2016", "-"], text=text)


def terraform(text: str) -> dict[str, Any]:
    """Terraform, as `terraform fmt` writes it where that is there; every name is declared. Of a folder: all files."""
    try:
        parsed: dict[str, Any] = hcl2.loads(text)
    except Exception as error:
        raise RefusedError(f"no HCL: {error}") from error
    if shutil.which("terraform"):
        environment = os.environ | {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
        done = subprocess.run(
            ["terraform", "fmt", "-check", "-diff", "-"],  # noqa: S607
            input=text, capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RefusedError(f"terraform fmt: {done.stdout}{done.stderr}")
    undeclared = _references(text) - _declared(parsed)
    if undeclared:
        raise RefusedError(f"undeclared: {', '.join(sorted(undeclared))}")
    return parsed


def _references(text: str) -> set[str]:
    """`var.x`, `local.x` and `data.type.name` as they stand outside comments and quoted text."""
    code = re.sub(r"^\s*(#|//).*$", "", text, flags=re.MULTILINE)
    expressions = " ".join(re.findall(r"\$\{([^}]*)\}", code)) + " " + re.sub(r'"(?:[^"\\]|\\.)*"', '""', code)
    return set(re.findall(r"\b(?:var|local)\.\w+|\bdata\.\w+\.\w+", expressions))


def _declared(parsed: Mapping[str, Any]) -> set[str]:
    variables = {f"var.{_bare(name)}" for block in parsed.get("variable", []) for name in block}
    local = {f"local.{name}" for block in parsed.get("locals", []) for name in block}
    data = {
        f"data.{_bare(kind)}.{_bare(name)}"
        for block in parsed.get("data", [])
        for kind, named in block.items()
        for name in named
    }
    return variables | local | data


def _bare(name: str) -> str:
    return name.strip('"')


# --- Prometheus and its companions


def promtool_rules(path: Path) -> None:
    """Alert and recording rules: syntax, PromQL and lint."""
    accept_once([program("promtool", APT), "check", "rules", "--lint=all", "--lint-fatal", path.name], [path])


def promtool_test(path: Path) -> None:
    """Unit tests of rules: series, and the alerts that they raise."""
    rules = [path.parent / name for name in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["rule_files"]]
    accept_once([program("promtool", APT), "test", "rules", path.name], [path, *rules])


def promtool_config(path: Path, *, rules_elsewhere: bool = False) -> None:
    """A Prometheus configuration with the rule files that it names; files of secrets need not be there."""
    accept_once([program("promtool", APT), "check", "config", "--syntax-only", path.name], [path])
    for pattern in yaml.load(path.read_text(), Loader=yaml.CSafeLoader).get("rule_files", []):
        rules = sorted(path.parent.glob(pattern))
        if not rules and not rules_elsewhere:
            raise RefusedError(f"no rule file {pattern}")
        for rule in rules:
            promtool_rules(rule)


def alertmanager(path: Path) -> None:
    """An Alertmanager configuration: receivers, routes and templates; Debian's knows no `url_file` yet."""
    text = re.sub(r"\burl_file: *([^\s,}]+)", "url: http://alerts.example.com", path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_text(text)
        accept_once([program("amtool", APT), "check-config", path.name], [copy])


@contextmanager
def prometheus_server(folder: Path) -> Iterator[str]:
    """A Prometheus on loopback with `prometheus.yml` of `folder`; yields its address when it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as data, (Path(data) / "log").open("w+") as log:
        command = [
            program("prometheus", APT), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}/tsdb", f"--web.listen-address={address}", "--log.level=warn",
        ]  # fmt: skip
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            deadline = time.monotonic() + 120
            while not _ready(f"http://{address}/-/ready"):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RefusedError(f"prometheus does not start: {log.read()}")
                time.sleep(0.02)
            yield f"http://{address}"
        finally:
            server.terminate()
            server.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """What a Prometheus answers to an instant query: a list of series, or a refusal."""
    asked = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - loopback
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise RefusedError(error.read().decode()) from error
    return result


@contextmanager
def metrics_page(text: str) -> Iterator[tuple[str, list[str]]]:
    """An exporter on loopback: its host and port, and the page, whose only element may be changed."""
    page = [text]

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", page
    finally:
        server.shutdown()
        server.server_close()
