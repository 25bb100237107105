"""How several callers share one piece of work, such as connecting: shared by the drivers of all backends.

Decides: which caller does the work, and for how long the others wait for it: `turns` for threads, `single_flight` for
tasks. And when another connection is made beside one that is silent: `second_tries`, and `first_ready` for tasks.
Leaves to each driver: what the work is.
"""
