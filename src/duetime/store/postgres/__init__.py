"""The production store: verbs of the seam on PostgreSQL."""
