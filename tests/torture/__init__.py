"""Workers of both worlds on one store, under faults that a seed decides, and a judge of what they believed.

    python -m tests.torture redis --minutes 15 --seed 7

`stores` and its siblings say which servers a kind has and which faults; `supervisor` starts workers and injects the
faults; `worker`, `actors` and `jobs` are what the workers do; `journal` is what they write down; `verdict` judges it.
Faults whose documented consequence is a double hold are not injected, but for ended sessions of advisory locks.
"""
