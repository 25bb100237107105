"""The contract: what every backend promises, as stories that the author of any backend can run.

Decides: what "a backend of lockfast" means. One promise a file, one story a test, every world.

    from lockfast.testing.contract import ContractSuite

    class TestMine(ContractSuite):
        def url(self, tmp_path):                        # a URL that lockfast.connect() knows, or:
            return f"sqlite:///{tmp_path}/locks.db"

        def make_backend(self, tmp_path, world, clock):  # a backend of your own
            return MyBackend(tmp_path, world, clock)

        can = frozenset({"fork", "simulated"})          # beyond the verbs; "simulated" adds the simulated world

The store must follow the clock that it is given: no story waits for a real ttl to pass. See docs/testing.md.
"""

from __future__ import annotations

import pkgutil

try:
    import pytest
except ImportError as error:
    raise ImportError(f"the contract needs an extra: pip install 'lockfast[testing]' ({error})") from error

# Before the stories are imported, so that a failure shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from lockfast.testing.contract.p01_no_body_without_lock import NoBodyWithoutLock  # noqa: E402
from lockfast.testing.contract.p02_identity_is_the_claim import IdentityIsTheClaim  # noqa: E402
from lockfast.testing.contract.p03_holder_stops_believing_first import HolderStopsBelievingFirst  # noqa: E402
from lockfast.testing.contract.p04_fences_only_grow import FencesOnlyGrow  # noqa: E402
from lockfast.testing.contract.p05_lost_replies_change_nothing import LostRepliesChangeNothing  # noqa: E402
from lockfast.testing.contract.p06_interrupted_leaves_nothing import InterruptedLeavesNothing  # noqa: E402
from lockfast.testing.contract.p07_renewal_rides_out_errors import RenewalRidesOutErrors  # noqa: E402
from lockfast.testing.contract.p08_loss_is_reported import LossIsReported  # noqa: E402
from lockfast.testing.contract.p09_waiters_are_woken import WaitersAreWoken  # noqa: E402
from lockfast.testing.contract.p10_only_the_server_clock import OnlyTheServerClock  # noqa: E402
from lockfast.testing.contract.p11_process_manners import ProcessManners  # noqa: E402
from lockfast.testing.contract.p12_bad_input_is_refused import BadInputIsRefused  # noqa: E402
from lockfast.testing.contract.s02_public_names import PublicNames  # noqa: E402
from lockfast.testing.contract.s04_one_admission_rule import OneAdmissionRule  # noqa: E402
from lockfast.testing.contract.s05_semaphores import Semaphores  # noqa: E402
from lockfast.testing.contract.s06_read_write_locks import ReadWriteLocks  # noqa: E402
from lockfast.testing.contract.s07_several_names import SeveralNames  # noqa: E402
from lockfast.testing.contract.s07_several_names_end import SeveralNamesEnd  # noqa: E402
from lockfast.testing.contract.s08_no_waiting_for_oneself import NoWaitingForOneself  # noqa: E402
from lockfast.testing.contract.s09_elections import Elections  # noqa: E402
from lockfast.testing.contract.s09_elections_observed import ObservedElections  # noqa: E402
from lockfast.testing.contract.s10_rate_limits import RateLimits  # noqa: E402
from lockfast.testing.contract.s10_rate_limits_waiting import WaitingForRateLimits  # noqa: E402
from lockfast.testing.contract.s11_optimistic_cells import OptimisticCells  # noqa: E402
from lockfast.testing.contract.story import Promise, about, in_ways, needs, on_the_real_clock  # noqa: E402

PROMISES: tuple[type[Promise], ...] = (
    NoBodyWithoutLock,
    IdentityIsTheClaim,
    HolderStopsBelievingFirst,
    FencesOnlyGrow,
    LostRepliesChangeNothing,
    InterruptedLeavesNothing,
    RenewalRidesOutErrors,
    LossIsReported,
    WaitersAreWoken,
    OnlyTheServerClock,
    ProcessManners,
    BadInputIsRefused,
)
"""The twelve promises, in order."""

CHAPTERS: tuple[type[Promise], ...] = (
    *PROMISES,
    PublicNames,
    OneAdmissionRule,
    Semaphores,
    ReadWriteLocks,
    SeveralNames,
    SeveralNamesEnd,
    NoWaitingForOneself,
    Elections,
    ObservedElections,
    RateLimits,
    WaitingForRateLimits,
    OptimisticCells,
)
"""The whole contract."""


class ContractSuite(*CHAPTERS):  # type: ignore[misc]
    """The whole contract in one class: subclass it, say where the store is, and every story runs."""


__all__ = ["CHAPTERS", "PROMISES", "ContractSuite", "Promise", "about", "in_ways", "needs", "on_the_real_clock"]
