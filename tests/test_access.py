"""Roles, addresses, TLS and rates: who gets in, and what is refused before anything listens."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from served import serving
from starlette.exceptions import HTTPException

from kvready.advisor.service import rate
from kvready.advisor.service.access import Access, Role, check_bind
from kvready.advisor.service.rate import RateLimit
from kvready.advisor.service.tls import tls_options
from kvready.advisor.settings import ADMIN_VARIABLE, OPERATOR_VARIABLE, ApiSettings
from kvready.collectors.errors import SettingsError

TOKENS = {role: f"{role}-token-0123456789" for role in Role}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Role, Path]:
    for variable in (OPERATOR_VARIABLE, ADMIN_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    made = {}
    for role, token in TOKENS.items():
        made[role] = tmp_path / role
        made[role].write_text(token)
        made[role].chmod(0o600)
    return made


def settings(files: dict[Role, Path], **more: object) -> ApiSettings:
    return ApiSettings(
        token_file=files[Role.READER],
        operator_token_file=files[Role.OPERATOR],
        admin_token_file=files[Role.ADMIN],
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("given", Role)
@pytest.mark.parametrize("least", [Role.OPERATOR, Role.ADMIN])
def test_a_role_may_what_lesser_ones_may(files: dict[Role, Path], given: Role, least: Role) -> None:
    access = Access(settings(files))
    if given.includes(least):
        assert access.check_change(f"Bearer {TOKENS[given]}", least) is given
        return
    with pytest.raises(HTTPException) as refused:
        access.check_change(f"Bearer {TOKENS[given]}", least)
    assert refused.value.status_code == 403


def test_variables_serve_as_files_do_and_one_token_is_of_one_role(
    files: dict[Role, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADMIN_VARIABLE, "from-the-environment")
    access = Access(ApiSettings())
    assert access.check_change("bearer from-the-environment", Role.ADMIN) is Role.ADMIN
    monkeypatch.setenv(OPERATOR_VARIABLE, "from-the-environment")
    with pytest.raises(SettingsError, match="two roles"):
        Access(ApiSettings())
    monkeypatch.setenv(OPERATOR_VARIABLE, "short")
    with pytest.raises(SettingsError, match=OPERATOR_VARIABLE):
        Access(ApiSettings())


def test_beyond_loopback_nothing_listens_without_a_token(
    files: dict[Role, Path], kvready, short_dir: Path
) -> None:  # type: ignore[no-untyped-def]
    check_bind(ApiSettings(host="127.0.0.1"))
    check_bind(settings(files, host="0.0.0.0"))
    check_bind(ApiSettings(host="0.0.0.0", operator_token_file=files[Role.OPERATOR]))
    with pytest.raises(SettingsError, match="no token is set"):
        check_bind(ApiSettings(host="0.0.0.0"))
    ended = kvready("serve", "--kv-events", f"ipc://{short_dir}/e", "--host", "0.0.0.0")
    assert ended.returncode == 2
    assert "--token-file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bucket_fills_as_time_passes_and_peers_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    limit = RateLimit(2.0, 3, clock=lambda: now[0])
    assert [limit.wait_seconds("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert limit.wait_seconds("b") == 0.0, "another peer has its own"
    now[0] = 0.5
    assert limit.wait_seconds("a") == 0.0
    assert limit.wait_seconds("a") == 0.5
    now[0] = -5.0
    assert limit.wait_seconds("a") == 0.5, "a clock that went back gives nothing"
    now[0] = 1_000.0
    assert [limit.wait_seconds("a") for _ in range(4)][:3] == [0.0] * 3
    assert limit.refused == 4
    monkeypatch.setattr(rate, "MAX_PEERS", 10)
    for number in range(100):
        limit.wait_seconds(str(number))
    assert len(limit._buckets) == 10


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a server and a client that it signed."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca",
            "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
                f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-out", f"{name}.pem", "-copy_extensions", "copy")  # fmt: skip
    return folder


def test_tls_that_cannot_be_is_refused_before_anything_listens(
    certificates: Path, tmp_path: Path
) -> None:
    assert tls_options(ApiSettings()) == {}
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    server, key = certificates / "server.pem", certificates / "server.key"
    for given, named in (
        ({"tls_key_file": key}, "tls_certificate_file"),
        ({"tls_client_ca_file": server}, "tls_certificate_file"),
        ({"tls_certificate_file": wrong, "tls_key_file": key}, "tls_certificate_file"),
        ({"tls_certificate_file": server, "tls_key_file": tmp_path / "none"}, "tls_key_file"),
        ({"tls_certificate_file": server, "tls_key_file": certificates / "client.key"}, "tls_key"),
        (
            {"tls_certificate_file": server, "tls_key_file": key, "tls_client_ca_file": wrong},
            "tls_client_ca_file",
        ),
    ):
        with pytest.raises(SettingsError, match=named):
            tls_options(ApiSettings(**given))  # type: ignore[arg-type]


def test_over_mutual_tls_only_who_shows_a_certificate_is_answered(
    certificates: Path, short_dir: Path, free_port: int
) -> None:
    from kvready.advisor.hooks.flag_client import FlagClient, Heard

    command = ["serve", "--kv-events", f"ipc://{short_dir}/none", "--state-dir", short_dir / "s"]
    for name, file in (
        ("certificate", "server.pem"),
        ("key", "server.key"),
        ("client-ca", "ca.pem"),
    ):
        command += [f"--tls-{name}-file", certificates / file]
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    bare = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    with serving(*command, port=free_port, tls=context) as served:
        assert served.get("/v1/policies").status_code == 200
        with pytest.raises(httpx.TransportError), httpx.Client(verify=bare) as stranger:
            stranger.get(served.url + "/livez")
        client = FlagClient(served.url, "hook", tls=context)
        assert client.ask() is Heard.ANSWERED, client.problem
        client.stop()
        strange = FlagClient(served.url, "hook", tls=bare)
        assert strange.ask() is Heard.NOTHING
        strange.stop()
