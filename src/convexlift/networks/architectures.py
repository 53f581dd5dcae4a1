"""Ready-made networks: the paper's two, some for any image size, and total variation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from convexlift.networks.activations import Abs, Activation, LeakyReLU, ReLU
from convexlift.networks.adaptive import AdaptiveNetwork, places_read
from convexlift.networks.group_activations import GroupNorm
from convexlift.networks.guides import NoiseGuide, UNetGuide
from convexlift.networks.huber_mixture import HuberMixture
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import AveragePool, Chain, Convolution, Dense, ForwardDifferences
from convexlift.networks.smooth_activations import Huber, SmoothedLeakyReLU, SmoothedReLU
from convexlift.operators.convolution import Boundary
from convexlift.parts import require_at_least


def baseline(
    image_size: int | tuple[int, int],
    *,
    in_channels: int = 1,
    channels: int = 32,
    kernel: int = 5,
    pool: int = 16,
    hidden: int = 256,
    slope: float = 0.2,
    smoothing: float = 0.0,
    padding: Boundary = "zero",
) -> InputConvexNetwork:
    """R(x) = W_2 h_2(W_1 P h_1(V_0 x + b_0) + b_1), the paper's network (section 5).

    Args:
        image_size: height and width, or one number for both; a multiple of ``pool``.
        in_channels: channels of the image.
        channels: filters of the convolution V_0.
        kernel: their size.
        pool: block size of the average pooling P.
        hidden: outputs of the fully connected W_1.
        slope: of the leaky ReLU h_1.
        smoothing: nu; 0 for ReLUs, larger for the smoothed ones of section 5.3, which does not give
            nu; it is 0.01 in the released code.
        padding: of the convolutions: ``zero``, ``circular``, ``reflect`` or ``replicate``.
    """
    convolution = partial(Convolution, kernel_size=kernel, padding=padding)
    return _pooled(
        image_size, in_channels, channels, convolution, pool, hidden, slope, smoothing, 0
    )


def deep(
    image_size: int | tuple[int, int],
    *,
    in_channels: int = 1,
    channels: int = 32,
    kernel: int = 5,
    pool: int = 16,
    hidden: int = 256,
    slope: float = 0.2,
    smoothing: float = 0.0,
    padding: Boundary = "zero",
) -> InputConvexNetwork:
    """The baseline with two more nonnegative convolutions (paper section 5.2.1).

    The arguments are the same as for :func:`baseline`.
    """
    convolution = partial(Convolution, kernel_size=kernel, padding=padding)
    return _pooled(
        image_size, in_channels, channels, convolution, pool, hidden, slope, smoothing, 2
    )


def convolutional(
    *,
    in_channels: int = 1,
    channels: int = 32,
    kernel: int = 5,
    slope: float = 0.2,
    smoothing: float = 0.0,
    padding: Boundary = "zero",
) -> InputConvexNetwork:
    """R(x) = sum_pixels <W_2, h_2(W_1 h_1(V_0 x + b_0) + b_1)>, for any image size.

    Args:
        in_channels: channels of the image.
        channels: filters of both convolutions.
        kernel: their size.
        slope: of the leaky ReLU h_1.
        smoothing: nu; 0 for ReLUs, larger for smoothed ones.
        padding: of the convolutions: ``zero``, ``circular``, ``reflect`` or ``replicate``.
    """
    first, last = _activations(slope, smoothing)
    convolution = partial(Convolution, kernel_size=kernel, padding=padding)
    return InputConvexNetwork(
        [
            ConvexLayer(first, channels=channels, skip=convolution(in_channels, channels)),
            ConvexLayer(
                last, channels=channels, previous=convolution(channels, channels, nonnegative=True)
            ),
        ],
        in_channels=in_channels,
    )


def ridge(
    *,
    in_channels: int = 1,
    channels: int = 48,
    kernel: int = 7,
    smoothing: float = 0.01,
    padding: Boundary = "reflect",
    depth: int = 1,
    inner_channels: int = 16,
    inner_kernel: int = 3,
    profiles: int = 1,
    levels: Sequence[float] = (),
) -> InputConvexNetwork:
    """R(x) = sum_pixels <W_1, h(V_0 x)>, h the Huber function; for any image size.

    A convex ridge regularizer (Goujon et al. 2023): learned filters whose responses are penalised
    as total variation penalises differences. With a larger ``depth``, the responses then pass
    nonnegative convolutions and (smoothed) ReLUs: <W_3, h_3(W_2 h_2(W_1 h(V_0 x) + b_1) + b_2)> for
    a depth of 3.

    Args:
        in_channels: channels of the image.
        channels: number of filters on the image.
        kernel: their size.
        smoothing: where h turns from a parabola into |a|, and further layers into a; 0 for |a|
            and ReLUs themselves.
        padding: of the convolutions.
        depth: how many layers.
        inner_channels: number of filters of each further layer.
        inner_kernel: their size.
        profiles: with more than one, h is learned for each filter, as a mixture of this many Huber
            functions with the widths smoothing, 2 smoothing, 4 smoothing, ...
        levels: makes a network for all noise levels c, c^2 R(x / c), that is told the level by
            problems with ``noise=c``; then ``smoothing`` is in units of the noise. The weights W
            are learned at these levels and interpolated; at one level, they are the same for all.
    """
    if depth < 1:
        raise ValueError(f"a ridge network has depth >= 1, got depth={depth}")
    require_at_least(1, profiles=profiles)
    profile: Activation = Abs() if smoothing == 0.0 else Huber(smoothing)
    if profiles > 1:
        profile = HuberMixture(tuple(smoothing * 2.0**j for j in range(profiles)))
    filters = Convolution(in_channels, channels, kernel, padding=padding)
    layers = [ConvexLayer(profile, channels=channels, skip=filters, bias=False)]
    own = not levels  # a bias has units
    _mix(layers, depth, inner_channels, inner_kernel, smoothing, padding, biases=own)
    if not levels:
        return InputConvexNetwork(layers, in_channels=in_channels)
    guide = NoiseGuide(in_channels, layers[-1].outputs, levels=levels)
    return AdaptiveNetwork(layers, guide, in_channels=in_channels)


def adaptive(
    *,
    in_channels: int = 1,
    channels: int = 24,
    kernel: int = 5,
    smoothing: float = 0.1,
    padding: Boundary = "reflect",
    widths: Sequence[int] = (48, 64, 80),
    blocks: int = 2,
    floor: float = 0.003,
    reads: Sequence[str] = ("output",),
    largest_bias: float = 3.0,
    depth: int = 1,
    inner_channels: int = 16,
    inner_kernel: int = 3,
) -> AdaptiveNetwork:
    """R(x; y) = sum_pixels <W(y), h(V_0 x)>: a ridge network whose weights a guide reads off y.

    For any image size. A guide that gives biases and link weights as well, of two layers:
    <W(y), h_2(W_1 (s(y) h(V_0 x + b_0(y))) + b_1(y))>.

    Args:
        in_channels: channels of the image.
        channels: number of filters on the image.
        kernel: their size.
        smoothing: where h turns from a parabola into |a|, in units of the noise; 0 for |a| itself.
            With a little smoothing, problems are solved in a tenth of the iterations.
        padding: of the convolution.
        widths: channels of the guide at each scale.
        blocks: residual blocks of the guide at each scale.
        floor: the smallest weight, relative to the largest.
        reads: what the guide gives: one or several of ``output``, the weights W(y), ``biases``
            and ``links``, factors in [floor, 1] of what a layer hands on to the next.
        largest_bias: the largest |bias|, in units of the noise.
        depth: how many layers; those after the first are as in :func:`ridge`.
        inner_channels: number of filters of each further layer.
        inner_kernel: their size.
    """
    require_at_least(1, depth=depth)
    profile: Activation = Abs() if smoothing == 0.0 else Huber(smoothing)
    filters = Convolution(in_channels, channels, kernel, padding=padding)
    layers = [ConvexLayer(profile, channels=channels, skip=filters, bias=False)]
    _mix(layers, depth, inner_channels, inner_kernel, smoothing, padding, biases=False)
    outputs = sum(place.channels for place in places_read(layers, reads))
    return AdaptiveNetwork(
        layers,
        UNetGuide(in_channels, outputs, widths=widths, blocks=blocks),
        in_channels=in_channels,
        floor=floor,
        reads=reads,
        largest_bias=largest_bias,
    )


class TotalVariation(InputConvexNetwork):
    """R(x) = sum_pixels |grad x|, for images of any size.

    grad x holds the forward differences down and to the right; differences across the last row
    and column are zero (Neumann boundary). |.| is the Euclidean norm of the two (isotropic) or the
    sum of their absolute values (anisotropic), summed over channels. There is nothing to train.

    Args:
        isotropic: which of the two.
        in_channels: channels of the image.
        joint: |.| is the Euclidean norm of the differences of all channels, in place of a sum over
            channels: edges are at the same places in all of them, and the real and the imaginary
            part of a complex image are treated as one number.
    """

    def __init__(self, isotropic: bool = True, in_channels: int = 1, joint: bool = False) -> None:
        if joint and not isotropic:
            raise ValueError("joint=True takes the Euclidean norm of all differences: isotropic")
        size = 2 * in_channels if joint else 2
        layer = ConvexLayer(
            GroupNorm(size) if isotropic else Abs(),
            channels=2 * in_channels,
            skip=ForwardDifferences(),
            bias=False,
        )
        super().__init__([layer], in_channels=in_channels)
        self.output.requires_grad_(False).fill_(1.0)


def _pooled(
    image_size: int | tuple[int, int],
    in_channels: int,
    channels: int,
    convolution: partial[Convolution],
    pool: int,
    hidden: int,
    slope: float,
    smoothing: float,
    extra_convolutions: int,
) -> InputConvexNetwork:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if any(n < pool or n % pool for n in size):
        raise ValueError(
            f"image_size {size} must be a multiple of the pooling size {pool}; "
            "choose pool=... accordingly, or networks.convolutional() for any size"
        )
    first, last = _activations(slope, smoothing)
    layers = [ConvexLayer(first, channels=channels, skip=convolution(in_channels, channels))]
    for _ in range(extra_convolutions):
        widen = convolution(channels, channels, nonnegative=True)
        layers.append(ConvexLayer(first, channels=channels, previous=widen))
    features = channels * (size[0] // pool) * (size[1] // pool)
    dense = Chain(AveragePool(pool), Dense(features, hidden, nonnegative=True))
    layers.append(ConvexLayer(last, channels=hidden, previous=dense))
    return InputConvexNetwork(layers, in_channels=in_channels, image_size=size)


def _mix(
    layers: list[ConvexLayer],
    depth: int,
    channels: int,
    kernel: int,
    smoothing: float,
    padding: Boundary,
    *,
    biases: bool,
) -> None:
    """Append nonnegative convolutions and (smoothed) ReLUs, up to ``depth`` layers."""
    h: Activation = ReLU() if smoothing == 0.0 else SmoothedReLU(smoothing=smoothing)
    while len(layers) < depth:
        mix = Convolution(layers[-1].outputs, channels, kernel, padding=padding, nonnegative=True)
        layers.append(ConvexLayer(h, channels=channels, previous=mix, bias=biases))


def _activations(slope: float, smoothing: float) -> tuple[Activation, Activation]:
    if smoothing == 0.0:
        return LeakyReLU(slope), ReLU()
    return SmoothedLeakyReLU(slope, smoothing), SmoothedReLU(smoothing=smoothing)
