"""The table of exported families: each cell run, judged and kept as one JSON file."""
