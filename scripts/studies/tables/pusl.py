"""A data folder -> the tables and figures of the PUSL paper, from the parts of reproduce.py."""

from __future__ import annotations

from tables.registry import Row, Work, declare

PUSL = "PUSL"


@declare(
    "pusl-table9", source=PUSL, item="Table 9", shows="the data sets: items, labels, labels per item and their skew",
    digits=2,
)  # fmt: skip
def data_sets(work: Work) -> list[Row]:
    """What `pusl data stats` says about every file."""
    from pusl.data.stats import stats

    rows: list[Row] = []
    for name in ("train", "dev", "test", "complete"):
        path = work.optional_file(name)
        if path is not None:
            found = work.cell(name, lambda path=path: next(iter(stats([path])[0].values())))  # type: ignore[misc]
            columns = ("items", "unique_labels", "mu", "sigma", "cv", "median", "max", "share_above_2mu")
            rows.append({"file": name, **{column: found[column] for column in columns}})
    return rows
