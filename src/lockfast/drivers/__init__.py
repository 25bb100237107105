"""The only files that import a client library: each technology has a blocking driver beside an asyncio one."""
