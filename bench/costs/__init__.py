"""The cost ledger: what one task costs in CPU time, statements, round trips and written bytes. `docs/design/costs.md` explains it."""
