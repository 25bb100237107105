"""Install a built wheel or sdist into an empty environment and use it there: `python -m tests.installed dist/*`.

Decides: what a distribution must contain, and what must work with no dependency, with the extra `cli`, and with a
backend from outside.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lockfast"
OWN_BACKEND = ROOT / "examples" / "own_backend"

# Run in the empty environment: what it prints is checked here.
_LOOK = """
import json
from importlib.metadata import distributions, metadata
from importlib.resources import files

def names(folder, above=""):
    for each in folder.iterdir():
        if each.is_dir():
            yield from names(each, above + each.name + "/")
        else:
            yield above + each.name

import lockfast
with lockfast.connect("memory://") as locks, locks.lock("x") as lease:
    assert lease.held
print(json.dumps({
    "files": sorted(name for name in names(files("lockfast")) if "__pycache__" not in name),
    "others": sorted({found.name.lower() for found in distributions()} - {"lockfast", "pip", "setuptools"}),
    "license": metadata("lockfast")["License-Expression"],
    "readme": metadata("lockfast").get_payload() or metadata("lockfast")["Description"],
}))
"""


def run(*words: str | Path, folder: Path) -> str:
    """What it prints. The folder is another one than the repository's, so that only what is installed is found."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LOCKFAST_URL": f"sqlite:///{folder}/locks.db"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} exits {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(python: Path, requirement: str) -> None:
    """With the settings of this user's pip: only these may know the way to an index."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True)


def check(distribution: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lockfast-installed-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        program = python.with_name("lockfast")
        install(python, str(distribution.resolve()))
        seen = json.loads(run(python, "-c", _LOOK, folder=folder))
        ours = sorted(
            str(file.relative_to(SOURCE))
            for file in SOURCE.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        )
        assert seen["files"] == ours, set(ours) ^ set(seen["files"])
        assert seen["others"] == [], f"an empty environment has {seen['others']}"
        assert seen["license"] == "MIT"
        relative = re.findall(r"\]\((?![a-z]+:|#)[^)]*\)", seen["readme"])
        assert seen["readme"].startswith("# lockfast"), seen["readme"][:80]
        assert not relative, f"links that lead nowhere on the index: {relative}"
        run(program, "run", "job", "--", "true", folder=folder)
        assert json.loads(run(program, "doctor", "--json", folder=folder))["works"] is True
        install(python, f"{distribution.resolve()}[cli]")
        run(program, "demo", "--plain", folder=folder)
        install(python, str(OWN_BACKEND))  # found by its URL scheme
        url = f"jsonfile://{folder}/locks.json"
        assert json.loads(run(program, "doctor", "--json", "--url", url, folder=folder))["works"] is True
        run(program, "run", "--url", url, "job", "--", "true", folder=folder)
    print(f"{distribution.name}: installs, imports, locks, runs the demo and finds the backend of another package")


if __name__ == "__main__":
    assert sys.argv[1:], "name the distributions"
    for each in sys.argv[1:]:
        check(Path(each))
