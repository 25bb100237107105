"""In a table of PostgreSQL that other languages can share."""
