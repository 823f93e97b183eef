"""Attempts that are HTTP requests."""
