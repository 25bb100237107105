"""Which names are held or waited for, for `list`.

Decides: when the keys of the database are scanned, and when it is enough to read the names that scripts have noted.
Leaves to the scripts: which names they note, see `listed.lua`. Leaves to `backend`: what is shown of a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lockfast._ids import new_claim_id
from lockfast.backends.redis.io.resp import call
from lockfast.backends.redis.io.router import Call, RedisDriver
from lockfast.backends.redis.requests import (
    LISTED,
    LISTED_AT_ONCE,
    LISTED_NAMES,
    in_tag,
    keys_of,
    name_in,
    of_tag,
    pattern_of,
    script,
)
from lockfast.errors import BackendUnavailable

MAX_CALLS_AT_ONCE: Final = 100  # that ask which names are free
_KEYS: Final = (LISTED, LISTED_NAMES)


class Listing:
    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver

    async def names(self, prefix: str, within: float) -> list[str]:
        """All that are held or waited for, and some that are not any more."""
        if self._driver.endpoint.clustered:  # no key is at all nodes, so scripts note nothing
            return await self._scan(prefix, within)
        token, noted = await self._noted(prefix, within)
        if noted is not None:
            return noted
        found = await self._scan(prefix, within)
        if token:
            await self._note(token, prefix, found, within)
        return found

    async def _noted(self, prefix: str, within: float) -> tuple[bytes, list[str] | None]:
        """The names, if all are noted; else None, and the token with which those that a scan finds can be noted."""
        names: list[str | None] = []
        ended = b""
        while True:
            args = (in_tag(prefix), new_claim_id(), ended)
            request = call(script("listed"), _KEYS, args)
            token, *rest = await self._driver.question(LISTED, request, within, script("listed"))
            if not rest:
                return token, None
            ended, *some = rest
            names += map(of_tag, some)
            if not ended:
                return token, sorted(name for name in names if name is not None)

    async def _note(self, token: bytes, prefix: str, names: Sequence[str], within: float) -> None:
        """What was looked for is noted last, when all that was found has been."""
        noted = [f"n{in_tag(name)}" for name in names] + [f"m{in_tag(prefix)}"]
        for start in range(0, len(noted), LISTED_AT_ONCE):
            request = call(script("note"), _KEYS, (token, *noted[start : start + LISTED_AT_ONCE]))
            if not await self._driver.run(script("note"), LISTED, request, within):
                return

    async def _scan(self, prefix: str, within: float) -> list[str]:
        found = await self._driver.scan(pattern_of(prefix), within)
        records = map(name_in, (key for key in found if key.endswith((b":held", b":waiters"))))
        return await self._not_free(sorted({name for name in records if name is not None}), within)

    async def _not_free(self, names: list[str], within: float) -> list[str]:
        """Most names on a server are free: their last number is kept, and nothing is left to show."""
        size = self._driver.names_per_script
        parts = [names[start : start + size] for start in range(0, len(names), size)]
        found: list[str] = []
        for start in range(0, len(parts), MAX_CALLS_AT_ONCE):
            some = parts[start : start + MAX_CALLS_AT_ONCE]
            keys = [[keys_of(name)[0] for name in part] for part in some]
            answers = await run_each(self._driver, "not_free", keys, (), within)
            found += [part[place - 1] for part, places in zip(some, answers, strict=True) for place in places]
        return found


async def run_each(
    driver: RedisDriver, name: str, keys: Sequence[Sequence[str]], args: Sequence[str | bytes], within: float
) -> list[Any]:
    """The replies of a script that is run once with each of these keys. Raises BackendUnavailable if one is missing."""
    calls = [Call(each[0], call(script(name), each, args)) for each in keys]
    answers = await driver.run_all(script(name), calls, within)
    for answer in answers:
        if isinstance(answer, BackendUnavailable):
            raise answer
    return answers
