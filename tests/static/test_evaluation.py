"""Clones for tests: what ``model.eval()`` computes, of models that nobody here wrote."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from fleetx import static
from fleetx.static import ProgramError
from tests.libraries import timm, torchvision, transformers


def tensors(found: Any) -> list[Tensor]:
    """What a model returned, in order."""
    if hasattr(found, "to_tuple"):
        found = found.to_tuple()
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]


def trained_and_tested(
    model: nn.Module, batch: Tensor, *, last: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The first output of the clone for tests after a step of training, and eager's."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, *batch.shape[1:]], batch.dtype)
        found = tensors(model(x))
        loss = sum((part.float() ** 2).mean() for part in found)
        assert isinstance(loss, Tensor)
        if last:
            static.Optimizer(torch.optim.SGD, lr=0.01).minimize(loss)
        test = main.clone(for_test=True)
        if not last:
            static.Optimizer(torch.optim.SGD, lr=0.01).minimize(loss)
    exe = static.Executor(static.CPUPlace())
    exe.run(startup)
    exe.run(main, {"x": batch}, [loss])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    (ours,) = exe.run(test, {"x": batch}, [found[0]])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training
    with torch.no_grad():
        theirs = tensors(model.eval()(batch))[0]
    return ours, theirs.numpy()


def pictures(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def efficientnet() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    blocks = [MBConvConfig(4, 3, 2, 8, 8, 1, 1, 1), MBConvConfig(4, 3, 1, 8, 8, 2, 1, 1)]
    return EfficientNet(blocks, dropout=0.2, stochastic_depth_prob=0.8, num_classes=5)


def swin() -> nn.Module:
    return torchvision.models.SwinTransformer(
        [4, 4], 16, [2], [2], [4, 4], stochastic_depth_prob=0.8, num_classes=5
    )


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 2)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.8, num_classes=5)


def timm_vit() -> nn.Module:
    return timm.models.VisionTransformer(
        32, 8, embed_dim=16, depth=3, num_heads=2, num_classes=5, drop_path_rate=0.8, drop_rate=0.3
    )


def poolformer() -> nn.Module:
    from timm.models.metaformer import MetaFormer, Pooling

    return MetaFormer(
        depths=(1, 2), dims=(8, 8), token_mixers=Pooling, drop_path_rate=0.8, num_classes=5
    )


def nf_regnet() -> nn.Module:
    from timm.models.nfnet import NfCfg, NormFreeNet

    config = NfCfg(
        depths=(1, 2), channels=(8, 8), stem_type="3x3", group_size=4, stem_chs=8, num_features=16
    )
    return NormFreeNet(config, num_classes=5, drop_path_rate=0.8)


def segformer() -> nn.Module:
    return transformers.SegformerForImageClassification(
        transformers.SegformerConfig(
            num_encoder_blocks=2,
            hidden_sizes=[8, 8],
            depths=[1, 2],
            num_attention_heads=[1, 2],
            patch_sizes=[7, 3],
            strides=[4, 2],
            mlp_ratios=[2, 2],
            sr_ratios=[2, 1],
            drop_path_rate=0.8,
        )
    )


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (efficientnet, 16),
        (swin, 32),
        (convnext, 32),
        (timm_vit, 32),
        (poolformer, 32),
        (nf_regnet, 32),
        (segformer, 32),
    ],
)
def test_models_that_skip_paths_at_random_do_not_in_tests(
    build: Callable[[], nn.Module], size: int
) -> None:
    torch.manual_seed(0)
    ours, theirs = trained_and_tested(build(), pictures(size))
    assert np.array_equal(ours, theirs)


def test_words_through_bert() -> None:
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.5,
        attention_probs_dropout_prob=0.5,
    )
    torch.manual_seed(0)
    words = torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(0))
    ours, theirs = trained_and_tested(transformers.BertModel(config), words, last=True)
    assert np.array_equal(ours, theirs)


class Heads(NamedTuple):
    main: Tensor
    aux: Tensor


class WithAuxiliaryHead(nn.Module):
    """As GoogLeNet and Inception: a second head that there is in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.main, self.aux = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Heads | Tensor:
        x = self.body(x)
        if not self.training:
            return self.main(x)
        return Heads(main=self.main(F.dropout(x)), aux=self.aux(x))


ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def run(test: static.Program, *fetches: Any) -> list[np.ndarray]:
    return static.Executor(static.CPUPlace()).run(test, {"x": ROWS}, list(fetches))


def eager(model: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(ROWS).numpy()


def test_what_only_training_computes_is_refused_where_it_is_fetched() -> None:
    model = WithAuxiliaryHead()
    x = static.data("x", [None, 4])
    found = model(x)
    accuracy = (found.main.argmax(1) == 0).float().mean()
    loss = found.main.mean() + found.aux.mean()
    loss.name = "loss"
    main = static.default_main_program()
    test = main.clone(for_test=True)
    ours, right = run(test, found.main, accuracy)
    theirs = eager(model)
    assert np.array_equal(ours, theirs)
    assert right == (theirs.argmax(1) == 0).astype(np.float32).mean()
    assert np.array_equal(run(test, "withauxiliaryhead_0")[0], theirs)
    for fetch in (loss, "loss", found.aux, found.aux.name):
        with pytest.raises(ProgramError, match=r"test_evaluation.py:\d+: .*self\.training"):
            run(test, fetch)


class Noisy(nn.Module):
    """Everything that training does by itself: noise, a statistic, a counter of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.factor, self.calls = nn.Linear(4, 4), 2.0, 0
        self.register_buffer("mean", torch.zeros(4))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.fc(x) * self.factor
        if isinstance(hidden, static.Variable):
            hidden.name = "hidden"
        if self.training:
            self.mean.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
            hidden = hidden + torch.rand_like(hidden)
        return hidden - self.mean


def test_a_clone_writes_no_statistics_and_leaves_the_model_alone() -> None:
    model = Noisy()
    out = model(static.data("x", [None, 4]))
    main = static.default_main_program()
    model.factor = 3.0  # after the call, so it is no part of it
    test = main.clone(for_test=True)
    assert (model.calls, model.factor, model.training) == (1, 3.0, True)
    run(main, out)
    mean = model.mean.clone()
    assert mean.any()
    model.factor = 2.0
    theirs = eager(model)
    for fetch in (out, out.name, "noisy_0"):
        assert np.array_equal(run(test, fetch)[0], theirs)
    assert np.array_equal(run(test, "hidden")[0] - mean.numpy(), theirs)
    assert torch.equal(model.mean, mean)


def test_a_model_may_have_moved_since_it_was_recorded() -> None:
    model = Noisy()
    out = model(static.data("x", [None, 4]))
    model._buffers["mean"] = model.mean + 1  # as a run on a GPU does: other tensors, same names
    test = static.default_main_program().clone(for_test=True)
    assert model.mean.all()
    assert np.array_equal(run(test, out)[0], eager(model))


def test_clones_of_clones_and_of_pruned_programs_are_in_evaluation_mode_too() -> None:
    model = Noisy()
    x = static.data("x", [None, 4])
    out = model(x) * 2
    main = static.default_main_program()
    forms = [
        main.clone().clone(for_test=True),
        main.clone(for_test=True).clone(for_test=True),
        main.prune([x], [out]).clone(for_test=True),
        main.clone(for_test=True).prune(["x"], [out]),
        main.clone(for_test=True).clone(),
    ]
    theirs = eager(model) * 2
    for form in forms:
        assert np.array_equal(run(form, out)[0], theirs)
    middle = main.prune(["hidden"], [out]).clone(for_test=True)
    found = static.Executor(static.CPUPlace()).run(middle, {"hidden": ROWS}, [out])
    assert np.array_equal(found[0], ROWS.numpy() * 2)


def test_a_program_that_was_pruned_and_recorded_into_is_cloned_first() -> None:
    x = static.data("x", [None, 4])
    out = Noisy()(x)
    pruned = static.default_main_program().prune([x], [out])
    with static.program_guard(pruned):
        pruned.var("x").relu()
    with pytest.raises(ProgramError, match="clone it for tests first"):
        pruned.clone(for_test=True)


def test_what_is_saved_for_inference_is_in_evaluation_mode(tmp_path: Path) -> None:
    model = Noisy()
    out = model(static.data("x", [None, 4]))
    exe = static.Executor(static.CPUPlace())
    static.save_inference_model(exe, tmp_path, ["x"], [out])
    loaded, _, outputs = static.load_inference_model(tmp_path, exe)
    (found,) = exe.run(loaded, {"x": ROWS}, outputs)
    assert np.array_equal(found, eager(model))


class AtTheEnd(nn.Module):
    """Does nothing in training."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x.softmax(-1)


def test_what_goes_through_in_training_need_not_in_tests() -> None:
    x = static.data("x", [None, 4])
    score = AtTheEnd()(x)
    test = static.default_main_program().clone(for_test=True)
    same, changed = run(test, x, score)
    assert np.array_equal(same, ROWS.numpy())
    assert np.array_equal(changed, ROWS.softmax(-1).numpy())


def test_modules_over_what_only_training_has_are_left_out_too() -> None:
    first, second = WithAuxiliaryHead(), Noisy()
    found = first(static.data("x", [None, 4]))
    over = second(torch.cat([found.aux, found.main], 1)).sum() * 2
    behind = AtTheEnd()(found.main)
    test = static.default_main_program().clone(for_test=True)
    assert np.array_equal(run(test, behind)[0], torch.from_numpy(eager(first)).softmax(-1))
    for fetch in (over, "noisy_0", "hidden"):
        with pytest.raises(ProgramError, match=r"test_evaluation.py:\d+: .*self\.training"):
            run(test, fetch)


def test_writes_into_what_a_model_returned_are_kept() -> None:
    model = Noisy()
    out = model(static.data("x", [None, 4]))
    row = out[0]
    row.add_(1.0)
    out.mul_(2.0)
    test = static.default_main_program().clone(for_test=True)
    theirs = eager(model)
    theirs[0] += 1
    assert np.array_equal(run(test, out)[0], theirs * 2)


def test_a_model_that_is_random_in_evaluation_mode_stays_random() -> None:
    class Sampled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

    out = Sampled()(static.data("x", [None, 4]))
    test = static.default_main_program().clone(for_test=True)
    torch.manual_seed(3)
    ours = run(test, out)[0]
    torch.manual_seed(3)
    assert np.array_equal(ours, F.dropout(ROWS, 0.5).numpy())


def test_variables_that_a_module_knows_by_itself_are_those_of_the_clone() -> None:
    x = static.data("x", [None, 4])
    first = Noisy()
    other = first(x)

    class Adds(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value + other if self.training else value - other

    with torch.no_grad():
        out = Adds()(x * 3)
    test = static.default_main_program().clone(for_test=True)
    assert np.array_equal(run(test, out)[0], ROWS.numpy() * 3 - eager(first))
    assert not test.find(out).meta["grad"]


def test_batch_norm_without_statistics_is_no_matter_of_training() -> None:
    x = static.data("x", [None, 4])
    out = F.batch_norm(x, None, None, training=True)
    test = static.default_main_program().clone(for_test=True)
    assert np.array_equal(run(test, out)[0], F.batch_norm(ROWS, None, None, None, None, True))


def test_what_cannot_be_recorded_in_evaluation_mode_is_refused_at_the_clone() -> None:
    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training or x.sum() > 0:
                return x * 2
            return x

    Decides()(static.data("x", [None, 4]))
    with pytest.raises(
        ProgramError, match=r"test_evaluation.py:\d+: decides_0 .*needs the numbers"
    ):
        static.default_main_program().clone(for_test=True)
    assert not hasattr(nn.Module, "training")


@pytest.mark.parametrize("method", ["forward", "features"])
def test_a_method_that_chooses_outside_of_a_call_is_refused_at_the_clone(method: str) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.features(x)

        def features(self, x: Tensor) -> Tensor:
            if self.training:
                x = x + torch.rand_like(x)
            return F.relu(x)

    getattr(Net(), method)(static.data("x", [None, 4]))
    with pytest.raises(ProgramError, match=r"test_evaluation.py:\d+: .*call the module itself"):
        static.default_main_program().clone(for_test=True)


def test_a_method_that_hands_its_mode_to_a_function_is_frozen() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(F.dropout(x, 0.5, self.training))

    out = Net().forward(static.data("x", [None, 4]))
    test = static.default_main_program().clone(for_test=True)
    assert np.array_equal(run(test, out)[0], ROWS.relu().numpy())


def drop_path(x: Tensor, share: float, training: bool) -> Tensor:
    """As libraries have it."""
    if share == 0 or not training:
        return x
    return x * x.new_empty(x.shape[0], 1).bernoulli_(1 - share) / (1 - share)


def handed_over(model: nn.Module, x: Tensor) -> Tensor:
    return drop_path(model(x), 0.5, model.training)


def multiplied(model: nn.Module, x: Tensor) -> Tensor:
    return model(x) * (2 if model.training else 1)


def branched(model: nn.Module, x: Tensor) -> Tensor:
    if not model.training:
        x = model(x)
    else:
        x = model(x)
        x *= torch.rand_like(x)
    return x


def through_a_method(model: nn.Module, x: Tensor) -> Tensor:
    class Net(nn.Module):
        def features(self, x: Tensor) -> Tensor:
            return drop_path(x, 0.5, self.training)

    return Net().features(model(x))


CHOOSING = [handed_over, multiplied, branched, through_a_method]


@pytest.mark.parametrize("choose", CHOOSING)
def test_a_script_that_chooses_by_the_mode_of_a_module_is_refused_at_the_clone(
    choose: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    choose(nn.Linear(4, 4), static.data("x", [None, 4]))
    with pytest.raises(ProgramError, match=r"test_evaluation.py:\d+: the mode of a module"):
        static.default_main_program().clone(for_test=True)


def test_the_lines_of_a_script_are_looked_at_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
model = nn.Linear(4, 4)
x = static.data("x", [None, 4])
y = drop_path(model(x), 0.5, model.training)
""")
    runpy.run_path(str(script), globals())
    with pytest.raises(ProgramError, match=r"script.py:4: the mode of a module"):
        static.default_main_program().clone(for_test=True)


def test_what_does_not_choose_or_can_be_frozen_is_cloned() -> None:
    model, x = nn.Linear(4, 4), static.data("x", [None, 4])
    assert model.training
    print(model.training)
    out = F.dropout(model(x), 0.5, model.training)
    if model.training:
        out = F.dropout(out, 0.5)
    out = drop_path(out, 0.0, model.training)
    out = drop_path(F.relu(out), 0.5, model.eval().training)
    test = static.default_main_program().clone(for_test=True)
    static.Executor().run(static.default_startup_program())
    expected = F.relu(model(ROWS)).detach().numpy()
    np.testing.assert_allclose(run(test, out)[0], expected, rtol=1e-5, atol=1e-6)


class Frozen(nn.Module):
    """Its batch norm stays as it was learned elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.bn(self.fc(x)))
        return x * 3 if self.chooses and self.training else x

    chooses = False

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.bn.eval()
        return self


class Doubtful(Frozen):
    """Dropout in tests as well, to see how sure it is; and a flag that its forward reads."""

    def __init__(self) -> None:
        self.scale = 1.0
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale

    def train(self, mode: bool = True) -> "Doubtful":
        super().train(mode)
        self.drop.train()
        self.scale = 1.0 if mode else 0.0
        return self


class Merging(Frozen):
    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if not mode:
            self.fc.weight.data.mul_(2)
        return self


@pytest.mark.parametrize("chooses", [False, True])
def test_a_batch_norm_that_its_model_keeps_frozen_stays_so(chooses: bool) -> None:
    model, main = Frozen(), static.default_main_program()
    model.chooses = chooses
    out = model(static.data("x", [None, 4]))
    test, exe = main.clone(for_test=True), static.Executor()
    static.Optimizer(torch.optim.SGD, lr=0.0).minimize(out.sum())
    exe.run(static.default_startup_program())
    feed = {"x": ROWS.numpy() * 9 + 3}
    exe.run(main, feed, [out])
    assert int(model.bn.num_batches_tracked or 0) == 0
    (found,) = exe.run(test, feed, [out])
    expected = model.eval()(torch.from_numpy(feed["x"])).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_a_model_does_when_it_enters_evaluation_mode_is_done_for_the_clone() -> None:
    model = Doubtful()
    out = model(static.data("x", [None, 4]))
    test = static.default_main_program().clone(for_test=True)
    assert (model.training, model.scale) == (True, 1.0), "the model itself stays as it was"
    static.Executor().run(static.default_startup_program())
    assert not run(test, out)[0].any()

    class Kept(Doubtful):
        def train(self, mode: bool = True) -> "Kept":
            super().train(mode)
            self.scale = 1.0
            return self

    static.reset()
    out = Kept()(static.data("x", [None, 4]))
    test = static.default_main_program().clone(for_test=True)
    static.Executor().run(static.default_startup_program())
    assert (run(test, out)[0] == 0).any(), "dropout was to stay"


def test_a_model_that_writes_into_parameters_when_it_enters_evaluation_mode_is_refused() -> None:
    model = Merging()
    before = model.fc.weight.detach().clone()
    model(static.data("x", [None, 4]))
    with pytest.raises(ProgramError, match="writes into parameters when the mode changes"):
        static.default_main_program().clone(for_test=True)
    assert torch.equal(model.fc.weight, before)
    assert model.training
