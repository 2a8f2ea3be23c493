from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from validators import (
    RefusedError,
    alertmanager,
    metrics_page,
    prometheus_server,
    promtool_config,
    promtool_rules,
    promtool_test,
    query,
    shell,
    terraform,
)  # fmt: skip

SCRIPT = '#!/usr/bin/env bash\nset -euo pipefail\nexec vllm serve "$1" --port 8000\n'


def test_a_script() -> None:
    shell(SCRIPT)


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT.replace("exec", "if true; then\nexec"),
        SCRIPT.replace('"$1"', "$1"),
        SCRIPT.replace("exec", "unused=1\nexec"),
        SCRIPT + "echo `date`\n",
        SCRIPT.replace("--port", "'--port"),
    ],
)
def test_scripts_that_are_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        shell(text)


TERRAFORM = """\
variable "region" {
  type = string
}

locals {
  name = "chat"
}

data "aws_ami" "gpu" {
  most_recent = true
}

# var.comment is no reference, nor is "var.text" below
resource "aws_instance" "chat" {
  ami           = data.aws_ami.gpu.id
  instance_type = "p5.48xlarge"
  tags = {
    Name = "${local.name}-${var.region} var.text"
  }
}
"""


def test_a_terraform_file() -> None:
    (instance,) = terraform(TERRAFORM)["resource"]
    assert list(instance) == ['"aws_instance"']


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("instance_type = ", "instance_type= ", "fmt"),
        ("var.region}", "var.zone}", "undeclared: var.zone"),
        ("local.name", "local.title", "undeclared: local.title"),
        ("data.aws_ami.gpu", "data.aws_ami.cpu", "undeclared: data.aws_ami.cpu"),
        ("type = string\n}", "type = string\n", "no HCL"),
        ('"p5.48xlarge"', '"p5.48xlarge', "no HCL"),
    ],
)  # fmt: skip
def test_terraform_files_that_are_refused(before: str, after: str, message: str) -> None:
    assert before in TERRAFORM
    if message == "fmt" and not shutil.which("terraform"):
        pytest.skip("terraform is missing, and is in no registry: the format of exported files is not checked")
    with pytest.raises(RefusedError, match=message):
        terraform(TERRAFORM.replace(before, after))


RULES = """
groups:
  - name: chat
    interval: 100ms
    rules:
      - record: chat:requests:rate1m
        expr: sum(rate(vllm:request_success_total[1m]))
      - alert: QueueGrows
        expr: vllm:num_requests_waiting > 8
        for: 200ms
        labels: {severity: page}
        annotations: {summary: "{{ $value }} requests wait."}
"""
TESTS = """
rule_files: [rules.yml]
tests:
  - interval: 1m
    input_series: [{series: vllm:num_requests_waiting, values: "9x5"}]
    alert_rule_test:
      - eval_time: 3m
        alertname: QueueGrows
        exp_alerts: [{exp_labels: {severity: page}, exp_annotations: {summary: 9 requests wait.}}]
"""
CONFIG = """
global: {scrape_interval: 100ms, scrape_timeout: 100ms, evaluation_interval: 100ms}
rule_files: [rules.yml]
scrape_configs:
  - job_name: chat
    static_configs: [{targets: ["TARGET"]}]
"""


def _refused(check: Callable[[Path], object], folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    with pytest.raises(RefusedError) as refused:
        check(folder / name)
    return str(refused.value)


def test_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    promtool_rules(tmp_path / "rules.yml")
    for before, after in [
        ("sum(rate", "sum(rates"),
        ("[1m]", ""),
        ("alert:", "alarm:"),
        ("for: 200ms", "for: soon"),
        ("{{ $value }}", "{{ $valu }}"),
    ]:
        assert "bad.yml" in _refused(promtool_rules, tmp_path, "bad.yml", RULES.replace(before, after))
    twice = RULES + RULES.split("rules:\n")[1]
    assert "duplicate" in _refused(promtool_rules, tmp_path, "bad.yml", twice)


def test_tests_of_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "tests.yml").write_text(TESTS)
    promtool_test(tmp_path / "tests.yml")
    assert "got:[]" in _refused(promtool_test, tmp_path, "bad.yml", TESTS.replace("9x5", "7x5")).replace(" ", "")
    assert "FAILED" in _refused(promtool_test, tmp_path, "bad.yml", TESTS.replace("9 requests", "8 requests"))


def test_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "prometheus.yml").write_text(CONFIG)
    promtool_config(tmp_path / "prometheus.yml")
    assert "field job not found" in _refused(promtool_config, tmp_path, "bad.yml", CONFIG.replace("job_name", "job"))
    assert "no rule file" in _refused(promtool_config, tmp_path, "bad.yml", CONFIG.replace("rules.yml", "rule.yml"))
    (tmp_path / "rules.yml").write_text(RULES.replace("sum(", "total("))
    with pytest.raises(RefusedError, match="total"):
        promtool_config(tmp_path / "prometheus.yml")


ROUTES = """
route: {receiver: page, routes: [{matchers: ['severity="page"'], receiver: page}]}
receivers: [{name: page, webhook_configs: [{url_file: /etc/alertmanager/webhook}]}]
"""


def test_routes_of_alerts(tmp_path: Path) -> None:
    (tmp_path / "alertmanager.yml").write_text(ROUTES)
    alertmanager(tmp_path / "alertmanager.yml")
    assert "undefined receiver" in _refused(
        alertmanager, tmp_path, "bad.yml", ROUTES.replace("route: {receiver: page", "route: {receiver: mail")
    )
    assert "bad.yml" in _refused(alertmanager, tmp_path, "bad.yml", ROUTES.replace("matchers: [", "matches: ["))


def test_a_server_scrapes_evaluates_and_clears(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    with metrics_page("vllm:num_requests_waiting 12\n") as (target, page):
        (tmp_path / "prometheus.yml").write_text(CONFIG.replace("TARGET", target))
        with prometheus_server(tmp_path) as url:
            firing = 'ALERTS{alertname="QueueGrows", alertstate="firing"}'
            assert _eventually(lambda: query(url, firing))
            page[0] = "vllm:num_requests_waiting 2\n"
            assert _eventually(lambda: not query(url, firing))
            assert query(url, "vllm:num_requests_waiting")[0]["metric"]["job"] == "chat"
            with pytest.raises(RefusedError, match="parse error"):
                query(url, "rate(")


def _eventually(holds: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(textwrap.dedent("scrape_config: []"))
    with pytest.raises(RefusedError, match="does not start"), prometheus_server(tmp_path):
        pass
