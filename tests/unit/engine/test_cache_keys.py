import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tools.tiny_configs import variant_config

from kokuban.core.errors import ConfigError
from kokuban.engine import cache_keys
from kokuban.engine.cache_keys import SECRET_NAME, load_secret, make_key_space
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.prefix import KeySpace
from kokuban.models.registry import build_program


def make_space(directory: Path, **changes: object) -> KeySpace:
    program = build_program(variant_config("llama"))
    layout = KvLayout(block_size=16, num_kv_heads=2, head_dim=16, layers_per_group=1, dtype="bf16")
    facts: dict[str, object] = {
        "directory": directory,
        "model_digest": "00ff" * 8,
        "program": program,
        "layout": layout,
        "isa": "avx2",
        "quantize": "none",
        "max_context_tokens": 100,
    }
    return make_key_space(**{**facts, **changes})  # type: ignore[arg-type]


def test_the_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "cache"

    secret = load_secret(directory)

    assert len(secret) == 32
    assert load_secret(directory) == secret
    path = directory / SECRET_NAME
    assert path.read_bytes() == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(directory.iterdir()) == [path]
    assert load_secret(tmp_path) != secret


def test_of_two_processes_that_make_the_secret_the_first_one_wins(tmp_path: Path) -> None:
    path = tmp_path / SECRET_NAME
    path.write_bytes(b"f" * 32)
    path.chmod(0o600)

    cache_keys._create(path)

    assert load_secret(tmp_path) == b"f" * 32
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_that_was_cut_off_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / SECRET_NAME).write_bytes(b"abc")

    with pytest.raises(ConfigError, match=r"has 3 bytes, not 32; delete it"):
        load_secret(tmp_path)


def test_without_a_place_for_it_the_secret_lives_as_long_as_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")

    first, second = load_secret(tmp_path / "file"), load_secret(tmp_path / "file")

    assert len(first) == 32
    assert first != second
    assert "one that ends with this process is used" in caplog.text


def test_a_secret_that_others_can_read_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = load_secret(tmp_path)
    (tmp_path / SECRET_NAME).chmod(0o644)

    assert load_secret(tmp_path) == secret
    assert "can be read by others" in caplog.text


def test_keys_are_the_same_after_a_restart(tmp_path: Path) -> None:
    assert make_space(tmp_path).root() == make_space(tmp_path).root()


def test_whatever_changes_the_numbers_changes_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = make_space(tmp_path)
    layout = KvLayout(block_size=16, num_kv_heads=2, head_dim=16, layers_per_group=1, dtype="fp16")
    config = variant_config("llama")
    other_rope = build_program(replace(config, rope=replace(config.rope, theta=123.0)))
    roots = {
        space.root()
        for space in (
            same,
            make_space(tmp_path, model_digest="11ff" * 8),
            make_space(tmp_path, isa="avx512"),
            make_space(tmp_path, quantize="int8"),
            make_space(tmp_path, layout=layout),
            make_space(tmp_path, program=other_rope),
        )
    }
    monkeypatch.setattr(cache_keys, "PACKING_VERSION", 999)
    roots.add(make_space(tmp_path).root())
    monkeypatch.undo()
    monkeypatch.setattr(cache_keys, "__version__", "other")
    roots.add(make_space(tmp_path).root())

    assert len(roots) == 8
    assert make_space(tmp_path / "elsewhere").root() not in roots
