"""One graph for a range of sizes: what depends on the size is computed inside the graph."""
