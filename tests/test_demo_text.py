"""What the demo says under its table follows the numbers."""

from __future__ import annotations

import pytest

from pusl.demo import SYSTEMS, _verdict


def metrics(complete_precision: float) -> dict:
    """One2Seq gives one keyphrase, PUSL five."""

    def system(k: float, b: float, p: float) -> dict:
        scores = {"K@5": k, "B@3": b, "B@5": b, "P@5": p}
        return {"scores": {"all": scores}, "intervals": {"all": {name: [0.0, 1.0] for name in scores}}}

    return {
        "observed": {"systems": {
            "kNN": system(5.0, 0.15, 0.15), "One2Seq": system(1.1, 0.07, 0.31), "PUSL": system(5.0, 0.16, 0.16),
            "fused": system(5.0, 0.22, 0.22),
        }},
        "complete": {"systems": {
            "kNN": system(5.0, 0.7, 0.7), "One2Seq": system(1.1, 0.17, complete_precision),
            "PUSL": system(5.0, 0.5, 0.5), "fused": system(5.0, 0.9, 0.9),
        }},
    }  # fmt: skip


def test_the_trade_is_said_plainly() -> None:
    text = _verdict(metrics(0.8), 5, 2.5)
    assert [line.split()[0] for line in text.splitlines()[2:6]] == list(SYSTEMS.values())
    said = " ".join(text.split())
    assert "right more often (P@5 31.0% against 16.0% on observed labels, 80.0% against 50.0% on complete ones)" in said
    assert "PUSL finds 2.5 right keyphrases per item instead of 0.8." in said
    assert said.endswith("22.0% on observed, 90.0% on complete labels; the best single one is kNN with 70.0%.")


@pytest.mark.parametrize("precision", [0.4, 0.5])
def test_nothing_is_said_to_be_traded_where_nothing_is(precision: float) -> None:
    assert "traded" not in _verdict(metrics(precision), 5, 2.5)
