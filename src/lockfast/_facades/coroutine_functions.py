"""Methods that give a coroutine and are no coroutine functions, to save a frame: how they are known all the same.

Decides: how a method is marked, in each version of Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def mark(*functions: Callable[..., object]) -> None:
    """`iscoroutinefunction` is true of them: mocks and frameworks ask it."""
    for function in functions:
        if sys.version_info >= (3, 12):
            from inspect import markcoroutinefunction  # here: a blocking program needs neither of the two

            markcoroutinefunction(function)
        else:
            from asyncio import coroutines

            vars(function)["_is_coroutine"] = vars(coroutines)["_is_coroutine"]
