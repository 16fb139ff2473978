"""The table of a layout as it is printed."""

from mindbatch.checkpoint.placement.placements import LayoutRow, layout_rows
from mindbatch.checkpoint.placement.regions import Placement, single_segment, whole_placements
from mindbatch.tasks.plan.ranks import layout_page


def cut_rows(name: str) -> Placement:
    shards = [single_segment((2, 3), ((low, low + 2), (0, 3))) for low in (0, 2)]
    return Placement(name, (4, 3), (*shards, None, None))


def rows(*placements: Placement) -> list[LayoutRow]:
    found = {placement.name: placement for placement in placements}
    return layout_rows(found, dict.fromkeys(found, 4))


def test_layers_that_are_cut_alike_share_a_line() -> None:
    whole = Placement("norm.weight", (1000,), (single_segment((1000,), ((0, 1000),)),) * 4)
    page = layout_page(
        rows(*(cut_rows(f"h.{layer}.w") for layer in (0, 1, 2, 5)), whole, cut_rows("h.1.x.2.w"))
    )
    assert page.splitlines() == [
        "tensor        shape   cut               ranks  shape on a rank  bytes on a rank  bytes in all",
        "h.[0-2, 5].w  [4, 3]  dimension 0 in 2  0-1    [2, 3]                        24           192",
        "norm.weight   [1000]  whole, 4 times    0-3    [1000]                     4,000        16,000",
        "h.1.x.2.w     [4, 3]  dimension 0 in 2  0-1    [2, 3]                        24            48",
        "",
        "ranks  tensors  bytes on a rank",
        "0-1          6            4,120",
        "2-3          1            4,000",
        "",
        "6 tensors of 4,240 bytes; 16,240 bytes on 4 ranks",
    ]


def test_layers_of_several_stages_share_a_line() -> None:
    first = cut_rows("h.0.w")
    placements = (first, Placement("h.1.w", first.shape, first.shards[::-1]), cut_rows("t"))
    lines = layout_page(rows(*placements)).splitlines()
    assert lines[1].split("  ")[0] == "h.[0-1].w"
    assert lines[1].split()[7:] == ["0-3,", "by", "stage", "[2,", "3]", "24", "96"]
    assert lines[2].split()[7:] == ["0-1", "[2,", "3]", "24", "48"]
    assert [line.split() for line in lines[5:7]] == [["0-1", "2", "48"], ["2-3", "1", "24"]]


def test_a_tensor_that_is_cut_unevenly_has_a_line_for_each_shape() -> None:
    shards = single_segment((1,), ((0, 1),)), single_segment((2,), ((1, 3),))
    lines = layout_page(rows(Placement("w", (3,), shards))).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["w", "[3]", "unevenly", "0", "[1]", "4", "4"],
        ["w", "[3]", "unevenly", "1", "[2]", "8", "8"],
    ]


def test_names_cannot_act_on_the_terminal() -> None:
    page = layout_page(layout_rows(whole_placements({"w\x1b[2J": (1,)}), {"w\x1b[2J": 4}))
    assert "\x1b" not in page
    assert page.endswith("1 tensors of 4 bytes; 4 bytes on 1 rank")


def test_no_tensors() -> None:
    assert layout_page([]) == "no tensors"
