"""Each noun's JSON, described once: what requests carry and what they are answered. `api` answers with it, `remote` reads it.

Where the library has a type for what people see (`Task`, `GateInfo`, `Stats` …), that type is the description. Fields of requests that are
not known are refused; fields of answers that are not known are ignored, so that a client can ask a newer server.
"""
