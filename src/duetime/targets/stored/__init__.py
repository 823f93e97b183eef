"""Targets that are stored under a handler's name: their definitions, and the handlers that workers make of them."""
