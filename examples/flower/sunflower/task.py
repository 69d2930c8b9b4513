"""The model, its data and its training: a small network in numpy."""

import numpy as np

FEATURES, HIDDEN, CLASSES = 16, 32, 4


def new_model(seed=0):
    """Arrays by name, as a state dict has them."""
    rng = np.random.default_rng(seed)
    return {
        "hidden.weight": rng.normal(0, FEATURES**-0.5, (FEATURES, HIDDEN)).astype(np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "out.weight": rng.normal(0, HIDDEN**-0.5, (HIDDEN, CLASSES)).astype(np.float32),
        "out.bias": np.zeros(CLASSES, np.float32),
    }


def load_data(partition, partitions, samples=2000):
    """One site's points of four clusters, more of some than of others; the last
    fifth is for evaluation."""
    centers = np.random.default_rng(7).normal(0, 1, (CLASSES, FEATURES))
    rng = np.random.default_rng([partition, partitions])
    labels = rng.choice(CLASSES, samples, p=rng.dirichlet([2.0] * CLASSES))
    points = (centers[labels] + rng.normal(0, 0.8, (samples, FEATURES))).astype(np.float32)
    held_out = samples // 5
    return (points[:-held_out], labels[:-held_out]), (points[-held_out:], labels[-held_out:])


def forward(model, x):
    hidden = np.maximum(x @ model["hidden.weight"] + model["hidden.bias"], 0)
    scores = hidden @ model["out.weight"] + model["out.bias"]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, scores / scores.sum(1, keepdims=True)


def train(model, momentum, data, epochs, batch_size, learning_rate, rng):
    """SGD with momentum, in place; the mean loss."""
    points, labels = data
    losses = []
    for _ in range(epochs):
        order = rng.permutation(len(points))
        for at in range(0, len(order), batch_size):
            x, y = points[order[at : at + batch_size]], labels[order[at : at + batch_size]]
            hidden, p = forward(model, x)
            losses.append(-np.log(p[np.arange(len(y)), y] + 1e-9).mean())
            p[np.arange(len(y)), y] -= 1
            p /= len(y)
            back = (p @ model["out.weight"].T) * (hidden > 0)
            gradient = {"out.weight": hidden.T @ p, "out.bias": p.sum(0), "hidden.weight": x.T @ back, "hidden.bias": back.sum(0)}
            for name, g in gradient.items():
                momentum[name] = 0.9 * momentum[name] + g
                model[name] -= (learning_rate * momentum[name]).astype(np.float32)
    return float(np.mean(losses))


def test(model, data):
    """Mean loss and accuracy."""
    points, labels = data
    _, p = forward(model, points)
    return float(-np.log(p[np.arange(len(labels)), labels] + 1e-9).mean()), float((p.argmax(1) == labels).mean())
