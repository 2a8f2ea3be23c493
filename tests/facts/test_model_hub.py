"""Hub ids through huggingface_hub's own client, against a folder laid out as its cache: no network is needed."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.models import catalog
from flopwise.facts.models.catalog import hub_config, load_model

huggingface_hub = pytest.importorskip("huggingface_hub")

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, offline."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


def store(cache: Path, model_id: str, content: bytes) -> None:
    """Lay a config.json out as the client does: refs/main names a commit, snapshots/<commit>/ holds its files."""
    home = cache / ("models--" + model_id.replace("/", "--"))
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    (snapshot / "config.json").write_bytes(content)


def test_a_cached_configuration_is_read_without_network(hub_cache: Path) -> None:
    store(hub_cache, "someone/tiny", json.dumps(CONFIG).encode())
    model = load_model("someone/tiny")
    assert (model.name, model.hf_id, model.stacks[0].width) == ("someone/tiny", "someone/tiny", 64)
    assert load_model("someone/tiny", offline=True) == model


def test_offline_and_not_cached_says_so(hub_cache: Path) -> None:
    assert list(hub_cache.iterdir()) == []
    with pytest.raises(
        SpecError, match=r"someone/other: its config.json is not in the hub's cache, and offline mode is on"
    ):
        load_model("someone/other")


def test_a_truncated_cached_file_is_refused(hub_cache: Path) -> None:
    store(hub_cache, "someone/broken", b'{"model_type": "llama", "hid')
    with pytest.raises(SpecError, match="not valid JSON"):
        load_model("someone/broken")


def test_an_unknown_family_from_the_hub_can_be_assumed(hub_cache: Path) -> None:
    store(hub_cache, "someone/new", json.dumps(CONFIG | {"model_type": "brand_new"}).encode())
    with pytest.raises(SpecError, match="brand_new"):
        load_model("someone/new")
    assert any("read as 'llama'" in note for note in load_model("someone/new", assume_family="llama").notes)


def failing(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    """Make the client's download end in `problem`."""

    def download(*_args: object, **_kwargs: object) -> str:
        raise problem

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_a, **_k: None)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def made(kind: type[BaseException]) -> BaseException:
    """An error of the client's, without the machinery that makes its message."""
    problem = kind.__new__(kind)
    BaseException.__init__(problem, "made for a test")
    return problem


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("GatedRepoError", "a gated model; accept its licence on the hub and set HF_TOKEN"),
        ("RepositoryNotFoundError", "no such model on the hub"),
        ("LocalEntryNotFoundError", "the hub cannot be reached, and its config.json is not cached"),
        ("EntryNotFoundError", "the model has no config.json"),
        ("HfHubHTTPError", "the hub cannot be reached"),
    ],
)
def test_each_way_the_hub_can_fail_has_its_sentence(monkeypatch: pytest.MonkeyPatch, kind: str, complaint: str) -> None:
    from huggingface_hub import errors

    failing(monkeypatch, made(getattr(errors, kind)))
    with pytest.raises(SpecError, match=complaint):
        load_model("someone/elses")


def test_no_network_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ConnectionError("no route"))
    with pytest.raises(SpecError, match=r"the hub cannot be reached \(ConnectionError\)"):
        load_model("someone/elses")


@pytest.mark.parametrize("given", ["a/b/c", "a//b", "/b", "a/", "a/b--c", "-a/b", "a/..", "../../etc/passwd"])
def test_what_is_no_hub_id_never_reaches_the_client(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    failing(monkeypatch, AssertionError("the client was asked"))
    with pytest.raises(SpecError):
        load_model(given)


def test_a_hub_that_cannot_be_reached_is_asked_once_and_quietly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_url", lambda *_a, **_k: "http://127.0.0.1:9/config.json")
    began = time.monotonic()
    with pytest.raises(SpecError, match="the hub cannot be reached"):
        load_model("someone/elses")
    assert time.monotonic() - began < 20, "the client's own tries take 23 s"
    assert capfd.readouterr() == ("", "")


def test_a_hub_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    ends, threads = threading.Event(), {*threading.enumerate()}
    monkeypatch.setattr(catalog, "WHOLE_S", 0.05)
    monkeypatch.setattr(catalog, "_download", lambda _: ends.wait(60))
    with pytest.raises(SpecError, match=r"the hub cannot be reached \(TimeoutError\)"):
        hub_config("somebody/a-model-that-is-not-cached")
    (waiting,) = {*threading.enumerate()} - threads
    assert waiting.is_alive(), "the hub still sends"
    ends.set()
    waiting.join(60)  # others fork: no thread may be left
