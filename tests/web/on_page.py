"""What tests ask of a page in a real browser, and a server for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from flopwise.cli.app import app
from flopwise.web import server
from flopwise.web.guard import Access
from flopwise.web.pool import Pool
from flopwise.web.questions import Question
from flopwise.web.server import create_app, listen, server_of

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SLOWEST_MS = 90_000
expect.set_options(timeout=SLOWEST_MS)
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 8192,
}  # fmt: skip
FLEET = """name: small
workloads:
  - name: chat
    task: serve
    model: Llama-3.1-8B
    traffic: {requests_per_s: 2}
    targets: {ttft: {p95: 1s}}
    constraints: {gpus: [l4], providers: [aws]}
"""
"""A fleet of one service."""


class ColdPool(Pool):
    """Processes that are asked no plans ahead."""

    async def warm_up(self, questions: Iterable[Question]) -> None:
        """Leave them as they start."""


@contextmanager
def served(token: str | None = None) -> Iterator[str]:
    """The address of a server of this process on a free port, whose processes are asked no plans ahead."""
    with pytest.MonkeyPatch.context() as here:  # for this server alone
        here.setattr(server, "Pool", ColdPool)
        application = create_app(app, Access.of("127.0.0.1", token))
    with listen("127.0.0.1", 0) as bound:
        running = server_of(application)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        running.should_exit = True
        thread.join(10)


def settled(page: Page) -> None:
    """Wait for the whole answer."""
    expect(page.locator("#results table").first).to_be_visible()
    expect(page.locator("#results[aria-busy]")).to_have_count(0)


def serious(page: Page) -> list[str]:
    """What axe-core finds that hinders people, by rule."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']})")
    assert len(found["passes"]) > 10
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:150]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def chart_texts(page: Page, name: str) -> list[str]:
    """What is written in the chart whose label begins with `name`, as it is drawn."""
    chart = page.locator(f".chart[data-drawn][aria-label^='{name}']")
    expect(chart).to_have_count(1)
    found: list[str] = chart.evaluate(
        "async (one) => { const { getInstanceByDom } = await import('/static/vendor/echarts.js');"
        " return getInstanceByDom(one).getZr().storage.getDisplayList(true)"
        ".filter((shape) => shape.type === 'tspan' && !shape.invisible && !shape.ignore)"
        ".map((shape) => shape.style.text); }"
    )
    return found


def click_datum(page: Page, name: str, series: int, place: int) -> None:
    """Click one datum of the chart whose label begins with `name`, where it is drawn."""
    chart = page.locator(f".chart[data-drawn][aria-label^='{name}']")
    chart.scroll_into_view_if_needed()
    x, y = chart.evaluate(
        "async (one, [series, place]) => { const { getInstanceByDom } = await import('/static/vendor/echarts.js');"
        " const made = getInstanceByDom(one);"
        " const shape = made.getModel().getSeriesByIndex(series).getData().getItemGraphicEl(place);"
        " const box = shape.getBoundingRect().clone(); box.applyTransform(shape.getComputedTransform());"
        " return [box.x + box.width / 2, box.y + box.height / 2]; }",
        [series, place],
    )
    box = chart.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + x, box["y"] + y)


def cut_on_paper(page: Page) -> list[str]:
    """What paper of A4 would cut, and what is folded on it."""
    page.set_viewport_size({"width": 718, "height": 1000})  # what A4 leaves between usual margins
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    found: list[str] = page.evaluate(
        "() => [...document.querySelectorAll('.wide, .card, pre, summary, .tabs')]"
        ".filter((one) => one.checkVisibility()"
        " && (one.scrollWidth > one.clientWidth + 1 || one.matches('summary, .tabs')))"
        ".map((one) => one.textContent.slice(0, 60))"
    )
    return found
