"""What the pages name exists: links, headings, files; and the index of decisions is complete.

Decides: which words of a page are paths. Leaves to `test_readme`: whether the code on a page runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lockfast"
PAGES = [
    *sorted(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),  # which may name what is gone
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "models" / "README.md",
]
MAPS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]  # every path on these is checked, however it is written
DECISIONS = ROOT / "docs" / "decisions"
MAX_FIRST_READING_LINES = 1200

_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_QUOTED = re.compile(r"`([^`\n]+)`")
_OUR_FOLDER = re.compile(r"(?:src|tests|bench|docs|examples|models|\.github)/[\w./-]*\w")
_PATH = re.compile(r"\.?[\w-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|lua|sql|toml|svg|pml|sh|yml|yaml))")


def prose(text: str) -> str:
    """Without fenced blocks: what stands there is code."""
    return _FENCED.sub("", text)


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        repeats = sum(1 for other in found if re.fullmatch(re.escape(plain) + r"(-\d+)?", other))
        found.add(f"{plain}-{repeats}" if repeats else plain)
    return found


def broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(prose(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link


def exists(path: str) -> bool:
    """From the root, or from any folder of the source: `open.py` means each package's. `yours` is the reader's."""
    if path.startswith("docs/_build/"):  # made by `make docs`
        return True
    return "yours" in path or (ROOT / path).exists() or any(SOURCE.rglob(path.rstrip("/")))


def missing_paths(text: str, *, every: bool) -> Iterator[str]:
    """Paths in backticks that lead nowhere: those of our own folders, or `every` word that looks like one."""
    for words in _QUOTED.findall(prose(text)):
        found = _OUR_FOLDER.findall(words)
        if every and _PATH.fullmatch(words):
            found.append(words)
        yield from (path for path in found if not exists(path))


def paths_of_tree(block: str) -> Iterator[str]:
    """Each line begins with names, indented below their folder; two blanks end them, and a description follows."""
    folders: list[tuple[int, str]] = []
    for line in block.splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split(" ")
        depth = len(line) - len(line.lstrip())
        if not line.strip() or depth > 8:  # the rest of a description
            continue
        while folders and folders[-1][0] >= depth:
            folders.pop()
        above = folders[-1][1] if folders else ""
        yield from (above + name for name in names)
        if len(names) == 1 and names[0].endswith("/"):
            folders.append((depth, above + names[0]))


def trees(text: str) -> list[str]:
    return [block for _, language, block in _FENCED.findall(text) if not language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert list(missing_paths(page.read_text(), every=page in MAPS)) == []


def test_every_path_in_the_tree_of_the_house_exists() -> None:
    [tree] = trees((ROOT / "CONTRIBUTING.md").read_text())
    assert [path for path in paths_of_tree(tree) if not (ROOT / path).exists()] == []


def test_the_tree_of_the_house_names_every_package_and_what_stands_beside_them() -> None:
    [tree] = trees((ROOT / "CONTRIBUTING.md").read_text())
    named = {path.rstrip("/") for path in paths_of_tree(tree)}
    packages = [file.parent for file in SOURCE.glob("*/__init__.py")]
    packages += [file.parent for file in (SOURCE / "backends").glob("*/__init__.py")]
    beside = [SOURCE, SOURCE / "backends", ROOT / "tests"]
    modules = [file for folder in beside for file in folder.glob("*.py") if not file.name.startswith(("test_", "__"))]
    assert {str(path.relative_to(ROOT)) for path in [*packages, *modules]} - named == set()


def test_the_architecture_names_every_backend() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [file.parent.name for file in (SOURCE / "backends").glob("*/__init__.py")]
    assert [name for name in packages if f"`backends/{name}/" not in text] == []


def test_every_backend_has_a_page_and_tests_of_its_own() -> None:
    backends = [file.parent.name for file in (SOURCE / "backends").glob("*/open.py")]
    assert len(backends) >= 6
    assert [name for name in backends if not (ROOT / "docs" / "backends" / f"{name}.md").exists()] == []
    assert [name for name in backends if not list((ROOT / "tests" / "backends" / name).glob("test_*.py"))] == []


def test_the_first_reading_is_short() -> None:
    [line] = re.findall(r"^The short one,.*$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    files = _QUOTED.findall(line)
    assert len(files) >= 4
    assert sum(len((SOURCE / file).read_text().splitlines()) for file in files) <= MAX_FIRST_READING_LINES


def test_the_index_names_every_decision_with_its_title() -> None:
    index = (DECISIONS / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\(([\w.-]+)\) \| (\d{4}-\d\d-\d\d) \| (\S.*) \|$", index, re.MULTILINE)
    files = sorted(file for file in DECISIONS.glob("0*.md"))
    assert [name for _, _, name, _, _ in rows] == [file.name for file in files]
    for (number, title, name, _, _), file in zip(rows, files, strict=True):
        assert name.startswith(f"{int(number):04d}-")
        assert file.read_text().splitlines()[0] == f"# {int(number)}. {title}"


# Each check is able to fail


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One & two\n# `with` a word\n# One & two\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#one--two) [b](there.md#with-a-word) [c](there.md#one--two-1) [d](https://x.org/y)")
    assert list(broken_links(page)) == []
    page.write_text("[a](gone.md) [b](there.md#three) [c](#here)\n```python\nx[1](2)\n```\n")
    assert list(broken_links(page)) == ["gone.md", "there.md#three", "#here"]


def test_a_path_that_leads_nowhere_is_noticed() -> None:
    text = (
        "`tests/test_pages.py`, `tests/gone.py -k x`, `engine/lease.py`, `engine/gone.py`, `asyncio.all_tasks`, `gone/`"
    )
    assert list(missing_paths(text, every=False)) == ["tests/gone.py"]
    assert list(missing_paths(text, every=True)) == ["tests/gone.py", "engine/gone.py", "gone/"]


def test_a_tree_is_read_by_its_indentation() -> None:
    tree = (
        "src/lockfast/\n"
        "  sync.py aio.py   both\n"
        "  backends/        all\n"
        "    base.py        verbs\n"
        "  cli/  testing/   more\n"
        "tests/\n"
    )
    assert list(paths_of_tree(tree)) == [
        "src/lockfast/",
        "src/lockfast/sync.py",
        "src/lockfast/aio.py",
        "src/lockfast/backends/",
        "src/lockfast/backends/base.py",
        "src/lockfast/cli/",
        "tests/",
    ]
