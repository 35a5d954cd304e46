"""Walk the built site in Chromium, at the width of a desktop and of a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urldefrag, urljoin, urlsplit
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, expect

from tests.browser.conftest import SITE

DESKTOP = ViewportSize(width=1440, height=900)
PHONE = ViewportSize(width=390, height=844)
_NO_INDEX = {"config": {"lang": ["en"], "separator": " ", "pipeline": [], "fields": {"text": {"boost": 1}}}, "docs": []}
_PUBLISHED = "https://tpuctl.github.io/tpuctl/"
# What a page offers to others, and what it wants from them.
_READ = """() => ({
    ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
    links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
    description: document.querySelector("meta[name=description]")?.content ?? "",
    title: document.title,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
})"""


@dataclass
class Walk:
    """What was read from each page, and all that went wrong on the way."""

    pages: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def walk(browser: Browser, origin: str) -> Walk:
    """Open every page of the sitemap on a desktop, and make it as narrow as a phone."""
    sitemap = ElementTree.parse(SITE / "sitemap.xml")  # noqa: S314  # our own file
    paths = [str(element.text).removeprefix(_PUBLISHED) for element in sitemap.iter() if element.tag.endswith("loc")]
    done = Walk()
    with browser.new_context(viewport=DESKTOP) as context:
        page = context.new_page()
        _watch(page, origin, done.problems)
        # Building the index takes most of the time of a page; the tests of the search use the real one.
        page.route("**/search_index.json", lambda route: route.fulfill(json=_NO_INDEX))
        for path in [*paths, "404.html"]:
            page.set_viewport_size(DESKTOP)
            page.goto(origin + path)
            read = page.evaluate(_READ)
            done.pages[origin + path] = {"ids": read["ids"], "links": read["links"]}
            done.descriptions[path], done.titles[path] = read["description"], read["title"]
            page.set_viewport_size(PHONE)
            narrow = page.evaluate(_READ)["overflow"]
            done.problems += [f"{path}: wider than the desktop by {read['overflow']} px"] * (read["overflow"] > 0)
            done.problems += [f"{path}: wider than a phone by {narrow} px"] * (narrow > 0)
            done.problems += [f"{path}: broken picture {source}" for source in read["broken"]]
    return done


def _watch(page: Page, origin: str, problems: list[str]) -> None:
    """Note each message of the console, each failed request, and each request to another host."""

    def on_console(message: ConsoleMessage) -> None:
        problems.append(f"{page.url}: console: {message.type}: {message.text}")

    def on_request(request: Request) -> None:
        if urlsplit(request.url).netloc not in ("", urlsplit(origin).netloc):
            problems.append(f"{page.url}: request to another host: {request.url}")

    def on_failure(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before the search had its index
            problems.append(f"{page.url}: {request.failure}: {request.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
    page.on("request", on_request)
    page.on("requestfailed", on_failure)
    page.on(
        "response", lambda response: problems.extend([f"{response.url}: {response.status}"] * (response.status >= 400))
    )


@pytest.fixture
def page(browser: Browser, origin: str) -> Iterator[Page]:
    """Return the first page on a desktop; a problem on it fails the test."""
    problems: list[str] = []
    with browser.new_context(viewport=DESKTOP, permissions=["clipboard-read", "clipboard-write"]) as context:
        opened = context.new_page()
        _watch(opened, origin, problems)
        opened.goto(origin)
        yield opened
    assert problems == []


def test_pages_open_without_problems_on_desktop_and_phone(walk: Walk) -> None:
    assert len(walk.pages) > 80
    assert walk.problems == []


def test_internal_links_lead_to_pages_and_anchors(walk: Walk, origin: str) -> None:
    dead = []
    for page, read in walk.pages.items():
        for link in read["links"]:
            target, anchor = urldefrag(urljoin(page, link))
            if target.startswith(origin):
                found = walk.pages.get(target)
                if found is None or (anchor and anchor not in found["ids"]):
                    dead.append((page, link))

    assert dead == []


def test_external_links_are_https_and_name_the_main_branch(walk: Walk, origin: str) -> None:
    links = {link for read in walk.pages.values() for link in read["links"] if not link.startswith(origin)}

    assert {link for link in links if not link.startswith("https://")} == set()
    own = {link for link in links if link.startswith("https://github.com/tpuctl/")}
    assert {
        link for link in own if not re.match(r"https://github.com/tpuctl/tpuctl($|/(blob|tree|edit)/main/)", link)
    } == set()


def test_every_page_has_a_description_and_a_title_of_its_own(walk: Walk) -> None:
    assert [path for path, text in walk.descriptions.items() if len(text) < 15] == []
    assert len(set(walk.titles.values())) >= len(walk.titles) - 2  # the 404 page has that of the first page


@pytest.mark.parametrize(
    ("query", "first", "found"),
    [
        pytest.param("UNHEALTHY_TENSORFLOW", r"/usable/", r"UNHEALTHY_TENSORFLOW", id="state"),
        pytest.param("tensorflow", r".*", r"TensorFlow", id="part-of-a-state"),
        pytest.param("--on-recover", r"keep-a-node-alive|watch", r"--on-recover", id="flag"),
        pytest.param("TPUCTL_ZONE", r"reference/settings", r"TPUCTL_ZONE", id="variable"),
        pytest.param("TPU101", r"reference/checks", r"TPU101", id="check"),
        pytest.param("capacity-zone", r"reference/messages", r"capacity-zone", id="message"),
        pytest.param("us-central2-b", r".*", r"us-central2-b", id="zone"),
    ],
)
def test_search_finds_words_as_they_are_typed(page: Page, query: str, first: str, found: str) -> None:
    page.keyboard.press("/")
    page.locator("input.md-search__input").fill(query)
    page.keyboard.press("End")  # the search listens to keys
    result = page.locator("a.md-search-result__link").first
    result.wait_for()
    expect(page.locator(".md-search-result__meta")).to_have_text(re.compile(r"\d+ matching"))

    result.click()

    expect(page).to_have_url(re.compile(first))
    expect(page.locator("article")).to_have_text(re.compile(found))


def test_dark_mode_follows_the_system_and_the_toggle(page: Page) -> None:
    body = page.locator("body")
    page.emulate_media(color_scheme="dark")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")

    page.locator("label[title='Switch to light mode']").click()
    expect(body).to_have_attribute("data-md-color-scheme", "default")

    page.locator("label[title='Switch to dark mode']").click()
    page.reload()
    expect(body).to_have_attribute("data-md-color-scheme", "slate")


def test_copy_button_copies_the_commands(page: Page, origin: str) -> None:
    page.goto(f"{origin}sandbox/")
    page.locator("button.md-code__button").first.click()

    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.splitlines()[0] == "export TPUCTL_SANDBOX=1"


@pytest.mark.parametrize(
    ("path", "copied"),
    [
        pytest.param("doctor/", "tpuctl doctor", id="shell"),
        pytest.param("python/", "from datetime import timedelta", id="python"),
    ],
)
def test_copy_button_leaves_out_prompts_and_output_of_a_session(
    page: Page, origin: str, path: str, copied: str
) -> None:
    page.goto(origin + path)
    page.locator("button.md-code__button").first.click()

    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0] == copied
    assert [line for line in lines if line.startswith(("$ ", ">>>", "error", "READY"))] == []


def test_missing_page_offers_ways_on(browser: Browser, origin: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        response = page.goto(f"{origin}no/such/page/")

        assert response is not None
        assert response.status == 404
        expect(page.locator("h1")).to_have_text("This page does not exist")
        page.locator("article >> text=All commands").click()
        expect(page).to_have_url(f"{origin}reference/commands/")
