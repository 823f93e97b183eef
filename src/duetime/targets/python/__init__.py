"""Python functions as targets: on the event loop, in threads and in sub-processes."""
