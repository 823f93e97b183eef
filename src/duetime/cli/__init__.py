"""The command line: everything that `client` offers, and `worker`, for people and scripts."""
