"""Connections to all servers of the quorum, and requests to all of them at once."""
