#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The prefill of the C++ job's preset `tiny`, computed again in float64 with NumPy from the same seed.

Usage: tp_reference.py DUMP TOKENS SEQUENCE STEP: compares the hidden states that tp-job wrote with --dump after step number
STEP (from 0, unmeasured steps included). 77 without NumPy.
"""

import sys

try:
    import numpy as np
except ImportError:
    print("SKIPPED (python3 has no NumPy)")
    sys.exit(77)

HIDDEN, HEADS, KV_HEADS, DIM, INTERMEDIATE, LAYERS, BASE, SEED = 256, 8, 4, 32, 512, 2, 1e4, 1
QUERY, KEY, VALUE, OUT, GATE, UP, DOWN, ATTENTION_NORM, MLP_NORM, QK_NORM, _, _, MATRICES = range(13)
TOLERANCE = 0.04  # of what the blocks add to the input: bf16 rounding gives about 0.01, leaving attention out about 0.5


def mix(x):
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xFF51AFD7ED558CCD)
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def normal(seed, count):
    index = np.arange(count, dtype=np.uint64)
    start = mix(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    bits = mix(start ^ (index * np.uint64(0xD1342543DE82EF95) + np.uint64(1)))
    first = ((bits >> np.uint64(40)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-24)
    second = (bits & np.uint64(0xFFFFFFFF)).astype(np.float32) * np.float32(2.0**-32)
    return np.sqrt(np.float32(-2) * np.log(first)) * np.cos(np.float32(6.2831853) * second)


def bf16(values):
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def weights(layer, matrix, rows, columns, deviation, mean=0.0):
    seed = SEED * 1000003 + (layer + 1) * MATRICES + matrix
    values = np.float32(mean) + np.float32(deviation) * normal(seed, rows * columns)
    return bf16(values).reshape(rows, columns)


def rms_norm(values, weight):
    return values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-6) * weight


def rotate(values):  # [sequence][heads][DIM]
    angles = np.arange(values.shape[0])[:, None] * BASE ** (-np.arange(DIM // 2) / (DIM // 2))[None, :]
    sine, cosine = np.sin(angles)[:, None, :], np.cos(angles)[:, None, :]
    low, high = values[..., : DIM // 2], values[..., DIM // 2 :]
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)


def attention(layer, hidden):  # [sequence][HIDDEN]
    length = hidden.shape[0]
    inner = 1 / np.sqrt(HIDDEN)
    query = (hidden @ weights(layer, QUERY, HEADS * DIM, HIDDEN, inner).T).reshape(length, HEADS, DIM)
    key = (hidden @ weights(layer, KEY, KV_HEADS * DIM, HIDDEN, inner).T).reshape(length, KV_HEADS, DIM)
    value = (hidden @ weights(layer, VALUE, KV_HEADS * DIM, HIDDEN, inner).T).reshape(length, KV_HEADS, DIM)
    norms = weights(layer, QK_NORM, 1, 2 * DIM, 0.05, 1.0)[0]
    query, key = rotate(rms_norm(query, norms[:DIM])), rotate(rms_norm(key, norms[DIM:]))
    key, value = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (key, value))
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(DIM)
    scores = np.where(np.tri(length, dtype=bool)[None], scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", scores, value).reshape(length, HEADS * DIM)
    return attended @ weights(layer, OUT, HIDDEN, HEADS * DIM, 1 / np.sqrt(HEADS * DIM * 2 * LAYERS)).T


def mlp(layer, hidden):
    inner = 1 / np.sqrt(HIDDEN)
    gate = hidden @ weights(layer, GATE, INTERMEDIATE, HIDDEN, inner).T
    up = hidden @ weights(layer, UP, INTERMEDIATE, HIDDEN, inner).T
    return (gate / (1 + np.exp(-gate)) * up) @ weights(
        layer, DOWN, HIDDEN, INTERMEDIATE, 1 / np.sqrt(INTERMEDIATE * 2 * LAYERS)
    ).T


def main():
    dump, tokens, sequence, step = sys.argv[1], *map(int, sys.argv[2:5])
    step_seed = int(mix(np.array([SEED ^ (step + 1)], np.uint64))[0])
    given = bf16(normal(step_seed, tokens * HIDDEN)).reshape(tokens // sequence, sequence, HIDDEN)
    added = []
    for hidden in given:
        state = hidden.copy()
        for layer in range(LAYERS):
            state += attention(layer, rms_norm(state, weights(layer, ATTENTION_NORM, 1, HIDDEN, 0.05, 1.0)))
            state += mlp(layer, rms_norm(state, weights(layer, MLP_NORM, 1, HIDDEN, 0.05, 1.0)))
        added.append(state - hidden)
    added = np.stack(added)
    raw = np.fromfile(dump, np.uint16).astype(np.uint32) << np.uint32(16)
    got = raw.view(np.float32).astype(np.float64).reshape(given.shape) - given
    error = np.linalg.norm(got - added) / np.linalg.norm(added)
    print(f"against the reference in float64: relative error {error:.4f} of what the blocks add")
    sys.exit(0 if error < TOLERANCE else 1)


if __name__ == "__main__":
    main()
