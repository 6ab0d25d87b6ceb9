"""Take a Vision Transformer to the engine that runs it best, and prove nothing was lost."""

__version__ = "0.1.0"
