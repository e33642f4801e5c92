"""Pages in a real browser: Chromium, driven by Playwright, with every request and console message noted.

Chromium is the system's own (Debian: apt-get install chromium), or the one at $CHROMIUM. Tests that need it say
that they did not run where there is none.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
SIZES = {"wide": (1280, 800), "phone": (390, 844)}  # CSS pixels

needs_chromium = pytest.mark.skipif(
    not CHROMIUM,
    reason="NOT RUN: Chromium is not installed (apt-get install chromium, or set CHROMIUM)",
)


@dataclass
class Watched:
    """A page, and what was seen of it: the addresses it asked for, errors and warnings of its console, and
    exceptions of its scripts."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def strangers(self, *own: str) -> list[str]:
        """The addresses asked for that begin with none of `own`, and are neither data nor made in the page."""
        return [
            url for url in self.requests if not url.startswith((*own, "data:", "blob:", "about:"))
        ]


_OPEN: list[Any] = []  # the browser of a file's tests, and what ends it


def _browser() -> Any:
    if not _OPEN:
        from playwright.sync_api import sync_playwright

        playwright = sync_playwright().start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        _OPEN.extend([browser, playwright.stop])
    return _OPEN[0]


def end_browser() -> None:
    """Ends the browser that a file's tests share, if they had one."""
    if _OPEN:
        browser, stop = _OPEN
        _OPEN.clear()
        browser.close()
        stop()


@contextmanager
def browser_page(*, size: str = "wide") -> Iterator[Watched]:
    """A new page that shares nothing with other pages."""
    width, height = SIZES[size]
    context = _browser().new_context(viewport={"width": width, "height": height})
    watched = Watched(page := context.new_page())
    page.on("request", lambda request: watched.requests.append(request.url))
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: said.type in ("error", "warning") and watched.complaints.append(said.text),
    )
    try:
        yield watched
    finally:
        context.close()


def axe_findings(page) -> list[str]:
    """The serious and critical findings of axe-core on the page as it is now, one a line."""
    import axe_playwright_python

    script = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(
        encoding="utf-8"
    )
    page.evaluate(
        script + "\n;0"
    )  # evaluated by the debugger, which a Content-Security-Policy does not hold back
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{rule['impact']} {rule['id']}: {node['html'][:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


# of each form, whose buttons stay in sight and else lie over what axe-core looks at
TO_THE_END = """for (const form of document.forms) {
  form.scrollTop = form.scrollHeight;
  form.scrollIntoView({ block: "end" });
}"""


def findings_of_looks(page) -> list[str]:
    """What axe-core finds on the page as it is now, on a phone in the dark and on a wide screen by day, and whether it
    is wider than the screen."""
    found = []
    for name, scheme in (("phone", "dark"), ("wide", "light")):
        width, height = SIZES[name]
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate(TO_THE_END)
        found += axe_findings(page)
        if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            found.append(f"{name}: wider than the screen")
    return found
