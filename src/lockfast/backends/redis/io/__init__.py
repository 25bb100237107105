"""The only files of this backend that import redis-py or hiredis."""
