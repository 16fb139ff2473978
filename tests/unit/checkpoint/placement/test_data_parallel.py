"""Copies of a cut model, and which rank has which."""

from drawn_models import llama_specs

from mindbatch.checkpoint.placement.placements import placements, with_replicas


def test_neighbours_are_slices_of_one_copy_and_stages_come_one_after_another() -> None:
    found = placements(llama_specs(vocabulary=12), 2, 2)
    copies = with_replicas(found, 2, 3)
    embedding, head = copies["model.embed_tokens.weight"], copies["lm_head.weight"]
    assert [rank[0].whole[0] for rank in embedding.ranks[:6]] == [(0, 6), (6, 12)] * 3
    assert embedding.holders == (0, 1, 2, 3, 4, 5)
    assert head.holders == (6, 7, 8, 9, 10, 11)
    assert head.shards[6] == head.shards[8] != head.shards[7]
    assert embedding.shape == (12, 6)


def test_one_copy_is_the_model() -> None:
    found = placements(llama_specs(), 2, 2)
    assert with_replicas(found, 2, 1) == found
