"""A KeyboardInterrupt at any instruction of any primitive leaves nothing that no caller will ever release."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from lockfast import LockInfo
from lockfast._reentry import drive
from lockfast.engine.lease import Lease
from lockfast.primitives import manager
from tests.engine.interrupting import Interrupt
from tests.engine.storm import ALONE, BESIDE_ANOTHER, Scene
from tests.scale import by_scale
from tests.servers import run
from tests.servers.waiting import join

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it was cut short before it began

STEP = by_scale(4, soak=1, quick=12)  # each run but the long search tries a part of the instructions, each time others

_numbers = count()


@pytest.fixture
def scene() -> Iterator[Scene]:
    gc.collect()  # leases that another test has dropped: a waiter looks at all, and each look is many points here
    scene = Scene(f"memory://interrupted-{next(_numbers)}")
    yield scene
    scene.close()


def _ours(file: str) -> bool:
    return "/src/lockfast/" in file and "/testing/" not in file


@pytest.mark.parametrize("name", ALONE)
def test_interrupted_at_any_instruction_a_primitive_leaves_nothing_behind(scene: Scene, name: str) -> None:
    run_story = ALONE[name](scene)
    run_story()  # everything is imported, opened and started
    for point in count(run.first_new_seed() % STEP + 1, STEP):
        with Interrupt(point, _ours) as interrupt:
            try:
                run_story()
            except KeyboardInterrupt:
                assert interrupt.struck
        if not interrupt.struck:
            break
        scene.must_leave_nothing(interrupt.struck)
    assert point > 50, "there were enough of them"


def test_what_another_caller_of_the_manager_has_got_meanwhile_is_not_taken_from_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, others = manager._info_of, []

    def in_a_thread(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        join(thread)

    def interrupted(lease: Lease) -> LockInfo:
        monkeypatch.setattr(manager, "_info_of", original)
        in_a_thread(lambda: others.append(scene.manager.acquire("a")))
        raise KeyboardInterrupt

    monkeypatch.setattr(manager, "_info_of", interrupted)
    engine = scene.manager._logic.locks.engine
    monkeypatch.setattr(engine, "behind", lambda verb, lease: in_a_thread(lambda: drive(verb(lease))))
    with pytest.raises(KeyboardInterrupt):
        scene.manager.acquire("a")
    assert [result.fence for result in others] == [holder.fence for holder in scene.locks.inspect("a").holders]
    assert scene.manager.release("a")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("name", [*ALONE, *BESIDE_ANOTHER])
def test_thousands_of_real_interrupts_leave_nothing_behind(name: str, kind: str, tmp_path: Path) -> None:
    url = "memory://storm" if kind == "memory" else f"sqlite:///{tmp_path}/locks.db"
    command = [sys.executable, "-m", "tests.engine.storm", url, name, "5000"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "5000\n"), ran.stderr
