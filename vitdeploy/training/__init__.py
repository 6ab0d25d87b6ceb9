"""Fine-tuning and training from scratch, small but real."""
