"""Connections to PostgreSQL through psycopg's wrapper of libpq."""
