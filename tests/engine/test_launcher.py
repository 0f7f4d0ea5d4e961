"""The launcher says why an engine did not start. (Restarts: see test_attached.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import Engine, EngineError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_an_engine_that_cannot_start_says_why(
    engine_python: Path, models: Path, run_folder: Path
) -> None:
    engine = Engine(
        engine_python, models / "check", run_folder, extra_arguments=("--no-such-flag", "1")
    )
    with pytest.raises(EngineError, match=r"ended with status(.|\n)*--no-such-flag"):
        engine.start()


def test_a_folder_with_a_long_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="choose a shorter run folder"):
        Engine(Path("python"), Path("model"), tmp_path / ("x" * 100))
