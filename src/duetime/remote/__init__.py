"""App over a server: what `client` does on a store, over HTTP. Nothing here uses a store."""
