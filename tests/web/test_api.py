"""The API answers what the command line prints, and refuses what the server's safety needs it to refuse."""

from __future__ import annotations

import io
import json
import re
import shlex
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from asked import client, printed, untimed
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from flopwise.cli.app import COMMANDS, app
from flopwise.web.openapi import document, question_schema
from flopwise.web.problems import KINDS
from flopwise.web.questions import FACTS, LEFT_OUT, MEMBERS, OPTIONS_LEFT_OUT, nouns
from flopwise.web.server import LONGEST_LINK, STATIC, Limits

NOUNS = nouns(app)
PLAN = {"workload": "Llama-3.1-8B", "gpu": ["l4", "l40s"], "provider": ["aws"], "simulate": False}
LINES = [
    "gpus --vendor AMD",
    "gpus h100",
    "instances --provider aws --gpu h100",
    "models Llama-3.1-8B --batch 2 --seq 128",
    "memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp --seq 8192",
    "train Llama-3.1-8B --gpu h100 --gpus 64 --tokens 1T --explain",
    "serve Llama-3.1-8B --gpu l40s --rate 2",
    "io cosmoflow --gpu v100",
    "roofline --flops 1e15 --bytes 2TB --gpu h100",
    "explain gpt2-xl --gpu a100-80gb --batch 8",
    "plan Llama-3.1-8B --task finetune --lora 16 --tokens 20M --gpu l4 --gpu l40s --provider aws",
    "compare Llama-3.1-8B --tokens-per-month 20B --api-price 0.15/0.60 --way api",
    "simulate Llama-3.1-8B --gpu h100 --rate 2 --duration 1min --ttft 500ms",
    "export --list",
]


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    with client(Limits(processes=1)) as one:
        yield one


@pytest.mark.parametrize("line", LINES)
def test_the_answer_is_what_the_command_line_prints(
    line: str, web: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    noun = NOUNS[line.partition(" ")[0]]
    said = noun.example(f"flopwise {line}")
    assert said is not None
    answer = web.post(f"/api/v1/{noun.name}", json=said)
    assert answer.status_code == 200, answer.text
    assert untimed(answer.json()) == printed(shlex.split(line), capsys)
    again = web.get(f"/api/v1/{noun.name}", params=said)
    assert untimed(again.json()) == untimed(answer.json())


def test_numbers_and_lists_are_read_as_their_text(web: TestClient) -> None:
    texts = web.post("/api/v1/memory", json={"model": "gpt2", "gpu": "h100", "seq": "1k", "fsdp": False})
    numbers = web.post("/api/v1/memory", json={"model": "gpt2", "gpu": "h100", "seq": 1024})
    assert texts.status_code == 200
    assert texts.json() == numbers.json()


def test_every_command_is_a_noun_or_left_out_with_a_reason() -> None:
    command_of = {noun: command for command, members in MEMBERS.items() for noun in members}
    assert {name for section in COMMANDS.values() for name in section} == {
        *(command_of.get(noun, noun) for noun in NOUNS),
        *LEFT_OUT,
    }


def test_every_option_left_out_is_one_of_some_noun() -> None:
    known = {p.name for noun in NOUNS.values() for p in noun.command.params}
    assert {key.rpartition(".")[2] for key in OPTIONS_LEFT_OUT} <= known


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"gpu": "h10", "model": "gpt2"}, "unknown accelerator 'h10'; nearest: "),
        ({"model": "gpt2", "gppu": "h100"}, "unknown option of memory 'gppu'; nearest: gpu"),
        ({"model": "gpt2", "gpu": "h100", "seq": "many"}, "--seq: "),
        ({"model": "gpt2", "fsdp": "perhaps"}, "--fsdp: expected true or false"),
        ({"gpu": "h100"}, "Missing argument 'MODEL'"),
        ({"model": "gpt2", "gpu": {"a": []}}, "gpu: expected text or a number"),
        ({"model": "--help"}, "looks like an option"),
        ({"model": "gpt2", "facts": "x"}, "not an option of the web"),
    ],
)
def test_bad_input_has_the_message_of_the_command_line(question: dict[str, Any], message: str, web: TestClient) -> None:
    answer = web.post("/api/v1/memory", json=question)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:flopwise:problem:bad-input"
    assert message in answer.json()["detail"]


def test_infeasible_has_its_reasons_and_the_document(web: TestClient) -> None:
    question = PLAN | {"task": "serve", "rate": 2, "ttft": "p95=1us"}
    answer = web.post("/api/v1/plan", json=question)
    assert answer.status_code == KINDS["infeasible"].status == 422
    problem = answer.json()
    assert problem["detail"] == "no plan meets every target"
    assert any("physics" in reason or "nearest" in reason for reason in problem["reasons"])
    assert problem["document"]["misses"]


def test_facts_have_an_etag(web: TestClient) -> None:
    tags = set()
    for noun in FACTS:
        first = web.get(f"/api/v1/{noun}")
        again = web.get(f"/api/v1/{noun}", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert web.get(f"/api/v1/{noun}", headers={"If-None-Match": '"other"'}).status_code == 200
        tags.add(first.headers["etag"])
    assert len(tags) == len(FACTS)  # other facts, another tag


def _ended(web: TestClient, where: str) -> dict[str, Any]:
    for _ in range(2400):
        job: dict[str, Any] = web.get(where).json()
        if job["state"] != "running":
            return job
        time.sleep(0.05)
    raise AssertionError("the job did not end")


def test_a_job_tells_its_progress_and_answers(web: TestClient) -> None:
    small = "name: small\nworkloads:\n" + "".join(
        f"  - {{name: w{n}, model: Llama-3.1-8B, task: serve, traffic: {{requests_per_s: {n + 1}}}, "
        " constraints: {gpus: [l4, l40s], providers: [aws]}}\n"
        for n in range(2)
    )
    question = {"fleet": "fleet.yaml", "scenarios": 20, "files": {"fleet.yaml": small}}
    begun = web.post("/api/v1/assess", json=question, headers={"Prefer": "respond-async"})
    assert begun.status_code == 202, begun.text
    where = begun.headers["location"]
    assert where in [f"/api/v1/jobs/{job['id']}" for job in web.get("/api/v1/jobs").json()]
    with web.stream("GET", f"{where}/events") as stream:
        told = [line for line in stream.iter_lines() if line.startswith(("event: ", "data: "))]
    assert told[-2] == "event: end"
    assert json.loads(told[-1].removeprefix("data: "))["state"] == "done"
    result = web.get(f"{where}/result")
    assert result.status_code == 200, result.text
    assert {row["workload"] for row in result.json()["allocation"]} >= {"w0", "w1"}
    assert web.delete(where).status_code == 204
    assert web.get(where).status_code == 404


LATER = ("network", "storage", "unit_usd", "reproduce")
"""What rows have only in the whole answer."""


def _rows(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in LATER} for row in plan["plans"]]


@pytest.mark.parametrize(
    "task",
    [{"task": "serve", "rate": 2.5}, {"task": "finetune", "lora": 16, "tokens": "21M", "simulate": None}],
    ids=["serve", "finetune"],
)
def test_a_plan_is_ranked_before_the_rest_of_it_is_there(task: dict[str, Any], web: TestClient) -> None:
    begun = web.post("/api/v1/plan", json=PLAN | task, headers={"Prefer": "respond-async"})
    where = begun.headers["location"]
    with web.stream("GET", f"{where}/events") as stream:
        told = [line for line in stream.iter_lines() if line.startswith(("event: ", "data: "))]
    result = web.get(f"{where}/result").json()
    names = told[::2]
    assert names.count("event: ranked") == 1
    assert names[-1] == "event: end"
    ranked = json.loads(told[2 * names.index("event: ranked") + 1].removeprefix("data: "))
    assert _rows(ranked) == _rows(result)
    assert (ranked["verdict"], ranked["evaluated"]) == (result["verdict"], result["evaluated"])
    assert result["levers"]
    assert not ranked["levers"]


def test_plans_of_a_few_machines_come_before_all_others_are_searched(web: TestClient) -> None:
    question = {"workload": "Llama-3.2-1B", "task": "finetune", "lora": 8, "tokens": "23M"}
    where = web.post("/api/v1/plan", json=question, headers={"Prefer": "respond-async"}).headers["location"]
    with web.stream("GET", f"{where}/events") as stream:
        told = [line for line in stream.iter_lines() if line.startswith(("event: ", "data: "))]
    names = told[::2]
    assert names.count("event: first") == 1
    assert names.index("event: first") < names.index("event: ranked")
    first = json.loads(told[2 * names.index("event: first") + 1].removeprefix("data: "))
    result = web.get(f"{where}/result").json()
    assert 0 < len(first["plans"]) < len(result["plans"])
    assert _rows({"plans": first["plans"][:1]}) == _rows({"plans": result["plans"][:1]})


def test_an_infeasible_plan_ranks_nothing(web: TestClient) -> None:
    question = PLAN | {"task": "serve", "rate": 2, "ttft": "p95=1us"}
    where = web.post("/api/v1/plan", json=question, headers={"Prefer": "respond-async"}).headers["location"]
    with web.stream("GET", f"{where}/events") as stream:
        assert "event: ranked" not in [*stream.iter_lines()]
    assert web.get(f"{where}/result").status_code == 422


def test_a_job_is_stopped_and_its_process_answers_again(web: TestClient) -> None:
    slow = {
        "model": "Llama-3.1-8B",
        "gpu": "h100",
        "rate": 8,
        "autoscale": "concurrency",
        "target": 8,
        "duration": "6d",
    }
    begun = web.post("/api/v1/simulate", json=slow, headers={"Prefer": "respond-async"})
    where = begun.headers["location"]
    assert web.get(where).json()["state"] == "running"
    assert web.get(f"{where}/result").status_code == 409
    started = time.monotonic()
    assert web.delete(where).status_code == 204
    assert web.get("/api/v1/gpus/").status_code in (200, 404)
    assert web.get("/api/v1/gpus", params={"vendor": "Intel"}).status_code == 200
    assert time.monotonic() - started < 60


def test_an_export_is_listed_read_and_packed(web: TestClient) -> None:
    plan = web.post("/api/v1/plan", json=PLAN | {"task": "serve", "rate": 2, "ttft": "2s"})
    assert plan.status_code == 200, plan.text
    question = {"target": "vllm", "plan": "plan.json", "files": {"plan.json": plan.json()}}
    listed = web.post("/api/v1/export", json=question).json()
    form = "application/vnd.flopwise.files+json"
    texts = web.post("/api/v1/export", json=question, headers={"Accept": form}).json()
    packed = web.post("/api/v1/export", json=question, headers={"Accept": "application/zip"})
    archive = zipfile.ZipFile(io.BytesIO(packed.content))
    assert set(listed["files"]) == set(texts) == set(archive.namelist())
    assert {name: archive.read(name).decode() for name in texts} == texts
    assert "Llama-3.1-8B" in "".join(texts.values())
    assert web.post("/api/v1/memory", json={"model": "gpt2"}, headers={"Accept": form}).status_code == 406


def test_examples_and_questions_hold_against_the_document(web: TestClient) -> None:
    described = web.get("/api/v1/openapi.json").json()
    assert described == json.loads(json.dumps(document(NOUNS)))
    assert described["openapi"] == "3.1.0"
    for noun in NOUNS.values():
        schema = question_schema(noun)
        Draft202012Validator.check_schema(schema)
        content = described["paths"][f"/api/v1/{noun.name}"]["post"]["requestBody"]["content"]["application/json"]
        for example in content.get("examples", {}).values():
            Draft202012Validator(schema).validate(example["value"])
    assert described["paths"]["/api/v1/train"]["post"]["requestBody"]["content"]["application/json"]["examples"]


def test_a_page_has_the_limit_of_the_command_line_on_what_a_link_holds(web: TestClient) -> None:
    assert f'<html lang="en" data-longest-link="{LONGEST_LINK}">' in web.get("/plan").text
    assert not [path for path in STATIC.glob("*.js") if str(LONGEST_LINK) in path.read_text(encoding="utf-8")]


def test_a_page_names_all_its_modules_and_no_others(web: TestClient) -> None:
    """The browser loads them at once: each is there, and names none that the page does not."""
    for page in ("plan", "serve", "fleet", "runs", "catalog"):
        named = re.findall(r'<link rel="modulepreload" href="(/static/[^"]+)">', web.get(f"/{page}").text)
        assert f"/static/{page}.js" in named
        assert len(named) == len(set(named))
        for path in named:
            module = web.get(path)
            assert module.status_code == 200
            assert module.headers["content-type"].startswith("text/javascript")
            folder = path.rpartition("/")[0]
            imported = re.findall(r'^import .*?"\./([^"]+)";', module.text, re.MULTILINE | re.DOTALL)
            assert {f"{folder}/{one}" for one in imported} <= set(named)
    assert "/static/plan.js" not in web.get("/fleet").text
    assert "/static/fleet_form.js" in web.get("/fleet").text
    assert "/static/vendor" not in web.get("/fleet").text  # what is large comes after the first paint


def test_the_pages_are_a_small_bundle() -> None:
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) < 1_500_000


def test_files_of_the_pages_are_sent_once(web: TestClient) -> None:
    first = web.get("/static/app.js")
    again = web.get("/static/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert web.get("/static/pictures.css").headers["content-type"].startswith("text/css")
    assert web.get("/static/nothing.js").status_code == 404
    nowhere = web.get("/train")
    assert nowhere.status_code == 404
    assert "GET /train is not there; pages: /plan, /estimate" in nowhere.json()["detail"]
