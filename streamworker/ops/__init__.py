"""What operators ask and do: look at jobs, lanes and workers, and deal with dead letters.

The functions work on a `store.queue.Queue` and never import the worker.
"""
