"""`flopwise web` as a process: it says where it is, answers, and goes without a trace."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import httpx
import pytest

from flopwise import cli
from flopwise.cli.answering import MOST_MEMORY_BYTES
from flopwise.cli.app import app
from flopwise.cli.commands import web
from flopwise.errors import UnknownNameError
from flopwise.web.questions import Noun, nouns

NOUN = nouns(app)["plan"]


def test_without_the_extra_the_remedy_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert cli.main(["web", "--no-open"]) == 2
    assert capsys.readouterr().err == "error: uvicorn not installed: pip install 'flopwise[web]'\n"


@pytest.mark.parametrize("token", ["short", "with\ttabs-and-more-than-16", "ünicode-is-not-of-headers"])
def test_a_weak_token_is_refused(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["web", "--no-open", "--token", token]) == 2
    assert "--token: give at least 16" in capsys.readouterr().err


def test_an_address_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["web", "--no-open", "--host", "192.0.2.1", "--port", "0"]) == 2
    assert "192.0.2.1:0" in capsys.readouterr().err


def test_a_plan_is_shown_as_the_page_of_the_same_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    monkeypatch.setattr("flopwise.web.server.serve", lambda *_: None)
    line = (
        "plan Llama-3.1-8B --task serve --rate 500/min --ttft p99=1s --gpu l4 --gpu l40s --no-simulate --max-gpus 4"
        " --provider aws"
    )
    assert cli.main([*line.split(), "--web"]) == 0
    assert capsys.readouterr().out.strip() == shown[0]
    path, _, query = shown[0].partition("?")
    said = {key: values if len(values) > 1 else values[0] for key, values in parse_qs(query).items()}
    assert re.fullmatch(r"http://localhost:\d+/plan", path)
    asked = NOUN.question(said | {"provider": ["aws"]}).argv
    expected = NOUN.question(NOUN.example(f"flopwise {line}") or {}).argv
    assert sorted(asked) == sorted(expected)
    assert cli.main(["plan", "work.yaml", "--web"]) == 2
    assert cli.main([*line.split(), "--web", "--to", "vllm"]) == 2
    assert "--to: not with --web" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "page", "query", "behind"),
    [
        ("simulate gpt2 --gpu l4 --rate 2/s --input 1k --duration 1min", "serve",
         {"model": "gpt2", "gpu": "l4", "rate": "2", "input": "1000", "duration": "60"}, {}),
        ("train gpt2 --gpu l4 --gpus 2 --tokens 1B", "estimate",
         {"question": "train", "model": "gpt2", "gpu": "l4", "gpus": "2", "tokens": "1e9"}, {}),
        ("serve gpt2 --gpu l4 --rate 30/min", "estimate",
         {"question": "serve", "model": "gpt2", "gpu": "l4", "rate": "0.5"}, {}),
        ("memory gpt2 --gpu l4 --seq 512", "estimate",
         {"question": "memory", "model": "gpt2", "gpu": "l4", "seq": "512"}, {}),
        ("fit gpt2 --gpu l4 --context 1k --formats bf16,fp8", "estimate",
         {"question": "fit", "model": "gpt2", "gpu": "l4", "context": "1024", "formats": "fp8"}, {}),
        ("roofline --flops 1e15 --bytes 2TB --gpu h100 --training", "estimate",
         {"question": "roofline", "flops": "1e15", "bytes": "2e12", "gpu": "h100", "training": "true"}, {}),
        ("runs show last-night", "runs", {"run": "last-night"}, {}),
        ("runs", "runs", {}, {}),
        ("gpus", "catalog", {"list": "gpus"}, {}),
        ("gpus h100", "catalog", {"list": "gpus", "name": "h100"}, {}),
        ("gpus --min-memory 80GB", "catalog", {"list": "gpus", "min_memory": "8e10"}, {}),
        ("instances --gpu l40s --provider aws", "catalog",
         {"list": "instances", "gpu": "l40s", "provider": "aws"}, {}),
        ("models --family llama", "catalog", {"list": "models", "family": "llama"}, {}),
        ("assess fleet.yaml --scenarios 20", "fleet", {"scenarios": "20"}, {"fleet": "name: a & b\n"}),
    ],
)  # fmt: skip
def test_every_page_is_reached_from_the_command_of_its_question(
    line: str, page: str, query: dict[str, str], behind: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    monkeypatch.setattr("flopwise.web.server.serve", lambda *_: None)
    monkeypatch.setenv(web.TOKEN, "a-token-of-the-test & more")
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text("name: a & b\n", encoding="utf-8")
    assert cli.main([*line.split(), *(["list"] if line == "runs" else []), "--web"]) == 0
    address = urlsplit(shown[0])
    assert address.path == f"/{page}"
    assert dict(parse_qsl(address.query)) == query
    parts = dict(part.split("=", 1) for part in address.fragment.split("&"))
    expected = {"token": "a-token-of-the-test & more"} | behind
    assert {key: unquote(text) for key, text in parts.items()} == expected


@pytest.mark.parametrize(
    "line",
    [
        "simulate gpt2 --gpu l4 --trace t.csv",
        "runs list --task serve",
        "assess fleet.yaml -o report",
        "train gpt2 --gpu l4 --compare",
        "serve gpt2 --gpu l4 --sweep concurrency",
        "models gpt2 --batch 1",
    ],
)
def test_what_a_page_does_not_hold_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text("name: a\n", encoding="utf-8")
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n", encoding="utf-8")
    assert cli.main([*line.split(), "--web"]) == 2
    said = capsys.readouterr().err
    assert any(option in said for option in ("--trace", "--task", "--output", "--batch", "--compare", "--sweep"))


PAGE_OPTIONS = {"estimate": "question", "catalog": "list"}
"""Options of pages that say what is asked, by page."""
LINES = [
    pytest.param(noun, line, id=line)
    for noun in nouns(app).values()
    if any(param.name == "web" for param in noun.command.params)
    for line in getattr(noun.command, "examples", ())
    if "--json" not in line
]


@pytest.mark.parametrize(("noun", "line"), LINES)
def test_a_link_asks_what_its_command_line_asks(
    noun: Noun, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: None)
    monkeypatch.setattr("flopwise.web.server.serve", lambda *_: None)
    argv = shlex.split(line)[1:]
    if cli.main([*argv, "--web"]) == 2:  # what the page does not hold
        said = capsys.readouterr().err
        assert any(word.split("=")[0] in said for word in argv if word.startswith("-") or "." in word)
        return
    address = urlsplit(capsys.readouterr().out.strip())
    query = parse_qs(address.query)
    query.pop(PAGE_OPTIONS.get(address.path[1:], ""), None)
    asked = noun.question({key: values if len(values) > 1 else values[0] for key, values in query.items()})
    start = len(noun.words)
    assert _values(noun, [word for word in asked.argv[start:] if word != "--json"]) == _values(noun, argv[start:])


def _values(noun: Noun, words: list[str]) -> dict[str, object]:
    """What the words of a command line say, by parameter."""
    with noun.command.make_context(noun.name, words) as context:
        return {name: value for name, value in context.params.items() if value not in (None, ())}


def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    line = [sys.executable, "-P", "-m", "flopwise", "web", "--no-open", "--port", "0"]
    server = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://localhost:\d+/", address)
        assert '<script type="module" src="/static/app.js">' in httpx.get(f"{address}plan", timeout=60).text
        assert _processor_s(server.pid) < 2  # of its own; the benchmark holds the second, on a quiet machine
        assert httpx.get(f"{address}api/v1/gpus?name=h100", timeout=60).json()["name"] == "H100-SXM-80"
        slow = {"model": "Llama-3.1-8B", "gpu": "h100", "rate": 8, "duration": "6d"}
        httpx.post(f"{address}api/v1/simulate", json=slow | {"duration": "5s"}, timeout=90)  # compiled where it is not
        before = sum(map(_processor_s, (server.pid, *_children(server.pid))))
        for seed in range(10):  # nobody waits for these, 4 s of a processor each: they are stopped
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}api/v1/simulate", json=slow | {"seed": seed}, timeout=0.3)
        assert httpx.get(f"{address}api/v1/gpus?vendor=AMD", timeout=60).status_code == 200
        assert sum(map(_processor_s, (server.pid, *_children(server.pid)))) - before < 20
        workers = _limited(server.pid)
    finally:
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=120)
    assert server.returncode in (0, 130)
    assert "Traceback" not in said
    assert "gpus" not in said
    for _ in range(1200):
        if not any(Path(f"/proc/{worker}").exists() for worker in workers):
            return
        time.sleep(0.05)
    raise AssertionError("processes stay behind")


def _limited(server: int) -> list[int]:
    """The processes of a server once each of them limits its memory, as one in the place of a stopped one soon does."""
    for _ in range(100):
        workers = _children(server)
        if workers and all(map(_is_limited, workers)):
            return workers
        time.sleep(0.1)
    raise AssertionError("a process without a limit of its memory, or none at all")


def _is_limited(worker: int) -> bool:
    """Whether a process limits its memory; not one that has just ended."""
    try:
        limits = Path(f"/proc/{worker}/limits").read_text()
    except FileNotFoundError:
        return False
    return re.search(rf"Max data size +{MOST_MEMORY_BYTES} ", limits) is not None


def _processor_s(pid: int) -> float:
    """Processor time of a process so far, and of those of its own that ended; 0 of one that has itself just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()]


def test_another_host_gets_a_token_that_no_log_sees(tmp_path: Path) -> None:
    line = [sys.executable, "-P", "-m", "flopwise", "web", "--no-open", "--port", "0", "--host", "0.0.0.0"]  # noqa: S104
    server = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ
    )
    assert server.stdout is not None
    try:
        found = re.fullmatch(r"http://0\.0\.0\.0:(\d+)/#token=(\S{20,})", server.stdout.readline().strip())
        assert found is not None
        port, token = found.groups()
        jobs = f"http://127.0.0.1:{port}/api/v1/jobs"
        assert httpx.get(jobs, timeout=60).status_code == 401
        assert httpx.get(jobs, headers={"Authorization": f"Bearer {token}"}, timeout=60).json() == []
    finally:
        server.send_signal(signal.SIGINT)
        out, said = server.communicate(timeout=120)
    assert token not in out + said


def test_plan_takes_its_model_by_the_name_that_other_nouns_have() -> None:
    plan = nouns(app)["plan"]
    asked = {"task": "serve", "rate": 2}
    assert plan.question({"model": "gpt2", **asked}).argv == plan.question({"workload": "gpt2", **asked}).argv
    with pytest.raises(UnknownNameError, match="unknown option of plan 'model'"):
        plan.question({"model": "gpt2", "workload": "gpt2", **asked})
