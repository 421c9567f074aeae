"""What exercises draw their inputs with."""

import torch

from course_utils.grading.draws import attention_inputs, between, same_in_each_head


def of(seed):
    return torch.Generator().manual_seed(seed)


def test_a_number_is_drawn_from_the_first_to_the_last():
    generator = of(0)
    assert {between(generator, 3, 6) for _ in range(200)} == {3, 4, 5, 6}
    assert between(generator, 7, 7) == 7


def test_a_number_drawn_in_steps_does_not_pass_the_last():
    generator = of(0)
    assert {between(generator, 40, 57, 8) for _ in range(200)} == {40, 48, 56}


def test_a_seed_draws_what_torch_draws():
    """So inputs of a seed that stands in a submission's expected grade stay the same."""
    for seed in range(20):
        assert between(of(seed), 5, 900) == torch.randint(5, 901, (1,), generator=of(seed)).item()


def test_attention_inputs_are_those_of_their_seed_and_sizes():
    Q, K, V, dO = attention_inputs(5, 7, 9, head_dim=16, batch=2, heads=3)
    assert Q.shape == dO.shape == (2, 3, 7, 16) and K.shape == V.shape == (2, 3, 9, 16)
    assert torch.equal(Q, attention_inputs(5, 7, 9, head_dim=16, batch=2, heads=3)[0])
    assert not torch.equal(Q, attention_inputs(6, 7, 9, head_dim=16, batch=2, heads=3)[0])


def test_every_head_is_the_same_and_has_memory_of_its_own():
    made = same_in_each_head(of(1), 3, 5, 4)
    assert made.shape == (1, 3, 5, 4) and made.is_contiguous()
    assert torch.equal(made, made[:, :1].expand_as(made)) and made.std() > 0
