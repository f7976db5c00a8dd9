# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/: each NAME.txt gives NAME.svg.

    python docs/draw.py            draw all again
    python docs/draw.py --check    exit code 1 where a picture is not what its text says

A text holds one statement a line, words quoted as in a shell::

    title TEXT                          what the picture shows, for those who cannot see it
    row                                 a new row, below the last one
    box ID HEAD [LINE ...]              in the current row; HEAD in bold; a head that starts with * is ours
    edge FROM TO [LABEL]                arrow
    dashed FROM TO [LABEL]              dashed arrow
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent

LINE = 18  # height of a line of text, px
CHARACTER = 7.2  # width of a character of the 12 px monospace font
PADDING = 10
GAP_X, GAP_Y = 36, 46
MARGIN = 12

STYLE = """\
  text { font: 12px monospace; fill: #1f2328 }
  .head { font-weight: bold }
  .label { fill: #57606a }
  rect { fill: #f6f8fa; stroke: #8c959f }
  rect.ours { fill: #ddf4ff; stroke: #0969da }
  path { fill: none; stroke: #57606a; stroke-width: 1.2 }
  .dashed { stroke-dasharray: 5 4 }
  marker path { fill: #57606a; stroke: none }"""
ARROWHEAD = (
    '<defs><marker id="arrow" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z"/></marker></defs>'
)


@dataclass
class Box:
    lines: list[str]
    ours: bool
    row: int
    x: float = 0
    y: float = 0
    height: float = 0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * CHARACTER + 2 * PADDING

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass
class Edge:
    start: str
    end: str
    label: str
    dashed: bool


@dataclass
class Picture:
    title: str = ""
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    rows: int = 0


def main() -> int:
    wrong = []
    for source in sorted(FOLDER.glob("*.txt")):
        drawn, target = draw(source.read_text()), source.with_suffix(".svg")
        if "--check" in sys.argv[1:]:
            if not target.exists() or target.read_text() != drawn:
                wrong.append(f"{target.name} is not what {source.name} says: run python docs/draw.py")
        else:
            target.write_text(drawn)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


def draw(text: str) -> str:
    """The SVG of a description.

    Raises:
        ValueError: a line that is no statement; the message quotes it.
    """
    picture = parse(text)
    width, height = arrange(picture)
    size = f'width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        ARROWHEAD,
        f'<rect {size} style="fill:#ffffff;stroke:none"/>',
        *(svg_edge(picture, edge) for edge in picture.edges),
        *(svg_box(box) for box in picture.boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def parse(text: str) -> Picture:
    picture = Picture()
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        match words:
            case []:
                pass
            case ["title", title]:
                picture.title = title
            case ["row"]:
                picture.rows += 1
            case ["box", name, head, *rest]:
                lines = [head.removeprefix("*"), *rest]
                picture.boxes[name] = Box(lines, head.startswith("*"), picture.rows)
            case ["edge" | "dashed" as kind, start, end, *label]:
                picture.edges.append(Edge(start, end, " ".join(label), kind == "dashed"))
            case _:
                raise ValueError(f"not a statement: {line}")
    return picture


def arrange(picture: Picture) -> tuple[float, float]:
    """Give every box its place, rows centred above one another; returns width and height of the whole."""
    rows = [[box for box in picture.boxes.values() if box.row == row] for row in range(1, picture.rows + 1)]
    widths = [sum(box.width for box in row) + GAP_X * (len(row) - 1) for row in rows]
    y: float = MARGIN
    for row, width in zip(rows, widths, strict=True):
        x = MARGIN + (max(widths) - width) / 2
        height = max(len(box.lines) for box in row) * LINE + 2 * PADDING
        for box in row:
            box.x, box.y, box.height = x, y, height
            x += box.width + GAP_X
        y += height + GAP_Y
    return max(widths) + 2 * MARGIN, y - GAP_Y + MARGIN


def svg_box(box: Box) -> str:
    kind = ' class="ours"' if box.ours else ""
    place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"'
    parts = [f'<rect{kind} {place} rx="4"/>']
    for number, line in enumerate(box.lines):
        x, y = box.x + PADDING, box.y + PADDING + LINE * number + 13
        kind = ' class="head"' if number == 0 else ""
        parts.append(f'<text{kind} x="{x:.0f}" y="{y:.0f}" xml:space="preserve">{escape(line)}</text>')
    return "\n".join(parts)


def svg_edge(picture: Picture, edge: Edge) -> str:
    start, end = picture.boxes[edge.start], picture.boxes[edge.end]
    if start.row == end.row:
        right = start.x < end.x
        x1, x2 = (start.x + start.width, end.x) if right else (start.x, end.x + end.width)
        y1 = y2 = start.y + start.height / 2
        line = f"M{x1:.0f} {y1:.0f} {x2:.0f} {y2:.0f}"
    else:
        down = start.row < end.row
        y1, y2 = (start.y + start.height, end.y) if down else (start.y, end.y + end.height)
        low, high = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
        x1, x2 = ((low + high) / 2,) * 2 if low < high else (start.middle, end.middle)
        bend = (y1 + y2) / 2
        line = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} {x2:.0f} {y2:.0f}"
    kind = ' class="dashed"' if edge.dashed else ""
    parts = [f'<path{kind} d="{line}" marker-end="url(#arrow)"/>']
    if edge.label:
        x, y = (x1 + x2) / 2 + 8, (y1 + y2) / 2 + 4
        parts.append(f'<text class="label" x="{x:.0f}" y="{y:.0f}">{escape(edge.label)}</text>')
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
