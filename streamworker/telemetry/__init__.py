"""What a worker tells the outside: counters, health, and the endpoint that serves both.

Telemetry is told and asks nobody, and nothing in it ever raises into a job.
"""
