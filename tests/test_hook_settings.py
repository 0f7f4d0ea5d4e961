"""What a hook is told at its start, and in which engines it acts."""

from __future__ import annotations

import pytest

from kvready.advisor.hooks.compatibility import (
    ANY_OTHER,
    COMPATIBILITY,
    SCHEDULER_HOOK,
    VLLM,
    Support,
    compatibility_page,
    support,
)
from kvready.advisor.hooks.hook_settings import HOLD_SECONDS, HookSettings, hook_settings
from kvready.advisor.policies import Policy, Scope
from kvready.collectors.errors import SettingsError


@pytest.mark.parametrize("url", [{}, {"KVREADY_HOOK_FLAGS": ""}, {"KVREADY_HOOK_FLAGS": "off"}])
def test_it_is_off_unless_it_is_told_where_flags_are(url: dict[str, str]) -> None:
    assert hook_settings({**url, "KVREADY_HOOK_HOLD_SECONDS": "bad"}) is None


def test_variables_name_the_subject_and_the_bound() -> None:
    told = {"KVREADY_HOOK_FLAGS": "http://127.0.0.1:1"}
    assert hook_settings(told) == HookSettings(flags_url="http://127.0.0.1:1")
    told |= {"KVREADY_HOOK_ENGINE": "a", "KVREADY_HOOK_POOL": "b", "KVREADY_HOOK_TOKEN": "t"}
    told["KVREADY_HOOK_HOLD_SECONDS"] = "2.5"
    found = hook_settings(told)
    assert found is not None
    assert found.scope == Scope(engine="a", pool="b")
    assert (found.token, found.hold_seconds) == ("t", 2.5)
    assert HOLD_SECONDS > 2.5


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "61", "soon"])
def test_a_bound_that_bounds_nothing_is_refused_with_the_fix(seconds: str) -> None:
    told = {"KVREADY_HOOK_FLAGS": "http://127.0.0.1:1", "KVREADY_HOOK_HOLD_SECONDS": seconds}
    with pytest.raises(SettingsError, match="at most 60"):
        hook_settings(told)


def test_each_version_has_one_row_for_each_policy_and_says_something() -> None:
    keys = [(row.engine, row.version, row.hook, row.policy) for row in COMPATIBILITY]
    assert len(set(keys)) == len(keys)
    versions = {(row.engine, row.version, row.hook) for row in COMPATIBILITY}
    assert len(keys) == len(versions) * len(Policy)
    assert all(row.says for row in COMPATIBILITY)
    assert all(f"| {row.version} |" in compatibility_page() for row in COMPATIBILITY)


def test_a_version_that_is_not_known_is_refused_whatever_it_looks_like() -> None:
    for version in ("0.33.0", "0.3", "0.320.1", "", "1"):
        row = support(VLLM, version, SCHEDULER_HOOK, Policy.DEDUP)
        assert (row.version, row.support) == (ANY_OTHER, Support.REFUSES)
    row = support(VLLM, "0.32.5.dev1+g12", SCHEDULER_HOOK, Policy.DEDUP)
    assert row.support is Support.WORKS
