"""Rows of tables, for the stores that have tables: what both SQL stores share."""
