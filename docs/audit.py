"""Every page of the built site in Chromium, light, dark, and as wide as a phone: python docs/audit.py [SITE] [--only REGEX] [--shots DIR]

Reported are pages wider than their window, tables and code that scroll sideways at 1440 pixels, pictures that are missing or lack an
alternative text, broken links and anchors, messages of the console, text with too little contrast, and text of pictures that is cut or
overlaps. Exits with 1 if there is any. Needs Playwright (pip install '.[browser]') and Chromium, the system's or the one that
`playwright install chromium` downloads.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlparse

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WINDOWS = (("light", 1440), ("light", 390), ("dark", 390), ("dark", 1280))
"""In this order, so that one step changes one thing."""
MIN_CONTRAST = 4.5
"""Contrast of text with its background, by WCAG 2, level AA; 3 for large text."""
FIELDS = {"title": {"boost": 1}, "text": {"boost": 1}, "tags": {"boost": 1}}
NO_SEARCH = json.dumps({"config": {"lang": ["en"], "separator": "[\\s\\-]+", "pipeline": [], "fields": FIELDS}, "docs": []})
"""Index of the search, which no page but the first needs to read."""

PAGE = """least => {
  const found = [], root = document.documentElement;
  if (root.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("main *")].filter(one => {
      if (one.getBoundingClientRect().right <= innerWidth + 1) return false;
      for (let up = one.parentElement; up; up = up.parentElement)
        if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX)) return false;
      return true;
    });
    const first = wide.slice(0, 2).map(one => one.outerHTML.slice(0, 80));
    found.push(`wider than the window by ${root.scrollWidth - innerWidth} pixels: ${first}`);
  }
  if (innerWidth >= 1400) {
    const sideways = [...document.querySelectorAll("article *")].filter(one =>
      one.scrollWidth > one.clientWidth + 1 && one.clientWidth && ["auto", "scroll"].includes(getComputedStyle(one).overflowX));
    for (const one of sideways.slice(0, 3)) {
      const excess = one.scrollWidth - one.clientWidth, text = one.textContent.trim().replace(/\\s+/g, " ").slice(0, 40);
      found.push(`scrolls sideways by ${excess} pixels: ${one.tagName.toLowerCase()} ${text}`);
    }
  }
  for (const image of document.images) {
    if (image.loading !== "lazy" && !(image.complete && image.naturalWidth)) found.push(`picture does not load: ${image.src}`);
    if (!image.alt.trim()) found.push(`picture without a text: ${image.src}`);
  }
  const scratch = document.createElement("canvas").getContext("2d", {willReadFrequently: true}), known = new Map();
  const channels = color => {
    if (!known.has(color)) {
      scratch.clearRect(0, 0, 1, 1); scratch.fillStyle = color; scratch.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = scratch.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = (top, below) => [0, 1, 2].map(at => top[at] * top[3] + below[at] * (1 - top[3]));
  const behind = (one, seen) => {
    if (!one) return [255, 255, 255];
    if (seen.has(one)) return seen.get(one);
    const color = channels(getComputedStyle(one).backgroundColor);
    const found = color[3] === 1 ? color.slice(0, 3) : over(color, behind(one.parentElement, seen));
    seen.set(one, found);
    return found;
  };
  const luminance = color => color.map(part => part / 255).map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [.2126, .7152, .0722][at], 0);
  const backs = new Map(), poor = new Map();
  for (const one of document.querySelectorAll("article *, nav a, header *, footer *")) {
    if (![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()) || one.closest("svg, .md-search, .md-skip")) continue;
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    if (style.visibility !== "visible" || !box.width || !box.height || +style.opacity < 1 || one.matches(".headerlink")) continue;
    const back = behind(one, backs), ink = over(channels(style.color), back);
    const [dim, bright] = [luminance(ink), luminance(back)].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    const ratio = (bright + .05) / (dim + .05);
    if (ratio < (large ? 3 : least)) {
      const key = `${one.tagName.toLowerCase()}.${one.className}`;
      if (!poor.has(key)) poor.set(key, `contrast ${ratio.toFixed(2)} of ${key}: ${one.textContent.trim().slice(0, 30)}`);
    }
  }
  return [...found, ...poor.values()];
}"""

SCHEME = """scheme => {
  // Material for MkDocs keeps the scheme in an attribute, and reads it from where an earlier page may have stored it.
  const body = document.body;
  if (body.dataset.mdColorScheme) body.dataset.mdColorScheme = scheme === "dark" ? "slate" : "default";
}"""

CONTENT = """() => ({
  links: [...document.querySelectorAll("a[href]")].map(link => link.href),
  ids: [...document.querySelectorAll("[id], a[name]")].map(one => one.id || one.name),
})"""

PICTURE = """() => {
  const root = document.querySelector("svg"), page = root.getBoundingClientRect(), found = [];
  const texts = [...root.querySelectorAll("text")].filter(text => text.textContent.trim());
  const boxes = texts.map(text => [text, text.getBoundingClientRect()]);
  for (const [text, box] of boxes)
    if (box.left < page.left - 1 || box.right > page.right + 1 || box.top < page.top - 1 || box.bottom > page.bottom + 1)
      found.push(`text is cut: ${text.textContent.slice(0, 40)}`);
  boxes.sort((one, other) => one[1].left - other[1].left);
  boxes.forEach(([text, box], place) => {
    for (let next = place + 1; next < boxes.length && boxes[next][1].left < box.right - 2; ++next) {
      const other = boxes[next][1], high = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (high > 0.4 * Math.min(box.height, other.height))
        found.push(`texts overlap: ${text.textContent.slice(0, 30)} | ${boxes[next][0].textContent.slice(0, 30)}`);
    }
  });
  return found;
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing of each request."""


def serve(site: Path) -> str:
    """The address at which a thread serves ``site`` until the program ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


class Audit:
    """Findings on the pages of one site."""

    def __init__(self, browser: Any, site: Path, windows: Sequence[tuple[str, int]], shots: Path | None) -> None:
        self.site, self.windows, self.shots, self.base = site, windows, shots, serve(site)
        self.findings: list[tuple[str, str, str]] = []
        """Page, window, and the finding."""
        self.ids: dict[str, set[str]] = {}
        self.links: dict[str, set[str]] = {}
        self.page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        self.page.set_default_timeout(180_000)
        self._messages: list[str] = []
        self.page.on("console", lambda message: self._messages.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self._messages.append(str(error)))
        self.page.on("requestfailed", lambda request: self._messages.append(f"request failed: {request.url}"))
        self.page.on("response", lambda answer: self._messages.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None)
        # Nothing but the site itself is asked for: a request to another address is a finding.
        self.page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(self.base) else route.abort())

    def visit(self, path: Path) -> None:
        """One page, in all windows."""
        name = path.parent.relative_to(self.site).as_posix() if path.name == "index.html" else path.relative_to(self.site).as_posix()
        url = urljoin(self.base, "" if name == "." else f"{name}/" if path.name == "index.html" else name)
        self._messages.clear()
        scheme, width = self.windows[0]
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.goto(url, wait_until="load")
        self.page.add_style_tag(content="*, ::before, ::after {transition: none !important; animation: none !important}")
        content = self.page.evaluate(CONTENT)
        self.ids[url] = set(content["ids"])
        self.links[url] = set(content["links"])
        for scheme, width in self.windows:
            window = f"{scheme} {width}"
            self.page.emulate_media(color_scheme=scheme)
            self.page.evaluate(SCHEME, scheme)
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            self.findings += [(name, window, told) for told in self.page.evaluate(PAGE, MIN_CONTRAST)]
            if self.shots is not None:
                self.page.screenshot(path=self.shots / f"{name.replace('/', '_')}-{scheme}-{width}.png")
        self.findings += [(name, "", f"console: {told}") for told in dict.fromkeys(self._messages)]

    def look(self, path: Path) -> None:
        """One picture."""
        name = path.relative_to(self.site).as_posix()
        self.page.set_viewport_size({"width": 1000, "height": 900})
        self.page.goto(urljoin(self.base, name), wait_until="load")
        self.findings += [(name, "", told) for told in self.page.evaluate(PICTURE)]

    def follow(self) -> None:
        """All links within the site, and the anchors that they name on pages that were visited."""
        for url, links in self.links.items():
            name = urlparse(url).path.strip("/") or "."
            for link in sorted(link for link in links if link.startswith(self.base)):
                target, anchor = urldefrag(link)
                file = self.site / unquote(urlparse(target).path).strip("/")
                if not (file / "index.html").is_file() and not file.is_file():
                    self.findings.append((name, "", f"link to nothing: {link.removeprefix(self.base)}"))
                elif anchor and target in self.ids and unquote(anchor) not in self.ids[target]:
                    self.findings.append((name, "", f"anchor that is not there: {link.removeprefix(self.base)}"))


def main() -> None:
    """Visits the pages, and prints the findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--only", default="", metavar="REGEX", help="only pages and pictures whose path matches")
    parser.add_argument("--window", action="append", metavar="SCHEME,WIDTH", help="only this window, such as dark,390; repeatable")
    parser.add_argument("--shots", type=Path, metavar="DIR", help="a screenshot of every page in every window")
    options = parser.parse_args()
    told = [window.partition(",") for window in options.window or ()]
    windows = [(scheme, int(width)) for scheme, _, width in told] or WINDOWS
    pages = [path for path in sorted(options.site.rglob("*.html")) if path.name != "404.html"]
    if not pages:
        sys.exit(f"{options.site} holds no page: make docs builds the site")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("Playwright is not installed: pip install '.[browser]'")
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        path = next(filter(None, map(shutil.which, BROWSERS)), None) or driver.chromium.executable_path
        if not Path(path).exists():
            sys.exit("there is no Chromium here: playwright install chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        audit = Audit(browser, options.site.resolve(), windows, options.shots)
        chosen = [page for page in pages if re.search(options.only, page.relative_to(options.site).as_posix())]
        pictures = [one for one in sorted(options.site.rglob("*.svg")) if re.search(options.only, one.relative_to(options.site).as_posix())]
        pictures = [one for one in pictures if "assets" not in one.relative_to(options.site).parts]
        for place, page in enumerate(chosen):
            audit.visit(page.resolve())
            if place == 0:
                audit.page.route("**/search_index.json", lambda route: route.fulfill(body=NO_SEARCH, content_type="application/json"))
            if place % 25 == 24:
                print(f"{place + 1} of {len(chosen)} pages", file=sys.stderr)
        for picture in pictures:
            audit.look(picture.resolve())
        audit.follow()
        browser.close()
    # Equal findings are reported once, with the number of their pages.
    told = Counter(finding for _, _, finding in audit.findings)
    for finding, count in told.most_common():
        name, window = next((name, window) for name, window, other in audit.findings if other == finding)
        print(f"{name}{f' ({window})' if window else ''}: {finding}" + (f" [{count} times]" if count > 1 else ""))
    print(f"{len(chosen)} pages in {len(windows)} windows and {len(pictures)} pictures: {len(audit.findings)} findings")
    sys.exit(bool(audit.findings))


if __name__ == "__main__":
    main()
