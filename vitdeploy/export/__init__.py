"""PyTorch to typed ONNX graphs that are proved equal to the source."""
