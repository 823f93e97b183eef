"""Commands as handlers: each attempt runs a program below a supervisor, and ends when nothing of it is left."""
