"""At a majority of independent Redis or Valkey servers."""
