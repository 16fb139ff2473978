"""What a merge adds to rows: the bits of the whole product in any bands, of matrices that are checked."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from adapter_folders import CONFIG, write_adapter
from hypothesis import given, settings
from hypothesis import strategies as st

from goodness_of_fit import draws
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.lora import merge
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.merge import Edit, Merger
from mindbatch.checkpoint.lora.modules import TILE, StoredArray, tiles
from mindbatch.checkpoint.lora.plan import BaseTensors, LoraPlan, plan_merge
from mindbatch.checkpoint.placement.regions import Segment, StoredShard, full_region
from mindbatch.io.errors import CheckpointError
from reshard_adapters import product_of
from reshard_models import flip_a_bit

NAME = "model.big.weight"
OUTPUTS, INPUTS, RANK = TILE + 170, TILE * 2 + 30, 7

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def stored(*segments: tuple[str, Segment]) -> StoredShard:
    """A tensor of these regions; nothing asks for its shape."""
    return StoredShard.of(segments, ())


def no_base(name: str, inputs_first: bool) -> StoredArray:
    """Of adapters without norms nothing is read of the model."""
    raise AssertionError(name)


class Planned:
    """An adapter of one weight, and the whole of what it adds."""

    def __init__(self, folder: Path, inputs_first: bool, factor: float = 1.0) -> None:
        chance = np.random.default_rng(5)
        b = chance.normal(size=(OUTPUTS, RANK)).astype(np.float32) * np.float32(factor)
        tensors = {
            "base_model.model.model.big.lora_A.weight": chance.normal(size=(RANK, INPUTS)).astype(np.float32),
            "base_model.model.model.big.lora_B.weight": b,
        }
        config = {**CONFIG, "r": RANK, "target_modules": ["big"], "fan_in_fan_out": inputs_first}
        self.shape = (INPUTS, OUTPUTS) if inputs_first else (OUTPUTS, INPUTS)
        adapter = open_adapter(write_adapter(folder, tensors, config))
        self.plan: LoraPlan = plan_merge(adapter, BaseTensors({NAME: self.shape}), {NAME: ["F32"]}, no_base)
        self.whole: Callable[[], Matrix] = lambda: product_of(adapter, NAME, self.shape)

    def everything(self) -> tuple[Edit, ...]:
        """What is added to the whole weight."""
        whole = full_region(self.shape)
        return self.plan.edits(stored((NAME, Segment(whole, whole))))


@pytest.fixture(scope="module", params=[False, True], ids=["outputs first", "inputs first"])
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return Planned(tmp_path_factory.mktemp("adapter"), request.param)


@pytest.fixture
def merger() -> Iterator[Merger]:
    with OpenFiles() as files:
        yield Merger(files)


def added(merger: Merger, edits: tuple[Edit, ...], rows: int, columns: int, step: int) -> Matrix:
    """What is added to a tensor of zeros that is read in bands."""
    found = np.zeros((rows, columns), np.float32)
    for start in range(0, rows, step):
        merger.apply("x", edits, start, found[start : start + step])
    return found


@settings(max_examples=draws(15, thorough=500))
@given(data=st.data())
def test_bands_of_any_part_have_the_bits_of_the_whole(planned: Planned, data: st.DataObject) -> None:
    """The part is at some place of a larger tensor, upright or turned round."""
    bounds, places = [], []
    for size in planned.shape:
        start = data.draw(st.integers(0, size - 1))
        bounds.append((start, data.draw(st.integers(start + 1, size))))
        first = data.draw(st.integers(0, 5))
        places.append((first, first + bounds[-1][1] - start))
    transposed = data.draw(st.booleans())
    region, place = tuple(bounds), tuple(places[::-1] if transposed else places)
    edits = planned.plan.edits(stored((NAME, Segment(place, region, transposed=transposed))))
    rows, columns = (stop + 3 for _, stop in place)
    with OpenFiles() as files:
        found = added(Merger(files), edits, rows, columns, data.draw(st.integers(1, rows)))
    expected = np.zeros((rows, columns), np.float32)
    part = planned.whole()[tuple(slice(*each) for each in region)]
    expected[tuple(slice(*each) for each in place)] = part.T if transposed else part
    assert found.tobytes() == expected.tobytes()


def test_a_product_is_made_once(planned: Planned, merger: Merger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bands; also where the rows take turns with others, as the heads of a fused tensor do."""
    made: list[object] = []
    real = merge.product
    monkeypatch.setattr(merge, "product", lambda b, a, where, s: made.append(where) or real(b, a, where, s))
    rows, columns = planned.shape
    found = added(merger, planned.everything(), rows, columns, 100)
    assert found.tobytes() == planned.whole().tobytes()
    assert len(made) == len(set(made)) == -(-rows // TILE)
    made.clear()
    merger.forget()
    turns = [
        (NAME, Segment(((2 * start, 2 * start + 50), (0, columns)), ((start, start + 50), (0, columns))))
        for start in range(0, 600, 50)
    ]
    found = added(merger, planned.plan.edits(stored(*turns)), 1200, columns, 70)
    assert found.reshape(12, 2, 50, columns)[:, 0].tobytes() == planned.whole()[:600].tobytes()
    assert not found.reshape(12, 2, 50, columns)[:, 1].any()
    assert len(made) == 2


def test_other_weights_get_nothing(planned: Planned) -> None:
    whole = full_region(planned.shape)
    both = [(name, Segment(whole, whole)) for name in ("model.other.weight", NAME)]
    [edit] = planned.plan.edits(stored(*both))
    assert edit.region == whole


def test_a_matrix_that_has_changed_is_refused(tmp_path: Path, merger: Merger) -> None:
    planned = Planned(tmp_path, inputs_first=False)
    edits = planned.everything()
    flip_a_bit(tmp_path / "adapter_model.safetensors", "base_model.model.model.big.lora_B.weight")
    with pytest.raises(CheckpointError, match="adapter_model.safetensors: tensor .* has changed meanwhile"):
        merger.apply("x", edits, 0, np.zeros((1, INPUTS), np.float32))


@pytest.mark.parametrize("factor", [5e37, 1e35])
def test_what_is_too_large_for_float32_is_refused(tmp_path: Path, merger: Merger, factor: float) -> None:
    """Products, and sums; a weight that is infinite already stays so."""
    planned = Planned(tmp_path, inputs_first=False, factor=factor)
    edits = planned.everything()
    rows = np.full((3, INPUTS), np.finfo(np.float32).max, np.float32)
    message = (
        "their product has values" if factor == 5e37 else "'x': with the adapter values are too large for F32"
    )
    with pytest.raises(CheckpointError, match=message):
        merger.apply("x", edits, 0, rows)
    if factor == 1e35:
        infinite = np.full((3, INPUTS), np.inf, np.float32)
        merger.apply("x", edits, 0, infinite)
        assert (infinite == np.inf).all()


def test_tiles_begin_where_those_of_the_whole_begin() -> None:
    """Not every BLAS rounds alike at other places of a product."""
    assert list(tiles(TILE + 7, TILE * 2 + 1)) == [(TILE, TILE * 2), (TILE * 2, TILE * 3)]
    assert list(tiles(TILE, TILE + 1)) == [(TILE, TILE * 2)]
    assert list(tiles(0, TILE)) == [(0, TILE)]
