"""Pull workers, as a server sees them: `service` acts for them, `claim_wait` waits for work, `values` is what both sides say."""
