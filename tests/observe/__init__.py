"""The stream of events: what is reported, that it adds up, and what the log makes of it."""
