"""What is decided about requests and replies without a server."""

from __future__ import annotations

import pytest

from lockfast.backends.redis.io.resp import suspect_after


@pytest.mark.parametrize(("within", "seconds"), [(60, 1.0), (3.0, 1.0), (0.6, 0.2), (0.09, 0.05), (0.02, 0.02)])
def test_a_silent_connection_is_suspected_while_there_is_time_for_another(within: float, seconds: float) -> None:
    assert suspect_after(within) == pytest.approx(seconds)
