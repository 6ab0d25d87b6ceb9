"""Runtimes behind one small interface."""
