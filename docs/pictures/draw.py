"""Draw the pictures of the concepts: `python docs/pictures/draw.py` writes the SVG files beside it.

Each picture is a few lanes (a holder, the server …) over time, from left to right. Text is text, so that it can be
searched and read aloud; colours are readable on light and on dark pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).parent
INK, QUIET, HELD, LOST, WAITING, PAPER = "#1f2933", "#7b8794", "#2f855a", "#c53030", "#b7791f", "#ffffff"
LANE_HEIGHT, LEFT, TOP = 62, 130, 56


class Picture:
    """Lanes from top to bottom, time from left to right in pixels."""

    def __init__(self, title: str, lanes: list[str], width: int = 760) -> None:
        self.title = title
        self.width = width
        self.height = TOP + LANE_HEIGHT * len(lanes) + 14
        self._parts: list[str] = []
        for number, lane in enumerate(lanes):
            y = self.y(number)
            self.text(12, y + 5, lane, anchor="start", weight="bold")
            self._line(LEFT, y, width - 16, y, QUIET)

    def y(self, lane: int) -> int:
        return TOP + LANE_HEIGHT * lane + 20

    def _line(self, x: int, y: int, to_x: int, to_y: int, colour: str, more: str = "") -> None:
        self._parts.append(f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colour}" {more}/>')

    def text(
        self, x: float, y: float, words: str, colour: str = INK, anchor: str = "middle", weight: str = "normal"
    ) -> None:
        style = f'fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
        self._parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>')

    def bar(self, lane: int, start: int, end: int, words: str, colour: str = HELD) -> None:
        """Something lasts."""
        y = self.y(lane)
        self._parts.append(f'<rect x="{start}" y="{y - 12}" width="{end - start}" height="24" rx="4" fill="{colour}"/>')
        self.text((start + end) / 2, y + 5, words, PAPER)

    def arrow(self, start: tuple[int, int], end: tuple[int, int], words: str = "", colour: str = INK) -> None:
        """A message from one lane at a time to another: (lane, time)."""
        (lane, x), (to_lane, to_x) = start, end
        down = 13 if to_lane > lane else -13
        y, to_y = self.y(lane) + down, self.y(to_lane) - down
        tip = "lost" if colour == LOST else "tip"
        self._line(x, y, to_x, to_y, colour, f'stroke-width="1.6" marker-end="url(#{tip})"')
        if words:
            self.text((x + to_x) / 2 + 6, (y + to_y) / 2 + 4, words, colour, anchor="start")

    def moment(self, x: int, words: str, colour: str = QUIET) -> None:
        """A line through all lanes."""
        self._line(x, TOP - 12, x, self.height - 10, colour, 'stroke-dasharray="4 4"')
        self.text(x, TOP - 18, words, colour)

    def svg(self) -> str:
        def tip(name: str, colour: str) -> str:
            return (
                f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                f'orient="auto">'
                f'<path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
            )

        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
                f'font-family="system-ui, sans-serif" font-size="13"><title>{escape(self.title)}</title>',
                f"<defs>{tip('tip', INK)}{tip('lost', LOST)}</defs>",
                f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def lease() -> Picture:
    picture = Picture(
        "A lease is granted, renewed, and ends at the holder before it ends at the server", ["holder", "server"]
    )
    picture.bar(0, 160, 630, "believes that it holds")
    picture.bar(1, 190, 690, "no other claim is granted the lock")
    picture.arrow((0, 160), (1, 190), "acquire")
    picture.arrow((0, 330), (1, 345), "renew")
    picture.arrow((0, 500), (1, 540), "renew: no answer", LOST)
    picture.moment(630, "deadline")
    picture.moment(690, "ttl over")
    return picture


def fence() -> Picture:
    picture = Picture(
        "A stopped holder wakes up after its lease has ended; its write with fence 7 is refused after fence 8",
        ["first holder", "data", "second holder"],
    )
    picture.bar(0, 150, 250, "fence 7")
    picture.bar(0, 250, 560, "stopped", QUIET)
    picture.bar(0, 560, 700, "writes with 7", LOST)
    picture.bar(2, 390, 540, "fence 8, writes")
    picture.bar(1, 480, 660, "highest fence: 8", WAITING)
    picture.arrow((2, 480), (1, 492))
    picture.arrow((0, 610), (1, 634), "refused", LOST)
    picture.moment(380, "lease of the first holder ends")
    return picture


def hand_over() -> Picture:
    picture = Picture(
        "A release makes the waiter the holder in one step, and the wake-up carries the grant",
        ["holder", "server", "waiter"],
    )
    picture.bar(0, 150, 370, "fence 7")
    picture.bar(1, 170, 400, "held by the first")
    picture.bar(1, 402, 720, "held by the second, fence 8", WAITING)
    picture.bar(2, 230, 440, "sleeps in the queue", QUIET)
    picture.bar(2, 442, 720, "fence 8")
    picture.arrow((2, 230), (1, 245), "acquire: busy")
    picture.arrow((0, 370), (1, 400), "release")
    picture.arrow((1, 405), (2, 442), "wake-up with the grant")
    return picture


def quorum() -> Picture:
    picture = Picture(
        "Three servers vote; one is lost, and the other two still know the holder",
        ["holder", "server 1", "server 2", "server 3"],
    )
    picture.bar(0, 170, 700, "holds: two of three are a majority")
    picture.bar(1, 200, 700, "vote for the holder")
    picture.bar(2, 200, 700, "vote for the holder")
    picture.bar(3, 200, 380, "vote for the holder")
    picture.bar(3, 382, 480, "lost", LOST)
    picture.bar(3, 482, 700, "back: does not count for one ttl", QUIET)
    picture.arrow((0, 170), (1, 200))
    return picture


PICTURES: Final = (lease, fence, hand_over, quorum)


def main() -> None:
    for draw in PICTURES:
        (FOLDER / f"{draw.__name__}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
