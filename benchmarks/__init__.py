"""Measures streamworker and other Redis job queues by the same work: see README.md."""
