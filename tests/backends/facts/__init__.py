"""How servers behave, where we rest on it. If one of these fails, the server is not what the code believes."""
