"""`streamworker demo`: a small shop, two workers of which one is killed, and an account of every job."""
