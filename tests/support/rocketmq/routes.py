"""Waits for a topic's route."""

from __future__ import annotations

import time

from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.route import Route


def await_route(client: RocketmqClient, topic: str, seconds: float = 120) -> Route:
    """The route of an existing topic. A broker registers its topics a moment after its start."""
    deadline = time.monotonic() + seconds
    while True:
        route = client.find_route(topic)
        if route is not None and route.readable:
            return route
        assert time.monotonic() < deadline, f"the name server does not hear of {topic}"
        time.sleep(0.1)
