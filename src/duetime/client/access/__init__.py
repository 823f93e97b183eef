"""Who may do what: tokens and their checks, and the audit of what operators did."""
