"""The vision tower of a vision-language model, and how many patches and tokens an image of a prompt has."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VisionTower:
    """A tower as `vision_config` describes it, with what the published processor makes of an image.

    Patches are its sequence; `spatial_merge_size` squared of them become one token of the language model.
    """

    depth: int
    """Blocks."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    """Hidden size of the language model."""
    patch_size: int
    temporal_patch_size: int
    in_channels: int
    spatial_merge_size: int
    min_pixels: int
    """Fewest pixels of an image, by the processor of the published checkpoints."""
    max_pixels: int
    """Most pixels of an image, likewise."""
    inner_tensors: int
    """Tensors that the activation of the MLP saves besides the input of its last layer: 3 for a gated SiLU, 2 for
    QuickGELU, 1 for GELU."""
    has_layer_norm: bool
    """Whether norms are layer norms, with a bias; else root-mean-square norms."""
    mlp_names: tuple[str, ...]
    """The linear layers of the MLP of a block, as transformers names them."""
    position_embeddings: int = 0
    """Rows of a table of learned positions that is interpolated; 0 without."""
    patch_bias: bool = False
    """Whether the convolution that makes patches has a bias."""
    deepstack: int = 0
    """Blocks whose output is merged too, and added to as many first layers of the language model (Qwen3-VL)."""

    @property
    def patches_per_token(self) -> int:
        """Patches that are merged into one token."""
        return self.spatial_merge_size**2

    @property
    def pixels_per_token(self) -> int:
        """Pixels of one token of the language model. By hand, patches of 14, merged 2 x 2: 28 x 28 = 784."""
        return (self.patch_size * self.spatial_merge_size) ** 2

    @property
    def patch_values(self) -> int:
        """Values of one patch in `pixel_values`. By hand, 3 channels x 2 frames x 14 x 14 = 1,176."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def merged_size(self) -> int:
        """Width of the patches of one token together."""
        return self.hidden_size * self.patches_per_token

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate."""
        return len(self.mlp_names) == 3
