"""What every process runs on: the loop of a service, the timing wheel, and the thread behind synchronous calls."""
