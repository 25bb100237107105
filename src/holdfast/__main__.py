"""`python -m holdfast` is the same program as `holdfast`."""

from __future__ import annotations

import sys

from holdfast.cli import main

sys.exit(main())
