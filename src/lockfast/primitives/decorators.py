"""Functions that run under a lock.

Decides: which kinds of function can be decorated in which world, and how a name is made of a call's arguments.
Leaves to the lock beneath: everything else.

What is known to be wrong is refused when decorating, not when called: a call may come at three in the morning.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from lockfast._records import LONGEST_NAME
from lockfast._text import shown
from lockfast.engine.lease import Lease
from lockfast.errors import AcquireTimeout

Decorate = Callable[[Any], Any]
Wrap = Callable[["_DecoratedCall"], Callable[..., Any]]

_KINDS_OF_METHOD = (staticmethod, classmethod)  # what they hold is decorated, so that either order of decorators works


class _DecoratedCall(NamedTuple):
    """What a decorated function does at each call."""

    function: Callable[..., Any]
    make_lock: Callable[..., Any]  # `Locks.lock` or `AsyncLocks.lock`
    template: str
    signature: inspect.Signature
    lease_as: str | None
    lease_at: int | None  # its place among the positional parameters; None if it has none
    options: Mapping[str, Any]
    skip: bool  # instead of raising AcquireTimeout
    default: Any  # what a skipped call returns

    def lock(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self.with_lease(None, args, kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.make_lock(self.template.format(**bound.arguments), **self.options)

    def call(self, lease: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self.with_lease(lease, args, kwargs)
        return self.function(*args, **kwargs)

    def with_lease(
        self, lease: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The lease among the arguments of a caller, who does not pass it: by its position, or by its name."""
        if self.lease_as is None:
            return args, kwargs
        if self.lease_as in kwargs:
            raise TypeError(
                f"{_shown(self.function)} is given {shown(self.lease_as)} by its lock; callers do not pass it"
            )
        at = self.lease_at
        if at is not None and len(args) > at:
            return (*args[:at], lease, *args[at:]), kwargs
        return args, {**kwargs, self.lease_as: lease}


def _blocking_wrap(function: Callable[..., Any]) -> Wrap:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{_shown(function)} is asynchronous; decorate it with the locks of lockfast.aio")
    return _generator if inspect.isgeneratorfunction(function) else _function


def _async_wrap(function: Callable[..., Any]) -> Wrap:
    if inspect.isasyncgenfunction(function):
        return _async_generator
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{_shown(function)} is not asynchronous; decorate it with the locks of lockfast.connect()")
    return _coroutine_function


def _decorator(
    wrap_of: Callable[[Callable[..., Any]], Wrap],
    make_lock: Callable[..., Any],
    template: str,
    lease_as: str | None,
    options: Mapping[str, Any],
    *,
    skip: bool = False,
    default: Any = None,
) -> Decorate:
    _refuse_unknown(options, make_lock)
    if skip and options.get("wait", 0) != 0:
        raise ValueError(f"singleton skips instead of waiting, so wait={shown(options['wait'])} makes no sense with it")
    options = {**options, "wait": 0} if skip else options
    if isinstance(template, str):  # else it is refused below
        options = {"pattern": template[:LONGEST_NAME], **options}

    def decorate(function: Any) -> Any:
        if isinstance(function, _KINDS_OF_METHOD):
            return type(function)(decorate(function.__func__))
        if inspect.isclass(function) or not callable(function):
            raise TypeError(f"only functions can be decorated, not {shown(function)}")
        wrap = wrap_of(function)
        if default is not None and wrap in (_generator, _async_generator):
            raise ValueError(f"{_shown(function)} yields nothing when it is skipped, so it has no use for a default")
        signature = inspect.signature(function)
        at = _position(signature, lease_as)
        plan = _DecoratedCall(function, make_lock, template, signature, lease_as, at, options, skip, default)
        _check(plan)
        return functools.wraps(function)(wrap(plan))

    return decorate


locked = functools.partial(_decorator, _blocking_wrap)
async_locked = functools.partial(_decorator, _async_wrap)


# The four kinds. `inside` separates a timeout of the lock from one that the body raises, which is never swallowed.


def _function(plan: _DecoratedCall) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        inside = False
        try:
            with plan.lock(args, kwargs) as lease:
                inside = True
                return _done(plan.call(lease, args, kwargs), plan)
        except AcquireTimeout:
            if inside or not plan.skip:
                raise
            return plan.default

    return call


def _done(answer: Any, plan: _DecoratedCall) -> Any:
    """The answer itself. Raises TypeError for a coroutine: it would run when the lock is gone."""
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError(f"{_shown(plan.function)} returned a coroutine; decorate it with the locks of lockfast.aio")
    return answer


def _generator(plan: _DecoratedCall) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inside = False
        try:
            with plan.lock(args, kwargs) as lease:
                inside = True
                return (yield from plan.call(lease, args, kwargs))
        except AcquireTimeout:
            if inside or not plan.skip:
                raise
            return None

    return call


def _coroutine_function(plan: _DecoratedCall) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        inside = False
        try:
            async with plan.lock(args, kwargs) as lease:
                inside = True
                return await plan.call(lease, args, kwargs)
        except AcquireTimeout:
            if inside or not plan.skip:
                raise
            return plan.default

    return call


def _async_generator(plan: _DecoratedCall) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inside = False
        try:
            async with plan.lock(args, kwargs) as lease:
                inside = True
                async with aclosing(plan.call(lease, args, kwargs)) as body:  # what it does at its end, too
                    step = functools.partial(body.asend, None)
                    alone = lease._depth == 1
                    while True:
                        try:
                            item = await _step(lease, step, alone)
                        except StopAsyncIteration:
                            return
                        try:
                            step = functools.partial(body.asend, (yield item))
                        except GeneratorExit:
                            return  # and not raised on: so the release is awaited
                        except BaseException as error:
                            step = functools.partial(body.athrow, error)
        except AcquireTimeout:
            if inside or not plan.skip:
                raise

    return call


async def _step(lease: Lease, step: Callable[[], Awaitable[Any]], alone: bool) -> Any:
    """Run a generator up to its next item, cancelled if the lease is lost meanwhile.

    Only that long: between two items the task runs code that is not the generator's, and a cancellation there would
    never turn into LeaseLost. So a loss between two items is raised by the next step.
    """
    if not alone:
        return await step()  # entered again: the `with` around it is cancelled
    if lease.lost:
        lease.check()
    guard = lease._engine.world.guard(lease._owner)
    lease._enter(guard, lease._body)
    try:
        item = await step()
    except BaseException as error:
        lease._enter(None, lease._body)
        if guard.close(type(error)):
            raise lease._not_held() from error
        raise
    lease._enter(None, lease._body)
    guard.close(None)
    return item


# Names


class _Anything:
    """Stands for any argument when a template is tried out."""

    def __getattr__(self, _: str) -> _Anything:
        return self

    def __getitem__(self, _: object) -> _Anything:
        return self

    def __format__(self, _: str) -> str:
        return "x"


def _check(plan: _DecoratedCall) -> None:
    """Raises ValueError for whatever could only go wrong at a call."""
    parameters, template = plan.signature.parameters, plan.template
    if plan.lease_as is not None:
        _check_lease_as(plan, plan.lease_as)
    known = [name for name in parameters if name != plan.lease_as]
    for field in _fields(template):
        if field not in known:
            named = f"names {shown(field)}" if field and not field.isdigit() else "has a field without a name"
            has = f"has only {', '.join(known)}" if known else "has no parameters"
            raise ValueError(f"{shown(template)} {named}, but {_shown(plan.function)} {has}")
    try:
        name = template.format(**dict.fromkeys(known, _Anything()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{shown(template)} is no template for a name: {error}") from None
    plan.make_lock(name, **plan.options)  # made for nothing, but refused now and not later


def _check_lease_as(plan: _DecoratedCall, lease_as: str) -> None:
    parameter = plan.signature.parameters.get(lease_as)
    if parameter is None:
        raise ValueError(f"{_shown(plan.function)} has no parameter {shown(lease_as)} to be given the lease")
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ValueError(
            f"{shown(lease_as)} of {_shown(plan.function)} cannot be given by its name, so not the lease either"
        )


def _position(signature: inspect.Signature, name: str | None) -> int | None:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in signature.parameters.values() if parameter.kind in positional]
    return names.index(name) if name in names else None


def _refuse_unknown(options: Mapping[str, Any], make_lock: Callable[..., Any]) -> None:
    """Raises TypeError for an option that `lock` does not have."""
    parameters = inspect.signature(make_lock).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            import difflib  # only now: it takes longer to import than all of this module

            meant = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"known are {', '.join(known)}"
            raise TypeError(f"a lock has no option {shown(option)}; {hint}")


def _fields(template: str) -> Iterator[str]:
    """The parameters that a template names, in its format specifications too."""
    if not isinstance(template, str):
        raise ValueError(f"a lock name must be a string, not {shown(template)}")
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{shown(template)} is no template for a name: {error}") from None
    for _, field, spec, _ in parsed:
        if field is not None:
            yield field.split(".")[0].split("[")[0]
            yield from _fields(spec or "")


def _shown(function: Any) -> str:
    return f"{getattr(function, '__qualname__', function)}()"
