"""`python -m tests.torture KIND --minutes 15 --seed 7`: one run, its table, and exit code 1 if it is not green."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.servers import run
from tests.torture.plants import PLANTS
from tests.torture.postgres_stores import PostgresAdvisoryStore, PostgresTableStore
from tests.torture.record import record
from tests.torture.redis_stores import RedisFailoverStore, RedisStore, Redlock5Store, RedlockStore
from tests.torture.stores import SqliteStore, Store
from tests.torture.supervisor import Supervisor
from tests.torture.table import table, verdict
from tests.torture.verdict import gather, judged

KINDS: dict[str, type[Store]] = {
    "redis": RedisStore,
    "redis_failover": RedisFailoverStore,
    "redlock3": RedlockStore,
    "redlock5": Redlock5Store,
    "postgres_table": PostgresTableStore,
    "postgres_advisory": PostgresAdvisoryStore,
    "sqlite": SqliteStore,
}
WORKERS_FAULTS = ("worker killed", "worker stopped", "two workers stopped", "worker stopped and killed")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--plant", choices=PLANTS, default="", help="a bug that the verdict must find")
    parser.add_argument("--keep", type=Path, help="an empty folder for the journals; they are deleted without it")
    parser.add_argument("--record", action="store_true", help="put the result on the page docs/reliability.md")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended
    run.begin()
    with tempfile.TemporaryDirectory(prefix="lockfast-torture-") as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{asked.kind}, seed {asked.seed}, {asked.minutes:g} minutes; journals in {folder}", flush=True)
        with KINDS[asked.kind]() as store:
            Supervisor(store, folder, asked.seed, asked.plant).run(asked.minutes * 60)
            kinds = [*WORKERS_FAULTS, *(fault.name for fault in store.faults())]
            findings = judged(gather(folder), asked.minutes, kinds, by_session=store.loses_with_sessions)
    print(table(asked.kind, asked.minutes, asked.seed, findings))
    if asked.record:
        record(asked.kind, asked.minutes, asked.seed, findings)
    return 0 if verdict(findings) == "green" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
