"""Block formats of llama.cpp, turned back into float32.

A block holds a fixed number of weights as small integers with a scale, and sometimes
an offset: `w = d * q + m`. The k-formats group eight or sixteen such blocks under one
half-precision scale. Rows are whole numbers of blocks.
"""

from collections.abc import Callable

import numpy as np


def _halves(blocks: np.ndarray, start: int) -> np.ndarray:
    """One half-precision number per block, as a float32 column."""
    return blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low nibbles of all bytes, then high nibbles."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _fifth_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    """Bit 4 of each of 32 weights, from four bytes."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=-1, bitorder="little")
    return bits << 4


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    q = _nibbles(blocks[:, 2:]).astype(np.int8) - 8
    return _halves(blocks, 0) * q.astype(np.float32)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    q = _nibbles(blocks[:, 4:]).astype(np.float32)
    return _halves(blocks, 0) * q + _halves(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    q = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).astype(np.int8) - 16
    return _halves(blocks, 0) * q.astype(np.float32)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _halves(blocks, 0) * q.astype(np.float32) + _halves(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    q = blocks[:, 2:].view(np.int8).astype(np.float32)
    return _halves(blocks, 0) * q


def _six_bit_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima of six bits each, from twelve bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = (first & 63, (third & 15) | (first >> 6 << 4))
    minima = (second & 63, (third >> 4) | (second >> 6 << 4))
    return np.concatenate(scales, axis=-1), np.concatenate(minima, axis=-1)


def _k_affine(blocks: np.ndarray, q: np.ndarray) -> np.ndarray:
    # q: [blocks, 8, 32]; one scale and one minimum for each 32 weights.
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    scale = _halves(blocks, 0) * scales.astype(np.float32)
    minimum = _halves(blocks, 2) * minima.astype(np.float32)
    out = scale[..., None] * q.astype(np.float32) - minimum[..., None]
    return out.reshape(len(blocks), 256)


def _k_nibbles(packed: np.ndarray) -> np.ndarray:
    # Each 32 bytes hold two sub-blocks: 32 low nibbles, then 32 high ones.
    return _nibbles(packed.reshape(len(packed), 4, 32)).reshape(len(packed), 8, 32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _k_affine(blocks, _k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    # Bit s of byte i is the fifth bit of weight i of sub-block s.
    high = blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8)[None, None] & 1
    return _k_affine(blocks, _k_nibbles(blocks[:, 48:]) | high.swapaxes(1, 2) << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    count = len(blocks)
    # Two halves of 128 weights; in each, four runs of 32 share 64 + 32 bytes.
    low = _nibbles(blocks[:, :128].reshape(count, 2, 64)).reshape(count, 2, 4, 32)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32)
    shift = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    q = (low | (high >> shift & 3) << 4).astype(np.int8) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    scale = _halves(blocks, 208) * scales
    out = scale[..., None] * q.reshape(count, 16, 16).astype(np.float32)
    return out.reshape(count, 256)


# Format: bytes of a block, weights in a block, decoder.
FORMATS: dict[str, tuple[int, int, Callable[[np.ndarray], np.ndarray]]] = {
    "Q4_0": (18, 32, _q4_0),
    "Q4_1": (20, 32, _q4_1),
    "Q5_0": (22, 32, _q5_0),
    "Q5_1": (24, 32, _q5_1),
    "Q8_0": (34, 32, _q8_0),
    "Q4_K": (144, 256, _q4_k),
    "Q5_K": (176, 256, _q5_k),
    "Q6_K": (210, 256, _q6_k),
}
PLAIN = ("F32", "F16", "BF16")


def dequantize(data: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Decodes the bytes of one tensor.

    Args:
      data: the tensor's bytes, of any shape and type.
      kind: the format's name in llama.cpp.
      shape: the tensor's shape, slowest axis first.

    Raises:
      ValueError: the format is not one of those decoded here.
    """
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    if kind == "F32":
        return raw.view(np.float32).reshape(shape)
    if kind == "F16":
        return raw.view(np.float16).astype(np.float32).reshape(shape)
    if kind == "BF16":
        # The upper half of a float32.
        wide = raw.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    if kind not in FORMATS:
        raise ValueError(
            f"tensor format {kind} is not decoded; supported are "
            f"{', '.join((*PLAIN, *FORMATS))}"
        )
    size, _, decode = FORMATS[kind]
    return decode(raw.reshape(-1, size)).reshape(shape)
