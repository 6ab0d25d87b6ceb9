"""Thin helpers over onnx_ir."""
