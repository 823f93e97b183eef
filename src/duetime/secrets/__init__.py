"""Stored secrets: sealed with keys (`keys`), read where an attempt uses them (`reading`), blanked in what is kept of it (`redacting`)."""
