"""Where a server listens: TCP, TLS, a Unix socket; and what is told before a model is loaded."""

import os
import shutil
import socket
import ssl
import stat
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.server.fakes import served
from tests.server.live import live

from kokuban.core.errors import ConfigError
from kokuban.server.listen import bind, check_files, load_certificates, url_of
from kokuban.server.run import Certificates
from kokuban.server.settings import ServerSettings


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    return make_pair(tmp_path_factory.mktemp("tls"), "one")


def make_pair(directory: Path, name: str) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate, key = str(directory / f"{name}.pem"), str(directory / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,"
         "IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_a_server_speaks_tls_and_nothing_else(pair: tuple[str, str]) -> None:
    certificate, key = pair
    with live(served(), ssl_certfile=certificate, ssl_keyfile=key) as url:
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=certificate)
        with httpx.Client(verify=trusting) as http:
            answer = http.get(f"{url}/health")
            whole = http.post(
                f"{url}/v1/completions", json={"model": "m", "prompt": "p", "max_tokens": 2}
            )
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http") + "/health")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        assert TLS_1_1_IS_REFUSED(old, url)

    assert (answer.status_code, whole.status_code) == (200, 200)


def test_who_does_not_finish_the_handshake_is_let_go(pair: tuple[str, str]) -> None:
    certificate, key = pair
    with live(served(), ssl_certfile=certificate, ssl_keyfile=key, header_timeout_s=0.2) as url:
        host, port = url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as silent:
            assert silent.recv(1) == b""


def TLS_1_1_IS_REFUSED(context: ssl.SSLContext, url: str) -> bool:
    """Whether a client that knows no newer version than 1.1 gets nowhere."""
    host, port = url.removeprefix("https://").rsplit(":", 1)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    try:
        with socket.create_connection((host, int(port)), 5) as sock, context.wrap_socket(sock):
            return False
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize(("cert", "key"), [("none", "good"), ("good", "none"), ("bad", "good")])
def test_files_that_are_no_certificate_are_told_before_anything_is_loaded(
    pair: tuple[str, str], tmp_path: Path, cert: str, key: str
) -> None:
    bad = tmp_path / "bad"
    bad.write_text("nothing")
    names = {"none": str(tmp_path / "none"), "bad": str(bad)}
    settings = ServerSettings(
        ssl_certfile=names.get(cert, pair[0]), ssl_keyfile=names.get(key, pair[1])
    )

    with pytest.raises(ConfigError, match="cannot be used"):
        check_files(settings)


def test_a_certificate_of_another_key_is_told(pair: tuple[str, str], tmp_path: Path) -> None:
    other = make_pair(tmp_path, "two")

    with pytest.raises(ConfigError, match="cannot be used"):
        check_files(ServerSettings(ssl_certfile=pair[0], ssl_keyfile=other[1]))


def subject(context: ssl.SSLContext, pair: tuple[str, str]) -> str:
    """The name in the certificate that a server with this context shows."""
    ours, theirs = socket.socketpair()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with ours, theirs:
        import threading

        server = threading.Thread(
            target=lambda: context.wrap_socket(theirs, server_side=True).close()
        )
        server.start()
        with client.wrap_socket(ours) as tls:
            shown = tls.getpeercert(binary_form=True)
        server.join(5)
    assert shown is not None
    pem = ssl.DER_cert_to_PEM_cert(shown)
    return "one" if pem.strip() == Path(pair[0]).read_text().strip() else "two"


def test_a_renewed_certificate_counts_and_a_broken_one_does_not(
    pair: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = (tmp_path / "cert.pem", tmp_path / "key.pem")
    for source, target in zip(pair, one, strict=True):
        shutil.copy(source, target)
    settings = ServerSettings(ssl_certfile=str(one[0]), ssl_keyfile=str(one[1]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, settings)
    watched = Certificates(settings)

    watched.refresh(context)
    assert subject(context, pair) == "one"

    one[0].write_text("broken")
    watched.refresh(context)
    watched.refresh(context)
    assert subject(context, pair) == "one"
    assert [r.getMessage()[:32] for r in caplog.records] == ["the certificates stay as they we"]

    for source, target in zip(make_pair(tmp_path, "two"), one, strict=True):
        shutil.copy(source, target)
    watched.refresh(context)
    assert subject(context, pair) == "two"


def test_a_unix_socket_is_for_its_owner_and_needs_no_key(tmp_path: Path) -> None:
    path = str(tmp_path / "kokuban.sock")
    with live(served(), uds=path) as url:
        assert url == f"unix:{path}"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=path)) as http:
            answer = http.post(
                "http://localhost/v1/completions",
                json={"model": "m", "prompt": "p", "max_tokens": 1},
            )
        with pytest.raises(ConfigError, match="choose another --uds"):
            bind(ServerSettings(uds=path))

    assert answer.status_code == 200


def test_a_socket_that_nobody_listens_on_any_more_is_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "old.sock")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(path)

    with bind(ServerSettings(uds=path)) as sock:
        assert url_of(sock) == f"unix:{path}"


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")

    with pytest.raises(ConfigError, match="cannot listen on the socket"):
        bind(ServerSettings(uds=str(path)))

    assert path.read_text() == "data"
