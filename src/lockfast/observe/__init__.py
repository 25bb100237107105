"""What an operator can see: one stream of events, and its listeners."""
