"""What a person who never opened a terminal does from the start page on: a fine-tuning, a service, a fleet.

Each step knows how long the page made the person wait, and how long the person's own part takes: pointing, typing and
thinking by the keystroke-level model (Card, Moran and Newell 1980, "The keystroke-level model for user performance time
with interactive systems", CACM 23(7), table 1: K 0.28 s for an average non-secretary, P 1.1 s, H 0.4 s, M 1.35 s).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Page, expect

KEY_S, POINT_S, HAND_S, THINK_S = 0.28, 1.1, 0.4, 1.35
LONGEST_S = 180
"""What a plan may take, waiting and the person's own part together."""


@dataclass
class Step:
    """One thing that the person does, and what follows."""

    name: str
    waited_s: float = 0.0
    person_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.waited_s + self.person_s


@dataclass
class Journey:
    """The steps on a page so far."""

    page: Page
    steps: list[Step] = field(default_factory=list)
    shown: str | None = None  # the status before a change that is answered by itself

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """A step: what happens in it is waited for."""
        one, begun = Step(name), time.perf_counter()
        yield one
        one.waited_s = time.perf_counter() - begun
        self.steps.append(one)

    def open(self) -> None:
        """The start page."""
        with self.step("open the start page"):
            self.page.goto("/")
            expect(self.page.get_by_text("What do you want to run?")).to_be_visible()

    def choose(self, label: str) -> None:
        """Tick a choice."""
        with self.step(f"choose {label}") as one:
            one.person_s = THINK_S + POINT_S + 2 * KEY_S
            self.page.get_by_label(label, exact=True).check()

    def type(self, label: str, text: str) -> None:
        """Write into a field, in place of what it holds."""
        with self.step(f"type {text!r} as {label}") as one:
            one.person_s = THINK_S + POINT_S + 2 * HAND_S + (len(text) + 3) * KEY_S
            status = self.page.locator(".status").first
            self.shown = status.inner_text() if status.count() else None
            self.page.get_by_label(label, exact=True).fill(text)

    def click(self, role: str, name: str) -> None:
        """Press a button or follow a link."""
        with self.step(f"click {name}") as one:
            one.person_s = THINK_S + POINT_S + 2 * KEY_S
            self.page.get_by_role(role, name=name).first.click()  # type: ignore[arg-type]

    def wait(self, name: str, text: str | None = None) -> None:
        """Until the answer is there, and is read."""
        with self.step(name) as one:
            one.person_s = 3 * THINK_S
            if self.shown:
                expect(self.page.locator(".status").first).not_to_have_text(self.shown)
                self.shown = None
            expect(self.page.locator("#results[aria-busy]")).to_have_count(0)
            expect(self.page.locator("#results table").first).to_be_visible()
            if text is not None:
                expect(self.page.locator("#results")).to_contain_text(text)


def finetuning(page: Page) -> list[Step]:
    """Llama-3.1-8B on a data set of 30M tokens: which machine, how long, what it costs, and the files to run it."""
    walk = Journey(page)
    walk.open()
    walk.type("Model", "Llama-3.1-8B")
    walk.choose("Fine-tune")
    walk.wait("the first plans are there")
    walk.type("Tokens of the run", "30M")
    walk.wait("the plans follow")
    with walk.step("see memory, time and roofline of the best") as one:
        one.person_s = 3 * THINK_S
        expect(page.get_by_role("heading", name="How sure it is")).to_be_visible()
        expect(page.locator(".chart[data-drawn]")).to_have_count(5)
    with walk.step("choose the files of torchrun") as one:
        one.person_s = THINK_S + 2 * (POINT_S + 2 * KEY_S)
        page.get_by_label("Export target").select_option("torchrun")
        expect(page.get_by_role("button", name="Download as zip")).to_be_visible()
    return walk.steps


def service(page: Page) -> list[Step]:
    """Five requests a second on AWS, the first token within half a second."""
    walk = Journey(page)
    walk.open()
    walk.click("link", "A chat service")
    walk.wait("the first plans are there")
    walk.type("Requests a second", "5")
    walk.wait("the plans follow")
    walk.type("Time to the first token, at most", "500ms")
    walk.wait("the plans follow")
    walk.type("Providers", "aws")
    walk.wait("the plans follow", "aws, us-east-1")
    with walk.step("see memory, time and cost of the best") as one:
        one.person_s = 3 * THINK_S
        expect(page.get_by_role("heading", name="Cost by month")).to_be_visible()
        expect(page.get_by_role("heading", name="How sure it is")).to_be_visible()
    return walk.steps


def fleet(page: Page) -> list[Step]:
    """A service and a fine-tuning under a budget, in the form: what each runs on, what a month costs, what could be."""
    walk = Journey(page)
    walk.open()
    walk.click("link", "A fleet")
    walk.type("Monthly budget, US dollars", "$8k")
    further = (("serve", "Requests a second", "6"), ("finetune", "Tokens of a run", "30M"))
    for number, (kind, label, text) in enumerate(further):
        with walk.step(f"choose {kind}") as one:
            one.person_s = THINK_S + 2 * (POINT_S + 2 * KEY_S)
            page.get_by_label("Kind of a further workload").select_option(kind)
        walk.click("button", "Add a workload")
        expect(page.get_by_label("Model", exact=True)).to_have_count(number + 1)
        walk.type(label, text)
    walk.click("button", "Assess")
    walk.wait("the bill is there", "a month")
    with walk.step("switch on a what-if") as one:
        one.person_s = THINK_S + POINT_S + 2 * KEY_S
        page.get_by_label("all prices rise 20 %", exact=True).check()
        expect(page.get_by_role("status").filter(has_text="all prices rise 20 %")).to_be_visible()
    return walk.steps


JOURNEYS: dict[str, Callable[[Page], list[Step]]] = {
    "a fine-tuning": finetuning,
    "a service": service,
    "a fleet": fleet,
}
