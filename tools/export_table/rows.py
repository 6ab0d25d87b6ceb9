"""The rows of the table: one model per family and source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Size = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """A family by one model, and the two sizes beside its own."""

    family: str
    model: str
    other: Size = (288, 288)
    oblong: Size = (256, 320)
    task: str = "classify"
    model_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A file name."""
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.model)
        return f"{self.family.replace(' ', '-')}--{name}"


_PATCH14: dict[str, Any] = {"other": (280, 280), "oblong": (252, 322)}

ROWS = (
    Row("vit", "vit_tiny_patch16_224"),
    Row("vit", "vit_base_patch16_224", (384, 384), (384, 512)),
    Row("vit", "vit_small_patch32_224"),
    Row("vit average pooling", "vit_medium_patch16_gap_240"),
    Row("hybrid", "vit_tiny_r_s16_p8_224"),
    Row("hybrid", "vit_base_r50_s16_224"),
    Row("deit", "deit_tiny_patch16_224"),
    Row("deit distilled", "deit_tiny_distilled_patch16_224"),
    Row("deit3", "deit3_small_patch16_224"),
    Row("flexivit", "flexivit_small"),
    Row("beit", "beit_base_patch16_224"),
    Row("beitv2", "beitv2_base_patch16_224"),
    Row("vit_relpos", "vit_relpos_small_patch16_224"),
    Row("vit_srelpos", "vit_srelpos_small_patch16_224"),
    Row("eva02", "eva02_tiny_patch14_224", **_PATCH14),
    Row("dinov2", "vit_small_patch14_dinov2", (280, 280), (252, 322), "features"),
    Row("dinov2 registers", "vit_small_patch14_reg4_dinov2", (280, 280), (252, 322), "features"),
    Row("dinov3", "vit_small_patch16_dinov3", (320, 320), (256, 320), "features"),
    Row("rope", "vit_small_patch16_rope_224"),
    Row("siglip", "vit_base_patch16_siglip_224", task="features"),
    Row("clip", "vit_base_patch32_clip_224"),
    Row("swin", "swin_tiny_patch4_window7_224"),
    Row("swinv2", "swinv2_tiny_window8_256", (320, 320)),
    Row("swinv2_cr", "swinv2_cr_tiny_224"),
    Row("maxvit", "maxvit_tiny_tf_224"),
    Row("maxvit", "maxvit_rmlp_pico_rw_256", (320, 320)),
    Row("coatnet", "coatnet_0_rw_224"),
    Row("hiera", "hiera_tiny_224"),
    Row("levit", "levit_128s"),
    Row("mobilevit", "mobilevit_xxs", (320, 320)),
    Row("mobilevitv2", "mobilevitv2_050", (320, 320)),
    Row("tiny_vit", "tiny_vit_5m_224"),
    Row("pit", "pit_ti_224"),
    Row("convit", "convit_tiny"),
    Row("davit", "davit_tiny"),
    Row("naflexvit", "naflexvit_base_patch16_gap", (256, 256), (256, 320)),
    Row("volo", "volo_d1_224"),
    Row("cait", "cait_xxs24_224"),
    Row("xcit", "xcit_nano_12_p16_224"),
    Row("tnt", "tnt_s_patch16_224"),
    Row("visformer", "visformer_tiny"),
    Row("efficientvit", "efficientvit_m0", (320, 320), (256, 320)),
    Row("vitamin", "vitamin_small_224"),
    Row("samvit", "samvit_base_patch16_224", task="features"),
    Row("test_vit", "test_vit", (192, 192), (160, 224)),
    Row("test_vit", "test_vit2", (256, 256), (256, 320)),
    Row("vit", "torchvision:vit_b_32"),
    Row("swin", "torchvision:swin_t"),
)
