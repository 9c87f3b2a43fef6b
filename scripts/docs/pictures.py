"""python scripts/docs/pictures.py DEMO [--item item-8549] [--out docs/images]

A finished `pusl demo` folder -> the pictures of README and docs: one item's keyphrases by three models, and
screenshots of the report and of the service's page, light and dark. Needs Chromium and its driver, and the extras
`serve` and `test`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from pusl_eval.normalize import normalize

ROOT = Path(__file__).resolve().parents[2]
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#7a818c}.b{font-weight:600}.s{font-size:12px}"
    ".labeled{fill:#2fa36b;fill-opacity:.3;stroke:#2fa36b}.right{fill:#3b82f6;fill-opacity:.22;stroke:#3b82f6}"
    ".wrong{fill:#d9534f;fill-opacity:.2;stroke:#d9534f}"
)
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
    parts = [f'<text class="b" x="0" y="18">{escape(observed["text"])}</text>']
    y = 34
    for name, shown in MODELS.items():
        phrases = read(demo / "predictions" / name, item)["keyphrases"][:k]
        found = sum(normalize(p) in right for p in phrases)
        parts.append(f'<text x="0" y="{y + 18}">{escape(shown)}</text>')
        x = 180
        for phrase in phrases:
            kind = "labeled" if normalize(phrase) in labeled else "right" if normalize(phrase) in right else "wrong"
            pill, width = _pill(x, y, phrase, kind)
            if x + width > 760:
                x, y = 180, y + 32
                pill, width = _pill(x, y, phrase, kind)
            parts.append(pill)
            x += width + 8
        parts.append(f'<text class="s" x="770" y="{y + 18}">{found} of {k} right</text>')
        y += 42
    x = 180
    for kind, meaning in (
        ("labeled", "labeled by a buyer"),
        ("right", "right, but nobody labeled it"),
        ("wrong", "wrong"),
    ):
        parts.append(f'<rect class="{kind}" x="{x}" y="{y + 4}" width="12" height="12" rx="3"/>')
        parts.append(f'<text class="s" x="{x + 18}" y="{y + 15}">{meaning}</text>')
        x += 40 + 7 * len(meaning)
    label = f"Keyphrases of three models for: {observed['text']}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {y + 24}" width="860" role="img" '
        f'aria-label="{escape(label, quote=True)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _pill(x: float, y: float, phrase: str, kind: str) -> tuple[str, float]:
    width = 18 + 7.6 * len(phrase)
    box = f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{width:.0f}" height="26" rx="7"/>'
    return box + f'<text x="{x + width / 2:.0f}" y="{y + 18}" text-anchor="middle">{escape(phrase)}</text>', width


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
            with browser(dark, 1100, 900) as driver:
                driver.get((args.demo / "report.html").resolve().as_uri())
                driver.save_screenshot(str(args.out / f"report{suffix}.png"))
                page(driver, address, text)
                driver.save_screenshot(str(args.out / f"page{suffix}.png"))


if __name__ == "__main__":
    main()
