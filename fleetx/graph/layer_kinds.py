"""Layers of a model that can be cut over ranks, and the modules that run them.

They are recognised by types, names and shapes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile

from torch import nn

from fleetx.graph.meta import said
from fleetx.torch_internals import ConvBase, NormBase, parameters_of

KINDS = ("column", "row", "vocabulary", "sequence")
"""Ways to cut a layer: output features, input features, entries, or positions of activations."""

MLP = {
    "column": "fc1 c_fc up_proj gate_proj w1 w3 linear1 lin1 wi wi_0 wi_1 dense_h_to_4h",
    "row": "fc2 c_proj down_proj w2 linear2 lin2 wo dense_4h_to_h",
}
ATTENTION = {
    "column": "q_proj k_proj v_proj query key value wq wk wv to_q to_k to_v q_lin k_lin v_lin q k v"
    " qkv qkv_proj c_attn query_key_value",
    "row": "o_proj out_proj wo to_out c_proj out_lin o proj dense",
}
PLANS = {"": (), "mlp": (MLP,), "transformer": (MLP, ATTENTION)}
"""Plan -> tables of the last names of layers that are cut where one module has both kinds."""
PLANS_WITH_VOCABULARY = frozenset({"transformer"})

ADAPTED = "base_layer"
"""Under which name an adapter keeps the layer whose output it adds to; peft's."""

ALONE = (NormBase, nn.RNNBase, nn.MultiheadAttention)
"""Layers that are computed completely on each rank, wherever they are."""

Place = tuple[nn.Module, str]
"""A module, and a name under which it has a parameter."""
Layers = Mapping[str, nn.Module]
"""Path -> submodule."""
Cuts = dict[nn.Module, str]
"""Submodule -> one of ``KINDS``."""


def why_not(
    known: Layers, path: str, kind: str, degree: int, elsewhere: Collection[nn.Module] = ()
) -> str | None:
    """Why a submodule cannot be cut in that way, and what to do instead; None if it can.

    Weights of modules ``elsewhere`` are on other ranks.
    """
    module, parent = known[path], known[path.rpartition(".")[0]]
    if any(isinstance(m, nn.MultiheadAttention) for m in (module, parent)):
        return (
            "part of a MultiheadAttention, which keeps queries, keys and values in one tensor and "
            "never calls its layers; leave it whole, or write the attention with one nn.Linear for "
            "each of them."
        )
    if kind == "sequence":
        return _why_not_by_position(module)
    kinds = (nn.Linear, nn.Embedding) if kind == "vocabulary" else (nn.Linear,)
    lacks = module not in elsewhere and parameters_of(module).get("weight") is None
    if not isinstance(module, kinds) or lacks:
        names = " or ".join(f"nn.{cls.__name__}" for cls in kinds)
        return (
            f"a {type(module).__name__}, and {kind!r} cuts {names} with a weight of its own; "
            "choose a pattern that matches such layers alone."
        )
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse):
        return "an Embedding with max_norm or sparse, which needs the whole table; set neither."
    size, what = _size(module, kind)
    if size % degree == 0:
        return None
    return (
        f"whose {size} {what} cannot be dealt out evenly to {degree} ranks; make them "
        f"{size + degree - size % degree}, or leave the layer out."
    )


def _why_not_by_position(module: nn.Module) -> str | None:
    mixing = (nn.Linear, nn.Embedding, nn.RNNBase, ConvBase, NormBase)
    if next(module.children(), None) is None and not isinstance(module, mixing):
        return None
    return (
        f"a {type(module).__name__}, and 'sequence' takes single layers that treat each position "
        "by itself, such as norms and dropouts; name those alone."
    )


def _size(module: nn.Linear | nn.Embedding, kind: str) -> tuple[int, str]:
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, "entries"
    if kind == "row":
        return module.in_features, "input features"
    return module.out_features, "output features"


def planned(known: Layers, plan: str) -> Iterator[tuple[str, str]]:
    """What a plan would cut, and how: pairs of layers in one module, and the vocabulary."""
    for path, module in known.items() if plan else ():
        prefix = f"{path}." if path else ""
        children = dict(module.named_children())
        layers = {name: path for name, child in children.items() if (path := _linear(name, child))}
        pairs = [
            {kind: layers.keys() & names.split() for kind, names in table.items()}
            for table in PLANS[plan]
        ]
        for pair in filter(lambda pair: all(pair.values()), pairs):
            found = ((name, kind) for kind in pair for name in sorted(pair[kind]))
            yield from ((prefix + layers[name], kind) for name, kind in found)
        if isinstance(module, nn.Sequential):
            yield from ((prefix + name, kind) for name, kind in _one_after_the_other(children))
    if plan in PLANS_WITH_VOCABULARY:
        yield from _words(known)


def _linear(name: str, child: nn.Module) -> str:
    """The path of a child that is a linear layer, or of the only one that it adds to or holds."""
    if isinstance(child, nn.Linear):
        return name
    if isinstance(child, nn.Sequential | nn.ModuleList):  # with a dropout, as in diffusers
        inside = [at for at in child.named_children() if next(at[1].parameters(), None) is not None]
        return f"{name}.{_linear(*inside[0])}" if len(inside) == 1 and _linear(*inside[0]) else ""
    return f"{name}.{ADAPTED}" if isinstance(getattr(child, ADAPTED, None), nn.Linear) else ""


def _one_after_the_other(children: Layers) -> Iterator[tuple[str, str]]:
    """Pairs of linear layers with nothing but activations between them."""
    waiting = None
    for name, child in children.items():
        if not isinstance(child, nn.Linear):
            waiting = waiting if next(child.parameters(), None) is None else None
        elif waiting is None:
            waiting = name
        else:
            yield from ((waiting, "column"), (name, "row"))
            waiting = None


def _words(known: Layers) -> Iterator[tuple[str, str]]:
    """Embeddings and the linear layers that lead back to their entries."""
    tables = {path: m for path, m in known.items() if isinstance(m, nn.Embedding)}
    heads = {path: m for path, m in known.items() if isinstance(m, nn.Linear)}
    for path, table in tables.items():
        shape = table.num_embeddings, table.embedding_dim
        if found := [h for h, m in heads.items() if (m.out_features, m.in_features) == shape]:
            yield from ((word, "vocabulary") for word in (path, *found))


def cut_dim(kind: str | None, name: str) -> int | None:
    """The dimension along which a parameter of a layer is cut; None if each rank has all of it."""
    if name not in {"weight", "bias"} or kind in {None, "sequence"}:
        return None
    if kind == "row":
        return 1 if name == "weight" else None
    return 0


def places_of_parameters(model: nn.Module) -> dict[str, list[Place]]:
    """First name of each parameter -> all its places: one that is shared has several."""
    first, places = dict[int, str](), dict[str, list[Place]]()
    for path, owner in model.named_modules():
        for name, parameter in parameters_of(owner).items():
            if parameter is not None:
                full = first.setdefault(id(parameter), f"{path}.{name}" if path else name)
                places.setdefault(full, []).append((owner, name))
    return places


def regions(model: nn.Module, cuts: Cuts, opened: Collection[nn.Module] = ()) -> set[nn.Module]:
    """The modules in which tensors are spread, apart from that of the positions.

    Modules that are ``opened`` are never called themselves.
    """
    paths = paths_of(model)
    return {
        _adapter(model, paths[module])
        if kind == "vocabulary"
        else _caller(model, paths[module], opened)
        for module, kind in cuts.items()
        if kind != "sequence"
    }


def _adapter(model: nn.Module, path: str) -> nn.Module:
    """A layer, or the adapter around it, which may read its weight, as peft's trainable tokens."""
    owner, _, name = path.rpartition(".")
    while name == ADAPTED and runs(model.get_submodule(owner)):
        path = owner
        owner, _, name = path.rpartition(".")
    return model.get_submodule(path)


def around_positions(
    model: nn.Module, cuts: Cuts, opened: Collection[nn.Module] = ()
) -> set[nn.Module]:
    """The smallest module around all that are cut by position, if any is."""
    paths = paths_of(model)
    parts = [paths[module].split(".")[:-1] for module, kind in cuts.items() if kind == "sequence"]
    if not parts:
        return set()
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))
    return {_caller(model, ".".join([*(level[0] for level in levels), ""]), opened)}


def _caller(model: nn.Module, path: str, opened: Collection[nn.Module]) -> nn.Module:
    """The nearest module above that is called; a program says which of its modules are."""
    calls = said(model).get("calls")
    module = model
    while path:
        path = path.rpartition(".")[0]
        module = model.get_submodule(path)
        called = calls is None or _is_called(path, calls)
        adapts = hasattr(module, ADAPTED)  # what it returns goes where its layer's would
        if called and runs(module) and module not in opened and not adapts:
            break
    return module


def _is_called(path: str, calls: Iterable[str]) -> bool:
    return any(path == called or path.startswith(f"{called}.") for called in calls)


def runs(module: nn.Module) -> bool:
    """Whether a module has a forward: lists and dicts of modules have none."""
    return type(module).forward is not nn.Module.forward


def paths_of(model: nn.Module) -> dict[nn.Module, str]:
    """Submodule -> its first path."""
    return {module: path for path, module in model.named_modules()}


def with_descendants(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """The modules and all that is in them."""
    return {descendant for module in modules for descendant in module.modules()}
