"""xxh3-64 of many byte strings that lie in one buffer, without a Python object each.

The algorithm is Yann Collet's (xxHash 0.8, seed 0), written after its specification and tested against the package
`xxhash` on every length; that package takes one object a call, which costs ten times the hash of a short text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlewheel.data.compiled import compile_loop

U = np.uint64
SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)
PRIME32 = (U(0x9E3779B1), U(0x85EBCA77), U(0xC2B2AE3D))
PRIME64 = (
    U(0x9E3779B185EBCA87),
    U(0xC2B2AE3D27D4EB4F),
    U(0x165667B19E3779F9),
    U(0x85EBCA77C2B2AE63),
    U(0x27D4EB2F165667C5),
)
LOW = U(0xFFFFFFFF)
STRIPE, STRIPES_A_BLOCK = 64, 16


@compile_loop
def _read32(data: Any, at: int) -> Any:
    return U(data[at]) | U(data[at + 1]) << U(8) | U(data[at + 2]) << U(16) | U(data[at + 3]) << U(24)


@compile_loop
def _read64(data: Any, at: int) -> Any:
    return _read32(data, at) | _read32(data, at + 4) << U(32)


@compile_loop
def _fold(left: Any, right: Any) -> Any:
    """The product of two 64-bit numbers, its upper half xored with its lower."""
    low = (left & LOW) * (right & LOW)
    first = (left >> U(32)) * (right & LOW)
    second = (left & LOW) * (right >> U(32))
    cross = (low >> U(32)) + (first & LOW) + second
    upper = (first >> U(32)) + (cross >> U(32)) + (left >> U(32)) * (right >> U(32))
    return upper ^ (left * right)


@compile_loop
def _swap(value: Any) -> Any:
    value = (value & U(0x00FF00FF00FF00FF)) << U(8) | (value >> U(8)) & U(0x00FF00FF00FF00FF)
    value = (value & U(0x0000FFFF0000FFFF)) << U(16) | (value >> U(16)) & U(0x0000FFFF0000FFFF)
    return value << U(32) | value >> U(32)


@compile_loop
def _turn(value: Any, bits: int) -> Any:
    return value << U(bits) | value >> U(64 - bits)


@compile_loop
def _avalanche(value: Any) -> Any:
    value = (value ^ value >> U(37)) * U(0x165667919E3779F9)
    return value ^ value >> U(32)


@compile_loop
def _avalanche_64(value: Any) -> Any:
    value = (value ^ value >> U(33)) * PRIME64[1]
    value = (value ^ value >> U(29)) * PRIME64[2]
    return value ^ value >> U(32)


@compile_loop
def _mix(data: Any, at: int, key: int) -> Any:
    """16 bytes of the data with 16 of the secret."""
    return _fold(_read64(data, at) ^ _read64(SECRET, key), _read64(data, at + 8) ^ _read64(SECRET, key + 8))


@compile_loop
def _hash_to_16(data: Any, start: int, length: int) -> Any:
    if length > 8:
        low = _read64(data, start) ^ _read64(SECRET, 24) ^ _read64(SECRET, 32)
        high = _read64(data, start + length - 8) ^ _read64(SECRET, 40) ^ _read64(SECRET, 48)
        return _avalanche(U(length) + _swap(low) + high + _fold(low, high))
    if length > 3:
        both = _read32(data, start + length - 4) + (_read32(data, start) << U(32))
        keyed = both ^ _read64(SECRET, 8) ^ _read64(SECRET, 16)
        keyed = (keyed ^ _turn(keyed, 49) ^ _turn(keyed, 24)) * U(0x9FB21C651E98DF25)
        keyed = (keyed ^ (keyed >> U(35)) + U(length)) * U(0x9FB21C651E98DF25)
        return keyed ^ keyed >> U(28)
    if length > 0:
        first, middle, last = U(data[start]), U(data[start + (length >> 1)]), U(data[start + length - 1])
        whole = first << U(16) | middle << U(24) | last | U(length) << U(8)
        return _avalanche_64(whole ^ _read32(SECRET, 0) ^ _read32(SECRET, 4))
    return _avalanche_64(_read64(SECRET, 56) ^ _read64(SECRET, 64))


@compile_loop
def _hash_to_240(data: Any, start: int, length: int) -> Any:
    total = U(length) * PRIME64[0]
    end = start + length
    if length <= 128:
        for pair in range((length - 1) // 32, -1, -1):
            total += _mix(data, start + 16 * pair, 32 * pair) + _mix(data, end - 16 * (pair + 1), 32 * pair + 16)
        return _avalanche(total)
    for part in range(8):
        total += _mix(data, start + 16 * part, 16 * part)
    total = _avalanche(total)
    for part in range(8, length // 16):
        total += _mix(data, start + 16 * part, 16 * (part - 8) + 3)
    return _avalanche(total + _mix(data, end - 16, 136 - 17))


@compile_loop
def _add_stripe(sums: Any, data: Any, at: int, key: int) -> None:
    for lane in range(8):
        value = _read64(data, at + 8 * lane)
        keyed = value ^ _read64(SECRET, key + 8 * lane)
        sums[lane ^ 1] += value
        sums[lane] += (keyed & LOW) * (keyed >> U(32))


@compile_loop
def _hash_long(data: Any, start: int, length: int) -> Any:
    sums = np.empty(8, np.uint64)
    sums[0], sums[1], sums[2], sums[3] = PRIME32[2], PRIME64[0], PRIME64[1], PRIME64[2]
    sums[4], sums[5], sums[6], sums[7] = PRIME64[3], PRIME32[1], PRIME64[4], PRIME32[0]
    stripes = (length - 1) // STRIPE
    for stripe in range(stripes):
        place = stripe % STRIPES_A_BLOCK
        _add_stripe(sums, data, start + STRIPE * stripe, 8 * place)
        if place == STRIPES_A_BLOCK - 1:
            for lane in range(8):
                value = sums[lane]
                sums[lane] = (value ^ value >> U(47) ^ _read64(SECRET, 128 + 8 * lane)) * PRIME32[0]
    _add_stripe(sums, data, start + length - STRIPE, 192 - STRIPE - 7)
    total = U(length) * PRIME64[0]
    for pair in range(4):
        key = 11 + 16 * pair
        total += _fold(sums[2 * pair] ^ _read64(SECRET, key), sums[2 * pair + 1] ^ _read64(SECRET, key + 8))
    return _avalanche(total)


@compile_loop
def hash_span(data: Any, start: int, end: int) -> Any:
    """xxh3-64 of data[start:end], uint8[…]."""
    length = end - start
    if length <= 16:
        return _hash_to_16(data, start, length)
    return _hash_to_240(data, start, length) if length <= 240 else _hash_long(data, start, length)


@compile_loop
def hash_spans(data: Any, offsets: Any) -> Any:
    """xxh3-64 of each data[offsets[i]:offsets[i + 1]]: uint64[N] of uint8[…] and int64[N + 1]."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for index in range(len(hashes)):
        hashes[index] = hash_span(data, offsets[index], offsets[index + 1])
    return hashes
