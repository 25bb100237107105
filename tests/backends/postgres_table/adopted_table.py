"""A lock table of the user's own, as people have it before they come to us: its SQL, and a client of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.postgres_shared import SharedPostgres, own_name

TABLE = """CREATE TABLE distributed_locks (
    lock_name varchar(255) PRIMARY KEY,
    holder_id varchar(255) NOT NULL,
    acquired_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    metadata jsonb DEFAULT '{}'
);
CREATE INDEX idx_locks_expires ON distributed_locks (expires_at);
"""
ACQUIRE = """CREATE FUNCTION acquire_lock(
    p_lock_name varchar, p_holder_id varchar, p_ttl_seconds integer DEFAULT 30, p_metadata jsonb DEFAULT '{}'
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM distributed_locks WHERE lock_name = p_lock_name AND expires_at < now();
    INSERT INTO distributed_locks AS l (lock_name, holder_id, expires_at, metadata)
        VALUES (p_lock_name, p_holder_id, now() + p_ttl_seconds * interval '1 second', p_metadata)
        ON CONFLICT (lock_name) DO UPDATE
            SET holder_id = excluded.holder_id, acquired_at = now(), expires_at = excluded.expires_at
            WHERE l.holder_id = excluded.holder_id OR l.expires_at < now();
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows > 0;
END $$;
"""
RELEASE = """CREATE FUNCTION release_lock(p_lock_name varchar, p_holder_id varchar) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM distributed_locks WHERE lock_name = p_lock_name AND holder_id = p_holder_id;
    RETURN FOUND;
END $$;
"""


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning; DROP SCHEMA IF EXISTS locks, app CASCADE")
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC")


_databases = SharedPostgres("theirs", _empty)


class AdoptedDatabase:
    """A database with another application's lock table, and the ways in which its clients use it."""

    def __init__(self, folder: Path) -> None:
        self.url = _databases.url(folder)
        self.name = _databases.database(folder)
        self.server = _databases.server
        self._clients: list[psycopg.Connection] = []
        self.connection = self.client()

    def make(self, *parts: str) -> None:
        for part in parts:
            self.connection.execute(part.encode())

    def client(self, **params: Any) -> psycopg.Connection:
        self._clients.append(psycopg.connect(self.url, autocommit=True, **params))
        return self._clients[-1]

    def role(self, name: str) -> str:
        """A role of that name, or nearly, that may log in."""
        own = own_name(name)
        self.make(f'DO $$ BEGIN CREATE ROLE "{own}" LOGIN; EXCEPTION WHEN duplicate_object THEN END $$')
        return own

    def ask(self, sql: str, *values: object) -> Any:
        row = self.connection.execute(sql.encode(), values or None).fetchone()
        return row[0] if row and len(row) == 1 else row

    def waits(self, connection: psycopg.Connection) -> bool:
        """Whether that connection's statement waits for a lock of the server's."""
        pid = connection.info.backend_pid
        return bool(self.ask("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", pid))

    def pipe(self, sql: str) -> str:
        """What psql complains of if that is its input, of which it leaves nothing out."""
        words = [str(self.server.bin / "psql"), "-Xq", "-d", self.url]
        return subprocess.run(words, input=sql, capture_output=True, text=True, check=True).stderr

    def close(self) -> None:
        for connection in self._clients:
            connection.close()
