"""Several servers that are started and stopped together.

Decides: that none of them is left when one of them does not start.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.servers.server import Server


class Group:
    @property
    def url(self) -> str:
        raise NotImplementedError

    def __init__(self) -> None:
        self._stack = ExitStack()  # of all that was started

    @property
    def servers(self) -> list[Server]:
        raise NotImplementedError

    def start(self) -> Self:
        raise NotImplementedError

    def detach(self) -> None:
        """Servers that all processes of the run share end with the run, not before."""
        for server in self.servers:
            server.detach()
        self._stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
