"""How the demo shows itself: a live table where there is a terminal and rich, plain lines elsewhere.

Decides: what is drawn. Leaves to the demo: what happens.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import deque
from typing import Any, Protocol

from lockfast._model import LockInfo


class View(Protocol):
    def log(self, elapsed: float, who: str, text: str, *, loud: bool) -> None:
        """Something happened; `loud` if it belongs to the story and not to the everyday."""
        ...

    def draw(self, elapsed: float, info: LockInfo, states: dict[str, str]) -> None:
        """How it is now: the lock as an operator sees it, and each worker."""
        ...

    def close(self) -> None: ...


class PlainView:
    def log(self, elapsed: float, who: str, text: str, *, loud: bool) -> None:
        print(f"{elapsed:7.3f}s  {who:<8} {text}", flush=True)

    def draw(self, elapsed: float, info: LockInfo, states: dict[str, str]) -> None:
        pass

    def close(self) -> None:
        pass


class RichView:
    def __init__(self) -> None:
        from rich.live import Live

        self._shown: deque[str] = deque(maxlen=10)
        self._live = Live(auto_refresh=False)

    def log(self, elapsed: float, who: str, text: str, *, loud: bool) -> None:
        line = f"{elapsed:7.3f}s  {who:<8} {text}"
        self._shown.append(f"[bold yellow]{line}[/]" if loud else f"[dim]{line}[/]")

    def draw(self, elapsed: float, info: LockInfo, states: dict[str, str]) -> None:
        from rich.console import Group
        from rich.text import Text

        self._live.start()  # not before a caller is there that closes it; a second start does no harm
        lines = [Text.from_markup(line) for line in self._shown]
        self._live.update(Group(self._table(elapsed, info, states), *lines), refresh=True)

    def _table(self, elapsed: float, info: LockInfo, states: dict[str, str]) -> Any:
        from rich.table import Table

        holder = info.holders[0] if info.holders else None
        table = Table(title=f"lockfast demo  {elapsed:4.1f}s", title_justify="left", min_width=64)
        table.add_column("worker")
        table.add_column("state", min_width=12)
        table.add_column("fence", justify="right", min_width=16)
        for who, state in states.items():
            holds = holder is not None and holder.holder == who
            style = {"killed": "red", "stopped": "magenta"}.get(state, "bold green" if holds else "")
            table.add_row(who, state, str(holder.fence) if holder is not None and holds else "", style=style)
        table.caption = f"holder: {holder.holder if holder else 'nobody'}   queue: {info.waiters}"
        return table

    def close(self) -> None:
        self._live.stop()


def choose(plain: bool) -> View:
    if plain or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        return PlainView()
    return RichView()
