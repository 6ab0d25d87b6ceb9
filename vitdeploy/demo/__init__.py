"""The embedded demo: a trained model, calibration and evaluation images, reference outputs."""
