"""Run work at the right time, at least once and never twice at once."""
