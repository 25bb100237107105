"""Whether this commit can be released under a tag: `python -m tests.release v0.1.0`, for `make release-check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def objections(tag: str, version: str, changelog: str) -> Iterator[str]:
    """What has to be mended first."""
    if tag != f"v{version}":
        yield f"the tag is {tag!r}, and __version__ asks for 'v{version}'"
    heading = re.search(rf"^## {re.escape(version)}\b(.*)$", changelog, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no heading for {version}"
    elif not re.fullmatch(r", \d{4}-\d\d-\d\d", heading[1]):
        yield f"CHANGELOG.md does not say when {version} was released: write '## {version}, 2027-01-31'"


def main(words: list[str]) -> int:
    from lockfast import __version__

    [tag] = words or [""]
    found = list(objections(tag, __version__, (ROOT / "CHANGELOG.md").read_text()))
    print("\n".join(found) or f"{tag} can be released", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
