"""`python -m lockfast` is the same program as `lockfast`."""

from __future__ import annotations

import sys

try:
    from lockfast.cli import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
