"""How several callers share one piece of work, such as connecting: shared by the drivers of all backends.

Decides: which caller does the work, and for how long the others wait for it: `turns` for threads, `single_flight` for
tasks. Leaves to each driver: what the work is.
"""
