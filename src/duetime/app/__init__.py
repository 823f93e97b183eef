"""App: the registry of handlers, the client and the worker behind one object."""
