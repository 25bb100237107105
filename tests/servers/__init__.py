"""Real servers for the tests: started when first needed, on free ports of this host, gone with the tests."""
