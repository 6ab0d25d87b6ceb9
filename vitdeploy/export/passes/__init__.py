"""Graph passes of the export, one per file."""
