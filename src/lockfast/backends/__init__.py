"""Where holds are recorded. Read `base` for the verbs, then `memory`, the reference."""
