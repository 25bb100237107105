"""A system that has no thread left for a while."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def no_thread_left(*, once: bool = False) -> Iterator[list[str]]:
    """Meanwhile no thread can be started, or not at the first try; the answer is the names of those refused."""
    refused: list[str] = []

    def refusing(start: Any) -> Any:
        def refuse(*args: Any) -> Any:
            name = _name(*args)
            if once and name in refused:
                return start(*args)
            refused.append(name)
            raise RuntimeError("can't start new thread")

        return refuse

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refusing(_thread.start_new_thread))
        patch.setattr(threading.Thread, "start", refusing(threading.Thread.start))
        yield refused


def _name(thread: Any, arguments: tuple[Any, ...] = ()) -> str:
    """Of a thread, of the one that a function is to start, or of that function."""
    if isinstance(thread, threading.Thread):
        return thread.name
    return next((one for one in arguments if isinstance(one, str)), thread.__name__)
