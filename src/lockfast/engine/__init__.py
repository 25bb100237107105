"""How a lock is waited for and kept. Knows no technology: backends and worlds are given to it.

First reading: `lease` (the life-cycle), `acquire`, `keeper`, `core` (the parts, and where each verb is).
Then, as needed: `asking_again`, `waking`, `releasing`, `extending`; `schedule`, `renewing`, `keeper_loop` beneath the
keeper; `standby`, `loop_watch` for event loops that are blocked; `retrying`, `backoff`, `outage` for a backend that
does not answer; `unfinished`, `closing`, `restarting`, `process` for the end; `callbacks`, `reporting`, `background`;
`checks`, `living`, `leases_by_key`, `order` for what is refused or warned of.
"""
