"""The only files of this backend that talk to PostgreSQL."""
