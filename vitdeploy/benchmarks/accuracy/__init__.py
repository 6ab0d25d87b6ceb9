"""An engine's answers against its source's, on the same images."""
