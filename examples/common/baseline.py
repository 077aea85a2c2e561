"""TF-IDF with logistic regression: the baseline of every README, and the teacher of the review models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline

from common.text import Document, Task, target_matrix


def pipeline(strength: float = 10.0) -> Pipeline:
    """Uni- and bigrams that occur at least twice, sublinear counts, L2-regularised logistic regression."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    return make_pipeline(vectorizer, LogisticRegression(C=strength, max_iter=1000, solver="liblinear"))


def out_of_fold(texts: list[str], labels: NDArray[np.int64], folds: int = 5) -> NDArray[np.float32]:
    """Probability of label 1 for each text `[texts]`, from a baseline that was fitted without that text."""
    probabilities = np.zeros(len(texts), dtype=np.float32)
    array: NDArray[Any] = np.array(texts, dtype=object)
    for fit, hold in StratifiedKFold(folds, shuffle=True, random_state=0).split(array, labels):
        probabilities[hold] = pipeline().fit(array[fit], labels[fit]).predict_proba(array[hold])[:, 1]
    return probabilities


def baseline_scores(task: Task, documents: list[Document]) -> NDArray[np.float32]:
    """Scores `[documents, labels]` of baselines fitted on the whole training part, the held-out rows included."""
    fitted = [*task.train, *task.held_out]
    vectorizer = pipeline()[0]
    features = vectorizer.fit_transform(document.text for document in fitted)
    test_features = vectorizer.transform(document.text for document in documents)
    targets = target_matrix(fitted, len(task.labels))
    scores = np.zeros((len(documents), len(task.labels)), dtype=np.float32)
    for label in range(len(task.labels)):
        classifier = pipeline()[-1].fit(features, targets[:, label])
        scores[:, label] = classifier.decision_function(test_features)
    return scores
