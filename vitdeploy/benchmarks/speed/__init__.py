"""How fast an engine is, beside its source and the machine's own limits."""
