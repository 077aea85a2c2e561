"""Reformer's attention: shared queries and keys, sorted by hash buckets and cut into chunks."""
