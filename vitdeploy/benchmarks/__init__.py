"""Accuracy and speed against the source model, with intervals; and the report of both."""
