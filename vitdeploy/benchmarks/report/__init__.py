"""The report: one record, three files (JSON to read back, Markdown, self-contained HTML)."""
