"""The built site, served on loopback below the path that it has on GitHub Pages, and a headless Chromium."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
PREFIX = "/tpuctl"


class _PagesHandler(SimpleHTTPRequestHandler):
    """Answers as GitHub Pages does: below a prefix, with the site's own 404 page."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else "/no/such/page")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002  # its own signature
        body = (SITE / "404.html").read_bytes()
        self.send_response(code, message)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="session")
def origin() -> Iterator[str]:
    """Serve the site; return the URL of its first page, with a slash at its end."""
    if not (SITE / "index.html").exists():
        pytest.fail("the site is not built: make docs")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_PagesHandler, directory=SITE))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}{PREFIX}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the installed Chromium."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # Root, as in CI, has no sandbox of Chromium; only our own pages are opened.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=program, args=arguments)
        yield chromium
        chromium.close()
