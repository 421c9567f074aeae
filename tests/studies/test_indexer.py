"""The indexer's study: the task, what each loss may train, and what the three stages bring."""

import pytest
import torch

from course_utils import reference
from course_utils.studies import indexer as study
from course_utils.studies.indexer import FACTS, LENGTH, NAMES, QUESTIONS, VALUES, WITNESSES, Recall


def batch(size=3):
    return study.make_batch(size, torch.Generator().manual_seed(0))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name for name, value in model.named_parameters() if value.grad is not None and value.grad.any()}


def test_half_of_a_names_witnesses_say_the_right_value_and_the_others_all_different_ones():
    data = batch()
    assert data.names.shape == data.values.shape == (3, LENGTH) and (data.values[:, FACTS:] == VALUES).all()
    for names, values, answers in zip(*data, strict=True):
        right = dict(zip(names[FACTS:].tolist(), answers.tolist(), strict=True))
        for name in range(NAMES):
            said = values[:FACTS][names[:FACTS] == name].bincount(minlength=VALUES)
            assert sorted(said.tolist(), reverse=True)[:2] == [WITNESSES // 2, 1] and said.sum() == WITNESSES
            assert right.get(name, said.argmax()) == said.argmax()


@pytest.mark.parametrize("way", study.WAYS)
def test_each_way_chooses_k_visible_keys(way):
    x = Recall().tensors(batch())
    kept = study.choose(x, 9, way)
    assert (kept.sum(dim=-1) == 9).all() and not (kept & ~study.visible()).any()
    if way == "window":
        assert all(kept[0, row, FACTS + row - 8 : FACTS + row + 1].all() for row in range(QUESTIONS))


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match=r"way is 'best'.*oracle"):
        study.choose(Recall().tensors(batch()), 9, "best")


def test_attention_and_scores_are_those_of_the_operators():
    x = Recall().tensors(batch(1))
    expected, _ = reference.mla_attention(x.query[0], x.latent[0], scale=study.SCALE, value_dim=study.LATENT)
    assert torch.allclose((study.attention(x)[0] @ x.latent[0]).double(), expected, atol=1e-5)
    scores = reference.lightning_indexer(x.q_index[0], x.k_index[0], x.weights[0], q_start=FACTS)
    assert torch.allclose(study.index_scores(x)[0].double(), scores, atol=1e-5)


def test_the_kl_is_zero_at_its_target_and_blind_to_keys_that_are_hidden():
    target = study.mass(study.attention(Recall().tensors(batch())))
    assert study.kl_loss(target, target.log()).item() == pytest.approx(0, abs=1e-6)
    kept = torch.rand(target.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    kept[..., 0] = True
    target = target * kept / (target * kept).sum(dim=-1, keepdim=True)
    scores = torch.randn(target.shape, generator=torch.Generator().manual_seed(1)).masked_fill(~kept, -torch.inf)
    loss = study.kl_loss(target, scores)
    pairs = zip(target.flatten(0, 1), scores.flatten(0, 1), kept.flatten(0, 1), strict=True)
    each = [study.kl_loss(t[mask][None, None], s[mask][None, None]) for t, s, mask in pairs]
    assert loss.item() == pytest.approx(torch.stack(each).mean().item(), rel=1e-5) and loss.item() > 0.01


def test_attention_to_the_chosen_keys_is_that_of_a_mask_which_keeps_them():
    x = Recall().tensors(batch())
    weights, attended = study.attend(x, study.index_scores(x).topk(9, dim=-1).indices)
    expected = study.attention(x, study.choose(x, 9))
    assert torch.allclose(attended, torch.einsum("bsht,btd->bshd", expected, x.latent), atol=1e-6)
    chosen = study.index_scores(x).topk(9, dim=-1).indices.unsqueeze(-2).expand(weights.shape)
    assert torch.allclose(weights, expected.gather(-1, chosen), atol=1e-6)


def test_neither_loss_trains_what_belongs_to_the_other():
    model = Recall()
    x = model.tensors(batch())
    of_indexer = gradients(model, study.kl_loss(study.mass(study.attention(x)), study.index_scores(x)))
    attended = torch.einsum("bsht,btd->bshd", study.attention(model.tensors(batch())), x.latent)
    of_task = gradients(model, model.answer(batch(), attended).logsumexp(-1).sum())
    assert of_indexer and all(name.startswith("indexer") for name in of_indexer)
    assert of_task and not any(name.startswith("indexer") for name in of_task)


def test_dense_training_is_repeatable():
    first, second = Recall(), Recall()
    for model in (first, second):
        study.train_dense(model, steps=5)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert study.accuracy(first) < 0.98


def test_the_facts_that_agree_are_half_of_a_names_witnesses():
    agreeing = study.agreeing(batch())
    assert (agreeing.sum(dim=-1) == WITNESSES // 2).all() and not agreeing[..., FACTS:].any()
