"""How a lock is waited for and kept. Knows no technology: backends and worlds are given to it.

Reading order: `lease` (the life-cycle), `acquire`, `keeper`, `core` (what holds them together), `process`.
"""
