"""What the lock table and advisory locks share."""
