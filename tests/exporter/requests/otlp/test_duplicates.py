"""Spans of a gateway and a server that describe the same request."""

from wattline_exporter.requests.otlp.duplicates import SpanTree

GATEWAY, HTTP, SERVER, OTHER = 1, 2, 3, 4


def receive(tree, links, requests):
    """Return the spans that count, of a body with these parents and spans of requests."""
    tree.add(links)
    counted = set(requests) - tree.redundant(requests)
    tree.count(counted)
    return counted


def test_innermost_span_of_a_body_counts():
    links = [(SERVER, HTTP), (HTTP, GATEWAY)]

    assert receive(SpanTree(), links, [GATEWAY, SERVER]) == {SERVER}


def test_gateway_after_server_is_redundant():
    tree = SpanTree()

    assert receive(tree, [(SERVER, GATEWAY)], [SERVER]) == {SERVER}
    assert receive(tree, [], [GATEWAY]) == set()


def test_server_after_gateway_is_redundant():
    tree = SpanTree()

    assert receive(tree, [(HTTP, GATEWAY)], [GATEWAY]) == {GATEWAY}
    assert receive(tree, [(SERVER, HTTP)], [SERVER]) == set()


def test_requests_of_one_agent_all_count():
    agent = 9

    assert receive(SpanTree(), [(SERVER, agent), (OTHER, agent)], [SERVER, OTHER]) == {
        SERVER,
        OTHER,
    }


def test_span_that_is_sent_again_is_redundant():
    tree = SpanTree()
    receive(tree, [], [SERVER])

    assert receive(tree, [], [SERVER, OTHER]) == {OTHER}


def test_cycle_of_parents_ends():
    assert receive(SpanTree(), [(1, 2), (2, 1)], [OTHER]) == {OTHER}


def test_requests_in_or_below_a_cycle_of_parents_all_count():
    links = [(GATEWAY, SERVER), (SERVER, GATEWAY), (OTHER, SERVER), (HTTP, HTTP)]

    assert receive(SpanTree(), links, [GATEWAY, SERVER, OTHER, HTTP]) == {
        GATEWAY,
        SERVER,
        OTHER,
        HTTP,
    }


def test_memory_is_bounded():
    tree = SpanTree(max_spans=10)

    for span in range(1, 1_000):
        receive(tree, [(span, span + 100_000)], [span])

    assert 10 <= len(tree._parents) <= 12
    assert all(10 <= len(kept) <= 20 for kept in (tree._counted, tree._above))
    assert receive(tree, [], range(990, 1_000)) == set()
    assert receive(tree, [], [970]) == {970}
