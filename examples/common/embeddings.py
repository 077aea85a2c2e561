"""Token vectors from co-occurrence alone: a start for embeddings where labelled documents are few."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.utils.extmath import randomized_svd


def latent_semantic_vectors(
    documents: list[NDArray[np.int64]], vocab_size: int, size: int, window: int = 64
) -> NDArray[np.float32]:
    """Latent semantic analysis: tokens that occur in the same windows get like vectors.

    Args:
        documents: token ids `[tokens]` of each document.
        vocab_size: rows of the result.
        size: channels.
        window: tokens of one window; windows do not overlap.

    Returns:
        `[vocab_size, size]`, rows of length 1, or 0 for tokens that do not occur.
    """
    windows = [ids[start : start + window] for ids in documents for start in range(0, len(ids), window)]
    columns = np.concatenate(windows)
    rows = np.repeat(np.arange(len(windows)), [len(ids) for ids in windows])
    counts = csr_matrix((np.ones(len(columns), dtype=np.float32), (rows, columns)), shape=(len(windows), vocab_size))
    counts.data = 1 + np.log(counts.data)
    frequency = np.asarray((counts > 0).sum(0)).ravel()
    weighted = counts.multiply(np.log(len(windows) / np.maximum(frequency, 1)))
    _, _, vectors = randomized_svd(weighted.tocsr(), n_components=size, random_state=0)
    lengths = np.linalg.norm(vectors.T, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors.T / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
