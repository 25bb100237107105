"""`python -m holdfast` is the same program as `holdfast`."""

from __future__ import annotations

import sys

try:
    from holdfast.cli import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
