"""In a SQLite file, between the processes of one host."""
