"""The oldest redis-py that is promised, in a folder of its own: the request path leans on it. The newest is all around.

Decides: which tests run again with it. pyproject.toml has the number of that release, and nothing else has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHAPTERS = ("NoBodyWithoutLock", "HolderStopsBelievingFirst", "FencesOnlyGrow")
WHERE = (
    *(f"tests/contract/test_contract.py::Test{chapter}_redis" for chapter in CHAPTERS),
    "tests/adversity/redis/test_clients.py",
    "tests/adversity/redis/test_cluster.py",
    "tests/adversity/redis/test_sentinel.py",
    "tests/adversity/redis/test_tls.py",
    "tests/adversity/redis/test_wakeups.py",
)
WHICH = (
    "contract",
    "TestClients and (url or path or protocol)",
    "TestTls and (over_tls or trusted)",
    "sound_wire",
    "TestFound and (are_on_the_primary or client_of)",
    "TestCluster and (each_name or ready_client)",
)
AT_LEAST = 120  # tests; if there are fewer, the words above no longer find them


def promised(package: str) -> str:
    """The oldest release that the extra asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [need.split(">=") for need in project["optional-dependencies"]["redis"]]
    return next(str(version) for name, version in needs if name == package)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_oldest_redis_py_that_is_promised_carries_the_same_promises(tmp_path: Path) -> None:
    oldest = promised("redis")
    installers = (["uv", "pip"], ["pip"])  # the quicker one is not everywhere, nor does it know every way to an index
    for installer in installers:
        command = ["-m", *installer, "install", "--quiet", "--target", str(tmp_path), f"redis=={oldest}"]
        installed = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        if installed.returncode == 0:
            break
    assert installed.returncode == 0, installed.stderr
    paths = [str(tmp_path), str(ROOT / "src"), str(ROOT)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**kept, "PYTHONPATH": os.pathsep.join(paths)}

    def ask(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        return done.stdout

    assert ask("-c", "import redis; print(redis.__version__)").startswith(oldest)
    words = " or ".join(f"({which})" for which in WHICH)
    output = ask("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", words, *WHERE)
    found = re.search(r"(\d+) passed", output)
    assert found, output
    assert int(found[1]) >= AT_LEAST
    assert "skipped" not in output
