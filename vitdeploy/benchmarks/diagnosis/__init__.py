"""Where an engine loses its source's answers: the stage, then the layer."""
