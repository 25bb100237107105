"""The channel by which PostgreSQL wakes the waiters of one `Locks`, and which grants that arrive there are believed.

Decides: what shows that a grant comes from the lock table. Every role of the server may send to a channel, and one that
knows its name receives what is sent there. So a grant carries a proof, for which the sender must have read the address
of the waiter in its queue. The secret in it is never sent, and a proof is good for one grant only.
Leaves to the engine: whether a grant that is sent again is too old. Leaves to `sql/steps.sql`: the server's side.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex
from uuid import uuid4


class NotifyChannel:
    def __init__(self) -> None:
        self.name = f"lockfast_{uuid4().hex}"
        self._secret = token_hex(16)
        self.address = f"{self.name} {self._secret}"  # what a waiter leaves in its place in the queue

    def read(self, payload: str) -> str:
        """The wake-up, as `read_wake_up` has it. A grant without its proof only wakes the claim, which asks then."""
        wake_up, _, proof = payload.rpartition(" ")
        if compare_digest(proof.encode(), self._proof_of(wake_up)):
            return wake_up
        return payload.partition(" ")[0]

    def _proof_of(self, grant: str) -> bytes:
        inner = sha256((self._secret + grant).encode()).hexdigest()
        return sha256((self._secret + inner).encode()).hexdigest().encode()
