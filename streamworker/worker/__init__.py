"""The worker process: claims jobs, runs their handlers, settles what they came to."""
