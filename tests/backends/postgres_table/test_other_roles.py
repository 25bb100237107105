"""A role that may create objects in a schema of the caller's search_path runs no code as that caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast.backends.postgres.io.wire import Steps
from lockfast.backends.postgres_table.io import migrate
from lockfast.cli import main
from tests.backends.redis.test_page import use_everything
from tests.servers.postgres_pooler import HOST, Pooler
from tests.servers.postgres_shared import own_name
from tests.servers.postgres_tables import table

pytestmark = pytest.mark.slow

# Operators that fit better than the server's own, which takes two texts.
_PAIRS = (("varchar", "text"), ("text", "varchar"), ("text", "boolean"), ("oid", "int"), ("timestamptz", "date"))
_OPERATOR = """
CREATE FUNCTION public.trap({left}, {right}) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.trapped VALUES (current_user, $1::text);
    RETURN $1::text OPERATOR(pg_catalog.=) $2::text;
END $$;
CREATE OPERATOR public.= (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.trap);
CREATE OPERATOR public.|| (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.trap);
"""
_OVERLOAD = """
CREATE FUNCTION public.lockfast_acquire({texts}) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.trapped VALUES (current_user, 'lockfast_acquire');
    RETURN '{{"fence": 1, "acquired_at": 1}}';
END $$
"""

_OURS = """
SELECT proname, pg_get_function_result(oid), pronargdefaults, ARRAY(
    SELECT format_type(type, NULL) FROM unnest(proargtypes) WITH ORDINALITY AS each (type, place) ORDER BY place)
FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proowner = 'lockfast'::regrole
    AND starts_with(proname, 'lockfast_') AND prorettype <> 'trigger'::regtype
"""
# For a parameter of that type: those with which a function fits an argument better that is a varchar, or just NULL.
_OTHER_TYPES = {
    "text": ("character varying",),
    "integer": ("text", "bigint"),
    "bigint": ("text", "integer"),
    "double precision": ("text", "integer", "numeric"),
    "jsonb": ("text",),
}
_SIBLING = """
CREATE FUNCTION public.{name}({types}) RETURNS {gives} LANGUAGE plpgsql AS $$
BEGIN
    RAISE '{name}({types}) of another role is called';
END $$
"""


class Trapped:
    """A database in which another role waits for one with more rights."""

    def __init__(self, folder: Path) -> None:
        self.url, self.name = table().url(folder), table().database(folder)
        self.role = own_name("mallory")
        self.admin = psycopg.connect(self.url, autocommit=True)
        self.admin.execute(f"DROP ROLE IF EXISTS {self.role}".encode())
        self.admin.execute(f"CREATE ROLE {self.role} LOGIN; GRANT CREATE ON SCHEMA public TO {self.role}".encode())
        with psycopg.connect(self.url.replace("//lockfast@", f"//{self.role}@"), autocommit=True) as mallory:
            mallory.execute("CREATE TABLE public.trapped (who text, what text)")
            for left, right in _PAIRS:
                mallory.execute(_OPERATOR.format(left=left, right=right).encode())
            mallory.execute(_OVERLOAD.format(texts=", ".join(["text"] * 11)).encode())

    def plant_siblings(self) -> None:
        """For each of our functions: others with fewer parameters, and with one of another type."""
        ours = self.admin.execute(_OURS).fetchall()
        assert len(ours) > 20
        made = {(name, tuple(types)) for name, _, _, types in ours}
        with psycopg.connect(self.url.replace("//lockfast@", f"//{self.role}@")) as mallory:
            for name, gives, defaults, types in ours:
                for length in range(len(types) - defaults, len(types) + 1):
                    for sibling in _siblings(types[:length]):
                        if (name, sibling) not in made:
                            made.add((name, sibling))
                            mallory.execute(_SIBLING.format(name=name, types=", ".join(sibling), gives=gives).encode())

    def caught(self) -> list[Any]:
        return self.admin.execute("SELECT DISTINCT * FROM public.trapped").fetchall()

    def close(self) -> None:
        self.admin.execute(f"DROP OWNED BY {self.role} CASCADE; DROP ROLE {self.role}".encode())
        self.admin.close()


def _siblings(types: list[str]) -> Iterator[tuple[str, ...]]:
    yield tuple(types)
    for place, type in enumerate(types):
        for other in _OTHER_TYPES.get(type, ()):
            yield (*types[:place], other, *types[place + 1 :])


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Trapped]:
    made = Trapped(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_the_trap_catches_a_caller_that_does_not_take_care(trapped: Trapped) -> None:
    trapped.admin.execute("SELECT 'a'::varchar = 'b'::text")
    assert trapped.caught() == [("lockfast", "a")]


def test_no_operator_or_function_of_another_role_is_called_for_a_user_of_locks(
    trapped: Trapped, capsys: pytest.CaptureFixture[str]
) -> None:
    use_everything(trapped.url)

    async def story() -> None:
        async with lockfast.aio.connect(trapped.url) as locks, locks.lock("a"), locks.semaphore("s", 2):
            assert [info.name for info in await locks.list()] == ["a", "s"]

    asyncio.run(story())
    for words in (["ls", "--url"], ["doctor"], ["migrate"]):
        assert main([*words, trapped.url]) == 0, capsys.readouterr().err
    assert trapped.caught() == []


def test_no_operator_of_another_role_runs_for_a_client_behind_a_pooler(trapped: Trapped) -> None:
    """A pooler would keep a search_path for its next client, so none is set there."""
    with Pooler(table().server.port, transactions=True) as pooler:
        with lockfast.connect(f"postgresql://lockfast@{HOST}:{pooler.port}/{trapped.name}") as locks:
            with locks.lock("a"), locks.semaphore("s", 2):
                assert [info.name for info in locks.list()] == ["a", "s"]
    assert trapped.caught() == []


def test_no_operator_of_another_role_runs_for_a_caller_of_the_functions(trapped: Trapped) -> None:
    calls = ("acquire_lock('a', 'me', 60)", "extend_lock('a', 'me', 60)", "release_lock('a', 'me')")
    for call in (*calls, "lockfast_list('', '')"):
        trapped.admin.execute(f"SELECT {call}".encode())
    assert trapped.caught() == []


def test_our_functions_call_each_other_whatever_else_has_their_names(
    trapped: Trapped, capsys: pytest.CaptureFixture[str]
) -> None:
    """A role that may create objects in the schema of the lock table must be trusted, and still is not called so."""
    trapped.plant_siblings()
    use_everything(trapped.url)
    with lockfast.connect(trapped.url) as locks, locks.rwlock("shared").write() as lease:
        lease.downgrade()
    assert main(["ls", "--url", trapped.url]) == 0, capsys.readouterr().err
    for call in ("acquire_lock('a', 'me', 60)", "extend_lock('a', 'me', 60)", "release_lock('a', 'me')"):
        assert trapped.admin.execute(f"SELECT {call}".encode()).fetchone() == (True,)
    trapped.admin.execute("SELECT acquire_lock('old', 'me', 60)")
    trapped.admin.execute("UPDATE distributed_locks SET expires_at = clock_timestamp()")
    trapped.admin.execute("SELECT lockfast_sweep(clock_timestamp())")
    assert trapped.admin.execute("SELECT FROM distributed_locks").fetchall() == []
    assert trapped.caught() == []


def test_every_function_has_a_search_path_of_its_own_or_was_parsed_when_it_was_made(trapped: Trapped) -> None:
    """Those of the server's own and of temporary objects, which go last."""
    found = trapped.admin.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proowner = 'lockfast'::regrole"
        " AND prosqlbody IS NULL AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))"
    )
    assert found.fetchall() == []


PATH = b"pg_catalog, pg_temp"


def test_our_own_connections_look_names_up_nowhere_else(trapped: Trapped) -> None:
    with lockfast.connect(trapped.url) as locks, locks.lock("a"):
        driver: Any = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
        (idle,) = [connection for connection in driver._free if connection is not None]
        idle.session.pg.nonblocking = 0
        assert idle.session.pg.exec_(b"SHOW search_path").get_value(0, 0) == PATH


def test_a_migration_looks_names_up_nowhere_else(trapped: Trapped, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[bytes] = []
    prepare = migrate._Script.prepare

    def noted(self: migrate._Script) -> Steps:
        yield from prepare(self)
        ((path,),) = yield from self.simple_query(b"SHOW search_path")
        paths.append(path)

    monkeypatch.setattr(migrate._Script, "prepare", noted)
    assert main(["migrate", trapped.url]) == 0
    assert paths == [PATH]
