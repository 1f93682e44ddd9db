"""Measured numbers by which the gradient chooses between equivalent forms.

Each group names the command that measured it; docs/convolutions.md holds the timings. Results do not depend on these
numbers but for rounding. After a change, run the command and the tests of the forms.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Bounds between forms, all inclusive on the side that the name says."""

    # Choice of an engine by engine="auto": python benchmarks/engine_families.py

    clearly_faster: float = 0.9
    """Ratio of step times below which the portable engine is taken: two runs of the benchmark differ by a tenth."""

    # Form of a convolution and of its gradients: python benchmarks/convolutions.py --layers

    many_taps: int = 49
    """Windows with more elements would need more nodes than they save time."""

    few_channels: int = 8
    """With fewer input channels, slices of the windows cost more than their products (7x7 on 3 channels)."""

    few_positions: int = 16
    """Up to this many positions in an image, products over all images are faster than image by image."""

    many_positions: int = 1024
    """From this many positions on, flipping a kernel, or a product for each of its elements, costs little."""

    many_outputs: int = 64
    """With fewer output channels, adding patches up costs more than their product saves."""

    few_reads: int = 768
    """A constant matrix that says which pixel is read where is slower than slices if it has more elements."""

    short_line: int = 16
    """Band matrices of longer lines hold too many zeros."""

    small_line: int = 8
    """Lines up to this long are sliced all at once, longer ones copied by Gather: on 8 pixels Gather takes 0.9 to 1.5
    of the time, on 14 to 16 pixels with 32 images 0.6 to 0.9."""

    few_elements: int = 320
    """A channel's whole matrix takes longer to make than it saves if it has more elements than this per image,"""

    many_elements: int = 4096
    """or more than this in all."""

    # Winograd's algorithm: python benchmarks/convolutions.py --layers

    long_line: int = 16
    """The sums are products with matrices as long as a line: on longer lines they cost more than they save."""

    few_tiles: int = 32
    """With fewer tiles in all images, reading the sums of the kernel takes longer than the products that it saves;"""

    few_small_images: int = 8
    """so it does with fewer images of 2x2,"""

    large_kernel: int = 8192
    """and with more pairs of channels for each tile, unless the sums are few beside the elements of the kernel."""

    # Batch normalization: python benchmarks/convolutions.py

    few_pixels: int = 64
    """Up to this many pixels per channel, BatchNormalization is the faster form of a product with a number for each
    channel (8 images of 2x2 with 512 channels: 14 instead of 41 microseconds). With more, broadcasting takes no longer,
    and on several threads less time."""


TUNING = Tuning()
