"""What a backend may have beside the verbs that every backend answers, and which store it says that it is."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import lockfast
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import MemoryStore
from lockfast.backends.optional import LossListener
from lockfast.engine.core import Engine
from lockfast.errors import LeaseLost, SelfDeadlock, Unsupported
from lockfast.testing import FakeClock
from lockfast.testing.faults import FaultyBackend
from tests.engine.hurried import on_url
from tests.engine.stub import StubBackend, take

WORLD = ThreadWorld()


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_backends_of_one_store_have_one_store_id_and_those_of_two_have_two(scheme: str, tmp_path: Path) -> None:
    one, other = (
        f"memory://{uuid4().hex}" if scheme == "memory" else f"sqlite:///{tmp_path}/{name}.db" for name in "ab"
    )
    assert on_url(one)(WORLD).store_id == on_url(one)(WORLD).store_id != on_url(other)(WORLD).store_id


def test_a_backend_with_faults_is_the_store_that_it_stands_before() -> None:
    inner = MemoryBackend(MemoryStore(), WORLD)
    assert FaultyBackend(inner, WORLD).store_id == inner.store_id


def test_a_with_around_a_call_is_found_through_another_locks_of_the_same_store() -> None:
    store = MemoryStore()
    one, other = (lockfast.connect(lambda world, clock: MemoryBackend(store, world)) for _ in range(2))
    with one, other, one.lock("a"), pytest.raises(SelfDeadlock), other.lock("a"):
        pass


class _Reporting(StubBackend):
    on_loss: LossListener | None = None


@pytest.mark.parametrize("faulty", [False, True])
def test_a_loss_that_the_backend_reports_reaches_the_lease(faulty: bool) -> None:
    world = ThreadWorld(FakeClock())
    inner = _Reporting()
    engine = Engine(FaultyBackend(inner, world) if faulty else inner, world, holder="us")
    lease = drive(take(engine))
    assert inner.on_loss is not None
    inner.on_loss([(lease.claim_id, lease.fence)], "its session has ended")
    with pytest.raises(LeaseLost, match="its session has ended"):
        lease.check()
    drive(engine.close())


def test_a_backend_that_reports_no_losses_is_given_no_listener() -> None:
    world = ThreadWorld(FakeClock())
    stub = StubBackend()
    faulty = FaultyBackend(stub, world)
    Engine(faulty, world, holder="us")
    assert faulty.on_loss is None
    assert not hasattr(stub, "on_loss")


def test_locks_inside_a_transaction_are_refused_where_the_backend_has_none() -> None:
    with (
        lockfast.connect("memory://no-transactions") as locks,
        pytest.raises(Unsupported, match="a transaction"),
    ):
        locks.in_transaction(object(), "a")  # type: ignore[arg-type]
