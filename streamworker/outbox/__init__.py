"""Requests that are committed with the caller's own data, and told to Redis afterwards."""
