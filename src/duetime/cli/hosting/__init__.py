"""Commands that run until they are stopped: `worker`, with its supervisor, and `server`."""
