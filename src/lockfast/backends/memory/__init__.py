"""In the memory of one process: the reference. Read `backend` first, then `resource`."""
