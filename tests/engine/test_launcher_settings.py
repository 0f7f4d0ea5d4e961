"""What the launcher tells an engine of tiers and movers, and how it switches them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine import GIB, Engine, EngineError


def connector_settings(engine: Engine) -> dict[str, Any]:
    command = engine.command()
    transfer = json.loads(command[command.index("--kv-transfer-config") + 1])
    found: dict[str, Any] = transfer["kv_connector_extra_config"]
    return found


def test_the_tiers_and_movers_asked_for_are_configured(short_dir: Path) -> None:
    plain = connector_settings(Engine(Path("python"), Path("model"), short_dir))
    assert (plain["spec_name"], plain["mover"]) == ("HostTierSpec", "dma_per_page")
    assert plain.keys().isdisjoint({"mover_file", "disk_bytes", "fetch_observer"})
    three = connector_settings(
        Engine(
            Path("python"),
            Path("model"),
            short_dir,
            disk_bytes=GIB,
            disk_folder=short_dir,
            mover="gather",
        )
    )
    assert (three["spec_name"], three["mover"]) == ("DiskTierSpec", "gather")
    assert (three["disk_bytes"], three["disk_folder"]) == (GIB, str(short_dir))
    assert three["fetch_observer"] == "kvready.collectors.engine.fetches:observer"


def test_a_mover_can_be_switched_where_that_was_asked_for(short_dir: Path) -> None:
    engine = Engine(Path("python"), Path("model"), short_dir, can_switch_mover=True)
    file = Path(connector_settings(engine)["mover_file"])
    assert file.read_text() == "dma_per_page"
    engine.use_mover("gather")
    assert file.read_text() == "gather"
    assert [path.name for path in short_dir.iterdir()] == ["mover"]
    fixed = Engine(Path("python"), Path("model"), short_dir)
    with pytest.raises(EngineError, match="can_switch_mover"):
        fixed.use_mover("gather")
