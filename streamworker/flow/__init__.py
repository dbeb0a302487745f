"""What handlers use while they run."""
