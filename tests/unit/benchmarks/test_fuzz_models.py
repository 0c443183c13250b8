"""A short run of the file fuzz: benchmarks/fuzz_models.py has the long one, under sanitizers."""

from pathlib import Path

import pytest
from benchmarks.fuzz_files import make_bases, places, spoil
from benchmarks.fuzz_models import find_bases, try_file

from kokuban.weights.gguf import GgufFile


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("bases")
    made = make_bases(directory)
    assert sorted(made) == sorted(find_bases(directory))
    return made


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Sums of what is no number.
def test_spoiled_files_are_refused_with_an_error_of_ours_or_run(
    bases: list[Path], tmp_path: Path
) -> None:
    outcomes = [try_file(seed, bases, tmp_path) for seed in range(60)]

    assert [each for each in outcomes if each.is_fault] == []
    assert {each.ended for each in outcomes} >= {"runs", "ModelError"}


def test_every_field_of_a_header_is_found_up_to_its_end(bases: list[Path]) -> None:
    file = bases[0]
    found, end = places(file.read_bytes())

    header = GgufFile(file)
    assert end + -end % 32 == header.data_offset
    assert len([place for place in found if place.what == "key"]) == len(header.metadata)
    assert len([place for place in found if place.what == "offset"]) == len(header.tensors)


def test_a_seed_always_makes_the_same_file(bases: list[Path], tmp_path: Path) -> None:
    kind, path = spoil(8, bases, tmp_path)
    first = path.read_bytes()

    assert spoil(8, bases, tmp_path) == (kind, path)
    assert path.read_bytes() == first
