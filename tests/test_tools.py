"""The tools of the tests keep their own promises: one set of servers for a run, and a table of what was red."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import flaky
from tests.backends.collecting import Collector, collect_all
from tests.capabilities import OF_THE_SYSTEM, SETTABLE_CLOCK, THREAD_STATES
from tests.no_threads import no_thread_left
from tests.servers.clocks import SHARED, JumpyServer
from tests.servers.processes import children_of, has_ended, listed_children, listed_state, process_state
from tests.servers.proxy import Proxy
from tests.servers.server import HOST, free_port
from tests.servers.waiting import LIMIT_S, happens, join, stand_still, until
from tests.side_by_side import main as run_side_by_side

ROOT = Path(__file__).parent.parent

# A process that begins a run, another that joins it and starts a server, and the first one's end.
BEGINS = """
import subprocess, sys
from tests.servers import run
print(run.begin(), flush=True)
joins = '''
from tests.servers import run, shared
print(shared.valkey().server.command("INFO", "server").decode().partition("process_id:")[2].split()[0])
'''
subprocess.run([sys.executable, "-c", joins], check=True)
subprocess.run([sys.executable, "-c", joins], check=True)
sys.stdout.flush()
sys.stdin.readline()
"""
COUNTS = "from tests.servers import run; print(*[run.count('x') for _ in range(20)])"


def _fresh() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LOCKFAST_TEST_RUN"}


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, None], ids=["killed", "in order"])
def test_a_shared_server_outlives_the_process_that_started_it_and_ends_with_the_run(end: signal.Signals | None) -> None:
    words = [sys.executable, "-c", BEGINS]
    with subprocess.Popen(
        words, cwd=ROOT, env=_fresh(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as begins:
        assert begins.stdout is not None
        assert begins.stdin is not None
        folder = Path(begins.stdout.readline().strip())
        first, again = int(begins.stdout.readline()), int(begins.stdout.readline())
        assert first == again, "it was started once, and outlived its starter"
        if end is not None:
            begins.send_signal(end)
        begins.stdin.close()
    until(lambda: has_ended(first) and not folder.exists())


@pytest.mark.slow
def test_no_two_processes_of_a_run_get_the_same_number() -> None:
    def count() -> list[int]:
        command = [sys.executable, "-c", COUNTS]
        return [int(word) for word in subprocess.check_output(command, cwd=ROOT, text=True).split()]

    with ThreadPoolExecutor(4) as pool:
        found = [number for numbers in pool.map(lambda _: count(), range(4)) for number in numbers]
    assert len(set(found)) == 80


GOES = """
import os, sys, time
from pathlib import Path
from tests.servers import run
from tests.servers.proxy import Proxy
from tests.servers.server import HOST
from tests.servers.waiting import until
inside = Path(sys.argv[1])
with run.first_alone("x"):
    came = time.monotonic()
    (inside / str(os.getpid())).touch()
    if len(list(inside.iterdir())) > 1:
        until(lambda: len(list(inside.iterdir())) == 3, "the third process")
    left = time.monotonic()
print(came, left)
"""


@pytest.mark.slow
def test_the_first_process_of_a_run_goes_alone_and_the_others_together(tmp_path: Path) -> None:
    def go(_: int) -> list[float]:
        environment = {**os.environ, "LOCKFAST_TEST_RUN": str(tmp_path)}
        words = [sys.executable, "-c", GOES, str(inside)]
        return [float(word) for word in subprocess.check_output(words, cwd=ROOT, env=environment, text=True).split()]

    inside = tmp_path / "inside"
    inside.mkdir()
    with ThreadPoolExecutor(3) as pool:
        first, *others = sorted(pool.map(go, range(3)))
    assert all(first[1] <= came for came, _ in others)


@pytest.mark.slow
@SETTABLE_CLOCK.needed
def test_a_server_whose_clock_could_be_set_leaves_nothing_in_shared_memory() -> None:
    server = JumpyServer()
    with server:
        pid = server.pid
    assert list(SHARED.glob(f"*faketime*_{pid}")) == []


@pytest.mark.slow
def test_ps_says_the_same_of_a_process_as_proc() -> None:
    """Where there is no /proc, `ps` is asked."""
    with subprocess.Popen(["sleep", "600"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: process_state(process.pid) == listed_state(process.pid) == "T", "a stop")
        assert process.pid in listed_children(os.getpid())
        assert process.pid in children_of(os.getpid())
        process.kill()
    assert listed_state(process.pid) == "Z"


def test_linux_has_every_capability_of_a_system() -> None:
    if sys.platform == "linux":
        assert [one.why_not for one in OF_THE_SYSTEM if not one.is_here] == []


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure message="no"/></testcase>
<testcase classname="tests.b" name="test_broken"><error message="no"/></testcase>
</testsuite></testsuites>"""


def test_a_table_shows_which_tests_were_red_in_which_run(tmp_path: Path) -> None:
    (tmp_path / "0.xml").write_text(REPORT)
    tests, failed = flaky.read(tmp_path / "0.xml")
    assert (tests, failed) == (3, ["tests.a::test_bad", "tests.b::test_broken"])
    runs = [
        flaky.Run(0, False, 7, 61.0, 3, failed, 1),
        flaky.Run(1, True, 8, 5.0, 3, [], 0),
        flaky.Run(2, False, 9, 5.0, 3, failed[:1], 1),
        flaky.Run(3, True, 9, 5.0, 0, [], 3),
    ]
    shown = flaky.table(runs)
    assert "1 of 4 green" in shown
    assert "- tests.a::test_bad: red in run 0, 2" in shown
    assert "- tests.b::test_broken: red in run 0" in shown
    assert "| 0 | nothing | 7 | 1:01 | 3 | 2 failed (exit 1) |" in shown
    assert "| 3 | busy loops | 9 | 0:05 | 0 | 0 failed (exit 3) |" in shown, "a run that broke off is not green"


def test_commands_side_by_side_fail_if_one_does_and_show_what_each_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_side_by_side(["echo one", "echo two >&2"]) == 0
    assert run_side_by_side(["true", "echo three; exit 3"]) == 1
    shown = capfd.readouterr().out
    assert all(word in shown for word in ("one\nok", "two\nok", "three\nFAILED with 3"))


def test_the_last_command_may_be_shown_as_it_comes(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_side_by_side(["--show-last", "echo one; exit 3", "echo two"]) == 1
    shown = capfd.readouterr().out
    assert shown.index("two\n") < shown.index("one\nFAILED with 3")


@pytest.mark.slow
def test_an_order_by_a_seed_is_the_same_each_time_and_another_by_another() -> None:
    def order(seed: int) -> list[str]:
        words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", f"--in-order-of={seed}"]
        answer = subprocess.check_output([sys.executable, *words, "tests/test_tools.py"], cwd=ROOT, text=True)
        return [line for line in answer.splitlines() if "::" in line]

    first = order(1)
    assert first == order(1)
    second = order(2)
    assert first != second
    assert sorted(first) == sorted(second)


def test_a_proxy_that_is_closed_while_clients_come_leaves_no_connection_open() -> None:
    nobody: Any = SimpleNamespace(port=1)
    for _ in range(50):
        proxy = Proxy(nobody)
        clients: list[socket.socket] = []
        coming = threading.Thread(target=_come, args=(proxy.port, clients))
        coming.start()
        until(lambda clients=clients: clients)  # type: ignore[misc]
        proxy.close()
        join(coming)
        for client in clients:
            client.close()
    gc.collect()  # it would complain of what is open


def _proxy_to(listener: socket.socket) -> Proxy:
    server: Any = SimpleNamespace(port=listener.getsockname()[1])
    return Proxy(server)


def test_what_a_proxy_kept_back_of_a_client_that_has_left_arrives_and_then_its_end() -> None:
    """Many times: its end may come before what was kept back is let pass, or after."""
    with socket.create_server((HOST, 0)) as listener, _proxy_to(listener) as proxy:
        for _ in range(50):
            kept_back = proxy.keep_back(b"late")
            with socket.create_connection((HOST, proxy.port)) as client:
                client.sendall(b"late")
                happens(kept_back, "the request to be kept back")
            with listener.accept()[0] as there:
                there.settimeout(LIMIT_S)
                proxy.let_pass()
                assert there.recv(100) == b"late"
                assert there.recv(100) == b""


def test_a_proxy_that_keeps_a_request_back_lets_earlier_replies_pass() -> None:
    with socket.create_server((HOST, 0)) as listener, _proxy_to(listener) as proxy:
        with socket.create_connection((HOST, proxy.port)) as client, listener.accept()[0] as there:
            client.settimeout(LIMIT_S)
            client.sendall(b"early")
            assert there.recv(100) == b"early"
            kept_back = proxy.keep_back(b"late")
            client.sendall(b"late")
            happens(kept_back, "the request to be kept back")
            there.sendall(b"reply")
            assert client.recv(100) == b"reply"


def test_a_connection_that_has_lost_a_request_never_recovers() -> None:
    with socket.create_server((HOST, 0)) as listener, _proxy_to(listener) as proxy:
        with socket.create_connection((HOST, proxy.port)) as client, listener.accept()[0] as there:
            lost = proxy.lose(b"first")
            client.sendall(b"first")
            happens(lost, "the request to be lost")
            kept_back = proxy.keep_back(b"second")
            client.sendall(b"second")
            client.shutdown(socket.SHUT_WR)
            there.settimeout(LIMIT_S)
            assert there.recv(100) == b"", "only the end of the connection arrives"
            assert not kept_back.is_set()


def test_a_proxy_that_is_disarmed_lets_the_next_request_pass() -> None:
    with socket.create_server((HOST, 0)) as listener, _proxy_to(listener) as proxy:
        lost = proxy.lose(b"")
        proxy.disarm()
        with socket.create_connection((HOST, proxy.port)) as client, listener.accept()[0] as there:
            client.sendall(b"word")
            assert there.recv(100) == b"word"
        assert not lost.is_set()


def _come(port: int, clients: list[socket.socket]) -> None:
    with suppress(OSError):
        for _ in range(5):
            clients.append(socket.create_connection((HOST, port)))


def test_garbage_is_collected_for_certain_though_another_thread_is_collecting() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Dawdles:
        def __del__(self) -> None:
            inside.set()
            happens(go_on)

    def collect() -> None:
        piece = Dawdles()
        piece.__dict__["me"] = piece
        del piece
        gc.collect()

    collecting = threading.Thread(target=collect)
    collecting.start()
    happens(inside)
    garbage = Collector()
    garbage.__dict__["me"] = garbage
    left = weakref.ref(garbage)
    del garbage
    gc.collect()
    assert left() is not None  # as Python has it: there is one collection at a time
    threading.Timer(0.05, go_on.set).start()
    collect_all()
    assert left() is None
    join(collecting)


def test_a_thread_that_is_refused_is_named_whatever_it_was_to_run() -> None:
    def plain() -> None: ...

    with no_thread_left() as refused:
        for start in (threading.Thread(target=plain, name="named").start, lambda: _thread.start_new_thread(plain, ())):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                start()
    assert refused == ["named", "plain"]


@THREAD_STATES.needed
def test_a_thread_stands_still_when_it_waits_for_another_and_not_before() -> None:
    computes, lock = threading.Event(), threading.Lock()
    waits: list[int] = []

    def compute_then_wait() -> None:
        for number in range(3_000_000):
            if number == 10:
                computes.set()
        waits.append(number)
        with lock:
            pass

    thread = threading.Thread(target=compute_then_wait)
    with lock:
        thread.start()
        happens(computes)
        stand_still(thread)
        assert waits
    join(thread)


# Ports


def test_no_port_is_given_twice_in_a_run() -> None:
    """Else a client whose server is down could find the server of another test in its place."""
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == 500
