"""Taking in graphs that other exporters wrote."""
