"""How an attempt is performed. Targets know handlers and contexts, nothing of stores' workings."""
