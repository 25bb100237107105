"""The only files of this backend that import sqlite3 or open sockets."""
