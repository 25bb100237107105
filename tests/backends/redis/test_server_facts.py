"""What Redis 6.2 and Valkey 9.1 do, as far as the scripts, the drivers and the docs rest on it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.servers import shared
from tests.servers.binaries import HAS_REDIS_6, redis_6
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, join, until

_connection: Any = redis.Connection
Client = Any  # redis-py's answers have no types of their own

KINDS: dict[str, Callable[[], shared.Shared]] = {"valkey": shared.valkey}
if HAS_REDIS_6:
    KINDS["redis6"] = shared.redis_6


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> shared.Shared:
    return KINDS[request.param]()


@pytest.fixture
def client(kind: shared.Shared, tmp_path: Path) -> Iterator[Client]:
    with redis.Redis(HOST, kind.server.port, kind.database(tmp_path), protocol=2) as client:
        yield client


@pytest.fixture
def own(request: pytest.FixtureRequest, kind: shared.Shared) -> Iterator[Server]:
    """A server that may be spoiled."""
    with Server(binary=redis_6() if "redis6" in request.node.name else None) as server:
        yield server


def test_the_version_is_what_we_say_we_support(client: Client, kind: shared.Shared) -> None:
    info = client.info("server")
    expected = "6.2." if kind is not shared.valkey() else "9.1."
    assert str(info.get("valkey_version", info["redis_version"])).startswith(expected)


def test_no_command_runs_between_two_calls_of_a_script(client: Client, kind: shared.Shared) -> None:
    add = "local n = redis.call('GET', KEYS[1]) or 0; redis.call('SET', KEYS[1], n + 1)"

    def work() -> None:
        with redis.Redis(HOST, kind.server.port, client.connection_pool.connection_kwargs["db"]) as own:
            for _ in range(300):
                own.eval(add, 1, "counter")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert client.get("counter") == b"1200"


def test_a_script_that_fails_keeps_what_it_had_written(client: Client) -> None:
    """So nothing that can fail may stand behind a first write."""
    with pytest.raises(redis.ResponseError):
        client.eval("redis.call('SET', KEYS[1], 'a'); redis.call('LPUSH', KEYS[1], 'b')", 1, "key")
    assert client.get("key") == b"a"


def test_a_script_reads_the_server_s_clock_and_may_write_afterwards(client: Client) -> None:
    text, before = "local t = redis.call('TIME'); redis.call('SET', KEYS[1], t[1]); return t", time.time()
    seconds, micros = client.eval(text, 1, "key")
    assert before - 5 < int(seconds) + int(micros) / 1e6 < time.time() + 5
    assert 0 <= int(micros) < 1_000_000
    assert client.get("key") == seconds


def test_microseconds_since_the_epoch_are_exact_in_lua_and_in_answers(client: Client) -> None:
    now, later = 1_794_798_070_759_001, 2**53 - 1
    text = "return { tonumber(ARGV[1]) + 1, string.format('%.0f', ARGV[1] + 1) }"
    assert client.eval(text, 0, now) == [now + 1, b"%d" % (now + 1)]
    assert client.eval("return string.format('%016.0f', ARGV[1] + 0)", 0, later) == b"%d" % later
    assert client.eval("local t = redis.call('TIME'); return t[1] * 1000000 + t[2]", 0) > now - 2**50


def test_plain_conversion_of_such_a_number_would_lose_digits(client: Client) -> None:
    """Why the scripts always use a format."""
    assert client.eval("return tostring(ARGV[1] + 1)", 0, 1_794_798_070_759_001) == b"1.794798070759e+15"


def test_numbers_of_sixteen_digits_compare_as_text(client: Client) -> None:
    answer = client.eval("return ARGV[1] < ARGV[2] and 1 or 0", 0, "1794798070759001", "1794798070759002=x")
    assert answer == 1


def test_scores_in_a_sorted_set_are_exact(client: Client) -> None:
    scores = [1_794_798_070_759_001 + n for n in range(5)]
    for score in reversed(scores):
        client.eval("redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])", 1, "line", score)
    assert client.zrange("line", 0, -1) == [b"%d" % score for score in scores]
    assert client.zrangebyscore("line", f"({scores[1]}", "+inf") == [b"%d" % score for score in scores[2:]]


def test_what_a_script_publishes_reaches_a_subscriber(client: Client) -> None:
    with client.pubsub() as subscriber:
        subscriber.subscribe("lockfast:wake:fact")
        assert subscriber.get_message(timeout=LIMIT_S)["type"] == "subscribe"
        publish = "return redis.call('PUBLISH', ARGV[1], ARGV[2])"
        assert client.eval(publish, 0, "lockfast:wake:nobody", "claim") == 0  # the number of subscribers
        assert client.eval(publish, 0, "lockfast:wake:fact", "claim") == 1
        message = subscriber.get_message(timeout=LIMIT_S)
        assert (message["type"], message["data"]) == ("message", b"claim")


def test_nothing_is_kept_for_a_subscriber_that_comes_later(client: Client) -> None:
    assert client.publish("lockfast:wake:nobody", "claim") == 0
    with client.pubsub() as subscriber:
        subscriber.subscribe("lockfast:wake:nobody")
        assert subscriber.get_message(timeout=LIMIT_S)["type"] == "subscribe"
        assert subscriber.get_message(timeout=0.05) is None


def test_a_digest_that_is_not_known_is_refused_with_noscript_and_nothing_is_done(own: Server) -> None:
    with redis.Redis(HOST, own.port) as client:
        digest = client.script_load("return redis.call('INCR', KEYS[1])")
        assert client.evalsha(digest, 1, "n") == 1
        client.script_flush()
        with pytest.raises(redis.exceptions.NoScriptError):
            client.evalsha(digest, 1, "n")
        assert client.eval("return redis.call('INCR', KEYS[1])", 1, "n") == 2
        assert client.evalsha(digest, 1, "n") == 3, "a client that sends the text has loaded it for all"


def test_many_fields_are_set_in_one_call(client: Client) -> None:
    assert client.execute_command("HSET", "hash", "a", 1, "b", 2, "c", 3) == 3
    assert client.hmget("hash", "a", "x", "c") == [b"1", None, b"3"]


def test_a_set_may_keep_the_expiry(client: Client) -> None:
    client.set("state", "0123456789012345=claim", px=60_000)
    client.execute_command("SET", "state", "0123456789012345-", "KEEPTTL")
    assert client.get("state") == b"0123456789012345-"
    assert 50_000 < client.pttl("state") <= 60_000


def test_a_plain_set_forgets_the_expiry(client: Client) -> None:
    client.set("state", "a", px=60_000)
    client.set("state", "b")
    assert client.pttl("state") == -1


def test_an_expiry_is_whole_milliseconds_and_never_early(client: Client) -> None:
    with pytest.raises(redis.ResponseError):
        client.execute_command("PEXPIRE", "state", "1.5")
    for _ in range(20):
        before = client.eval(
            "redis.call('SET', KEYS[1], 'a', 'PX', 20); local t = redis.call('TIME'); return t[1] * 1000000 + t[2]",
            1,
            "state",
        )
        until(lambda: client.get("state") is None, "it to expire")
        seconds, micros = client.time()
        assert seconds * 1_000_000 + micros >= before + 19_000  # its clock counts from the last whole millisecond


def test_a_script_in_a_full_memory_may_go_on_writing_once_it_has_written(own: Server) -> None:
    """So a release begins with a write that needs no memory."""
    with redis.Redis(HOST, own.port) as client:
        client.set("x", "held")
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            client.eval("return redis.call('SET', KEYS[1], 'a')", 1, "x")
        text = "redis.call('PEXPIRE', KEYS[1], 60000); return redis.call('SET', KEYS[1], 'free')"
        assert client.eval(text, 1, "x") == b"OK"
        assert client.get("x") == b"free"


def test_requests_of_one_connection_are_carried_out_in_order_even_if_the_replies_are_not_read(own: Server) -> None:
    """So what cleans up after a cancelled request may be sent right behind it."""
    connection: Any = _connection(host=HOST, port=own.port)
    connection.connect()
    for number in range(500):
        connection.send_command("RPUSH", "line", number)
    connection.send_command("DEL", "line")
    assert [connection.read_response() for _ in range(501)][-1] == 1
    connection.disconnect()
    assert own.command("EXISTS", "line") == 0


def test_a_request_that_was_sent_before_the_connection_ended_may_still_be_carried_out(own: Server) -> None:
    """So a lost connection says nothing about the outcome, and what is asked next must be able to arrive first."""
    own.pause()
    with socket.create_connection((HOST, own.port)) as line:
        line.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nlate\r\n$1\r\n1\r\n")
    own.go_on()
    until(lambda: own.command("GET", "late") == b"1", "it to be carried out")
