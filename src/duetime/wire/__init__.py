"""The JSON of each noun, described once: the bodies of requests and responses. `api` writes it, `remote` reads it.

Where the library has a type for what people see (`Task`, `GateInfo`, `Stats` …), that type is the description. Unknown fields of
requests are refused. Unknown fields of responses are ignored, so that a client can use a newer server.
"""
