"""The enforcing scheduler of vLLM, to be named in `--scheduler-cls`. It observes, too.

While `KVREADY_HOOK_FLAGS` is unset or `off` nothing is asked and nothing is changed; what
`KVREADY_OBSERVER` says holds as for the observer alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from kvready.advisor.hooks.flag_client import FlagClient
from kvready.advisor.hooks.hook_settings import HookSettings, hook_settings
from kvready.advisor.hooks.vllm_hook import VllmHook
from kvready.collectors.engine.vllm_observer import ObservedScheduler
from kvready.collectors.errors import SettingsError

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class ArrangedScheduler(AsyncScheduler):  # type: ignore[misc]  # untyped here
    """vLLM's scheduler, whose queue a hook arranges for the time of a pass."""

    policy_hook: VllmHook | None = None

    def add_request(self, request: Request) -> None:
        if self.policy_hook is not None:
            self.policy_hook.arriving(request)
        super().add_request(request)

    def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
        hook = self.policy_hook
        if hook is None:
            return super().schedule(*arguments, **named)
        hook.before_pass()
        try:
            return super().schedule(*arguments, **named)
        finally:
            hook.after_pass()


class EnforcingScheduler(ObservedScheduler, ArrangedScheduler):
    """Observed from outside the arranging: records show the queue as users know it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        settings = hook_settings()
        super().__init__(*arguments, **named)
        self._flag_client: FlagClient | None = None
        if settings is not None:
            self._flag_client = client = _client(settings, self.parallel_config)
            self.policy_hook = VllmHook(
                self, vllm.__version__, lambda: client.held, settings.hold_seconds
            )
            client.start()

    def shutdown(self) -> None:
        super().shutdown()
        if self._flag_client is not None:
            self._flag_client.stop()


def _client(settings: HookSettings, parallel: Any) -> FlagClient:
    name = f"vllm-scheduler-{parallel.data_parallel_index}"
    try:
        return FlagClient(settings.flags_url, name, settings.scope, token=settings.token)
    except ValueError as error:
        raise SettingsError(f"the hook cannot ask for flags: {error}") from error
