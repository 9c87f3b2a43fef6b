"""The page: complete, self-contained, safe against its own data, the same bytes every time."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pusl_eval.charts import bar_chart, line_chart, log_log_chart, ticks
from pusl_eval.files import InputError
from pusl_eval.report import write_report

VOID = {"meta", "input", "br", "link", "img"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture()
def files(tmp_path: Path) -> dict[str, Path]:
    ids = [f"i{n}" for n in range(40)]
    test = [{"id": i, "text": f"Shoe <b>{i}</b> & co", "keyphrases": ["red shoe", f"shoe {i}"]} for i in ids]
    lazy = [{"id": i, "keyphrases": ["red shoe"], "scores": [0.9]} for i in ids]
    busy = [
        {
            "id": i,
            "keyphrases": ["Red Shoe", "red shoe", "<script>alert(1)</script>", f"shoe {i}"],
            "scores": [0.9, 0.8, 0.2, 0.7],
        }
        for i in ids[:-1]
    ]
    (tmp_path / "universe.txt").write_text("red shoe\nboot\n")
    return {
        "test": jsonl(tmp_path / "test.jsonl", test),
        "train": jsonl(tmp_path / "train.jsonl", [{**row, "keyphrases": ["red shoe", "boot"]} for row in test]),
        "complete": jsonl(
            tmp_path / "complete.jsonl",
            [{**row, "keyphrases": ["red shoe", f"shoe {row['id']}", "boot"]} for row in test],
        ),
        "lazy": jsonl(tmp_path / "lazy.jsonl", lazy),
        "busy": jsonl(tmp_path / "busy.jsonl", busy),
        "universe": tmp_path / "universe.txt",
        "page": tmp_path / "report.html",
    }


def build(files: dict[str, Path], **more: object) -> str:
    write_report(
        files["page"], files["test"], {"lazy": files["lazy"], "busy": files["busy"]}, train=files["train"],
        universe=files["universe"], complete=files["complete"], force=True, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return files["page"].read_text(encoding="utf-8")


def test_page_is_whole_and_self_contained(files: dict[str, Path]) -> None:
    page = build(files)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"""(?:src|href)=|url\(|@import""", page)
    for heading in (
        "How far each system goes",
        "Narrow and diverse",
        "Tail labels",
        "Coverage",
        "Do the scores",
        "Examples",
    ):
        assert f"<h2>{heading}" in page
    assert page.count("<svg") == 10 and "Reliability" in page
    assert "COMPLETE" in page


def test_data_cannot_break_out_of_the_page(files: dict[str, Path]) -> None:
    page = build(files)
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert "Shoe &lt;b&gt;i" in page


def test_chips_tell_hits_repeats_new_and_outside(files: dict[str, Path]) -> None:
    page = build(files, examples=40)
    assert page.count('<span class="chip hit">Red Shoe</span>') == 39
    assert page.count('<span class="chip repeat">red shoe</span>') == 39
    assert page.count('<span class="chip out">&lt;script&gt;') == 39  # not in the universe
    assert "items without a prediction: busy" in page and "items without a prediction: lazy" not in page


def test_right_but_unlabeled_phrases_are_told_apart(files: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"id": f"i{n}", "keyphrases": ["boot", "red shoe", "cap"], "scores": [-1.0, -2.0, -3.0]} for n in range(40)]
    shop = jsonl(tmp_path / "shop.jsonl", rows)
    shared = {"train": files["train"], "examples": 40}
    write_report(tmp_path / "all.html", files["test"], {"shop": shop}, complete=files["complete"], **shared)  # type: ignore[arg-type]
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert page.count('<span class="chip unlabeled">boot</span>') == 40  # only the complete labels have it
    assert page.count('<span class="chip hit">red shoe</span>') == 40
    assert page.count('<span class="chip new">cap</span>') == 40
    assert "right, but not labeled" in page
    assert "Reliability" not in page, "logarithms are not probabilities"
    write_report(tmp_path / "observed.html", files["test"], {"shop": shop}, **shared)  # type: ignore[arg-type]
    assert "right, but not labeled" not in (tmp_path / "observed.html").read_text(encoding="utf-8")


def test_numbers_in_the_table_are_those_of_evaluate(files: dict[str, Path]) -> None:
    page = build(files)
    # μ = 2, 2μ = 4: lazy has 1 hit of 4 asked; busy 2 of 4 for 39 of 40 items
    table = page.split("<table>")[1].split("</table>")[0]
    rows = re.findall(r"<tr><td>(\w+)</td>(.*?)</tr>", table)
    values = {name: re.findall(r'<td class="[a-z]*">([\d.]+)', cells) for name, cells in rows}
    assert values["lazy"][:4] == ["1.00", "50.0", "25.0", "66.7"]
    assert values["busy"][2] == f"{100 * 39 * 2 / 4 / 40:.1f}"


def test_curves_end_where_the_longest_list_ends(files: dict[str, Path]) -> None:
    def curves() -> str:
        return build(files).partition("How far each system goes")[2].partition("<h2>")[0]

    page = curves()  # 2μ is 4, and so many phrases the longest list holds
    assert " at 4<" in page and " at 5<" not in page
    assert re.search(r'text-anchor="end" y="\d+">2μ = 4<', page), "the mark at the right edge is named on its left"
    rows = [json.loads(line) for line in files["busy"].read_text().splitlines()]
    for row in rows:
        row["keyphrases"] += ["one", "more"]
        row["scores"] += [0.1, 0.1]
    jsonl(files["busy"], rows)
    page = curves()
    assert " at 6<" in page and " at 7<" not in page


def test_tables_say_whose_f1_at_o_is_cut(files: dict[str, Path]) -> None:
    page = build(files)
    observed = page.split("Percent, except #K")[1]
    assert "F1@O is too low for lazy:" in observed, "one phrase given, two references"
    rows = [json.loads(line) for line in files["lazy"].read_text().splitlines()]
    jsonl(files["lazy"], [{**row, "exhausted": True} for row in rows])
    assert "F1@O is too low" not in build(files), "a system that has no more to give is not cut"


def test_same_input_gives_the_same_bytes(files: dict[str, Path]) -> None:
    assert build(files) == build(files)


def test_a_page_without_training_file_or_scores(files: dict[str, Path], tmp_path: Path) -> None:
    plain = jsonl(tmp_path / "plain.jsonl", [{"id": f"i{n}", "keyphrases": ["red shoe"]} for n in range(40)])
    write_report(tmp_path / "small.html", files["test"], {"plain": plain})
    page = (tmp_path / "small.html").read_text(encoding="utf-8")
    assert "Do the scores" not in page and "Narrow and diverse" not in page and "B@5" in page


def test_nothing_to_report_is_an_error(files: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="at least one"):
        write_report(files["page"], files["test"], {})


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(1, 7, 7) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert ticks(0, 0) != []


def test_charts_bear_empty_and_missing_values() -> None:
    for svg in (
        line_chart({"a": []}, "x", "y"),
        line_chart({"a": [(1.0, None), (2.0, 0.5)]}, "x", "y", bands={"a": [None, (0.4, 0.6)]}),
        bar_chart(["one"], {"a": [None], "b": [0.5]}, "y", {"a": [None], "b": [(0.4, 0.6)]}),
        log_log_chart({"a": [(1.0, 100.0), (10.0, 1.0)], "b": []}, "x", "y"),
    ):
        assert svg.startswith("<svg") and "nan" not in svg
