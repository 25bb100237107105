"""In a Redis or Valkey server, a Sentinel group or a cluster."""
