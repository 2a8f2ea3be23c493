"""Who may ask, and what a question may not do."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from asked import client
from starlette.testclient import TestClient

from flopwise.cli import answering
from flopwise.cli.answering import FileGuard
from flopwise.web.guard import HEADERS, Access, is_loopback
from flopwise.web.server import Limits

TOKEN = "a-token-of-the-tests"  # noqa: S105 - of the tests alone


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    with client(Limits(processes=1, body_bytes=100_000)) as one:
        yield one


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.2", "localhost, evil.example"])
def test_another_host_is_refused(host: str, web: TestClient) -> None:
    for path in ("/api/v1/gpus", "/plan"):
        assert web.get(path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8321", "127.0.0.1:1", "[::1]:8321"])
def test_this_machine_is_let_in(host: str, web: TestClient) -> None:
    assert web.get("/api/v1/jobs", headers={"Host": host}).status_code == 200


def test_pages_of_other_origins_may_not_ask(web: TestClient) -> None:
    assert web.get("/api/v1/jobs", headers={"Origin": "http://evil.example"}).status_code == 403
    assert web.get("/api/v1/jobs", headers={"Origin": "null"}).status_code == 403
    assert web.get("/api/v1/jobs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    own = web.get("/api/v1/jobs", headers={"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"})
    assert own.status_code == 200
    assert not [name for name in own.headers if name.startswith("access-control")]


def test_a_token_is_needed_for_answers_and_not_for_pages() -> None:
    with client(Limits(processes=1), TOKEN) as web:
        assert web.get("/plan").status_code == 200
        for given in (
            {},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer é"},
        ):
            refused = web.get("/api/v1/jobs", headers={k.encode(): v.encode("latin-1") for k, v in given.items()})
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in refused.text
        assert web.get("/api/v1/jobs", params={"token": TOKEN}).status_code == 401
        assert web.get("/api/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "example.org", "")))  # noqa: S104 - no address
    assert Access.of("0.0.0.0", TOKEN).hosts == frozenset()  # noqa: S104 - same
    assert "evil.example" not in Access.of("127.0.0.1", TOKEN).hosts


def test_every_answer_has_the_headers_and_no_inline_script(web: TestClient) -> None:
    for path in ("/plan", "/api/v1/jobs", "/nothing", "/static/app.js"):
        answer = web.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy


@pytest.mark.parametrize(
    "model",
    [
        "/etc/passwd",
        "../../etc/passwd",
        "~/x.json",
        "x/../../etc",
        "C:\\x.json",
        "\\\\host\\share",
        "/proc/self/environ",
    ],
)
def test_no_path_of_the_server_is_taken(model: str, web: TestClient) -> None:
    answer = web.post("/api/v1/memory", json={"model": model})
    assert answer.status_code == 400
    assert "is a path" in answer.json()["detail"]


def test_a_file_of_the_server_named_in_an_upload_is_not_read(web: TestClient, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("arrival_s,prompt_tokens,output_tokens\n0,777,5\n1,777,5\n")
    fleet = (
        "name: x\nworkloads:\n  - {name: w, model: gpt2, task: serve, traffic: {trace: " + str(secret) + "},"
        " constraints: {gpus: [l4], providers: [aws]}}\n"
    )
    question = {"fleet": "fleet.yaml", "scenarios": 0, "files": {"fleet.yaml": fleet}}
    answer = web.post("/api/v1/assess", json=question)
    assert answer.status_code in (400, 422)
    assert "777" not in answer.text
    assert "the server does not read its own files" in answer.text
    question["files"]["fleet.yaml"] = fleet.replace(str(secret), "trace.csv")  # type: ignore[index]
    question["files"]["trace.csv"] = secret.read_text()  # type: ignore[index]
    assert "does not read its own files" not in web.post("/api/v1/assess", json=question).text


def test_the_guard_refuses_what_is_not_below_its_places(tmp_path: Path) -> None:
    allowed, own, other = (tmp_path / name for name in ("allowed", "own", "allowed-not"))
    for folder in (allowed, own, other):
        folder.mkdir()
        (folder / "x").write_text("text")
    (own / "link").symlink_to(other / "x")
    guard = FileGuard([str(allowed)])
    with guard.reading_below(str(own)):
        assert (allowed / "x").read_text() == (own / "x").read_text() == "text"
        for path in (other / "x", own / "link", own / ".." / "allowed-not" / "x"):
            with pytest.raises(PermissionError, match="not read"):
                path.read_text()
    assert (other / "x").read_text() == "text"


@pytest.mark.parametrize("name", ["../x", "/x", ".x", "a/b", "", "x" * 100, "x\0y"])
def test_an_upload_has_a_plain_name(name: str, web: TestClient) -> None:
    answer = web.post("/api/v1/memory", json={"model": "gpt2", "files": {name: "x"}})
    assert answer.status_code == 400


def test_a_configuration_is_sent_with_the_question(web: TestClient) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    }  # fmt: skip
    answer = web.post("/api/v1/models", json={"name": "config.json", "files": {"config.json": config}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["parameters"] > 10_000


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [("deep", "[" * 20_000), ("deep maps", "{a: " * 20_000), ("bomb", BOMB), ("tag", "!!python/object:os.system {}")],
)
def test_a_hostile_file_is_refused_soon(name: str, text: str, web: TestClient) -> None:
    started = time.monotonic()
    answer = web.post("/api/v1/assess", json={"fleet": "f.yaml", "files": {"f.yaml": text}})
    assert answer.status_code == 400, (name, answer.text)
    assert time.monotonic() - started < 60


def test_bodies_are_limited(web: TestClient) -> None:
    huge = web.post("/api/v1/memory", json={"model": "gpt2", "files": {"a": "x" * 200_000}})
    assert huge.status_code == 413
    for body in ("[" * 50_000, '{"model": NaN}', "[]", "", '{"model": "gpt2", "seq": 1' + "0" * 5000 + "}"):
        answer = web.post("/api/v1/memory", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, body[:20]
    assert web.post("/api/v1/memory", content="model=gpt2").status_code == 415
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert web.post("/api/v1/memory", content=b"x", headers=packed).status_code == 415


def test_too_large_a_search_is_refused(web: TestClient) -> None:
    answer = web.post("/api/v1/assess", json={"fleet": "f.yaml", "scenarios": 10**8, "files": {"f.yaml": "x"}})
    assert answer.status_code == 400
    assert "more than the web app takes" in answer.json()["detail"]


def test_a_question_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(**_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("flopwise.cli.answering.app.main", too_much)
    reply = answering._run(["gpus"], lambda _: None)
    assert (reply["code"], reply["document"]) == (2, "")
    assert "more memory than the web server allows" in reply["message"]


def test_a_question_that_takes_too_long_is_stopped() -> None:
    with client(Limits(processes=1, question_s=0.3)) as web:
        web.get("/api/v1/gpus", params={"vendor": "Intel"})
        slow = {"model": "Llama-3.1-8B", "gpu": "h100", "rate": 8, "duration": "6d"}
        answer = web.post("/api/v1/simulate", json=slow)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:flopwise:problem:too-long")
        assert answer.headers["retry-after"]
        assert web.get("/api/v1/gpus", params={"vendor": "AMD"}).status_code == 200


def test_jobs_are_limited() -> None:
    slow = {"model": "Llama-3.1-8B", "gpu": "h100", "rate": 8, "duration": "6d"}
    with client(Limits(processes=1)) as web:
        begun = [web.post("/api/v1/simulate", json=slow, headers={"Prefer": "respond-async"}) for _ in range(9)]
        assert [answer.status_code for answer in begun] == [202] * 8 + [429]
        for answer in begun[:8]:
            assert web.delete(answer.headers["location"]).status_code == 204


def test_a_full_queue_is_said() -> None:
    with client(Limits(processes=1, waiting=0)) as web:
        answer = web.get("/api/v1/gpus")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:flopwise:problem:busy")


def test_static_files_stay_in_their_folder(web: TestClient) -> None:
    for path in (
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/..%2f..%2fweb/run.py",
    ):
        assert web.get(path).status_code == 404


def test_no_port_is_shared() -> None:
    from flopwise.web.server import listen

    with listen("127.0.0.1", 0) as bound, pytest.raises(OSError, match=r"[Aa]ddress already in use") as failure:
        listen("127.0.0.1", bound.getsockname()[1])
    assert failure.value.filename.startswith("127.0.0.1:")


def test_answers_do_not_wait_for_an_acknowledgement() -> None:
    """Head and body of an answer go in two parts: of a socket that waits, the second leaves 40 ms later (Linux)."""
    from flopwise.web.server import listen

    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_compiled_code_may_be_kept_where_it_is_looked_for() -> None:
    """Of both simulators: the one for prompts that share beginnings lies in a folder of its own."""
    from flopwise.cli.answering import readable_places
    from flopwise.serving.sim.machine_code import cache_folder

    folders = {os.path.realpath(folder) for shared in (False, True) if (folder := cache_folder(shared=shared))}
    assert folders <= set(readable_places())
