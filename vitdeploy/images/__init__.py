"""Images and their labels: folders, tables, datasets; decoding and batching."""

from vitdeploy.images.batching import batches
from vitdeploy.images.decoding import (
    DECODING_ERRORS,
    decode,
    image_digest,
    require_readable,
    unreadable,
    upright_rgb,
)
from vitdeploy.images.finding import scan
from vitdeploy.images.folders import image_files
from vitdeploy.images.image_set import ImageItem, ImageSet, LabelOrder, natural_key

__all__ = [
    "DECODING_ERRORS",
    "ImageItem",
    "ImageSet",
    "LabelOrder",
    "batches",
    "decode",
    "image_digest",
    "image_files",
    "natural_key",
    "require_readable",
    "scan",
    "unreadable",
    "upright_rgb",
]
