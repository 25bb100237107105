"""Several names at once: money goes from Alice to Bob and from Bob to Alice at the same time, without a deadlock.

Each transfer takes both accounts, named in the order in which it thinks of them. `locks.all` takes them in one order
for every caller, so two transfers never wait for each other. Each account is written with the fence of its own name.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile

import lockfast
import lockfast.aio

TRANSFERS = 10  # in each direction
START = multiprocessing.get_context("spawn")


async def transfer(locks: lockfast.aio.AsyncLocks, payer: str, payee: str, amount: int) -> None:
    async with locks.all(payer, payee, wait=30) as lease:
        for account, change in ((payer, -amount), (payee, amount)):
            cell = locks.cell(account)
            balance, _ = await cell.read()
            await cell.write(balance + change, fence=lease.fence[account])


async def pay_often(url: str, payer: str, payee: str, amount: int) -> None:
    async with lockfast.aio.connect(url) as locks, asyncio.TaskGroup() as tasks:
        for _ in range(TRANSFERS):
            tasks.create_task(transfer(locks, payer, payee, amount))


def one_process(url: str, payer: str, payee: str, amount: int) -> None:
    asyncio.run(pay_often(url, payer, payee, amount))


def main(url: str) -> None:
    with lockfast.connect(url) as locks:
        alice, bob = locks.cell("account:alice"), locks.cell("account:bob")
        alice.write(100)
        bob.write(100)

        there = START.Process(target=one_process, args=(url, "account:alice", "account:bob", 5))
        back = START.Process(target=one_process, args=(url, "account:bob", "account:alice", 2))
        for process in (there, back):
            process.start()
        for process in (there, back):
            process.join()
            assert process.exitcode == 0

        print(f"Alice has {alice.read().value}, Bob has {bob.read().value}")
        assert alice.read().value == 100 - 5 * TRANSFERS + 2 * TRANSFERS
        assert bob.read().value == 100 + 5 * TRANSFERS - 2 * TRANSFERS
    print(f"{2 * TRANSFERS} transfers both ways, and no money was lost")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db")
