"""The page at `/`, clicked through in a real headless Chromium; skipped where there is none."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Server, make_text, shared_server

from pusl_eval.records import read_predictions

pytest.importorskip("fastapi", reason="needs the extra `serve`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)", allow_module_level=True)
pytest.importorskip("selenium", reason="needs selenium")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1280,900",
)  # fmt: skip
TEXT = "A red tent and leather shoes for hiking. Red tent, again!"


class Page:
    """A browser tab, with short names for what the tests do."""

    def __init__(self, driver: Any, server: Server, downloads: Path) -> None:
        self.driver, self.server, self.downloads = driver, server, downloads

    def __call__(self, name: str) -> Any:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def until(self, condition: Any, seconds: float = 60) -> Any:
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())

    def open(self) -> None:
        """The page as a newcomer sees it: the settings it remembers are forgotten first."""
        self.driver.get(self.server.url)
        self.driver.execute_script("localStorage.clear()")
        self.driver.refresh()
        self.until(lambda: self("run").is_enabled())

    def choose_k(self, k: int) -> None:
        self("k").send_keys(Keys.CONTROL, "a", Keys.NULL, str(k), Keys.TAB)

    def words(self) -> list[str]:
        return [node.text for node in self.all("#result .chip .words")]

    def run(self) -> list[str]:
        self("run").click()
        self.until(lambda: self("result").get_attribute("aria-busy") == "false")
        return self.words()

    def download(self, button: str, name: str) -> Path:
        path = self.downloads / name
        path.unlink(missing_ok=True)
        self(button).click()
        self.until(path.exists)
        time.sleep(0.1)
        return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    downloads = folder / "downloads"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    server = shared_server()
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Page(driver, server.wait_ready(), downloads)
    finally:
        driver.quit()


def test_text_to_chips_with_scores_and_marks(page: Page) -> None:
    page.open()
    assert page("model").text == "tiny"
    assert page("where").text == "cpu · fp32"
    assert [one.get_attribute("value") for one in Select(page("strategy")).options] == ["sequence", "beam"]
    page("run").click()
    assert page("error").text == "Paste a text first."
    page("text").send_keys(TEXT)
    page.choose_k(4)
    page.all("#vocabulary label")[2].click()
    words = page.run()
    _, answer, _ = page.server.ask([TEXT], k=4, vocabulary="closed", explain=True)
    wanted = answer["results"][0]
    assert words == wanted["keyphrases"]
    assert len(words) == 4
    shown = [node.text.replace("−", "-") for node in page.all(".chip .score")]
    assert shown == [f"{score:.2f}" for score in wanted["scores"]]
    for chip, mark in zip(page.all(".chip"), wanted["marks"], strict=True):
        marks = {part.get_attribute("class").split()[1] for part in chip.find_elements(By.CLASS_NAME, "m")}
        expected = {"present" if mark["present"] else "absent", "universe"} | ({"new"} if mark["new"] else set())
        assert marks == expected
    marked = sorted(node.text.lower() for node in page.all(".quote mark"))
    assert marked == sorted(word for word in ("red tent", "red tent", "leather shoes") if word in words)
    assert page("error").text == ""


def test_the_marks_filter_the_chips(page: Page) -> None:
    before = page.words()
    chosen = page.all(".legend [data-mark=present]")[0]
    chosen.click()
    after = page.words()
    assert after
    assert set(after) < set(before)
    assert all(word in TEXT.lower() for word in after)
    page.all(".legend [data-mark=present]")[0].click()
    assert page.words() == before


def test_downloads_of_one_text(page: Page) -> None:
    words = page.words()
    (prediction,) = read_predictions(page.download("jsonl", "predictions.jsonl"))
    assert prediction.keyphrases == words
    rows = list(csv.DictReader(io.StringIO(page.download("csv", "keyphrases.csv").read_text())))
    assert [row["keyphrase"] for row in rows] == words
    page("copy").click()
    page.until(lambda: page("toast").text == "Copied")


def test_known_keyphrases_are_sent_and_not_given_again(page: Page) -> None:
    page.open()
    page("text").send_keys(TEXT)
    page.choose_k(3)
    free = page.run()
    page("known").send_keys(f" {free[0]} ; ;{free[1]};")
    told = page.run()
    _, answer, _ = page.server.ask([TEXT], k=3, known=[free[:2]])
    assert told == answer["results"][0]["keyphrases"]
    assert len(told) == 3 and not set(told) & set(free[:2])
    assert f'"known":[["{free[0]}","{free[1]}"]]' in page("curl").get_attribute("textContent")


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.open()
    page("text").send_keys(make_text(3), Keys.CONTROL, Keys.ENTER)
    page.until(page.words)
    first = page.all(".chip")[0]
    page.driver.execute_script("arguments[0].focus()", first)
    first.send_keys(Keys.ARROW_RIGHT)
    active = page.driver.switch_to.active_element
    assert active == page.all(".chip")[1]
    active.send_keys(Keys.ENTER)
    page.until(lambda: page("toast").text.startswith("Copied “"))
    page("tab-text").send_keys(Keys.ARROW_RIGHT)
    assert page("drop").is_displayed()
    assert not page("text").is_displayed()


def test_a_csv_becomes_predictions_that_can_be_evaluated(page: Page, tmp_path: Path) -> None:
    page.open()
    path = tmp_path / "items.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "title", "description"])
        writer.writerows(
            (f"a{i}", f'say "{i}", twice', make_text(i) + ("\nsecond line" if i == 3 else "")) for i in range(75)
        )
    page("tab-file").click()
    page("file").send_keys(str(path))
    page.until(lambda: page("loaded").is_displayed())
    assert "75 rows" in page("file-facts").text
    assert Select(page("column")).first_selected_option.text == "description"
    page.choose_k(3)
    page.run()
    assert "75 of 75 rows" in page("facts").text
    assert len(page.all("#result .rows > li")) == 75
    predictions = list(read_predictions(page.download("jsonl", "predictions.jsonl")))
    assert [one.id for one in predictions] == [f"a{i}" for i in range(75)]
    _, answer, _ = page.server.ask([make_text(0), make_text(74)], k=3)
    assert predictions[0].keyphrases == answer["results"][0]["keyphrases"]
    assert predictions[74].keyphrases == answer["results"][1]["keyphrases"]
    with page.download("csv", "keyphrases.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[3]["description"].endswith("\nsecond line")
    assert rows[5]["title"] == 'say "5", twice'


def test_downloads_hold_no_formulas(page: Page, tmp_path: Path) -> None:
    page.open()
    path = tmp_path / "items.csv"
    path.write_text('id,note,text\n-1.5,"=HYPERLINK(""x"")",red tent\n+2,@sum,=1+1\n')
    page("tab-file").click()
    page("file").send_keys(str(path))
    page.until(lambda: page("loaded").is_displayed())
    page.choose_k(2)
    page.run()
    with page.download("csv", "keyphrases.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == ["-1.5", "+2"]  # numbers stay numbers
    assert [row["note"] for row in rows] == ['\'=HYPERLINK("x")', "'@sum"]
    assert [row["text"] for row in rows] == ["red tent", "'=1+1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.csv", b'id,text\n1,"never closed\n', "never closed"),
        ("ragged.csv", b"id,text\n1,a,b\n", "Row 2 has 3 cells"),
        ("empty.csv", b"", "empty"),
        ("latin.csv", b"id,text\n1,caf\xe9\n", "UTF-8"),
        ("bad.jsonl", b'{"text": "a"}\n{oops\n', "Line 2"),
    ],
)
def test_a_damaged_file_is_named(page: Page, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    page.open()
    (tmp_path / name).write_bytes(content)
    page("tab-file").click()
    page("file").send_keys(str(tmp_path / name))
    page.until(lambda: message in page("error").text)


def test_phone_dark_and_no_outside_traffic(page: Page) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    page.open()
    page("example").click()
    assert page.run()
    script = page.driver.execute_script
    assert script("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    color = "return getComputedStyle(document.body).backgroundColor"
    assert script(color) == "rgb(17, 20, 19)"
    page("theme").click()  # automatic -> light
    assert script(color) == "rgb(246, 245, 241)"
    page("theme").click()
    page("theme").click()
    sources = script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert sources
    assert all(source.startswith((page.server.url, "data:", "blob:")) for source in sources)
    severe = [line for line in page.driver.get_log("browser") if line["level"] == "SEVERE"]
    assert not severe
    page.driver.get(page.server.url + "/docs")
    page.until(lambda: "KeyphraseRequest" in page.driver.page_source)
    folder = os.environ.get("PUSL_SCREENSHOTS")  # for a person to look at
    if folder:
        page.driver.save_screenshot(str(Path(folder) / "docs_phone.png"))
