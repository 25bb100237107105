"""The project had another name once, and a package of other people has it: it occurs nowhere, in texts or in paths."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
OLD_NAME = "hold" + "fast"  # in two halves, so that this file does not contain it


def files() -> list[Path]:
    """All of the repository, or of an unpacked sdist, which has no repository."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    folders = ("src", "tests", "bench", "models", "examples", "docs")
    return [*(file for file in ROOT.iterdir() if file.is_file()), *(f for name in folders for f in every(ROOT / name))]


def every(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def with_the_old_name(paths: list[Path], root: Path) -> list[str]:
    word = OLD_NAME.encode()
    return [
        str(path.relative_to(root))
        for path in paths
        if OLD_NAME in str(path.relative_to(root)).lower() or word in path.read_bytes().lower()
    ]


def test_the_old_name_occurs_nowhere() -> None:
    found = files()
    assert ROOT / "README.md" in found
    assert with_the_old_name(found, ROOT) == []


def test_the_old_name_is_found_in_a_text_and_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "text.md").write_text(f"pip install {OLD_NAME.capitalize()}")
    (tmp_path / f"{OLD_NAME}.lua").write_text("")
    (tmp_path / "other.md").write_text("pip install lockfast")
    assert sorted(with_the_old_name(every(tmp_path), tmp_path)) == [f"{OLD_NAME}.lua", "text.md"]
