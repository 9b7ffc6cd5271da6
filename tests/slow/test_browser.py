"""The page in a real Chromium (Debian's package `chromium`) on the real service."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.slow.conftest import RunningService

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ANSWER_MS = 60_000


@pytest.fixture
def page(service: RunningService) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        page = browser.new_page(locale="en-GB")
        page.goto(service.address)
        yield page
        browser.close()


def ask(page: Page, question: str) -> None:
    page.get_by_role("textbox").fill(question)
    page.get_by_role("button", name="Ask").click()


def test_a_question_is_answered_with_its_source(page: Page, tmp_path: Path) -> None:
    ask(page, "What is the greatest force allowed when pulling a probe out of the ground?")
    expect(page.get_by_role("button", name="Ask")).to_be_visible(timeout=ANSWER_MS)
    expect(page.locator("body")).to_contain_text("900 newtons", timeout=ANSWER_MS)
    expect(page.locator("details").first).to_contain_text("manual/terrano-3.pdf", timeout=ANSWER_MS)
    page.screenshot(path=tmp_path / "answer.png", full_page=True)


def test_a_stopped_answer_frees_the_engine(page: Page, service: RunningService) -> None:
    ask(page, "Tell me all about the Terrano 3.")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Ask")).to_be_visible()
    ready = page.request.get(service.address + "health/ready").json()
    assert ready["unfinished_requests"] == 0
