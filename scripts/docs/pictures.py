"""python scripts/docs/pictures.py DEMO [--item item-8549] [--out docs/images]

A finished `pusl demo` folder -> the pictures of README and docs: one item's keyphrases by three models, and
screenshots of the report and of the service's page, light and dark. Needs Chromium and its driver, and the extras
`serve` and `test`.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from pusl_eval.normalize import normalize

ROOT = Path(__file__).resolve().parents[2]
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#6f7682}.b{font-weight:600}.p{fill:#1f2937}.s{font-size:12px}"
    ".labeled{fill:#cfeedd;stroke:#2fa36b}.right{fill:#d5e4fd;stroke:#3b82f6}.wrong{fill:#f8d6d4;stroke:#d9534f}"
)
WIDTH = 360  # of the drawing of one item: a phone shows it whole, a desktop larger
MODELS = {"one2seq.jsonl": "a lazy model (One2Seq)", "pusl.jsonl": "PUSL", "fused.jsonl": "fused"}
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def read(path: Path, item: str) -> dict[str, Any]:
    """The record of one item."""
    for line in path.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        if record["id"] == item:
            return record
    sys.exit(f"{path} has no item {item}")


def one_item(demo: Path, item: str, k: int = 5) -> str:
    """What each model says about one item, colored by what is labeled and what is right."""
    observed, complete = (read(demo / "data" / f"{name}.jsonl", item) for name in ("test", "complete"))
    labeled = {normalize(p) for p in observed["keyphrases"]}
    right = {normalize(p) for p in complete["keyphrases"]}
    parts, y = [], 0
    for line in textwrap.wrap(observed["text"], 46):
        y += 18
        parts.append(f'<text class="b" x="0" y="{y}">{escape(line)}</text>')
    for name, shown in MODELS.items():
        phrases = read(demo / "predictions" / name, item)["keyphrases"][:k]
        found = sum(normalize(p) in right for p in phrases)
        y += 32
        parts.append(f'<text x="0" y="{y}">{escape(shown)}</text>')
        parts.append(f'<text class="s" x="{WIDTH}" y="{y}" text-anchor="end">{found} of {k} right</text>')
        x, y = 0.0, y + 8
        for phrase in phrases:
            kind = "labeled" if normalize(phrase) in labeled else "right" if normalize(phrase) in right else "wrong"
            width = 14 + 7.2 * len(phrase)
            if x + width > WIDTH:
                x, y = 0.0, y + 30
            parts.append(
                f'<rect class="{kind}" x="{x + 0.6:.1f}" y="{y}" width="{width - 1.2:.1f}" height="24" rx="6"/>'
            )
            middle = f'x="{x + width / 2:.1f}" y="{y + 16.5}" text-anchor="middle"'
            parts.append(f'<text class="p" {middle}>{escape(phrase)}</text>')
            x += width + 5
        y += 24
    x, y = 0.0, y + 28
    for kind, meaning in (("labeled", "labeled by a buyer"), ("right", "right, not labeled"), ("wrong", "wrong")):
        parts.append(f'<rect class="{kind}" x="{x + 0.6:.1f}" y="{y - 10}" width="12" height="12" rx="3"/>')
        parts.append(f'<text class="s" x="{x + 18:.1f}" y="{y}">{meaning}</text>')
        x += 36 + 6.3 * len(meaning)
    label = f"Keyphrases of three models for: {observed['text']}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" width="{WIDTH * 5 // 4}" role="img" '
        f'aria-label="{escape(label, quote=True)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


@contextmanager
def browser(dark: bool, width: int, height: int) -> Iterator[Any]:
    """A headless Chromium that asks for light or dark pages."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def service(model: Path) -> Iterator[str]:
    """`pusl serve` on a free port; its address."""
    command = [sys.executable, "-m", "pusl", "serve", "--model", str(model), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        address = ""
        for line in process.stdout:
            found = re.search(r"http://[\d.:]+", line)
            address = found[0] if found and not address else address
            if '"event": "ready"' in line:
                break
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def above_second_table(driver: Any, report: Path, width: int) -> bytes:
    """The top of a report, up to the heading of its second table."""
    driver.get(report.resolve().as_uri())
    top = driver.execute_script("return document.querySelectorAll('h2')[1].getBoundingClientRect().top")
    clip = {"x": 0, "y": 0, "width": width, "height": int(top) - 20, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(shot["data"])


def page(driver: Any, address: str, text: str) -> None:
    """Types a text into the service's page and waits for its keyphrases."""
    from selenium.webdriver.common.by import By

    driver.get(address)
    driver.find_element(By.CSS_SELECTOR, "textarea").send_keys(text)
    driver.find_element(By.ID, "run").click()
    time.sleep(3)


def main() -> None:
    """Makes every picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, metavar="DEMO", help="folder of a finished `pusl demo`")
    parser.add_argument("--item", default="item-8549", help="the item to show (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", help="folder of the pictures")
    args = parser.parse_args()
    (args.out / "one-item.svg").write_text(one_item(args.demo, args.item), encoding="utf-8")
    text = read(args.demo / "data/test.jsonl", args.item)["text"]
    with service(args.demo / "models/fused") as address:
        for dark in (False, True):
            suffix = "-dark" if dark else ""
            with browser(dark, 390, 900) as driver:
                shot = above_second_table(driver, args.demo / "report.html", 390)
                (args.out / f"report-phone{suffix}.png").write_bytes(shot)
            with browser(dark, 1100, 900) as driver:
                shot = above_second_table(driver, args.demo / "report.html", 1100)
                (args.out / f"report{suffix}.png").write_bytes(shot)
                page(driver, address, text)
                driver.save_screenshot(str(args.out / f"page{suffix}.png"))


if __name__ == "__main__":
    main()
