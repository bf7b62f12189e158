"""A browser for the session; where none is installed, tests skip and say so."""

import pathlib
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    """Chromium, as Debian or others install it."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the atlas is tested in a browser: pip install -e '.[browser]'"
    )
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"the atlas is tested in a browser, and none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def axe():
    """The accessibility check of axe-core."""
    package = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe checks the atlas: pip install -e '.[browser]'"
    )
    return package.Axe()


class Watched:
    """A page that records its errors, and its requests beyond the disk."""

    def __init__(self, page, site: pathlib.Path):
        self.page, self.site, self.troubles = page, site, []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", self._asked)

    def _heard(self, message):
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def _asked(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.troubles.append(f"asked for {request.url}")

    def open(self, address: str):
        """A page of the atlas as its menu names it; waits until its pictures are drawn."""
        self.page.goto(f"{(self.site / 'index.html').as_uri()}#/{address}")
        self.page.wait_for_function("document.querySelector('main h1') !== null")
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return self.page


@pytest.fixture
def watched(browser, atlas):
    """A fresh page; at the end nothing may have gone wrong on it."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    made = Watched(context.new_page(), atlas)
    yield made
    context.close()
    assert made.troubles == []
