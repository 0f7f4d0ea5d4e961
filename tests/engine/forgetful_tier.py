"""A host tier whose loads move nothing: the comparison of outputs must notice it."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.kernels.engine.copy_thread import Copied
from kvready.kernels.engine.host_tier import HostTierSpec, HostTierWorker
from kvready.kernels.engine.pages import Page


class ForgetfulWorker(HostTierWorker):
    """Says that it loaded."""

    def _load(self, wanted: Sequence[Page]) -> Copied:
        return Copied(sum(page.page_bytes for page in wanted), len(wanted), "dma_per_page")


class ForgetfulTierSpec(HostTierSpec):
    """The spec to name in the engine's configuration."""

    worker_class = ForgetfulWorker
