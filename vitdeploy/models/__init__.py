"""Sources of models: a timm name or a checkpoint file becomes a `SourceModel`."""
