"""PostgreSQL's advisory locks: held by a session, without a schema."""
