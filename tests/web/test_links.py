"""Every page is reached from the link that a command prints, and shows what the command prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from on_page import CONFIG, FLEET
from playwright.sync_api import Page, expect

from flopwise import cli, units

pytestmark = pytest.mark.browser


def _times(found: Any, *names: str) -> list[str]:
    return [units.format_seconds(found[name]) for name in names if found.get(name)]


def _planned(found: Any) -> list[str]:
    best = found["plans"][0]
    return [found["verdict"], units.format_usd(best["cost_usd"]), units.format_seconds(best["seconds"])]


def _estimated(found: Any) -> list[str]:
    memory = found.get("memory", found)
    sizes = [units.format_gib(memory["per_gpu_bytes"])] if "per_gpu_bytes" in memory else []
    formats = [units.format_usd(one["usd_per_million_output_tokens"]) for one in found.get("formats", [])[:1]]
    return [found["verdict"], *sizes, *formats, *_times(found, "step_s", "ttft_s", "tpot_s", "e2e_s", "seconds")]


def _simulated(found: Any) -> list[str]:
    return [found["verdict"], *map(units.format_seconds, (found["ttft_s"]["p95"], found["e2e_s"]["p99"]))]


def _assessed(found: Any) -> list[str]:
    return [found["verdict"], *(units.format_usd(one["usd_per_month"]) for one in found["allocation"])]


def _gpu(found: Any) -> list[str]:
    return [found["name"], units.format_rate(found["hbm_bytes_per_s"]), units.format_gib(found["hbm_bytes"])]


def _gpus(found: Any) -> list[str]:
    return [f"{len(found)} of {len(found)}", *(one["name"] for one in found)]


def _offers(found: Any) -> list[str]:
    one = found[0]
    return [f"{len(found)} of {len(found)}", one["instance"], one["region"]]


def _model(found: Any) -> list[str]:
    return [found["name"], units.format_count(found["parameters"])]


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("plan Llama-3.1-8B --task finetune --lora 16 --tokens 20M --provider aws --gpu l40s --gpu l4", _planned),
        ("plan Llama-3.1-8B --task serve --rate 2 --ttft p99=2s --no-simulate --provider aws --gpu l4", _planned),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --tokens 1B --lora 16", _estimated),
        ("plan ./config.json --task serve --rate 2 --no-simulate --provider aws --gpu l4", _planned),
        ("serve ./config.json --gpu l40s --rate 2", _estimated),
        ("memory ./config.json --gpu h100 --dp 8 --fsdp", _estimated),
        ("serve Llama-3.1-8B --gpu l40s --rate 2 --weights fp8", _estimated),
        ("memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp", _estimated),
        ("fit Llama-3.1-8B --gpu l40s --context 8k", _estimated),
        ("roofline --flops 1e15 --bytes 2TB --gpu h100", _estimated),
        ("simulate Llama-3.1-8B --gpu l40s --rate 2 --duration 1min --ttft 1s", _simulated),
        ("assess fleet.yaml --scenarios 5", _assessed),
        ("assess fleet.yaml", _assessed),
        ("gpus h100", _gpu),
        ("gpus --min-memory 150GB --vendor amd", _gpus),
        ("instances --gpu a100-80gb --provider aws --provider gcp", _offers),
        ("models gpt2-xl", _model),
        ("models 7B", _model),
    ],
)
def test_a_printed_link_opens_the_view_of_its_command(
    line: str, texts: Callable[[Any], list[str]], page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET, encoding="utf-8")
    Path("config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    cli.main([*line.split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("webbrowser.open", lambda _: None)
    monkeypatch.setattr("flopwise.web.server.serve", lambda *_: None)
    assert cli.main([*line.split(), "--web"]) == 0
    printed = urlsplit(capsys.readouterr().out.strip())
    page.goto(f"{printed.path}?{printed.query}#{printed.fragment}")
    if printed.path != "/catalog":
        expect(page.locator("#results section").first).to_be_visible()
        expect(page.locator("#results[aria-busy]")).to_have_count(0)
    for text in texts(found):
        expect(page.locator("main")).to_contain_text(text)
