"""The command line: everything that `client` and `insight` offer, and `worker`, for people and scripts."""
