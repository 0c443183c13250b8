"""Keys of the command line and of the file: scopes, tenants, and a file that changes."""

import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest
from tests.server.asgi import client_of, make_app
from tests.server.fakes import served

from kokuban.core.errors import ConfigError
from kokuban.server.app import create_app
from kokuban.server.key_file import parse_keys
from kokuban.server.keys import CHECK_EVERY_S, KeyRing
from kokuban.server.scopes import KeyScope
from kokuban.server.settings import ServerSettings

ALICE, BOB, CAROL = "alice-secret", "bob-secret", "carol-secret"
TEXT = f"""
[keys.alice]
key = "{ALICE}"

[keys.bob]
sha256 = "{sha256(BOB.encode()).hexdigest()}"
scopes = ["admin", "metrics"]
tenant = "team"
requests_per_minute = 60
max_concurrent = 2
"""
BODY = {"model": "m", "prompt": "p", "max_tokens": 1}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def test_a_file_gives_names_scopes_tenants_and_limits(file: Path) -> None:
    ring = KeyRing(file=str(file))

    alice, bob = ring.find(ALICE), ring.find(BOB)

    assert alice is not None
    assert bob is not None
    assert (alice.name, alice.tenant, alice.scopes) == ("alice", "name-alice", {KeyScope.INFER})
    assert (alice.requests_per_minute, alice.max_concurrent) == (None, None)
    assert (bob.tenant, bob.scopes) == ("name-team", {KeyScope.ADMIN, KeyScope.METRICS})
    assert (bob.requests_per_minute, bob.max_concurrent) == (60, 2)
    assert ring.find("carol-secret") is None
    assert ring.find("") is None


def test_a_file_of_lines_has_keys_that_may_infer() -> None:
    entries = parse_keys(f"# ours\n{ALICE}\n\n  {BOB}\r\n", "keys.txt")

    assert [entry.scopes for entry in entries] == [{KeyScope.INFER}] * 2
    assert [entry.digest for entry in entries] == [
        sha256(key.encode()).digest() for key in (ALICE, BOB)
    ]
    assert entries[0].tenant != entries[1].tenant


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("k.toml", "", "tables"),
        ("k.toml", "x = 1", "tables"),
        ("k.toml", "[keys]", "has 0 keys"),
        ("k.toml", "[keys.a", "no TOML"),
        ("k.toml", "[keys]\na = 1", "is no table"),
        ("k.toml", "[keys.a]", "one of key and sha256"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nsha256 = 'x'", "one of key and sha256"),
        ("k.toml", "[keys.a]\nsha256 = 'x'", "64 hex digits"),
        ("k.toml", "[keys.a]\nkey = 5", "printable ASCII"),
        ("k.toml", "[keys.a]\nkey = 'short'", "8 at least"),
        ("k.toml", "[keys.a]\nkey = 'schlüssel'", "printable ASCII"),
        ("k.toml", "[keys.'a b']\nkey = 'secret12'", "a name has"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nscope = 'x'", "'scope'"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nscopes = 'admin'", "scopes is a list"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nscopes = []", "scopes is a list"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nscopes = ['public']", "scopes is a list"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nscopes = [['admin']]", "scopes is a list"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\ntenant = ''", "tenant"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nmax_concurrent = -1", "max_concurrent"),
        ("k.toml", "[keys.a]\nkey = 'secret12'\nmax_concurrent = true", "max_concurrent"),
        ("k.txt", "# nothing\n", "has 0 keys"),
        ("k.txt", "secret12\nshort", "line 2"),
        ("k.txt", "\n".join(f"secret-{i}" for i in range(1025)), "has 1025 keys"),
    ],
)
def test_a_file_that_says_something_odd_says_what(name: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_keys(text, name)

    assert "secret12" not in str(caught.value)


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "max_concurrent"])
def test_a_limit_is_of_a_tenant_and_said_once(limit: str) -> None:
    """Else each key would change what the other has left, or have no limit at all."""
    two = f"[keys.a]\nkey = 'secret12'\n{limit} = 5\n[keys.b]\nkey = 'secret34'\ntenant = 'a'\n"

    entries = parse_keys(two, "k.toml")
    with pytest.raises(ConfigError, match=rf"keys\.b.*{limit} is 0, and 5 for \[keys\.a\]"):
        parse_keys(f"{two}{limit} = 0\n", "k.toml")

    assert [getattr(entry, limit) for entry in entries] == [5, 5]


def test_a_key_is_one_tenants_only(file: Path) -> None:
    with pytest.raises(ConfigError, match="occurs twice"):
        KeyRing(api_keys=[ALICE], file=str(file))


def test_no_file_is_an_error_at_the_start_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing(file=str(tmp_path / "none"))


async def test_keys_change_without_a_restart(file: Path) -> None:
    clock = Clock()
    app = create_app(served(), ServerSettings(api_key_file=str(file)), clock)

    async def status(key: str) -> int:
        clock.now_s += CHECK_EVERY_S
        async with client_of(app) as http:
            headers = {"authorization": f"Bearer {key}"}
            return (await http.post("/v1/completions", json=BODY, headers=headers)).status_code

    assert [await status(key) for key in (ALICE, CAROL)] == [200, 401]

    file.write_text(f"[keys.carol]\nkey = '{CAROL}'\n")

    assert [await status(key) for key in (ALICE, CAROL)] == [401, 200]


def test_a_file_that_breaks_leaves_the_keys_and_is_told_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    ring = KeyRing(file=str(file), clock=clock)

    def find() -> bool:
        clock.now_s += CHECK_EVERY_S
        return ring.find(ALICE) is not None

    file.write_text("[keys.alice")
    assert [find(), find()] == [True, True]
    file.unlink()
    assert [find(), find()] == [True, True]
    file.write_bytes(b"\xff\xfe")
    assert [find(), find()] == [True, True]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines] == ["the API keys stay as they were"] * 3

    file.write_text(TEXT.replace(ALICE, CAROL))
    file.chmod(0o600)

    assert not find()
    assert ring.find(CAROL) is not None


def test_the_file_is_looked_at_once_a_second_at_most(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    ring = KeyRing(file=str(file), clock=clock)
    looks = []
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: looks.append(path) or look(path))

    for _ in range(100):
        clock.now_s += CHECK_EVERY_S / 50
        ring.find(ALICE)

    assert len(looks) == 2


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o620, 1)])
def test_a_file_that_others_can_read_is_warned_of(
    file: Path, mode: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)

    KeyRing(file=str(file))

    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warned


ROUTES = {
    "/v1/models": KeyScope.INFER,
    "/metrics": KeyScope.METRICS,
    "/stats": KeyScope.METRICS,
    "/v1/kv_events?since=x": KeyScope.ADMIN,
    "/version": KeyScope.ANY,
    "/openapi.json": KeyScope.ANY,
}


@pytest.mark.parametrize("scope", [KeyScope.INFER, KeyScope.METRICS, KeyScope.ADMIN])
async def test_a_key_opens_what_its_scopes_say_and_nothing_else(
    scope: KeyScope, tmp_path: Path
) -> None:
    """B94: 403 with a key that may not, which is no 401."""
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys.one]\nkey = '{ALICE}'\nscopes = ['{scope}']\n")
    path.chmod(0o600)
    app = make_app(served(), api_key_file=str(path))
    async with client_of(app, headers={"x-api-key": ALICE}) as http:
        for route, wanted in ROUTES.items():
            response = await http.get(route)
            refused = response.status_code == 403
            assert refused == (wanted not in (scope, KeyScope.ANY)), route
            if refused:
                assert response.json()["error"]["type"] == "permission_error"
                assert f'scope="{wanted}"' in response.headers["www-authenticate"]


async def test_a_key_of_the_command_line_may_infer_and_read_metrics_an_admin_key_all() -> None:
    app = make_app(served(), api_keys=("api",), admin_keys=("admin",))
    found = {}
    for key in ("api", "admin"):
        async with client_of(app, headers={"x-api-key": key}) as http:
            found[key] = [(await http.get(route)).status_code for route in ROUTES]

    # 400: the route was reached, and there is no event log in this engine.
    assert found == {
        "api": [200, 200, 200, 403, 200, 200],
        "admin": [200, 200, 200, 400, 200, 200],
    }


async def test_the_log_has_a_tenants_name_and_nothing_made_of_a_key(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    app = make_app(served(), api_keys=(CAROL,), api_key_file=str(file))
    async with client_of(app) as http:
        for key in (ALICE, CAROL):
            await http.post("/v1/completions", json=BODY, headers={"x-api-key": key})

    facts = [r.__dict__["facts"] for r in caplog.records if r.name == "kokuban.server.record"]
    assert [each.get("kokuban.tenant") for each in facts] == ["alice", None]
    assert "key-" not in str(facts)


async def test_a_key_is_never_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """B94"""
    caplog.set_level(logging.DEBUG)
    app = make_app(served(), api_keys=(ALICE,))
    async with client_of(app) as http:
        for key in (ALICE, BOB):
            for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
                await http.post("/v1/completions", json=BODY, headers={name: value})
                await http.get(f"/nothing?key={key}", headers={name: value})

    own = [r.getMessage() for r in caplog.records if r.name.startswith("kokuban")]
    assert own
    assert not [line for line in own if ALICE in line or BOB in line]
