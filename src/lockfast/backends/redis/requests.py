"""The requests to Redis' scripts.

Decides: under which keys a name is kept, the scripts' text and constants, and how a request is written.
Leaves to `backend`: when to send one, and what the reply means.

All keys of a name share one hash tag, so they live in one slot of a cluster.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Final, NamedTuple
from urllib.parse import quote

from lockfast._ids import CLAIM_ID_CHARS
from lockfast._model import GRACE_S, MAX_KEPT_CHANGES, MAX_TTL_S, PRESENCE_S, RECENT_S, SHARED, Claim, Renewal, Terms
from lockfast._records import DEEPEST, LARGEST_METADATA, LARGEST_NUMBER, LONGEST_NAME, PLAIN
from lockfast._values import FAR_VERSION, MAX_BOOKED_NS
from lockfast.backends.redis.io.resp import CLUSTERED, CONFIRMS, Script, words
from lockfast.backends.redis.io.resp import script as pack_script
from lockfast.backends.redis.io.router import Call

MICRO: Final = 1_000_000
DAY_US: Final = 86_400_000_000
_KINDS: Final = ("held", "queue", "waiters", "observers", "changes", "lapsed", "rows", "ends")
LISTED: Final = "lockfast:listed"  # the key that is there while clients list names
LISTED_NAMES: Final = f"{LISTED}:names"
LISTED_AT_ONCE: Final = 500  # names
_SAFE: Final = string.punctuation.replace("%", "")

_FENCE_TTL_MS: Final = 2 * DAY_US // 1000  # of a name's last fence after its last use, less at most a day
CONSTANTS: Final[dict[str, int | str]] = {
    "DAY_US": DAY_US,
    "FENCE_TTL_MS": _FENCE_TTL_MS,
    "VERSION_TTL_MS": 30 * DAY_US // 1000,  # of the last version of a deleted cell
    "LIMITER_SPARE_MS": 5000,  # for which a limiter is kept after its last permit is free again
    "WAITERS_TTL_MS": int(2 * PRESENCE_S * 1000),
    "PRESENCE_US": int(PRESENCE_S * MICRO),
    "GRACE_US": int(GRACE_S * MICRO),
    "RECENT_US": int(RECENT_S * MICRO),
    "MAX_KEPT_CHANGES": MAX_KEPT_CHANGES,
    "MANY_HOLDS": 8,  # above which the shared holds of a name are rows
    "FEW_HOLDS": 4,  # down to which they stay rows
    "MAX_WORDS": 1000,  # of one command; even, because they come in pairs
    "MAX_WAITERS_AT_ONCE": 100,  # that one command reads, and dead ones that one request deletes
    "LISTED_MS": 60_000,  # for which names are noted, from when a client lists them
    "LISTED_NAMES": f"'{LISTED_NAMES}'",
    "LISTED_AT_ONCE": LISTED_AT_ONCE,
    "CLUSTERED": f"'{CLUSTERED}'",
    "CONFIRMS": f"'{CONFIRMS}'",
    "MAX_NUMBER": LARGEST_NUMBER - 1,  # from which counting on stays exact
    "MAX_TTL_US": int(MAX_TTL_S * MICRO),
    "MAX_BOOKED_NS": MAX_BOOKED_NS,
    "FAR_VERSION": FAR_VERSION,
    "PLAIN": PLAIN,
    "LONGEST_NAME": LONGEST_NAME,
    "LARGEST_METADATA": LARGEST_METADATA,
    "DEEPEST": DEEPEST,
}
# A word in capitals. It begins with a set of characters, which makes the search three times as fast as with "\b".
_WORD: Final = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z_]+\b")


@cache
def _scripts(package: str) -> Traversable:
    return files(f"lockfast.backends.{package}") / "scripts"


@cache
def source(name: str) -> str:
    """The text of a script as it is sent: with its constants, and the parts that it shares with others ("--@part").

    "acquire" is one of ours, "redlock/vote_quick" is another package's. Each file is read once.
    """
    package, _, script = name.rpartition("/")
    text = (_scripts(package or "redis") / f"{script}.lua").read_text()
    text = _WORD.sub(lambda word: str(CONSTANTS.get(word[0], word[0])), text)
    return re.sub(r"^--@(\w+)$", lambda part: source(part[1]), text, flags=re.MULTILINE)


@cache
def script(name: str) -> Script:
    text = source(name)
    return pack_script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def read_scripts() -> None:
    """Those that a lock needs: then the first request, which others may wait behind, has no files to read."""
    for name in ("acquire_quick", "release_quick", "acquire", "release"):
        script(name)


def tagged(key: str) -> str:
    """A closing brace would end the hash tag early."""
    if "%" in key or "}" in key:
        key = key.replace("%", "%25").replace("}", "%7D")
    return f"lockfast:{{{key}}}"


def in_tag(name: str) -> str:
    """As it is within its keys; so is a prefix of names."""
    return tagged(name)[len("lockfast:{") : -1]


def of_tag(text: bytes) -> str | None:
    """The name that a key has; None if it is no name."""
    try:
        return text.decode().replace("%7D", "}").replace("%25", "%")
    except UnicodeDecodeError:
        return None


def name_in(key: bytes) -> str | None:
    """None if it is no key of a name."""
    return of_tag(key[len(b"lockfast:{") : key.rindex(b"}")])


def pattern_of(prefix: str) -> str:
    """The pattern by which SCAN finds all keys of names with that prefix."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", tagged(prefix)[:-1]) + "*}:*"


def keys_of(key: str, listed: bool = False) -> list[str]:
    """If `listed`, also the one by which a script sees that names are listed; in a cluster no script can have that."""
    tag = tagged(key)
    return [f"{tag}:{kind}" for kind in _KINDS] + [LISTED] * listed


class Prepared(NamedTuple):
    """A request without its claim: the same for all claims on the same terms, so it is written once."""

    script: Script
    key: str  # by which a cluster routes it
    size: int  # in words
    before: bytes  # the claim
    after: bytes
    head: bytes  # all that comes before a claim's id of the usual length, if nothing is added to the request
    tail: bytes


def prepared(name: str, keys: Sequence[str], before: Sequence[str | int], after: Sequence[str | int] = ()) -> Prepared:
    size = 3 + len(keys) + len(before) + 1 + len(after)
    start, end = script(name).digest + words(len(keys), *keys, *before), words(*after)
    head = b"*%d\r\n%b$%d\r\n" % (size, start, CLAIM_ID_CHARS)
    return Prepared(script(name), keys[0], size, start, end, head, b"\r\n" + end)


@lru_cache(maxsize=1024)
def quick_acquire(terms: Terms, listed: bool) -> Prepared:
    ttl = micros(terms.ttl)
    record = f" {ttl} {_mode(terms)} {terms.limit or 0} {plain(terms.holder)} {terms.metadata or ''}"
    lives = -(-ttl // 1000) + _FENCE_TTL_MS
    return prepared("acquire_quick", keys_of(terms.key)[:1] + [LISTED] * listed, (), (record, lives))


@lru_cache(maxsize=1024)
def quick_release(key: str) -> Prepared:
    return prepared("release_quick", keys_of(key)[:1], ())


@lru_cache(maxsize=256)
def acquire(terms: Terms, address: str, listed: bool) -> Prepared:
    args = (micros(terms.ttl), _mode(terms), terms.limit or 0, plain(terms.holder), terms.metadata or "")
    return prepared("acquire", keys_of(terms.key, listed), args, (address,))


@lru_cache(maxsize=256)
def release(key: str, linger: int, successor: str, listed: bool) -> Prepared:
    return prepared("release", keys_of(key, listed), (linger, plain(successor)))


def renewals(batch: Sequence[Renewal], size: int, now: tuple[bytes, ...]) -> tuple[list[Call], list[list[int]]]:
    """Script calls for at most `size` names each; and for each call the places in the batch that its answers are for.

    All claims of a name are in one call and in a row, likely in the order in which they were granted: see `renew.lua`.
    """
    names: dict[str, list[int]] = {}
    for place, renewal in enumerate(batch):
        names.setdefault(renewal.claim.terms.key, []).append(place)
    for places in names.values():
        if len(places) > 1:
            places.sort(key=lambda place: (batch[place].claim.id, -batch[place].ttl))
    rows = list(names.values())
    parts = [list(chain.from_iterable(rows[start : start + size])) for start in range(0, len(rows), size)]
    return [_renewal([batch[place] for place in part], now) for part in parts], parts


def as_shared(renewal: Renewal) -> Renewal:
    """The same with all keys that the name of a shared claim has."""
    id, terms = renewal.claim
    return renewal._replace(claim=Claim(id, terms._replace(mode=SHARED)))


def _renewal(part: Sequence[Renewal], now: tuple[bytes, ...]) -> Call:
    """Ten thousand leases are renewed this way, so every operation counts."""
    keys, args = [], []
    shared: dict[str, None] = {}
    for (id, terms), ttl, fence in part:
        key = f"{tagged(terms.key)}:held".encode()
        keys.append(b"$%d\r\n%b\r\n" % (len(key), key))
        if terms.mode == SHARED:
            shared[terms.key] = None
        args.append(f"${len(id)}\r\n{id}\r\n{_length_and_value(ttl)}$16\r\n{fence:016d}\r\n")
    others = [f"{tagged(name)}:{kind}" for name in shared for kind in _KINDS[-2:]]
    keys.append(words(*others))
    number = len(part) + len(others)
    head = b"*%d\r\n%b%b" % (4 + number + 3 * len(part), script("renew").digest, words(number))
    first = f"{tagged(part[0].claim.terms.key)}:held"
    return Call(first, b"%b%b%b%b" % (head, b"".join(keys), words(*now or ("",)), "".join(args).encode()))


@lru_cache(maxsize=64)
def _length_and_value(ttl: float) -> str:
    number = str(micros(ttl))
    return f"${len(number)}\r\n{number}\r\n"


def _mode(terms: Terms) -> str:
    return "s" if terms.mode == SHARED else "x"


def plain(holder: str) -> str:
    """A holder id without the characters that separate the words of a record."""
    return quote(holder, safe=_SAFE)


def micros(seconds: float) -> int:
    return round(seconds * MICRO)
