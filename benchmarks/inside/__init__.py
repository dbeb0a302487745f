"""What runs inside a contender's own environment. Standard library only, and nothing of the harness."""
