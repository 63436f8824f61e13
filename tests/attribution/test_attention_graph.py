"""Rollout and flow of attention against brute force."""

import numpy as np
import pytest

from kbert.attribution import attention_flow, attention_rollout

RNG = np.random.default_rng(0)
SCALE = 10**8


def with_residual(attention):
    return 0.5 * attention + 0.5 * np.eye(attention.shape[-1])


def brute_force_flow(attention, read):
    """Maximum flows on integers by SciPy, over all nodes and edges at once."""
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    layers, tokens, _ = attention.shape
    nodes = (layers + 1) * tokens
    capacity = np.zeros((nodes + 1, nodes + 1), np.int32)
    for layer, matrix in enumerate(with_residual(attention)):
        above, below = (slice(n * tokens, (n + 1) * tokens) for n in (layer + 1, layer))
        capacity[above, below] = np.round(matrix * SCALE)
    capacity[nodes, layers * tokens : nodes] = np.round(read * SCALE)
    from scipy.sparse import csr_matrix

    graph = csr_matrix(capacity)
    flows = [csgraph.maximum_flow(graph, nodes, token).flow_value for token in range(tokens)]
    return np.array(flows) / SCALE


@pytest.mark.parametrize("read", ["first", "mean"])
@pytest.mark.parametrize(("layers", "tokens"), [(1, 3), (2, 4), (3, 6), (4, 9)])
def test_flow_equals_brute_force(layers, tokens, read):
    attention = RNG.dirichlet(np.full(tokens, 0.3), (layers, tokens))
    weights = np.eye(tokens)[0] if read == "first" else np.full(tokens, 1 / tokens)
    expected = brute_force_flow(attention, weights)
    np.testing.assert_allclose(attention_flow(attention, weights), expected, atol=1e-7)


def test_flow_goes_back_along_an_edge():
    """The widest path first takes an edge that the maximum flow does not use fully."""
    attention = np.array([[[0, 0, 1], [1, 0, 0], [0.5, 0.5, 0]]] * 3, float)
    weights = np.array([0.2, 0.5, 0.3])
    expected = brute_force_flow(attention, weights)
    np.testing.assert_allclose(attention_flow(attention, weights), expected, atol=1e-7)


def test_rollout_is_the_product_of_layers():
    attention = RNG.dirichlet(np.ones(4), (3, 4))
    product = np.linalg.multi_dot(with_residual(attention)[::-1])
    for token in range(4):
        found = attention_rollout(attention, np.eye(4)[token])
        np.testing.assert_allclose(found, product[token], atol=1e-12)
        assert found.sum() == pytest.approx(1)
