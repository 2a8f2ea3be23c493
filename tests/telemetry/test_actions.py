"""Webhooks and stop commands: once, without a shell, and never the end of watching."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from servers import free_port, program, until, web_server

from flopwise.errors import SpecError
from flopwise.records.model import Event, Run, Sample
from flopwise.records.store import open_store
from flopwise.telemetry.actions import BudgetCommand, KeptState, Webhook
from flopwise.telemetry.exposition import SERVED, MetricsPage
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import Watcher

START_S = 1_790_000_000.0


def recorded_run(path: Path, minutes: int = 60, **how: object) -> Run:
    """A training run whose loader makes it wait after half of its time."""
    given = {"run_id": "ab" * 16, "name": "assistant", "task": "finetune", "started_at_s": START_S,
             "ended_at_s": START_S + 60 * minutes, "status": "finished", "price_usd_per_hour": 12.0}  # fmt: skip
    run = Run(**(given | how))  # type: ignore[arg-type]
    samples = []
    for n in range(minutes * 6):
        waits = n > minutes * 3
        at_s = START_S + 10 * n
        for metric, value in (
            ("step_s", 2.0), ("data_wait_s", 0.9 if waits else 0.02), ("tokens_per_s", 5e3 if waits else 9e3),
            ("tokens", 9e4 * n), ("cost_usd", 12.0 * n / 360),
        ):  # fmt: skip
            samples.append(Sample(metric, at_s, value, n))
        samples.append(Sample("utilization_frac", at_s, 0.5 if waits else 0.98, n, "0"))
    store = open_store(path)
    store.add_run(run)
    store.append(run.run_id, samples, [Event(START_S, "note", "begun")])
    return run


def watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flopwise", "watch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_webhook_is_tried_again_and_its_address_stays_secret() -> None:
    said: list[str] = []
    with web_server(codes=(500, 503)) as server:
        hook = Webhook(f"http://{server.address}/secret-token", said.append, wait_s=0.01)
        hook.post({"alert": "MemoryHigh"})
        hook.close()
        assert server.posted == [{"alert": "MemoryHigh"}]
        assert server.asked == 3
        assert said == []
    gone = Webhook(f"http://user:pass@127.0.0.1:{free_port()}/secret-token", said.append, wait_s=0.01)
    gone.post({"alert": "A"})
    gone.post({"alert": "B"})
    gone.close()
    assert len(said) == 1, "once an outage"
    assert "secret" not in said[0]
    assert "pass" not in said[0]


def test_a_refusal_is_not_tried_again() -> None:
    said: list[str] = []
    with web_server(codes=(404,)) as server:
        hook = Webhook(f"http://{server.address}/", said.append, wait_s=0.01)
        hook.post({"alert": "A"})
        hook.close()
        assert server.asked == 1
    assert "404" in said[0]
    for wrong in ("localhost/x", "file:///etc/passwd", "http://[::1", "http://h:x/"):
        with pytest.raises(SpecError, match="--webhook"):
            Webhook(wrong, said.append)


def test_a_command_runs_once_without_a_shell(tmp_path: Path) -> None:
    said: list[str] = []
    proof = tmp_path / "a b; touch c"
    state = KeptState(tmp_path / "job.json")
    command = BudgetCommand(f"{sys.executable} -c 'import sys; open(sys.argv[1], \"a\").write(\"x\")' '{proof}'",
                            state, said.append)  # fmt: skip
    command.run()
    command.run()
    BudgetCommand("true", KeptState(tmp_path / "job.json"), said.append).run()
    assert [text for text in said if "is spent: running" in text] == said, "nor after a restart"
    assert len(said) == 1
    assert until(lambda: proof.exists() and proof.read_text() == "x")
    assert not (tmp_path / "c").exists()

    def ended() -> bool:
        command.check()
        return any("exit code 0" in text for text in said)

    assert until(ended)
    for wrong in ("no-such-program-anywhere x", "unbalanced 'quote", " "):
        with pytest.raises(SpecError, match="--exec-on-budget"):
            BudgetCommand(wrong, state, said.append)


def test_a_command_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    program_file = tmp_path / "stop"
    program_file.write_text("")
    program_file.chmod(0o755)
    program_file.write_bytes(b"\x7fELF no program")
    state = KeptState(tmp_path / "job.json")
    command = BudgetCommand(str(program_file), state, said.append)
    command.run()
    command.run()
    assert len(said) == 1
    assert "could not be started" in said[0]
    program_file.write_text("#!/bin/sh\nexit 3\n")
    command.run()
    assert said[-1].endswith("stop")

    def ended() -> bool:
        command.check()
        return len(said) == 3

    assert until(ended)
    assert said[-1].endswith("exit code 3")
    BudgetCommand(str(program_file), state, said.append).run()
    assert len(said) == 3


def test_a_recorded_run_is_played_back_with_its_alerts(tmp_path: Path) -> None:
    where = tmp_path / "runs.db"
    recorded_run(where)
    proof, state = tmp_path / "stopped", tmp_path / "state.json"
    with web_server() as server:
        arguments = ("--run", "assistant", "--store", str(where), "--budget", "6", "--min-tokens-per-s", "8000",
                     "--webhook", f"http://{server.address}/", "--state", str(state),
                     "--exec-on-budget", f"touch {proof}", "--once", "--json")  # fmt: skip
        done = watch(*arguments)
        assert done.returncode == 1, done.stderr
        found = json.loads(done.stdout)
        assert found["diagnosis"]["bound"] == "data loading"
        assert found["diagnosis"]["certain"]
        fired = {one["alert"] for one in found["changes"] if one["state"] == "firing"}
        assert fired == {"BudgetSpent", "ThroughputLow"}
        assert {one["alert"] for one in server.posted} == fired
        assert found["spend"]["total_usd"] == pytest.approx(12.0 * 359 / 360)
        assert until(proof.exists)
        proof.unlink()
        assert watch(*arguments).returncode == 1
        assert not proof.exists(), "a restart does not run it again"


def test_a_healthy_run_ends_with_code_0_and_reads_as_text(tmp_path: Path) -> None:
    where = tmp_path / "runs.db"
    recorded_run(where, minutes=20)
    done = watch("--run", "abab", "--store", str(where))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data loading" in done.stdout
    assert "waits for data" in done.stdout


def test_bad_input_is_one_line_and_code_2(tmp_path: Path) -> None:
    recorded_run(tmp_path / "runs.db", minutes=2)
    store = ("--store", str(tmp_path / "runs.db"))
    for arguments in (
        ("--once",), ("--run", "nothing", *store), ("--run", "x", "--prometheus", "http://h"), ("--match", "a=b"),
        ("--run", "assistant", *store, "--target-p95", "itl=1s"),
        ("--run", "assistant", *store, "--once", "--serve", "1"),
        ("--run", "assistant", *store, "--exec-on-budget", "true"),
        ("--run", "assistant", *store, "--plan", "none.json"),
        ("--prometheus", "http://127.0.0.1:9", "--once"),
    ):  # fmt: skip
        done = watch(*arguments)
        assert done.returncode == 2, (arguments, done)
        assert done.stdout == ""
        assert done.stderr.count("\n") <= 2
        assert "Traceback" not in done.stderr


def test_everything_is_served_under_names_that_stay(tmp_path: Path) -> None:
    recorded_run(tmp_path / "runs.db", minutes=10)
    watcher = Watcher.of(WatchSpec(run="assistant", store=str(tmp_path / "runs.db"), budget=100.0))
    page = MetricsPage(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=60) as answer:
            assert b"flopwise" not in answer.read(), "before the first look"
        page.status = watcher.look()
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    finally:
        page.close()
        watcher.close()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names <= {metric.name for metric in SERVED}
    assert {"flopwise_watch_device_utilization_ratio", "flopwise_watch_bound", "flopwise_watch_cost_dollars"} <= names
    assert 'flopwise_watch_bound{bound="data loading"}' in text
    checked = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True,
                             check=False)  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_list_of_names_is_the_one_that_people_rely_on() -> None:
    """A name that goes or changes breaks somebody's dashboard: it is taken out here on purpose only."""
    names = [metric.name for metric in SERVED]
    assert len(names) == len(set(names)) == 65
    assert all(name.startswith("flopwise_watch_") for name in names)
    listed = (Path(__file__).parent / "served_names.txt").read_text().split()
    assert names == listed


def test_a_port_that_is_taken_is_said() -> None:
    page = MetricsPage(0)
    try:
        with pytest.raises(SpecError, match="--serve"):
            MetricsPage(page.port)
    finally:
        page.close()
