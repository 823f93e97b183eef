"""App over a server: what `client` does on a store, asked over HTTP. No store is seen here."""
