"""Locks over TLS, with passwords, by a socket's path: all that a URL can ask for, in both worlds."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import redis
from redis.sentinel import Sentinel

import lockfast
from lockfast import BackendUnavailable
from lockfast.backends.redis.io import tls as redis_tls
from lockfast.backends.redis.io.endpoints import Address
from lockfast.backends.redis.io.tls import Tls, context_of
from lockfast.backends.redis.io.urls import endpoint_of_client, endpoint_of_url
from lockfast.testing.stage import Stage
from tests.adversity.redis.worlds import Anywhere
from tests.forks import child_may_take
from tests.polling import HOUR, never_poll
from tests.renewals import renewed
from tests.servers.server import HOST, Server
from tests.servers.tls import Certificates, TlsFront, name_in_folder
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow

SCHEMES = ("rediss", "valkeys", "rediss+cluster", "rediss+sentinel", "redlocks")

FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_ca_path")
SWITCHES = ("ssl_check_hostname", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "socket_keepalive")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        server.command("ACL", "SETUSER", "ann", "on", ">secret word", "~*", "&*", "+@all")
        yield server


class TestTls(Anywhere):
    @pytest.fixture(autouse=True)
    def _servers(self, server: Server, certificates: Certificates) -> Iterator[None]:
        self.server, self.certificates = server, certificates
        with ExitStack() as self.stack:
            yield

    def front(self, *, asks_clients: bool = False, piece: int = 0, named: bool = True) -> TlsFront:
        front = TlsFront(self.server, self.certificates, asks_clients=asks_clients, piece=piece, named=named)
        return self.stack.enter_context(front)

    @pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
    async def test_locks_work_over_tls(self, stage: Stage, scheme: str) -> None:
        self.where = self.front().url(scheme, **self.certificates.trusting)
        await self.works(stage)

    @pytest.mark.parametrize("piece", [1, 7, 100])
    async def test_wake_ups_arrive_in_however_many_records(
        self, stage: Stage, piece: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        self.where = self.front(piece=piece).url(**self.certificates.trusting)
        locks, subscribed = stage.locks(), set[bytes]()
        for number in range(5):
            held = await stage.locks().lock(f"x{number}", ttl=HOUR).take()
            waiter = stage.start(locks.lock(f"x{number}").take())
            await stage.queue(f"x{number}", 1)
            subscribed = subscribed or self._subscribers()
            assert await held.release()
            assert (await waiter.result()).held
        assert self._subscribers() <= subscribed, "the wake-up arrived, and no connection had to be made again"

    def _subscribers(self) -> set[bytes]:
        return set(re.findall(rb"id=(\d+)", self.server.command("CLIENT", "LIST", "TYPE", "pubsub")))

    async def test_many_waiters_share_one_connection_for_wake_ups(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        self.where = self.front(piece=50).url(**self.certificates.trusting)
        one, other = stage.locks(), stage.locks()
        held = [await one.lock(f"x{number}", ttl=HOUR).take() for number in range(8)]
        waiters = [stage.start(other.lock(f"x{number}").take()) for number in range(8)]
        for number in range(8):
            await stage.queue(f"x{number}", 1)
        assert len(self._subscribers()) == 1
        for lease in held:
            assert await lease.release()
        assert all([(await waiter.result()).held for waiter in waiters])

    async def test_a_lease_is_renewed_over_tls(self, stage: Stage) -> None:
        self.where = self.front().url(**self.certificates.trusting)
        lease = await stage.locks().lock("x", ttl=60).take()
        for _ in range(3):
            await renewed(stage, lease)
        assert lease.held

    async def test_a_large_answer_is_read_to_its_end(self, stage: Stage) -> None:
        self.where = self.front().url(**self.certificates.trusting)
        await stage.locks().cell("large").write("x" * 200_000)
        assert (await stage.locks().cell("large").read()).value == "x" * 200_000

    @pytest.mark.parametrize("scheme", ["rediss", "rediss+sentinel"])
    async def test_all_connections_with_the_same_options_share_one_context(
        self, stage: Stage, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To build one takes longer than all the rest of a connection."""
        self.certificates, built = Certificates(tmp_path), list[ssl.SSLContext]()
        front = self.front()
        self.where = front.url(scheme, **self.certificates.trusting)
        if "sentinel" in scheme:
            self.where = self._by_sentinel(front)

        def build() -> ssl.SSLContext:
            built.append(make())
            return built[-1]

        make = ssl.create_default_context
        monkeypatch.setattr(ssl, "create_default_context", build)
        await self.works(stage)
        await self.works(stage)
        assert len(built) == 1
        assert front.trusted_by > 3

    def _by_sentinel(self, front: TlsFront) -> str:
        sentinel = self.stack.enter_context(Server(sentinel=True))
        sentinel.command("SENTINEL", "MONITOR", "locks", HOST, front.port, 1)
        there = self.stack.enter_context(TlsFront(sentinel, self.certificates))
        return there.url("rediss+sentinel", **self.certificates.trusting).replace("/?", "/locks?")

    async def test_a_file_that_is_replaced_counts_for_the_next_connection(self, stage: Stage, tmp_path: Path) -> None:
        trusted, newer = tmp_path / "trusted.pem", tmp_path / "renewed.pem"
        trusted.write_bytes(self.certificates.stranger.read_bytes())
        newer.write_bytes(self.certificates.authority.read_bytes())
        self.where = self.front().url(ssl_ca_certs=str(trusted))
        with pytest.raises(BackendUnavailable, match=r"(?i)certificate"):
            await stage.locks().lock("x").take()
        newer.replace(trusted)
        assert (await stage.locks().lock("x").take()).held

    @pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_ca_path", "SSL_CERT_DIR"])
    async def test_an_authority_that_is_replaced_counts_no_longer(
        self, stage: Stage, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trusted, newer, folder = tmp_path / "trusted.pem", tmp_path / "renewed.pem", tmp_path / "authorities"
        trusted.write_bytes(self.certificates.authority.read_bytes())
        newer.write_bytes(self.certificates.stranger.read_bytes())
        folder.mkdir()
        (folder / name_in_folder(trusted)).symlink_to(trusted)
        monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}:{folder if option == 'SSL_CERT_DIR' else ''}")
        options = {"ssl_ca_certs": trusted, "ssl_ca_path": folder}
        self.where = self.front().url(**{option: str(options[option])} if option in options else {})
        lease = await stage.locks().lock("x").take()
        assert await lease.release()
        newer.replace(trusted)
        with pytest.raises(BackendUnavailable, match=r"(?i)certificate"):
            await stage.locks().lock("x").take()

    async def test_a_server_that_asks_for_certificates_gets_ours(self, stage: Stage) -> None:
        front = self.front(asks_clients=True)
        self.where = front.url(**self.certificates.known)
        await self.works(stage)
        self.where = front.url(**self.certificates.trusting)
        with pytest.raises(BackendUnavailable):
            await stage.locks(patience=0.2).lock("x").take()

    async def test_a_server_without_a_trusted_certificate_is_refused(self, stage: Stage) -> None:
        self.where = self.front().url(ssl_ca_certs=str(self.certificates.stranger))
        with pytest.raises(BackendUnavailable, match=r"(?i)certificate") as refused:
            await stage.locks().lock("x").take()
        assert not refused.value.transient

    async def test_a_sentinel_without_a_trusted_certificate_is_refused(self, stage: Stage) -> None:
        stranger = {"ssl_ca_certs": str(self.certificates.stranger)}
        self.where = self.front().url("rediss+sentinel", **stranger).replace("/?", "/locks?")
        with pytest.raises(BackendUnavailable, match=r"(?i)certificate") as refused:
            await stage.locks().lock("x").take()
        assert not refused.value.transient

    @pytest.mark.parametrize("scheme", SCHEMES)
    async def test_a_certificate_for_another_host_is_not_trusted(self, stage: Stage, scheme: str) -> None:
        fronts = [self.front(named=False) for _ in range(3 if scheme == "redlocks" else 1)]
        hosts = ",".join(f"{HOST}:{front.port}" for front in fronts)
        path = "/locks" if "sentinel" in scheme else ""
        self.where = f"{scheme}://ann:secret%20word@{hosts}{path}?{urlencode(self.certificates.trusting)}"
        with pytest.raises(BackendUnavailable):
            await stage.locks(patience=0.2).lock("x").take()
        assert not any(front.trusted_by for front in fronts), "each connection ended before anything was sent"

    @pytest.mark.parametrize("option", [{"ssl_check_hostname": "false"}, {"ssl_cert_reqs": "none"}])
    async def test_a_certificate_for_another_host_is_trusted_if_the_url_says_so(
        self, stage: Stage, option: dict[str, str]
    ) -> None:
        self.where = self.front(named=False).url(**self.certificates.trusting, **option)
        await self.works(stage)

    async def test_a_password_and_a_user_go_over_tls_too(self, stage: Stage) -> None:
        front = self.front()
        self.where = front.url(login="ann:secret%20word@", **self.certificates.trusting)
        await self.works(stage)
        self.where = front.url(login="ann:wrong@", **self.certificates.trusting)
        with pytest.raises(BackendUnavailable, match=r"WRONGPASS|invalid username") as refused:
            await stage.locks().lock("x").take()
        assert not refused.value.transient

    async def test_a_cluster_is_reached_over_tls(self, stage: Stage) -> None:
        node = self.stack.enter_context(Server("--cluster-enabled", "yes"))
        front = self.stack.enter_context(TlsFront(node, self.certificates))
        node.configure("cluster-announce-port", front.port)
        node.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await stage.until(lambda: b"cluster_state:ok" in node.command("CLUSTER", "INFO"), "the cluster to be whole")
        self.where = front.url("rediss+cluster", **self.certificates.trusting)
        await self.works(stage)

    async def test_the_path_of_a_socket_is_enough(self, stage: Stage) -> None:
        self.where = f"unix://{self.server.socket}"
        await self.works(stage)
        self.where = f"unix://ann:secret%20word@{self.server.socket}?db=3"
        lease = await stage.locks().lock("x").take()
        (key,) = self.server.command("KEYS", "lockfast:*", db=3)
        assert lease.claim_id.encode() in self.server.command("GET", key, db=3)
        self.server.command("FLUSHDB", db=3)

    async def test_valkey_is_another_word_for_redis(self, stage: Stage) -> None:
        self.where = self.server.url.replace("redis:", "valkey:")
        await self.works(stage)


def test_threads_that_connect_at_once_build_one_context(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(certificates.authority.read_bytes())
    asked, built = list[None](), list[None]()

    def ask() -> ssl.DefaultVerifyPaths:
        asked.append(None)
        return paths()

    def build() -> ssl.SSLContext:
        built.append(None)
        until(lambda: len(asked) == len(threads), "all threads to ask")
        return make()

    paths, make = ssl.get_default_verify_paths, ssl.create_default_context
    monkeypatch.setattr(ssl, "get_default_verify_paths", ask)
    monkeypatch.setattr(ssl, "create_default_context", build)
    threads = [threading.Thread(target=context_of, args=(Tls(ca_certs=str(trusted)),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert len(built) == 1


def test_a_child_of_a_fork_does_not_wait_for_a_thread_of_its_parent_that_builds_a_context() -> None:
    assert child_may_take(lambda: redis_tls._mutex)


def test_what_redis_py_alone_can_check_is_left_to_it(certificates: Certificates, server: Server) -> None:
    """OCSP, in both of its ways at once, which redis-py refuses; in asyncio it knows neither."""
    with TlsFront(server, certificates) as front:
        ocsp = {"ssl_validate_ocsp": True, "ssl_validate_ocsp_stapled": True}
        client: Any = redis.Redis
        endpoint = endpoint_of_client(client(host=HOST, port=front.port, ssl=True, **ocsp, **certificates.trusting))
        assert endpoint is not None
        with pytest.raises(BackendUnavailable, match="OCSP"):
            endpoint.dial(None, LIMIT_S)
        with pytest.raises(BackendUnavailable, match="ssl_validate_ocsp"):
            asyncio.run(endpoint.dial_async(None, LIMIT_S))


@pytest.mark.parametrize(
    "trust", [{"ssl_cert_reqs": None}, {"ssl_cert_reqs": ssl.CERT_NONE}, {"ssl_check_hostname": None}]
)
def test_a_ready_client_that_checks_no_certificate_or_no_name_decides_so(
    certificates: Certificates, server: Server, trust: dict[str, Any]
) -> None:
    client: Any = redis.Redis
    with TlsFront(server, certificates, named=False) as front:
        authority = certificates.trusting if "ssl_check_hostname" in trust else {}
        endpoint = endpoint_of_client(client(host=HOST, port=front.port, ssl=True, **authority, **trust))
        assert endpoint is not None
        endpoint.dial(None, LIMIT_S).disconnect()
        endpoint_of_url(urlsplit(endpoint.url)).dial(None, LIMIT_S).disconnect()


def test_a_client_of_sentinels_that_checks_no_certificate_of_theirs_decides_so(
    certificates: Certificates, server: Server
) -> None:
    with Server(sentinel=True) as sentinel, TlsFront(sentinel, certificates) as front:
        sentinel.command("SENTINEL", "MONITOR", "locks", HOST, server.port, 1)
        client: Any = Sentinel
        trust = {"ssl": True, "ssl_cert_reqs": None}
        endpoint = endpoint_of_client(client([(HOST, front.port)], sentinel_kwargs=trust).master_for("locks"))
        assert endpoint is not None
        assert endpoint.find(LIMIT_S) == Address(HOST, server.port)


def test_sentinels_are_asked_over_tls_too(certificates: Certificates, server: Server) -> None:
    with Server(sentinel=True) as sentinel, TlsFront(sentinel, certificates) as front:
        sentinel.command("SENTINEL", "MONITOR", "locks", HOST, server.port, 1)
        url = front.url("rediss+sentinel", **certificates.trusting).replace("/?", "/locks?")
        assert endpoint_of_url(urlsplit(url)).find(LIMIT_S) == Address(HOST, server.port)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0?max_connections=5",
        "redis://h/0?socket_timeout=1",
        "redis://h/0?socket_type=1",
        "unix://",
        "redis+sentinel://h",
    ],
)
def test_what_means_nothing_in_a_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"option|unix|service"):
        endpoint_of_url(urlsplit(url))


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("ssl_cert_reqs=always", "ssl_cert_reqs cannot be 'always'; known are none, optional, required"),
        ("ssl_min_version=5", "ssl_min_version cannot be '?5"),
        ("ssl_ciphers=nonsense", "ssl_ciphers cannot be 'nonsense'"),
        ("ssl_ca_cert=x", "no option 'ssl_ca_cert'; known are .* ssl_ca_certs"),
        ("ssl_keyfile=x", "ssl_keyfile is the key of a certificate"),
        *((f"{option}=%00", rf"{option} cannot be '\\x00'") for option in FILES),
        ("ssl_ca_data=xx", "ssl_ca_data cannot be 'xx'"),
        ("ssl_ca_data=%C3%A4", "ssl_ca_data cannot be 'ä'"),
        *((f"{option}=maybe", f"{option} cannot be 'maybe'; known are true, false") for option in SWITCHES),
        ("ssl_ocsp_context=x", "no option 'ssl_ocsp_context'"),
    ],
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_means_nothing_in_tls_is_refused_before_anything_is_sent(scheme: str, option: str, error: str) -> None:
    hosts = "h,i,j/locks" if "sentinel" in scheme else "h,i,j" if scheme in ("redlocks", "rediss+cluster") else "h"
    with pytest.raises(ValueError, match=error):
        lockfast.connect(f"{scheme}://{hosts}?{option}")
    with pytest.raises(ValueError, match=r"has no option 'ssl_ca_certs'; known are .*, and with rediss://"):
        lockfast.connect("redis://h?ssl_ca_certs=x")


def test_ocsp_is_asked_for_by_a_url_as_by_a_client() -> None:
    """redis-py takes any text for yes in the one way, and for no in the other."""
    endpoint = endpoint_of_url(urlsplit("rediss://h?ssl_validate_ocsp=yes&ssl_validate_ocsp_stapled=no"))
    assert endpoint.url == "rediss://h:6379/0?ssl_validate_ocsp=True"
    assert endpoint._settings["ssl_validate_ocsp"] is True


def test_a_host_that_no_name_can_be_is_an_error_of_ours() -> None:
    endpoint = endpoint_of_url(urlsplit(f"redis://{'h' * 70}"))
    with pytest.raises(BackendUnavailable, match="label"):
        endpoint.dial(None, LIMIT_S)
    with pytest.raises(BackendUnavailable, match="label"):
        asyncio.run(endpoint.dial_async(None, LIMIT_S))


def test_host_names_cannot_be_checked_without_certificates() -> None:
    with pytest.raises(ValueError, match=r"ssl_check_hostname.*ssl_cert_reqs"):
        endpoint_of_url(urlsplit("rediss://h?ssl_cert_reqs=none&ssl_check_hostname=true"))


def test_the_password_is_never_shown() -> None:
    for url in (
        "redis://ann:hush@h",
        "redis+sentinel://ann:hush@h/s",
        "redis+cluster://ann:hush@h,i",
        "unix://ann:hush@/x",
    ):
        assert "hush" not in endpoint_of_url(urlsplit(url)).name
