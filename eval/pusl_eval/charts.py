"""Numbers -> inline SVG that follows the page's colors, light and dark.

Each function returns one `<svg>` string. Colors are CSS classes (`c0` to `c7`) that the page
defines, so a chart needs no script, no network and no second version for dark mode.
`standalone` makes a chart, or several below one another, a file of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

Point = tuple[float, float | None]
Interval = tuple[float, float] | None
Series = Mapping[str, Sequence[Point]]

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 44
PLOT_W, PLOT_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

# Of a file of its own; readable on white and on dark pages.
COLORS = ("#3b82f6", "#f08c3a", "#2fa36b", "#a26bd8", "#d9534f", "#2aa5a0", "#8a8f98", "#c2559d")
TEXT_COLOR = "#6f7682"
IN_BAR = "#1f2937"  # of a whisker where it lies on its bar
LINE = 18  # height of a line of the legend
LONGEST_NAME, MOST_CATEGORIES = 55, 14  # characters of a legend's name; categories that all have their name below


def percent(value: float) -> str:
    """A fraction as a person reads it: `0.2534 -> '25%'`."""
    return f"{100 * value:.0f}%"


def plain(value: float) -> str:
    """A number without needless digits: `4.0 -> '4'`, `0.25 -> '0.25'`."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that span [low, high].

    >>> ticks(0, 0.83)
    [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(m * base for m in (1, 2, 2.5, 5, 10) if m * base >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    series: Series,
    x_label: str,
    y_label: str,
    y_format: Callable[[float], str] = percent,
    bands: Mapping[str, Sequence[Interval]] | None = None,
    marks: Mapping[str, float] | None = None,
    y_max: float | None = None,
    dots: bool = True,
) -> str:
    """Lines with points; optional interval bands per series and named vertical marks (μ, 2μ)."""
    drawn = {name: [(x, y) for x, y in points if y is not None] for name, points in series.items()}
    xs = [x for points in drawn.values() for x, _ in points] or [0.0, 1.0]
    ys = [y for points in drawn.values() for _, y in points] or [0.0]
    for intervals in (bands or {}).values():
        ys += [high for interval in intervals if interval for high in interval[1:]]
    x0, x1 = min(xs), max(xs)
    y1 = y_max if y_max is not None else max(max(ys) * 1.08, 1e-9)
    place_x = _scale(x0, x1 if x1 > x0 else x0 + 1, LEFT, LEFT + PLOT_W)
    place_y = _scale(0.0, y1, TOP + PLOT_H, TOP)
    whole = all(float(x).is_integer() for x in xs)
    x_ticks = [t for t in ticks(x0, x1, 7) if not whole or t.is_integer()]
    parts = [_axes(ticks(0, y1), place_y, y_format, x_ticks, place_x, plain, x_label, y_label)]
    for name, x in (marks or {}).items():
        if x0 <= x <= x1:
            parts.append(_mark(name, place_x(x)))
    for index, (name, points) in enumerate(drawn.items()):
        band = (bands or {}).get(name)
        if band:
            shape = [(p[0], i) for p, i in zip(series[name], band, strict=True) if i is not None]
            upper = [f"{place_x(x):.1f},{place_y(i[1]):.1f}" for x, i in shape]
            lower = [f"{place_x(x):.1f},{place_y(i[0]):.1f}" for x, i in reversed(shape)]
            parts.append(f'<polygon class="band c{index % 8}" points="{" ".join(upper + lower)}"/>')
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line c{index % 8}" points="{path}"/>')
        for x, y in points if dots else ():
            tip = f"{escape(name)}: {y_format(y)} at {plain(x)}"
            parts.append(
                f'<circle class="dot c{index % 8}" cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3">'
                f"<title>{tip}</title></circle>"
            )
    return _svg(parts, f"{y_label} against {x_label}")


def bar_chart(
    categories: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    y_label: str,
    intervals: Mapping[str, Sequence[Interval]] | None = None,
    y_format: Callable[[float], str] = percent,
    x_label: str = "",
    marks: Mapping[str, float] | None = None,
) -> str:
    """Bars side by side, one group per category, with interval whiskers; a missing value shows as a dash.

    Bars start at 0 and may go down from there. The place of a vertical mark is counted in categories: 0 is the middle
    of the first. Of many categories only some have their name below.
    """
    given = [v for values in series.values() for v in values if v is not None]
    ends = given + [end for rows in (intervals or {}).values() for i in rows if i for end in i]
    y0, y1 = min(ends, default=0.0), max(max(ends, default=0.0), 1e-9)
    y0, y1 = min(1.1 * y0, 0.0), 1.1 * y1
    marked = ticks(y0, y1)
    if given and max(given) > marked[-1]:  # a line above the highest bar
        marked.append(round(2 * marked[-1] - marked[-2], 10))
        y1 = max(y1, marked[-1])
    place_y = _scale(y0, y1, TOP + PLOT_H, TOP)
    group = PLOT_W / max(len(categories), 1)
    bar = group * 0.8 / max(len(series), 1)
    parts = [_axes(marked, place_y, y_format, [], None, plain, x_label, y_label)]
    parts += [_mark(name, LEFT + group * (at + 0.5)) for name, at in (marks or {}).items() if at < len(categories)]
    step = 1
    if len(categories) > MOST_CATEGORIES:  # so many apart that the longest name has room
        step = math.ceil((8 + 6.2 * max(map(len, categories))) / group)
    for column, category in enumerate(categories):
        middle, left = LEFT + group * (column + 0.5), len(categories) - 1 - column
        if left == 0 or (column % step == 0 and left >= step):
            parts.append(_tick(middle, TOP + PLOT_H + 16, escape(category)))
        for index, (name, values) in enumerate(series.items()):
            x = LEFT + group * (column + 0.1) + bar * index
            value = values[column]
            if value is None:
                parts.append(_tick(x + bar / 2, place_y(0.0) - 3, "–"))
                continue
            top, base = sorted((place_y(value), place_y(0.0)))
            parts.append(
                f'<rect class="bar c{index % 8}" x="{x + 0.5:.1f}" y="{top:.1f}" width="{max(bar - 1, 1):.1f}" '
                f'height="{base - top:.1f}">'
                f"<title>{escape(name)}, {escape(category)}: {y_format(value)}</title></rect>"
            )
            whisker = (intervals or {}).get(name, [None] * len(categories))[column]
            if whisker:
                low, high, center = place_y(whisker[0]), place_y(whisker[1]), x + bar / 2
                parts.append(f'<path class="whisker" d="M{center:.1f} {low:.1f}V{high:.1f}"/>')
                high, low = max(high, top), min(low, base)
                if high < low:
                    parts.append(f'<path class="whisker inside" d="M{center:.1f} {low:.1f}V{high:.1f}"/>')
    return _svg(parts, y_label)


def log_log_chart(series: Series, x_label: str, y_label: str) -> str:
    """Lines on two logarithmic axes (rank against frequency); points must be positive."""
    drawn = {name: [(x, y) for x, y in points if x > 0 and y is not None and y > 0] for name, points in series.items()}
    xs = [x for points in drawn.values() for x, _ in points] or [1.0]
    ys = [y for points in drawn.values() for _, y in points] or [1.0]

    def decades(values: list[float]) -> list[float]:
        return [float(i) for i in range(0, math.ceil(math.log10(max(max(values), 10)) - 1e-9) + 1)]

    def power(value: float) -> str:  # 100, 1k, 1M: what has room beside the axis
        number = 10**value
        if number < 1000:
            return f"{number:.0f}"
        return f"{number / 1000:.0f}k" if number < 1_000_000 else f"{number / 1_000_000:.0f}M"

    x_ticks, y_ticks = decades(xs), decades(ys)
    place_x = _scale(0.0, x_ticks[-1], LEFT, LEFT + PLOT_W)
    place_y = _scale(0.0, y_ticks[-1], TOP + PLOT_H, TOP)
    parts = [_axes(y_ticks, place_y, power, x_ticks, place_x, power, x_label, y_label)]
    for index, points in enumerate(drawn.values()):
        places = [(place_x(math.log10(x)), place_y(math.log10(y))) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line c{index % 8}" points="{path}"/>')
        if len(places) == 1:
            parts.append(f'<circle class="dot c{index % 8}" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3"/>')
    return _svg(parts, f"{y_label} against {x_label}")


def legend(names: Sequence[str]) -> str:
    """The systems' colors, once per figure row."""
    keys = "".join(f'<span class="key"><i class="c{i % 8}"></i>{escape(name)}</span>' for i, name in enumerate(names))
    return f'<p class="legend">{keys}</p>'


def standalone(*panels: tuple[str, Sequence[str]], title: str = "") -> str:
    """Charts below one another as a file of its own: colors for light and dark pages, and a legend above each.

    A panel is a chart and the names of its series; without names it has no legend.
    """
    style = "".join(f".c{i}{{fill:{c};stroke:{c}}}" for i, c in enumerate(COLORS))
    style += f"text{{font:12px system-ui,sans-serif;fill:{TEXT_COLOR}}}"
    style += f".grid{{stroke:{TEXT_COLOR};stroke-opacity:.25}}.axis,.whisker{{stroke:{TEXT_COLOR}}}"
    style += ".bar{stroke:none}.line{fill:none;stroke-width:2}.whisker{fill:none}" + f".inside{{stroke:{IN_BAR}}}"
    if any('class="mark"' in svg for svg, _ in panels):
        style += f"line.mark{{stroke:{TEXT_COLOR};stroke-dasharray:3 3}}"
    drawn, labels, top = "", [], 0
    if title:
        top = LINE
        drawn += f'<text x="{LEFT}" y="13" style="font-weight:600">{escape(_short(title))}</text>'
    for svg, names in panels:
        for x, index, name in _legend_places(names):
            if x == LEFT:
                top += LINE
            y = top - LINE
            drawn += f'<rect class="c{index % 8}" x="{x}" y="{y + 4}" width="10" height="10" rx="2"/>'
            drawn += f'<text x="{x + 14}" y="{y + 13}">{escape(name)}</text>'
        label = re.search(r'aria-label="([^"]*)"', svg)
        labels.append(label[1] if label else "")
        inner = re.sub(r"^<svg[^>]*>|</svg>$", "", svg)
        drawn += f'<g transform="translate(0 {top})">{inner}</g>'
        top += HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{int(WIDTH * 1.5)}" '
        f'role="img" aria-label="{"; ".join(labels)}"><style>{style}</style>{drawn}</svg>\n'
    )


def _legend_places(names: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """x, number and text of each name; a line begins at LEFT."""
    x = LEFT
    for index, name in enumerate(map(_short, names)):
        wide = 26 + int(sum(map(_wide, name)))
        if x + wide > WIDTH:
            x = LEFT
        yield x, index, name
        x += wide


def _wide(letter: str) -> float:
    """About how wide a letter is at 12 pixels."""
    if letter in "ijltfI.,:;'|()[] -":
        return 4.2
    return 9.5 if letter in "mwMW@%μ" else 8.2 if letter.isupper() else 7.0


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _mark(name: str, x: float) -> str:
    """A named vertical line."""
    room = x < LEFT + PLOT_W - 50  # else the name stands on the line's left
    side = f'x="{x + 3:.1f}"' if room else f'x="{x - 3:.1f}" text-anchor="end"'
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + PLOT_H}"/>'
        f'<text class="mark" {side} y="{TOP + 10}">{escape(name)}</text>'
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _axes(
    y_ticks: Sequence[float],
    place_y: Callable[[float], float],
    y_format: Callable[[float], str],
    x_ticks: Sequence[float],
    place_x: Callable[[float], float] | None,
    x_format: Callable[[float], str],
    x_label: str,
    y_label: str,
) -> str:
    parts = []
    for tick in y_ticks:
        y = place_y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 3.5:.1f}">{y_format(tick)}</text>')
    for tick in x_ticks:
        assert place_x is not None
        parts.append(_tick(place_x(tick), TOP + PLOT_H + 16, x_format(tick)))
    base = TOP + PLOT_H if not y_ticks or y_ticks[0] >= 0 else place_y(0.0)
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    if x_label:
        middle = LEFT + PLOT_W / 2
        parts.append(f'<text class="label" text-anchor="middle" x="{middle}" y="{HEIGHT - 8}">{escape(x_label)}</text>')
    y_middle = TOP + PLOT_H / 2
    parts.append(
        f'<text class="label" text-anchor="middle" transform="rotate(-90 12 {y_middle})" '
        f'x="12" y="{y_middle}">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _tick(x: float, y: float, text: str) -> str:
    """A label centered under x, moved inward where it would be cut off at the right."""
    if x + 3.2 * len(text) > WIDTH:
        return f'<text class="tick" text-anchor="end" x="{WIDTH}" y="{y:.1f}">{text}</text>'
    return f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{text}</text>'


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
