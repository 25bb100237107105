"""What the decorators promise to a type checker. Nothing here runs: `sync` and `aio` name it in annotations only.

Decides: which options the decorators take, and what becomes of the type of a decorated function.
Leaves to `primitives.decorators`: what a decorated function does.

No type can take a parameter away by its name. So with `lease_as` the other arguments are known only if the lease is the
first parameter; else, as in a method, the result takes anything, and what it returns is known all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, overload

from lockfast._facades.lock import AsyncLease, Lease
from lockfast._time import Seconds

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
L = TypeVar("L", Lease, AsyncLease)
Items = TypeVar("Items", bound=Iterator[Any])
AsyncItems = TypeVar("AsyncItems", bound=AsyncIterable[Any])
_Async: TypeAlias = Coroutine[Any, Any, Any] | AsyncIterable[Any]
Async = TypeVar("Async", bound=_Async)
F = TypeVar("F", bound="Callable[..., Any] | classmethod[Any, Any, Any] | staticmethod[Any, Any]")
AsyncF = TypeVar(
    "AsyncF",
    bound="Callable[..., _Async] | classmethod[Any, Any, _Async] | staticmethod[Any, _Async]",
)


class Unchecked(Protocol[R_co]):
    """A function whose arguments are not known to a type checker."""

    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: Any, **kwargs: Any) -> R_co: ...


class Checked(Protocol[P, R_co]):
    """A function without its first parameter. Not a Callable: mypy calls that untyped if a parameter has Any in it."""

    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Unrelated:
    """The type of no argument. A parameter that accepts it accepts anything, so it need not be the lease."""


class SingletonOptions(TypedDict, Generic[L], total=False):
    """The options of `lock` that `singleton` takes: it never waits."""

    ttl: Seconds
    renew: bool
    reentrant: bool
    metadata: Any
    min_hold: Seconds
    max_hold: Seconds | None
    renew_every: Seconds | None
    pattern: str | None
    on_lost: Callable[[L], object] | None


class LockedOptions(SingletonOptions[L], Generic[L], total=False):
    """The options of `lock`, which `locked` takes too."""

    wait: Seconds | None


# The blocking world


class LockedWithLease(Protocol):
    """`locked(…, lease_as=…)`: callers do not pass the lease."""

    @overload
    def __call__(self, function: Callable[Concatenate[Unrelated, ...], R], /) -> Unchecked[R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], R], /) -> Checked[P, R]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Unchecked[R]: ...


class Singleton(Protocol):
    """`singleton(…)`: a skipped call returns None, and a skipped generator yields nothing.

    What returns an iterator is taken for a generator. A plain function that does has to say `default=None`.
    """

    @overload
    def __call__(self, function: Callable[..., Unrelated], /) -> Any: ...  # that is: which returns Any
    @overload
    def __call__(self, function: Callable[P, Generator[Y, S, R]], /) -> Callable[P, Generator[Y, S, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, Items], /) -> Callable[P, Items]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


class SingletonOr(Protocol[D_co]):
    """`singleton(…, default=…)`: a skipped call returns the default."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | D_co]: ...


class SingletonWithLease(Protocol):
    """`singleton(…, lease_as=…)`: both of the above, by what the function returns and then by its first parameter."""

    @overload
    def __call__(self, function: Callable[..., Unrelated], /) -> Any: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Unrelated, ...], Generator[Y, S, R]], /
    ) -> Unchecked[Generator[Y, S, R | None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Lease, P], Generator[Y, S, R]], /
    ) -> Checked[P, Generator[Y, S, R | None]]: ...
    @overload
    def __call__(self, function: Callable[..., Generator[Y, S, R]], /) -> Unchecked[Generator[Y, S, R | None]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Unrelated, ...], Items], /) -> Unchecked[Items]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], Items], /) -> Checked[P, Items]: ...
    @overload
    def __call__(self, function: Callable[..., Items], /) -> Unchecked[Items]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Unrelated, ...], R], /) -> Unchecked[R | None]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], R], /) -> Checked[P, R | None]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Unchecked[R | None]: ...


class SingletonWithLeaseOr(Protocol[D_co]):
    """`singleton(…, lease_as=…, default=…)`."""

    @overload
    def __call__(self, function: Callable[Concatenate[Unrelated, ...], R], /) -> Unchecked[R | D_co]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], R], /) -> Checked[P, R | D_co]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Unchecked[R | D_co]: ...


# asyncio


class AsyncLockedWithLease(Protocol):
    """`locked(…, lease_as=…)`: callers do not pass the lease."""

    @overload
    def __call__(self, function: Callable[Concatenate[Unrelated, ...], Async], /) -> Unchecked[Async]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[AsyncLease, P], Async], /) -> Checked[P, Async]: ...
    @overload
    def __call__(self, function: Callable[..., Async], /) -> Unchecked[Async]: ...


class AsyncSingleton(Protocol):
    """`singleton(…)`: a skipped call returns None, and a skipped generator yields nothing."""

    @overload
    def __call__(self, function: Callable[P, AsyncItems], /) -> Callable[P, AsyncItems]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...


class AsyncSingletonOr(Protocol[D_co]):
    """`singleton(…, default=…)`: a skipped call returns the default. A generator has no use for one."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | D_co]]: ...


class AsyncSingletonWithLease(Protocol):
    """`singleton(…, lease_as=…)`: both of the above, by what the function returns and then by its first parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Unrelated, ...], AsyncItems], /) -> Unchecked[AsyncItems]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[AsyncLease, P], AsyncItems], /) -> Checked[P, AsyncItems]: ...
    @overload
    def __call__(self, function: Callable[..., AsyncItems], /) -> Unchecked[AsyncItems]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Unrelated, ...], Coroutine[Any, Any, R]], /
    ) -> Unchecked[Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Coroutine[Any, Any, R]], /
    ) -> Checked[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(
        self, function: Callable[..., Coroutine[Any, Any, R]], /
    ) -> Unchecked[Coroutine[Any, Any, R | None]]: ...


class AsyncSingletonWithLeaseOr(Protocol[D_co]):
    """`singleton(…, lease_as=…, default=…)`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Unrelated, ...], Coroutine[Any, Any, R]], /
    ) -> Unchecked[Coroutine[Any, Any, R | D_co]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Coroutine[Any, Any, R]], /
    ) -> Checked[P, Coroutine[Any, Any, R | D_co]]: ...
    @overload
    def __call__(
        self, function: Callable[..., Coroutine[Any, Any, R]], /
    ) -> Unchecked[Coroutine[Any, Any, R | D_co]]: ...
