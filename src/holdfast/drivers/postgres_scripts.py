"""Run a script on a PostgreSQL server, once and by whoever may: migrations.

Decides: how long that may take. Leaves to the script: its transaction.
"""

from __future__ import annotations

from holdfast._time import boot_now
from holdfast.drivers.postgres_lines import Late, run
from holdfast.drivers.postgres_places import Place, conninfo
from holdfast.drivers.postgres_wire import Broken, Speaker, TryAgain, connect, not_let_in, unavailable
from holdfast.errors import BackendUnavailable

_CONNECTS = 10.0  # seconds, for each host
_RUNS = 60.0


def run_script(place: Place, text: str) -> None:
    """Raises BackendUnavailable."""
    error: BackendUnavailable | None = None
    for params in place.hosts:
        try:
            speaker = Speaker(run(connect(conninfo(params)), boot_now() + _CONNECTS), place)
        except Late:
            error = unavailable(place.name, "cannot be connected to in time")
        except Broken as broken:
            error = not_let_in(place.name, broken)
        else:
            _run(speaker, place, text)
            return
    assert error is not None  # there is one host at least
    raise error


def _run(speaker: Speaker, place: Place, text: str) -> None:
    try:
        run(speaker.say_plainly(text.encode()), boot_now() + _RUNS)
    except Late:
        raise unavailable(place.name, "did not answer in time; what was begun is rolled back") from None
    except (Broken, TryAgain) as broken:
        raise unavailable(place.name, f"ended the connection: {broken}; what was begun is rolled back") from broken
    finally:
        speaker.close()
