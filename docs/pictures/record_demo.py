"""Record `lockfast demo` as an animated picture: `python docs/pictures/record_demo.py` writes demo.svg beside it.

Each line of the demo begins with its time, and appears at that time in the picture, which repeats.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

PICTURE: Final = Path(__file__).parent / "demo.svg"
LINE_HEIGHT, MARGIN, WIDTH = 18, 16, 720
PAUSE_S: Final = 6.0  # at the end, to read the summary
COLOURS: Final = (
    (r"SIGKILL|SIGSTOP", "#f6ad55"),
    (r"LeaseLost|no longer holds|refused|continued", "#fc8181"),
    (r"took over|everything|never two|only grew", "#68d391"),
    (r"", "#e2e8f0"),
)


def recorded() -> list[tuple[float, str]]:
    """Each line, with the second at which it came."""
    done = subprocess.run(
        [sys.executable, "-m", "lockfast", "demo"],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    at = 0.0
    lines = []
    for line in done.stdout.splitlines():
        if found := re.match(r"\s*(\d+\.\d+)s ", line):
            at = max(at, float(found[1]))
        lines.append((at, line))
    return lines


def svg(lines: list[tuple[float, str]]) -> str:
    length = lines[-1][0] + PAUSE_S
    height = 2 * MARGIN + LINE_HEIGHT * len(lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-size="13" '
            f'font-family="ui-monospace, Menlo, Consolas, monospace"><title>lockfast demo</title>',
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#1a202c"/>',
            *(_line(number, at, text, length) for number, (at, text) in enumerate(lines)),
            "</svg>\n",
        ]
    )


def _line(number: int, at: float, text: str, length: float) -> str:
    colour = next(colour for pattern, colour in COLOURS if re.search(pattern, text))
    share = min(0.999, at / length)
    return (
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * (number + 0.7):g}" fill="{colour}" xml:space="preserve">'
        f"{escape(text)}"
        f'<animate attributeName="opacity" values="0;1;1" keyTimes="0;{share:.3f};1" calcMode="discrete" '
        f'dur="{length:.1f}s" repeatCount="indefinite"/></text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(svg(recorded()))
