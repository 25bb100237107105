"""Functions that run under a lock.

Decides: which kinds of function can be decorated in which world, and how a name is made of a call's arguments.
Leaves to the lock beneath: everything else.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import AcquireTimeout

F = TypeVar("F", bound=Callable[..., Any])


class _Plan(NamedTuple):
    """What a decorated function does at each call."""

    function: Callable[..., Any]
    make_lock: Callable[..., Any]  # `Locks.lock`, or its twin
    name_of: Callable[[tuple[Any, ...], dict[str, Any]], str]
    options: dict[str, Any]
    lease_as: str | None
    skip: bool  # instead of raising AcquireTimeout

    def lock(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.make_lock(self.name_of(args, kwargs), **self.options)

    def call(self, lease: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs if self.lease_as is None else {**kwargs, self.lease_as: lease}
        return self.function(*args, **given)


def locked(
    make_lock: Callable[..., Any],
    template: str,
    lease_as: str | None,
    options: dict[str, Any],
    *,
    skip: bool = False,
    default: Any = None,
) -> Callable[[F], F]:
    """For functions and generators of the blocking world."""

    def decorate(function: F) -> F:
        _refuse_classes(function)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{_say(function)} is asynchronous; decorate it with the locks of holdfast.aio")
        plan = _plan(make_lock, template, function, lease_as, options, skip)
        wrap = _generator if inspect.isgeneratorfunction(function) else _function
        return functools.wraps(function)(wrap(plan, default))  # type: ignore[return-value]

    return decorate


def async_locked(
    make_lock: Callable[..., Any],
    template: str,
    lease_as: str | None,
    options: dict[str, Any],
    *,
    skip: bool = False,
    default: Any = None,
) -> Callable[[F], F]:
    """For coroutine functions and async generators."""

    def decorate(function: F) -> F:
        _refuse_classes(function)
        is_generator = inspect.isasyncgenfunction(function)
        if not is_generator and not inspect.iscoroutinefunction(function):
            raise TypeError(f"{_say(function)} is not asynchronous; decorate it with the locks of holdfast.connect()")
        plan = _plan(make_lock, template, function, lease_as, options, skip)
        wrap = _async_generator if is_generator else _coroutine_function
        return functools.wraps(function)(wrap(plan, default))  # type: ignore[return-value]

    return decorate


def _function(plan: _Plan, default: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        lock = plan.lock(args, kwargs)
        try:
            lease = lock.__enter__()
        except AcquireTimeout:
            if plan.skip:
                return default
            raise
        with _Entered(lock):
            return plan.call(lease, args, kwargs)

    return call


def _generator(plan: _Plan, _: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        lock = plan.lock(args, kwargs)
        try:
            lease = lock.__enter__()
        except AcquireTimeout:
            if plan.skip:
                return None
            raise
        with _Entered(lock):
            return (yield from plan.call(lease, args, kwargs))

    return call


def _coroutine_function(plan: _Plan, default: Any) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        lock = plan.lock(args, kwargs)
        try:
            lease = await lock.__aenter__()
        except AcquireTimeout:
            if plan.skip:
                return default
            raise
        async with _Entered(lock):
            return await plan.call(lease, args, kwargs)

    return call


def _async_generator(plan: _Plan, _: Any) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        lock = plan.lock(args, kwargs)
        try:
            lease = await lock.__aenter__()
        except AcquireTimeout:
            if plan.skip:
                return
            raise
        async with _Entered(lock):
            async for item in plan.call(lease, args, kwargs):
                yield item

    return call


class _Entered:
    """The rest of a `with` whose beginning is over, so that only the lock's own timeout is taken for one."""

    __slots__ = ("_lock",)

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: Any) -> None:
        self._lock.__exit__(*exc)

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exc: Any) -> None:
        await self._lock.__aexit__(*exc)


# Names


def _plan(
    make_lock: Callable[..., Any],
    template: str,
    function: Callable[..., Any],
    lease_as: str | None,
    options: dict[str, Any],
    skip: bool,
) -> _Plan:
    """Raises ValueError for whatever could only go wrong at a call."""
    signature = inspect.signature(function)
    if lease_as is not None and lease_as not in signature.parameters:
        raise ValueError(f"{_say(function)} has no parameter {lease_as!r} to be given the lease")
    fields = _fields(template)
    known = [name for name in signature.parameters if name != lease_as]
    for field in fields:
        if field not in known:
            raise ValueError(
                f"{template!r} names {field!r}, but {_say(function)} has only {', '.join(known) or 'none'}"
            )
    make_lock(template if fields else template.format(), **options)  # made for nothing, but refused now and not later

    def name_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        given = kwargs if lease_as is None else {**kwargs, lease_as: None}
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return _Plan(function, make_lock, name_of, options, lease_as, skip)


def _fields(template: str) -> set[str]:
    """The parameters that a template names."""
    if not isinstance(template, str):
        raise ValueError(f"a lock name must be a string, not {template!r}")
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{template!r} is no template for a name: {error}") from None
    return {_first(field) for _, field, _, _ in parsed if field is not None}


def _first(field: str) -> str:
    """Of "order.id" or "args[0]" the part that must be a parameter."""
    return field.split(".")[0].split("[")[0]


def _refuse_classes(function: Any) -> None:
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"only functions can be decorated, not {function!r}")


def _say(function: Any) -> str:
    return f"{getattr(function, '__qualname__', function)}()"
