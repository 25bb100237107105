"""A system that has no thread left for a while."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def no_thread_left(times: int | None = None) -> Iterator[list[object]]:
    """Meanwhile no thread can be started, or not the first so many times; the answer is what was refused."""
    refused: list[object] = []

    def refusing(start: Any) -> Any:
        def refuse(*args: Any) -> Any:
            if times is not None and len(refused) >= times:
                return start(*args)
            refused.append(args[0])
            raise RuntimeError("can't start new thread")

        return refuse

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refusing(_thread.start_new_thread))
        patch.setattr(threading.Thread, "start", refusing(threading.Thread.start))
        yield refused
