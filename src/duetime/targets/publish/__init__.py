"""Attempts that are messages to a broker."""
