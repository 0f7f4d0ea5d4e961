"""`/metrics` as a page: whatever families there are, in the format that the scraper asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder


class MetricsPage:
    """Renders what `take` returns. Nothing is kept between scrapes."""

    def __init__(self, take: Callable[[], Iterator[Family]]) -> None:
        self._take = take
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> Iterator[Family]:
        """Nothing: the names come from a catalogue, whose uniqueness a test checks."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """All families of one moment."""
        return self._take()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, as the scraper's Accept header asks."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type
