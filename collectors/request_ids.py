"""One request's names on different surfaces, joined by prefix.

vLLM: a client's `X-Request-Id: a` answers as `cmpl-a`, is reported by spans and statistics as
`cmpl-a-0`, and is scheduled as `cmpl-a-0-b673a854`, the end being random.
"""

from __future__ import annotations

import re

SCHEDULER_SUFFIX = re.compile(r"-[0-9a-f]{8}\Z")


def completion_id(client_id: str, is_chat: bool) -> str:
    """What vLLM's reports call a request for one completion that its client calls so."""
    return f"chatcmpl-{client_id}" if is_chat else f"cmpl-{client_id}-0"


def reported_id(scheduler_id: str) -> str:
    """What a request's reports call it, given what the scheduler calls it."""
    return SCHEDULER_SUFFIX.sub("", scheduler_id)
