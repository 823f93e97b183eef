"""App over a server: what `client`, `insight`, `gating` and `scheduling` do on a store, asked over HTTP. No store is seen here."""
